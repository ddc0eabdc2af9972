"""Rules of a database, as objects that programs list and change at run time."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from activedb.database._rule_texts import RuleTexts, check_streams, find_reads, is_on
from activedb.errors import DefinitionError, RuleSyntaxError, TransactionStateError
from activedb.events import Query
from activedb.firing import DurableDetectors, storable
from activedb.functions import error_text
from activedb.rules import (
    CHANGEABLE,
    KEPT,
    Action,
    Catalog,
    FunctionNames,
    RegisteredRule,
    Rule,
    RuleOptions,
    Sharing,
    as_kept,
    check_columns,
    fingerprint,
    next_version,
    quarantined,
    redefined,
    registered,
    rules_from_data,
    rules_from_file,
)
from activedb.spelling import check_options, did_you_mean
from activedb.store.journals import RuleRows
from activedb.store.sql import Row, is_storable
from activedb.streams import StreamDeclaration
from activedb.transactions import (
    Forest,
    Transaction,
    TransactionNode,
    begin_subtransaction,
    current_transaction,
)
from activedb.trust import check_trusted
from coupling import Coupling, OrderCycle, check_order

if TYPE_CHECKING:
    from activedb.analysis import Analysis

__all__ = ["Rules"]

T = TypeVar("T")


class Rules:
    """Rule catalog of one database: ``db.rules``.

    A change made in a transaction is visible to that transaction and its inferiors at once, and to
    all other transactions when its top-level transaction commits. The abort of the (sub)transaction
    that made the change undoes it. Outside a transaction, a change runs in a new one. Changing a
    rule locks its row until the hierarchy ends, so other transactions cannot change the same rule
    meanwhile.

    Other processes see a change when they connect, or `refresh`.

    Iteration yields the rules of `list`; ``len(rules)``, ``name in rules`` and ``rules[name]`` work
    on the same rules.
    """

    def __init__(
        self,
        catalog: Catalog,
        forest: Forest,
        rows: RuleRows,
        declared_tables: Callable[[], Mapping[str, Any]],
        kept: DurableDetectors,
        *,
        streams: Mapping[str, StreamDeclaration],
        raising: Callable[..., object],
        checks: tuple[Callable[[Rule], object], ...],
    ):
        self._catalog = catalog
        self._forest = forest
        self._kept = kept
        self._sharing = Sharing()
        self._rows = rows
        self._declared_tables = declared_tables
        self._checks = checks
        self._streams = streams
        self._texts = RuleTexts(self, catalog, streams, raising)
        # Rows read when the database was opened, for the rules that code defines later.
        self._persisted: dict[str, dict[str, Any]] = rows.read()

    # -- reading ---------------------------------------------------------------------------

    def list(self) -> builtins.list[RegisteredRule]:
        """Return all rules visible to the transaction on this thread, in order of definition."""
        return self._catalog.entries(self._current())

    def __iter__(self) -> Iterator[RegisteredRule]:
        return iter(self.list())

    def __len__(self) -> int:
        return len(self.list())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._catalog.entry(name, self._current()) is not None

    def __getitem__(self, name: str) -> RegisteredRule:
        """Return the rule with this name.

        Raises
        ------
        DefinitionError
            If there is none; the message suggests similar names.
        """
        return self._known(self._current(), name)

    # -- changing --------------------------------------------------------------------------

    def create(
        self,
        action: Action,
        *,
        enabled: bool = True,
        **options: Unpack[RuleOptions],
    ) -> RegisteredRule:
        """Create a rule.

        Parameters
        ----------
        action : callable ``(t, o)``
            Action of the rule.
        enabled : bool, default True
            Whether events can trigger the rule, unless an earlier run has left it in another state.
        **options
            Options of the rule; see `RuleOptions`.

        Returns
        -------
        RegisteredRule
            The new rule.

        Raises
        ------
        RuleSignatureError
            If action or condition cannot be called as ``fn(t, o)`` with the parameters it takes.
        DefinitionError
            If the definition is invalid in another way, the name is taken, a table or stream of the
            event does not exist, or a declared table does not have a column of `reads` or `writes`.
        """
        check_options(options, RuleOptions, f"rule {options.get('name', '')}".rstrip())
        rule = Rule.define(action, **options, find_reads=find_reads)

        def create(t: TransactionNode) -> RegisteredRule:
            self._check_names([rule])
            self._check_tables(t, [rule])
            return self._create(t, rule, enabled=enabled)

        return self._do(create)

    def define(self, rule: Rule) -> RegisteredRule:
        """Register a rule that code defines, and adopt its stored state.

        If the definition is the one of an earlier run, no transaction is needed: the rule keeps its
        version, whether it is enabled, and its coupling, priority and on_abort as last changed. A
        different definition makes a new version. The tables and streams of its event need not exist
        yet.

        Raises
        ------
        DefinitionError
            If the name is taken, a query's stream does not have an event of its pattern, or a
            declared table does not have a column of `reads` or `writes`.
        """
        self._check_names([rule], may_follow=True)
        if self._current() is None:
            self._check_order(None, rule)
            row = self._persisted.pop(rule.name, None)
            if row is not None and row["fingerprint"] == fingerprint(rule):
                entry = as_kept(self._registered(rule, version=0, enabled=True), row)
                self._kept.adopt(entry.subscription)
                if self._catalog.add_committed(entry):
                    return entry
        return self._do(lambda t: self._create(t, rule, enabled=True))

    def enable(self, name: str) -> RegisteredRule:
        """Let events trigger a rule again, from now on; return its new version.

        This also ends a quarantine, so that the rule is run again. The detector of a composite
        event knows nothing of the events raised while the rule was disabled.

        Parameters
        ----------
        name : str
            Name of the rule.

        Returns
        -------
        RegisteredRule
            The new version, or the present one if the rule was enabled and not in quarantine.

        Raises
        ------
        DefinitionError
            If there is no such rule, or a table of its event has been dropped.
        """

        def enabled(t: TransactionNode, entry: RegisteredRule) -> RegisteredRule:
            if not entry.enabled:
                self._check_tables(t, [entry.rule])
            return next_version(entry, entry.rule, enabled=True)

        return self._do(lambda t: self._change(t, name, enabled))

    def disable(self, name: str) -> RegisteredRule:
        """Keep events from triggering a rule; firings that are already triggered still run.

        Parameters
        ----------
        name : str
            Name of the rule.

        Returns
        -------
        RegisteredRule
            The new version, or the present one if the rule was disabled.

        Raises
        ------
        DefinitionError
            If there is no such rule.
        """
        return self._do(
            lambda t: self._change(t, name, lambda _, e: next_version(e, e.rule, enabled=False))
        )

    def switch(self, name: str, *, enabled: bool) -> int:
        """Enable or disable a rule that other programs may have defined; return its version.

        The call changes the table of rules. Other programs apply the change when they connect, or
        `refresh`.

        Parameters
        ----------
        name : str
            Name of the rule.
        enabled : bool
            True to enable the rule, False to disable it.

        Returns
        -------
        int
            Version of the rule after the call.

        Raises
        ------
        DefinitionError
            If no program has defined such a rule; also as for `enable`, if the rule is defined
            here.
        """

        def switch(t: TransactionNode) -> int:
            row = self._locked(t, name)
            if name in self:
                return (self.enable(name) if enabled else self.disable(name)).version
            if row is None:
                known = [*self._rows.read(), *(entry.name for entry in self)]
                raise DefinitionError(
                    f"no program has defined a rule named {name!r} over this database; "
                    f"{did_you_mean(name, known)}"
                )
            if row["enabled"] == enabled and not (enabled and row["quarantine"]):
                return int(row["version"])
            values = {"enabled": enabled, "version": row["version"] + 1}
            values["changed_at"] = self._forest.clock.now()
            if enabled:
                values["quarantine"] = None
            return int(Transaction(t).update(self._rows.table, name, **values)["version"])

        return self._do(switch)

    def quarantine(self, name: str, reason: str) -> RegisteredRule:
        """Stop running a rule; each event that triggers it becomes a dead letter with the reason.

        Rules that keep failing alone are quarantined automatically (``quarantine_after``).
        `enable`, or a different definition, ends the quarantine. A rule whose failure aborts its
        triggering transaction is not affected.

        Parameters
        ----------
        name : str
            Name of the rule.
        reason : str
            Reason for the dead letters.

        Returns
        -------
        RegisteredRule
            The new version, or the present one if the rule was in quarantine.

        Raises
        ------
        DefinitionError
            If there is no such rule.
        """
        return self._do(lambda t: self._change(t, name, lambda _, e: quarantined(e, reason)))

    def change(self, name: str, /, **fields: Any) -> RegisteredRule:
        """Change some fields of a rule, such as on, action, when, coupling or priority.

        Every parameter of `create` can be changed except name, enabled, reads, writes and raises.

        Changes of coupling, priority and on_abort survive a restart as long as the definition in
        code is the same. Other changes last until this process ends, because functions cannot be
        stored.

        Parameters
        ----------
        name : str
            Name of the rule.
        **fields
            New values by field.

        Returns
        -------
        RegisteredRule
            The new version, or the present one if nothing is different.

        Raises
        ------
        RuleSignatureError
            If action or condition cannot be called as ``fn(t, o)`` with the parameters it takes.
        DefinitionError
            If there is no such rule or field, or the new definition is invalid. The rule is
            unchanged.
        """
        for field in fields:
            if field not in CHANGEABLE:
                raise DefinitionError(
                    f"rule {name}: {field!r} is nothing that can be changed; "
                    f"{did_you_mean(field, CHANGEABLE)}"
                )

        def changed(t: TransactionNode, entry: RegisteredRule) -> RegisteredRule:
            rule = redefined(entry.rule, fields, find_reads)
            self._check_order(t, rule)
            if rule.on is not entry.rule.on:
                self._check_names([rule])
                self._check_tables(t, [rule])
            same_text = KEPT.issuperset(fields)
            return next_version(
                entry, rule, text=entry.fingerprint if same_text else fingerprint(rule)
            )

        return self._do(lambda t: self._change(t, name, changed))

    def delete(self, name: str) -> None:
        """Delete a rule; firings that are already triggered still run.

        Code that defines the rule again, for example after a restart, creates it again. To keep
        such a rule off, `disable` it.

        Parameters
        ----------
        name : str
            Name of the rule.

        Raises
        ------
        DefinitionError
            If there is no such rule.
        """

        def delete(t: TransactionNode) -> None:
            self._known(t, name)
            row = self._locked(t, name)
            self._known(t, name)
            if row is not None:
                Transaction(t).delete(self._rows.table, name)
            self._catalog.put(t, name, None)

        self._do(delete)

    def refresh(self) -> None:
        """Apply the changes that other processes have committed.

        This covers whether rules are enabled, their coupling, priority and on_abort, versions, and
        deletions. If another process has a different definition of a rule, only its version and
        whether it is enabled are applied. Rules that only other processes have defined stay
        unknown, because their functions are not available. One round trip.
        """

        def refresh(t: TransactionNode) -> None:
            names = [entry.name for entry in self._catalog.entries(t)]
            rows = Transaction(t).get_many(self._rows.table, names, for_update=True)
            for name, row in rows.items():
                self._catalog.await_others(t, name)
                entry = self._catalog.entry(name, t)
                if entry is not None:
                    kept = None if row is None else as_kept(entry, row)
                    if kept is not entry:
                        self._catalog.put(t, name, kept)

        self._do(refresh)

    # -- from data -------------------------------------------------------------------------

    def load(
        self,
        rules: Any,
        *,
        modules: Iterable[ModuleType] | Mapping[str, ModuleType] = (),
        allow: Iterable[str] = (),
    ) -> builtins.list[RegisteredRule]:
        """Create rules from data, all of them or none.

        Parameters
        ----------
        rules : list of mappings, or mapping of str to mapping
            Rules with the fields ``name``, ``on``, ``do``, and optionally ``when``, ``coupling``,
            ``priority``, ``on_abort``, ``params``, ``set_oriented``, ``condition_action``,
            ``after``, ``reads``, ``writes``, ``raises``, ``partials_max``, ``on_full``,
            ``matches_max``, ``on_many``, ``on_uncertain``, ``enabled``.

            Functions are named ``"module:function"``, and tables are those of ``db.metadata``.

            Events are written as ``{"event": "EXIT"}``,
            ``{"updated": "accounts", "columns": ["balance"]}``, ``{"any_of": […]}``, or
            ``{"seq": […], "same": […], "within": seconds}``, which may contain ``{"not": {…}}``;
            docs/rules.md lists the others.
        modules : iterable of modules, or mapping of str to module
            Modules in which functions are looked up.
        allow : iterable of str
            Names of further modules that may be imported to look up functions. No other module is
            imported, and no text is evaluated.

        Returns
        -------
        list of RegisteredRule
            The new rules.

        Raises
        ------
        DefinitionError
            If a rule is invalid; the message names it. No rule is created then.
        """
        found = rules_from_data(
            rules,
            functions=FunctionNames(modules, allow),
            table=self._declared_table,
            find_reads=find_reads,
        )

        for rule, _ in found:
            self._check_name(rule)

        def load(t: TransactionNode) -> builtins.list[RegisteredRule]:
            Transaction(t).get_many(
                self._rows.table, [rule.name for rule, _ in found], for_update=True
            )
            self._check_names(rule for rule, _ in found)
            self._check_tables(t, [rule for rule, _ in found])
            return [self._create(t, rule, enabled=enabled) for rule, enabled in found]

        t = self._current()
        if t is None:
            return self._forest.run(load)
        if t.condition_of is not None:
            t.refuse_write("a change of a rule")
        with begin_subtransaction(t) as s:
            return load(s)

    def load_file(
        self,
        path: str | Path,
        *,
        modules: Iterable[ModuleType] | Mapping[str, ModuleType] = (),
        allow: Iterable[str] = (),
        any_stream: bool = False,
    ) -> builtins.list[RegisteredRule]:
        """Create the rules of a YAML file, all of them or none; see `load`.

        If the file's name ends with ``.rules`` or ``.sql``, it is a text in the rule language; see
        `load_text`.

        Parameters
        ----------
        path : str or Path
            Path of the file.
        modules, allow
            As for `load`.
        any_stream : bool
            For a text in the rule language: as for `load_text`.

        Returns
        -------
        list of RegisteredRule
            The new rules; for a text in the rule language as for `load_text`.

        Raises
        ------
        DefinitionError
            If the file cannot be read, or a rule is invalid; the message names it.
        RuleSyntaxError
            If a text in the rule language has a syntax error.
        UntrustedFile
            If every account may write the file.
        """
        if Path(path).suffix.lower() in (".rules", ".sql"):
            check_trusted(path)
            try:
                text = Path(path).read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise DefinitionError(
                    f"the rules in {path} cannot be read: {error_text(error)}"
                ) from error
            try:
                return self.load_text(text, modules=modules, allow=allow, any_stream=any_stream)
            except RuleSyntaxError as error:
                raise error.of_file(path) from None
        return self.load(rules_from_file(path), modules=modules, allow=allow)

    # -- from texts in the rule language -----------------------------------------------------

    def load_text(
        self,
        text: str,
        *,
        modules: Iterable[ModuleType] | Mapping[str, ModuleType] = (),
        allow: Iterable[str] = (),
        any_stream: bool = False,
    ) -> builtins.list[RegisteredRule]:
        """Execute the statements of a text in the rule language, all of them or none.

        A statement that creates an existing rule or query with the same definition has no effect. A
        different definition needs ``OR REPLACE``.

        Parameters
        ----------
        text : str
            Text such as ``CREATE QUERY …; CREATE RULE …; …`` (docs/language.md). Tables are those
            of ``db.metadata``.
        modules, allow
            Modules in which functions of ``CALL`` are looked up, as for `load`.
        any_stream : bool, default False
            True to accept any name of a stream, for programs that store rules without running them:
            only the program that runs a rule declares its stream.

        Returns
        -------
        list of RegisteredRule
            The rules that the text creates, replaces or alters.

        Raises
        ------
        RuleSyntaxError
            If the text has a syntax error; with line, column and a caret.
        DefinitionError
            If a statement cannot be executed; the message has its line.
        """
        functions = FunctionNames(modules, allow)
        t = self._current()
        if t is None:
            return self._forest.run(
                lambda t: self._texts.load(t, text, functions, any_stream=any_stream)
            )
        if t.condition_of is not None:
            t.refuse_write("a change of a rule")
        with begin_subtransaction(t) as s:
            return self._texts.load(s, text, functions, any_stream=any_stream)

    @property
    def queries(self) -> Mapping[str, Query]:
        """Queries of texts visible to the transaction on this thread, by name."""
        return self._catalog.queries_seen(self._current())

    @property
    def declared_tables(self) -> Mapping[str, Any]:
        """Declared tables, by full name."""
        return self._declared_tables()

    def lock(self, t: TransactionNode, names: builtins.list[str]) -> None:
        """Lock the rows of rules until the hierarchy ends, always in the same order."""
        Transaction(t).get_many(self._rows.table, sorted(set(names)), for_update=True)

    def on(self, t: TransactionNode, query: str) -> builtins.list[RegisteredRule]:
        """Return the rules whose event contains the query of this name; O(rules)."""
        return [entry for entry in self._catalog.entries(t) if is_on(entry.on, query)]

    def put(
        self, t: TransactionNode, rule: Rule, *, replacing: bool, any_stream: bool = False
    ) -> RegisteredRule:
        """Create a rule in `t`, or replace the rule of its name; an equal rule stays as it is.

        Raises
        ------
        DefinitionError
            If there is a different rule of that name, and `replacing` is False.
        """
        if not any_stream:
            self._check_names([rule])
        self._check_tables(t, [rule])
        entry = self._catalog.entry(rule.name, t)
        if entry is None:
            return self._create(t, rule, enabled=True)
        text = fingerprint(rule)
        if text == entry.fingerprint:
            return entry
        if not replacing:
            raise DefinitionError(
                f"there is a rule named {rule.name!r}, and it is another one: write CREATE OR "
                f"REPLACE RULE"
            )
        self._check_order(t, rule)
        return self._change(t, rule.name, lambda _, e: next_version(e, rule, text=text))

    # -- analysing -------------------------------------------------------------------------

    def analyze(self) -> Analysis:
        """Analyse without running them whether the enabled rules terminate and are confluent.

        The effects of a rule are inferred from its source unless ``reads=``, ``writes=`` and
        ``raises=`` declare them. See `activedb.analysis.analyze`.
        """
        from activedb.analysis import analyze  # imports networkx, which takes 0.1 s

        return analyze(entry.rule for entry in self if entry.enabled)

    # -- ignoring --------------------------------------------------------------------------

    @contextmanager
    def ignoring(self, *names: str) -> Iterator[None]:
        """Keep events from triggering some rules: ``with db.rules.ignoring("rule", …):``.

        Use the block inside a transaction. It affects the events that the transaction open on this
        thread, and its inferiors, raise inside the block. The detectors of the rules do not receive
        these events either.

        Parameters
        ----------
        *names : str
            Names of the rules to ignore.

        Raises
        ------
        DefinitionError
            If there is no such rule.
        TransactionStateError
            If no transaction of this database is open on this thread.
        """
        t = self._current()
        if t is None:
            raise TransactionStateError(
                "ignoring() is about a transaction: open one on this thread, and write "
                "`with db.rules.ignoring(…):` inside it"
            )
        for name in names:
            self._known(t, name)
        token = self._catalog.ignore(t, frozenset(names))
        try:
            yield
        finally:
            self._catalog.stop_ignoring(t, token)

    # -- inside ----------------------------------------------------------------------------

    def _current(self) -> TransactionNode | None:
        t = current_transaction()
        return t if t is not None and t.forest is self._forest else None

    def _do(self, work: Callable[[TransactionNode], T]) -> T:
        t = self._current()
        if t is None:
            return self._forest.run(work)
        if t.condition_of is not None:
            t.refuse_write("a change of a rule")
        return work(t)

    def _known(self, t: TransactionNode | None, name: str) -> RegisteredRule:
        entry = self._catalog.entry(name, t) if isinstance(name, str) else None
        if entry is None:
            known = [entry.name for entry in self._catalog.entries(t)]
            raise DefinitionError(f"there is no rule named {name!r}; {did_you_mean(name, known)}")
        return entry

    def _locked(self, t: TransactionNode, name: str) -> Row | None:
        """Return a rule's row, locked until the hierarchy ends; the catalog is then up to date."""
        row = Transaction(t).get(self._rows.table, name, for_update=True)
        self._catalog.await_others(t, name)
        return row

    def _create(self, t: TransactionNode, rule: Rule, *, enabled: bool) -> RegisteredRule:
        self._check_name(rule)
        row = self._locked(t, rule.name)
        if self._catalog.entry(rule.name, t) is not None:
            raise DefinitionError(
                f"there is a rule named {rule.name!r} already; pass another name="
            )
        self._check_order(t, rule)
        version = 1 if row is None else row["version"] + 1
        enabled = row["enabled"] if row else enabled
        entry = self._registered(rule, version=version, enabled=enabled)
        if row is not None and row["fingerprint"] == entry.fingerprint:
            entry = as_kept(entry, row)
        else:
            self._write(t, entry, row)
        self._kept.adopt(entry.subscription)
        self._catalog.put(t, rule.name, entry)
        self._persisted.pop(rule.name, None)
        return entry

    def _registered(self, rule: Rule, *, version: int, enabled: bool) -> RegisteredRule:
        return registered(
            rule,
            version=version,
            enabled=enabled,
            partials_max=self._forest.settings.partials_max,
            sharing=self._sharing,
        )

    def _change(
        self,
        t: TransactionNode,
        name: str,
        change: Callable[[TransactionNode, RegisteredRule], RegisteredRule],
    ) -> RegisteredRule:
        self._known(t, name)
        row = self._locked(t, name)
        before = self._known(t, name)
        kept = before if row is None else as_kept(before, row)
        entry = change(t, kept)
        if entry is not kept:
            self._write(t, entry, row)
        if entry is not before:
            self._catalog.put(t, name, entry)
        return entry

    def _write(self, t: TransactionNode, entry: RegisteredRule, row: Row | None) -> None:
        values = {
            "version": entry.version,
            "enabled": entry.enabled,
            "coupling": str(entry.coupling),
            "priority": entry.priority,
            "on_abort": str(entry.on_abort),
            "event": storable(repr(entry.on)),
            "fingerprint": entry.fingerprint,
            "changed_at": self._forest.clock.now(),
            "quarantine": entry.quarantine,
        }
        if row is None:
            Transaction(t).insert(self._rows.table, {"name": entry.name, **values})
        else:
            Transaction(t).update(self._rows.table, entry.name, **values)

    def _check_order(self, t: TransactionNode | None, rule: Rule) -> None:
        """Refuse an order that cannot be kept.

        A rule may not transitively come after itself, and only a set-oriented immediate rule may
        come after another one. O(rules) if the rule names any, or is set-oriented.
        """
        if not (rule.after or rule.set_oriented):
            return
        rules = {entry.name: entry.rule for entry in self._catalog.entries(t)}
        rules[rule.name] = rule
        immediate = {name: r for name, r in rules.items() if r.coupling is Coupling.IMMEDIATE}
        for name, each in immediate.items():
            for other in () if each.set_oriented else each.after:
                if other in immediate and immediate[other].set_oriented:
                    raise DefinitionError(
                        f"rule {name}: after= names the set-oriented rule {other}, which runs "
                        f"after all that is not; leave it out, or make both set-oriented"
                    )
        after = {name: each.after for name, each in rules.items()}
        try:
            check_order(after)
        except OrderCycle as cycle:
            raise DefinitionError(
                f"rule {rule.name}: after= makes rules wait for each other: {cycle}; leave one of "
                f"these out"
            ) from None

    def _check_name(self, rule: Rule) -> None:
        """Refuse a name that a database cannot keep."""
        if len(rule.name) > self._rows.name_length_max or not is_storable(rule.name):
            raise DefinitionError(
                f"rule {rule.name[:50]!r}…: a name has at most {self._rows.name_length_max} "
                f"characters, and no NUL or half of a surrogate pair"
            )

    def _check_names(self, rules: Iterable[Rule], *, may_follow: bool = False) -> None:
        """Refuse rules that name streams, events of streams or columns that do not exist."""
        for rule in rules:
            check_streams(rule, self._streams, may_follow=may_follow)
            check_columns(rule.name, rule.declared, self._declared_tables())
            for check in self._checks:
                check(rule)

    def _check_tables(self, t: TransactionNode, rules: Iterable[Rule]) -> None:
        """Refuse rules on tables that do not exist."""
        bound = {
            name: rule.name
            for rule in rules
            for kind, name in rule.on.keys
            if kind in ("insert", "update", "delete")
        }
        missing = t.hierarchy.look_up(lambda session: self._rows.missing_tables(session, bound))
        if missing:
            raise DefinitionError(
                f"rule {bound[missing[0]]}: the database has no table {missing[0]}; it has been "
                f"dropped, or db.create_all() is still to come"
            )

    def _declared_table(self, name: Any) -> Any:
        tables = self._declared_tables()
        table = tables.get(name) if isinstance(name, str) else None
        if table is None:
            raise DefinitionError(f"no table {name!r} is declared; {did_you_mean(name, tables)}")
        return table
