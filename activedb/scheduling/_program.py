"""Programs: the s-transactions that a stream's events trigger, and their outputs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import FunctionType
from typing import Any, TypeVar

from activedb.errors import DefinitionError
from activedb.events import Expression, Occurrence
from activedb.function_sources import Bindings, FunctionSource, source_of
from activedb.functions import checked_function, checked_result
from activedb.scheduling._access import Access, View
from activedb.scheduling._expressions import AccessExpressions, Params, Refs, Unclear
from activedb.scheduling._operations import Operation, Outcome
from activedb.scheduling._rules import OnUncertain, ProgramRule
from activedb.scheduling._tables import Computed, Parameter, Range, Ref, SharedTable

__all__ = ["Program", "derived"]


StateAccess = Callable[[Params, Access], object]
RuleRefs = Callable[[Occurrence], Iterable[Ref]]
F = TypeVar("F", bound=Callable[..., Any])


class Program:
    """Operator over shared tables, in three steps (Mao et al., section 7.1).

    *Pre-processing* turns an event into parameters, or drops it; the *state access* of the event's
    type turns the parameters into operations; *post-processing* turns their results into an output.

    Parameters
    ----------
    name : str
    tables : iterable of SharedTable
        All tables that it may access.

    Attributes
    ----------
    name, tables
        As given.
    types : tuple of str
        Event types with a state access, in the order of definition.
    rules : list of ProgramRule

    Examples
    --------
    >>> import operator
    >>> accounts = SharedTable("accounts", key=str, initial=0)
    >>> bank = Program("bank", [accounts])
    >>> @bank.on("DEPOSIT")
    ... def deposit(e, access):
    ...     access.write(accounts[e["account"]], operator.add, e["amount"])
    >>> @bank.transaction("CLOSE", reads=lambda e: [accounts[e["account"]]])
    ... def close(t, e):
    ...     return t.read(accounts[e["account"]])
    """

    def __init__(self, name: str, tables: Iterable[SharedTable]):
        if not isinstance(name, str) or not name:
            raise DefinitionError(f"a program needs a name, a non-empty string, not {name!r}")
        self.name = name
        self.tables = tuple(tables)
        for table in self.tables:
            if not isinstance(table, SharedTable):
                raise DefinitionError(f"program {name}: {table!r} is not a SharedTable")
        self.rules: list[ProgramRule] = []
        self.types: tuple[str, ...] = ()
        self._accesses: dict[str, StateAccess] = {}
        self._pre: Callable[[str, Params], Params | None] | None = None
        self._post: Callable[[str, Params, Outcome], Any] | None = None

    # -- definition ------------------------------------------------------------------------------

    def on(self, type_: str) -> Callable[[F], F]:
        """Define the state access for events of a type: ``function(e, access)``.

        `e` is the mapping of parameters, `access` an `Access`. The function must depend on nothing
        but `e`. If it only passes values of `e` on, without inspecting them, it is called once with
        `Parameter` objects instead, and the program can run in columns.
        """

        def define(function: F) -> F:
            checked_function(function, f"the state access of program {self.name} for {type_}")
            self._define(type_, function)
            return function

        return define

    def transaction(
        self,
        type_: str,
        *,
        reads: Refs | None = None,
        writes: Refs | None = None,
    ) -> Callable[[F], F]:
        """Define the short form for events of a type: ``function(t, e)``, see `View`.

        Parameters
        ----------
        type_ : str
        reads, writes : callable, optional
            ``reads(e)`` gives the references that it may at most read, `writes` those that it may
            write (and read). If neither is given, they are derived from the function's source: a
            key that does not follow from `e` alone stands for the whole table.
        """

        def define(function: F) -> F:
            whose = f"of program {self.name} for {type_}"
            checked_function(function, f"the transaction {whose}")
            for refs, what in ((reads, "reads="), (writes, "writes=")):
                if refs is not None:
                    checked_function(refs, f"{what} {whose}", may_yield=True)
            sets = (reads, writes)
            if reads is None and writes is None:
                sets = derived(function, self.tables)

            def access(e: Params, access: Access) -> None:
                may_read, may_write = (() if refs is None else tuple(refs(e)) for refs in sets)
                access.body(function, e, may_read, may_write)

            access.__name__ = getattr(function, "__name__", "transaction")
            self._define(type_, access)
            return function

        return define

    def rule(
        self,
        expression: Expression,
        *,
        reads: RuleRefs | None = None,
        writes: RuleRefs | None = None,
        when: Callable[[View, Occurrence], Any] | None = None,
        name: str | None = None,
        priority: int = 0,
        on_uncertain: OnUncertain = "certain",
    ) -> Callable[[F], F]:
        """Define a rule: an action, ``function(t, o)``, that a pattern triggers.

        An event that completes matches triggers one s-transaction. It consists of the event's own
        state access, if its type has one, and of the conditions and actions of all triggered rules:
        higher priority first, then in the order of definition. Each sees the writes of those before
        it. Matches that time alone completes get an s-transaction of that time. Rules do not see
        events that pre-processing drops; they see all others as they came.

        Parameters
        ----------
        expression : Expression
            The pattern; a predicate on shared tables belongs in `when`.
        reads, writes : callable, optional
            Functions of an occurrence. ``reads(o)`` gives the references that condition and action
            may at most read, `writes` those that the action may write, and both may read. If
            neither is given, both are all tables.
        when : callable, optional
            ``when(t, o)``, the condition.
        name : str, optional
            By default the function's name.
        priority : int
        on_uncertain : {"certain", "possible", "reading"} or callable
            Policy for events whose order does not follow from their timestamps, as for a
            `Detector`; with "certain", open choices are listed in `Results.undecided`.
        """

        def define(function: F) -> F:
            rule_name = getattr(function, "__name__", "") if name is None else name
            if any(rule.name == rule_name for rule in self.rules):
                raise DefinitionError(f"program {self.name} has a rule {rule_name} already")
            may_read, may_write = reads or _nothing, writes or _nothing
            if reads is None and writes is None:
                may_write = self._everything
            rule = ProgramRule(
                rule_name, expression, function, when, may_read, may_write, priority, on_uncertain
            )
            self.rules.append(rule)
            return function

        return define

    def _everything(self, o: Occurrence) -> list[Ref]:
        return [table.range() for table in self.tables]

    def pre_process(self, function: F) -> F:
        """Define pre-processing: ``function(type, params)`` returns parameters, or None to drop."""
        self._pre = checked_function(function, f"pre-processing of program {self.name}")
        return function

    def post_process(self, function: F) -> F:
        """Define post-processing: ``function(type, params, outcome)`` returns an output or None."""
        self._post = checked_function(
            function, f"post-processing of program {self.name}", may_yield=True
        )
        return function

    @property
    def pre_processes(self) -> bool:
        """True if it has pre-processing."""
        return self._pre is not None

    @property
    def post_processes(self) -> bool:
        """True if it has post-processing."""
        return self._post is not None

    def _define(self, type_: str, access: StateAccess) -> None:
        if not isinstance(type_, str) or not type_:
            raise DefinitionError(f"program {self.name}: {type_!r} is not an event type")
        if type_ in self._accesses:
            raise DefinitionError(f"program {self.name} has a state access for {type_} already")
        self._accesses[type_] = access
        self.types = tuple(self._accesses)

    # -- use -------------------------------------------------------------------------------------

    def access(self, type_: str) -> StateAccess:
        """Return the state access for events of a type."""
        return self._accesses[type_]

    def parameters(self, type_: str, params: Params) -> Params | None:
        """Return the parameters that pre-processing makes of an event; None if it is dropped."""
        if self._pre is None:
            return params
        found = self._pre(type_, params)
        return checked_result(found, f"pre-processing of program {self.name}")

    def operations(self, type_: str, params: Params) -> tuple[Operation, ...]:
        """Return the operations that an event triggers.

        Raises
        ------
        AccessError
            If one accesses a key that is invalid for its table.
        DefinitionError
            If one accesses a table that the program does not have.
        """
        access = Access()
        if type_ in self._accesses:  # else only rules listen to it
            result = self._accesses[type_](params, access)
            if result is not None:
                whose = f"the state access of program {self.name} for {type_}"
                checked_result(result, whose)
        for operation in access.operations:
            self.check(operation)
        return tuple(access.operations)

    def check(self, operation: Operation) -> None:
        """Raise an error, as `operations` does, if an operation's accesses are invalid."""
        checked: Ref | None = None
        for ref in operation.refs:
            if ref is checked:
                continue  # a WRITE of what it reads
            checked = ref
            if ref.table not in self.tables:
                raise DefinitionError(
                    f"program {self.name} accesses {ref!r}, but {ref.table.name} is not one of "
                    "its tables"
                )
            if type(ref.key) not in ref.table.plain_keys and not isinstance(
                ref.key, Computed | Range | Parameter
            ):
                ref.table.check_key(ref.key)

    def output(self, type_: str, params: Params, outcome: Outcome) -> Any:
        """Return the output that post-processing makes of an outcome, or None."""
        if self._post is None:
            return None
        whose = f"post-processing of program {self.name}"
        return checked_result(self._post(type_, params, outcome), whose, may_yield=True)


def _nothing(o: Occurrence) -> tuple[Ref, ...]:
    return ()


# -- access sets of the short form, derived from a function's source without running it --------


_REACHES_NAMES = {"eval", "exec", "globals", "locals", "vars"}
_LOOKS = {"get", "items", "keys", "values"}


def derived(function: Callable[..., Any], tables: tuple[SharedTable, ...]) -> tuple[Refs, Refs]:
    """Return the possible reads and writes of ``function(t, e)``, as functions of `e`.

    Parameters
    ----------
    function : callable
    tables : tuple of SharedTable
        Tables of the program; no others can be accessed.
    """
    everything = [table.range() for table in tables]
    try:
        source = source_of(function)
        if isinstance(function, FunctionType) and source is not None:
            found = _SourceAccesses(function, source)
            if found.are_all:
                writes = [_without_window(make) for make in found.writes]
                return _sets(found.reads, tables), _sets(writes, tables)
    except RecursionError:  # some texts are nested too deeply, as for the interpreter
        pass
    return (lambda e: everything), (lambda e: everything)


def _sets(makers: list[Refs], tables: tuple[SharedTable, ...]) -> Refs:
    everything = [table.range() for table in tables]

    def refs(e: Params) -> list[Ref]:
        found: list[Ref] = []
        for make in makers:
            try:
                found += [ref for ref in make(e) if ref.table in tables]
            except Unclear:
                return everything
        return found

    return refs


def _without_window(make: Refs) -> Refs:
    return lambda e: [replace(ref, window_us=None) for ref in make(e)]


class _SourceAccesses:
    """Accesses in the text of a function.

    Attributes
    ----------
    are_all : bool
        Whether the accesses found are complete; if not, they are useless.
    reads, writes : list of callable
        For each access, a function from an event's parameters to the possible references; it raises
        `Unclear` if they may be anything.
    """

    def __init__(self, function: FunctionType, source: FunctionSource):
        node = source.node
        arguments = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        self.reads: list[Refs] = []
        self.writes: list[Refs] = []
        self.are_all = False
        self._names = Bindings.of(node)
        if len(arguments) < 2 or self._names.has_classes:
            return
        self._t, self._e = arguments[:2]
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        self._parents = {
            child: parent
            for statement in body
            for parent in ast.walk(statement)
            for child in ast.iter_child_nodes(parent)
        }
        names = [
            each for statement in body for each in ast.walk(statement) if isinstance(each, ast.Name)
        ]
        if not (self._is_kept(self._t) and self._is_kept(self._e)):
            return
        if any(name.id in _REACHES_NAMES for name in names):
            return
        are_kept = all(self._is_look(name) for name in names if name.id == self._e)
        self._expressions = AccessExpressions(
            function, source, self._names, self._e if are_kept else None
        )
        self.are_all = all(self._add(name) for name in names if name.id == self._t)

    def _is_kept(self, name: str) -> bool:
        """Return whether the name of a parameter denotes that parameter everywhere."""
        names = self._names
        return (
            len(names.bound[name]) == 1 and name not in names.inner and name not in names.declared
        )

    def _is_look(self, name: ast.Name) -> bool:
        """Return whether this use of the parameters leaves them unchanged."""
        parent = self._parents.get(name)
        if isinstance(parent, ast.Subscript):
            return parent.value is name and isinstance(parent.ctx, ast.Load)
        if isinstance(parent, ast.Compare):
            are_in = all(isinstance(each, ast.In | ast.NotIn) for each in parent.ops)
            return are_in and parent.left is not name
        return self._called(name) in _LOOKS

    def _called(self, name: ast.Name) -> str | None:
        """Return the name of the method called on `name` here, or None."""
        method = self._parents.get(name)
        if not isinstance(method, ast.Attribute):
            return None
        call = self._parents.get(method)
        return method.attr if isinstance(call, ast.Call) and call.func is method else None

    def _add(self, name: ast.Name) -> bool:
        """Add the access at this use of `t`; return whether it is an access or harmless."""
        method = self._called(name)
        if method not in ("read", "write"):
            return method == "abort"
        call = self._parents[self._parents[name]]
        assert isinstance(call, ast.Call)
        given = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "ref")]
        if len(given) != 1:
            return False
        (self.reads if method == "read" else self.writes).append(self._expressions.refs(given[0]))
        return True
