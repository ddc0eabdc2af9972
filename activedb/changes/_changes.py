"""Rules on changes made by any program: logical decoding triggers them exactly once.

```
  peek ──► transactions, in the order of their commits
             │ each change an occurrence, unless its own process has triggered the rule
             ▼
           firings ──► one Postgres transaction: the firings, and how far the slot is taken ──► run
             │
  advance ◄──┘ the server forgets; before that, a crash makes it send taken changes again
```

The triggering transaction has committed, so only rules run that use a separate transaction, after
the triggering one or independently of it: detached, sequential and causal ones, all alike here.
Immediate, deferred and exclusive rules could only have run within the transaction.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from activedb.errors import ConfigurationError, InvalidRow, StoreError
from activedb.events import Occurrence, Primitive, walk
from activedb.firing import (
    Fed,
    Launcher,
    Letter,
    RecordedFiring,
    Triggering,
    failure_of,
    is_systemic,
)
from activedb.rules import Catalog, Rule, Subscription
from activedb.store import Connection
from activedb.store.replication import (
    Begin,
    ChangeConverter,
    Commit,
    Delete,
    FollowedTable,
    Insert,
    Message,
    Note,
    Relation,
    Slot,
    Truncate,
    Update,
)
from activedb.store.sql import TableSpec
from activedb.transactions import Forest, Run, TransactionNode
from coupling import Coupling

__all__ = [
    "DATA_KINDS",
    "FOLLOWED_MODES",
    "FollowProgress",
    "Follower",
    "ReplicationMarks",
    "heard_by",
]


# -- marks in the server's log: the rules that a process triggers itself for its own writes --------

DATA_KINDS = frozenset(("insert", "update", "delete"))


class ReplicationMarks:
    """Source of the mark with the rules that this process triggers itself for its own writes.

    The mark lists all rules on row changes that are defined here, in any coupling mode: a follower
    must not trigger disabled or ignored rules either. O(1); O(rules) after a change of the catalog.

    It is called with the schema of the database.
    """

    def __init__(self, catalog: Catalog):
        self._catalog = catalog
        self._known: tuple[int, str] = (0, "")

    def __call__(self, schema: str) -> str:
        version = self._catalog.version
        known = self._known
        if known[0] != version:
            rules = sorted(
                rule.name
                for rule in self._catalog
                if any(kind in DATA_KINDS for kind, _ in rule.on.keys)
            )
            said = json.dumps({"schema": schema, "rules": rules}) if rules else ""
            known = self._known = (version, said)
        return known[1]


def heard_by(content: bytes, schema: str) -> frozenset[str]:
    """Return the rules of the database in `schema` that a mark lists as already triggered.

    Raises
    ------
    StoreError
        If `content` is not a mark.
    """
    if not content:
        return frozenset()
    try:
        said = json.loads(content)
        return frozenset(said["rules"]) if said["schema"] == schema else frozenset()
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"a mark in the server's log is damaged: {content!r}") from error


# -- changes ---------------------------------------------------------------------------------------

_LOG = logging.getLogger(__name__)

FOLLOWED_MODES = (Coupling.DETACHED, Coupling.SEQUENTIAL, Coupling.CAUSAL)
"""Coupling modes of the rules that run on changes by any program."""

_MESSAGES_MAX = 2_000  # after these, a peek begins no further transaction
_KEPT_MAX = 10_000  # firings of one transaction started from memory
_PORTION = 1_000  # further firings recorded at a time
_RUNNING_MAX = 2_000  # running firings when a transaction is taken
_HUGE = 100_000  # changes of one transaction that are logged
_LAG_BYTES_MAX = 1 << 20  # of irrelevant server log held back


@dataclass(frozen=True, slots=True)
class FollowProgress:
    """Progress of following a slot.

    Attributes
    ----------
    transactions, changes : int
        Number taken since the slot was opened, of transactions and changes on the tables by any
        program.
    firings : int
        Number of firings recorded.
    truncated : int
        Number of tables emptied with TRUNCATE, which does not report their rows and so triggers
        nothing.
    lag_bytes : int
        Bytes of the server's log that existed at the last look and are not taken yet.
    lag_s : float
        Age of the commit of the last transaction taken, if there may be more; 0 if everything is
        taken.
    """

    transactions: int = 0
    changes: int = 0
    firings: int = 0
    truncated: int = 0
    lag_bytes: int = 0
    lag_s: float = 0.0


@dataclass(slots=True)
class _TransactionFirings:
    """Firings of one taken transaction.

    Attributes
    ----------
    firings : int
        Number of firings triggered.
    is_changed : bool
        True if there is anything to record.
    portion : list of RecordedFiring
        Firings to record and then leave to be claimed.
    """

    firings: int = 0
    is_changed: bool = False
    portion: list[RecordedFiring] = field(default_factory=list)


class Follower:
    """Consumer of the changes in one replication slot; used by one thread, outside transactions.

    ``with follower:`` opens and closes it. It takes each decoded transaction in one transaction of
    the forest, which raises the events, and records the firings, the state of the detectors, and
    the position in the slot.

    Parameters
    ----------
    slot : Slot
    specs : sequence of TableSpec
        The tables to follow.
    is_whole : bool
        Have the server send complete old rows, by the tables' replica identity.
    forest, triggering, launcher
        Run, trigger and start the rules.
    trigger : callable ``(point)``
        Called with "after peek", "after recording", "after advance", for failures in tests.

    Attributes
    ----------
    progress : FollowProgress
    """

    def __init__(
        self,
        slot: Slot,
        specs: Sequence[TableSpec],
        *,
        is_whole: bool,
        forest: Forest,
        triggering: Triggering,
        launcher: Launcher,
        trigger: Callable[[str], object],
    ):
        self.progress = FollowProgress()
        self._slot = slot
        self._specs = tuple(specs)
        self._is_whole = is_whole
        self._forest = forest
        self._triggering = triggering
        self._catalog = triggering.catalog
        self._launcher = launcher
        self._trigger = trigger
        self._reader: ChangeReader
        self._taken_lsn = 0  # set even if there was nothing to record

    # -- opening and closing ---------------------------------------------------------------

    def open(self) -> None:
        """Become the slot's follower; see `Slot.open`.

        Raises
        ------
        ConfigurationError
            As `Slot.open`, or if a rule needs old values that the server does not send.
        """
        self._slot.open(self._specs, whole=self._is_whole, check=self._check_old_values)
        self._reader = ChangeReader(self._slot, self._catalog.listening_to)

    def close(self) -> None:
        """Stop being the slot's follower. Idempotent."""
        self._slot.close()

    def __enter__(self) -> Follower:
        self.open()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def slot(self) -> str:
        """Name of the slot."""
        return self._slot.name

    def not_run(self) -> list[Rule]:
        """Return the rules on the followed tables that don't run, because of their coupling."""
        keys = {(kind, spec.name) for spec in self._specs for kind in DATA_KINDS}
        return [
            rule
            for rule in self._catalog
            if rule.coupling not in FOLLOWED_MODES and rule.on.keys & keys
        ]

    def _check_old_values(self, table: FollowedTable) -> None:
        if table.is_whole:
            return
        key = ("update", table.spec.name)
        for rule in self._catalog:
            if rule.coupling not in FOLLOWED_MODES or key not in rule.on.keys:
                continue
            for part in walk(rule.on):
                if not isinstance(part, Primitive) or part.key != key:
                    continue
                unsent = sorted(set(part.columns) - set(table.identified_by))
                if unsent:
                    raise ConfigurationError(
                        f"rule {rule.name} is on updates of {', '.join(unsent)} of table "
                        f"{table.spec.name}, and the server does not send their old values: run "
                        f'ALTER TABLE "{table.schema}"."{table.name}" REPLICA IDENTITY FULL, or '
                        f"pass whole_rows=True"
                    )

    # -- taking changes --------------------------------------------------------------------

    def step(self) -> bool:
        """Take committed transactions, up to a bound on changes, and let the server forget them.

        Returns whether there may be more. The firings of a transaction are recorded in one
        transaction with the position in the slot, so each rule fires exactly once, even after a
        crash. A transaction is taken as a whole; its firings are recorded in portions, so a huge
        one takes time rather than memory.

        Raises
        ------
        ConfigurationError
            If the slot can no longer be read, another process has followed it meanwhile, or a table
            was dropped; earlier changes have been taken then.
        ConnectionLost
            The follower may be reopened and used again.
        """
        read = 0
        last: Commit | None = None

        def counted(messages: Iterator[Message]) -> Iterator[Message]:
            nonlocal read
            for message in messages:
                read += 1
                yield message

        with self._slot.peek(_MESSAGES_MAX) as peeked:
            messages = counted(peeked.messages)
            for message in messages:
                if isinstance(message, Note):  # of another program: ours are within transactions
                    continue
                if not isinstance(message, Begin):
                    raise StoreError(f"the slot reports {message!r} outside a transaction")
                last = self._take(message, messages)
        is_more = read >= _MESSAGES_MAX
        reached, lag_s = peeked.head_lsn, 0.0
        if is_more and last is not None:
            reached = last.end_lsn
            lag_s = max(0.0, (peeked.now - last.committed_at).total_seconds())
        if last is not None or reached - self._slot.confirmed > _LAG_BYTES_MAX:
            self._slot.advance(reached)
            self._trigger("after advance")
        self.progress = replace(
            self.progress, lag_bytes=max(0, peeked.head_lsn - reached), lag_s=lag_s
        )
        if peeked.unpublished and not is_more:
            raise ConfigurationError(
                f"changes of {', '.join(peeked.unpublished)} are not reported any more: the table "
                f"was dropped, or taken out of the publication {self.slot}; follow again"
            )
        return is_more

    def _take(self, begin: Begin, messages: Iterator[Message]) -> Commit:
        """Take one transaction, up to its commit, or skip it if it is taken already."""
        if begin.lsn < max(self._slot.lsn, self._taken_lsn):
            return self._pass_by(messages)
        self._trigger("after peek")
        self._launcher.join_running(running_max=_RUNNING_MAX)
        self._reader.begin(begin)
        taken = _TransactionFirings()
        run = Run(name=f"follow/{self._slot.name}/{begin.lsn:016X}", is_retried=True)
        with self._forest.top_level(run) as t:
            commit = self._raise_all(begin, messages, taken, t)
            if taken.is_changed:
                self._record_portion(taken, t)
                end_lsn = commit.end_lsn
                t.hierarchy.durable.append(
                    lambda connection: self._slot.record(connection, end_lsn)
                )
        if taken.is_changed:
            self._slot.recorded(commit.end_lsn)
            self._trigger("after recording")
        self._taken_lsn = commit.end_lsn
        self._count(taken)
        return commit

    def _pass_by(self, messages: Iterator[Message]) -> Commit:
        for message in messages:
            if isinstance(message, Commit):
                return message
            if isinstance(message, Relation):  # sent only once
                self._reader.read(message)
        raise _cut_off()

    def _raise_all(
        self,
        begin: Begin,
        messages: Iterator[Message],
        taken: _TransactionFirings,
        t: TransactionNode,
    ) -> Commit:
        """Raise the events of a transaction in `t`, up to its commit."""
        reader = self._reader
        for message in messages:
            if isinstance(message, Commit):
                return message
            try:
                o = reader.read(message)
            except InvalidRow as error:
                self._refuse(error, message, taken, t)
                continue
            if o is None:
                continue
            if reader.changes == _HUGE:
                _LOG.warning(
                    "transaction %d has more than %d changes of followed tables; it is taken as a "
                    "whole",
                    begin.xid,
                    _HUGE,
                )
            for subscription in self._run_here(self._catalog.concerned_by(o)):
                self._feed(subscription, o, taken, t)
        raise _cut_off()

    def _refuse(
        self, error: InvalidRow, message: Message, taken: _TransactionFirings, t: TransactionNode
    ) -> None:
        """Write a letter for each rule that might have run on a change that cannot be read."""
        kind, table = self._reader.key
        payload = {
            "name": table,
            "timestamp": self._reader.committed_at.isoformat(),
            "params": repr(message),
        }
        letters = []
        for subscription in self._run_here(self._catalog.listening_to((kind, table))):
            rule = subscription.rule.name
            identity = f"{t.path}#{self._reader.changes}.{rule}"
            letters.append(Letter.of_firing(identity, payload, failure_of(rule, error)))
        self._triggering.contexts.keep_letters(t, letters)
        taken.is_changed = True

    def _run_here(self, subscriptions: Iterable[Subscription]) -> Iterator[Subscription]:
        """Yield those that may run on a change, except those triggered at its origin."""
        for subscription in subscriptions:
            rule = subscription.rule
            if rule.coupling in FOLLOWED_MODES and rule.name not in self._reader.heard:
                yield subscription

    def _feed(
        self,
        subscription: Subscription,
        o: Occurrence,
        taken: _TransactionFirings,
        t: TransactionNode,
    ) -> None:
        rule = subscription.rule
        fed: list[Fed] = []

        def refused(rule: Rule, error: Exception) -> bool:
            taken.is_changed = True
            self._triggering.feeding.refuse(t, rule, f"{t.path}#{self._reader.changes}", o, error)
            return True

        try:
            found = self._triggering.feeding.feed_to(subscription, o, t)
            items = self._triggering.feeding.took(t, subscription, o, found, fed, refused)
        except Exception as error:  # a user's predicate, or a row without a value
            if is_systemic(error, t):
                raise
            identity = f"{t.path}#{self._reader.changes}.{rule.name}"
            letter = Letter.of_rule(identity, o, failure_of(rule.name, error))
            self._triggering.contexts.keep_letters(t, [letter])
            taken.is_changed = True
            return
        if fed:
            self._triggering.feeding.keep(t, fed)
            taken.is_changed = True
        if not items:
            return
        firings, letters = self._launcher.prepare(t, items, event=self._reader.changes)
        taken.is_changed = True
        taken.firings += len(firings)
        self._triggering.contexts.keep_letters(t, letters)
        if taken.firings <= _KEPT_MAX:
            self._triggering.contexts.keep_firings(t, firings)
        else:
            taken.portion += firings
            if len(taken.portion) >= _PORTION:
                self._record_portion(taken, t)

    # -- results --------------------------------------------------------------------------

    def _record_portion(self, taken: _TransactionFirings, t: TransactionNode) -> None:
        """Write firings on the connection of `t` at once, to free their memory."""
        if taken.portion:
            rows = [firing.row for firing in taken.portion]
            journal = self._launcher.journal

            def write(connection: Connection) -> None:
                journal.record_on(connection, rows, held=False)

            t.hierarchy.session.flush((), (), [write])
            taken.portion = []

    def _count(self, taken: _TransactionFirings) -> None:
        if self._reader.truncated:
            _LOG.warning("a followed table was emptied with TRUNCATE, which triggers no rule")
        now = self.progress
        self.progress = replace(
            now,
            transactions=now.transactions + 1,
            changes=now.changes + self._reader.changes,
            firings=now.firings + taken.firings,
            truncated=now.truncated + self._reader.truncated,
        )
        if taken.firings > _KEPT_MAX and not self._launcher.journal.is_queued:
            while self._launcher.take_over(_PORTION, of_dead=False):
                self._launcher.join_running(running_max=_RUNNING_MAX)


def _cut_off() -> StoreError:
    return StoreError("the slot reports a transaction without its end")


# -- reader of a replication slot's messages, which turns changes into event occurrences -----------


class ChangeReader:
    """State of a slot's message stream, which makes occurrences of the changes in it.

    Parameters
    ----------
    slot : Slot
        The slot, open.
    is_heard : callable ``(key)``
        Returns whether any rule listens to an event; otherwise no occurrence is made.

    Attributes
    ----------
    heard : frozenset of str
        Rules that have been triggered by the next changes in the process that made them.
    changes, truncated : int
        Numbers of changes of followed tables in this transaction, and of truncated tables.
    key : (str, str)
        Event of the last change read: its kind and its table.
    """

    def __init__(self, slot: Slot, is_heard: Callable[[tuple[str, str]], object]):
        self.heard: frozenset[str] = frozenset()
        self.changes = 0
        self.truncated = 0
        self.key = ("", "")
        self._slot = slot
        self._is_heard = is_heard
        self._tables: dict[int, FollowedTable] = {table.oid: table for table in slot.tables}
        self._relations: dict[int, Relation] = {}
        self._rows: dict[int, ChangeConverter] = {}
        self._begin: Begin

    def begin(self, begin: Begin) -> None:
        """Start the next transaction."""
        self._begin = begin
        self.heard = frozenset()
        self.changes = self.truncated = 0

    @property
    def committed_at(self) -> datetime:
        """Time of the transaction's commit."""
        return self._begin.committed_at

    def read(self, message: Message) -> Occurrence | None:
        """Return the occurrence of a message; None if it is no change, or no rule listens to it.

        Raises
        ------
        InvalidRow
            If a value of a changed row cannot be held in Python.
        """
        if isinstance(message, Insert | Update | Delete):
            table = self._tables.get(message.relation)
            return None if table is None else self._occurrence(table, message)
        if isinstance(message, Relation):
            self._relations[message.oid] = message
            self._rows.pop(message.oid, None)
        elif isinstance(message, Note):
            if message.is_transactional and message.prefix == self._slot.mark_prefix:
                self.heard = heard_by(message.content, self._slot.schema)
        elif isinstance(message, Truncate):
            self.truncated += sum(oid in self._tables for oid in message.relations)
        return None

    def _occurrence(
        self, table: FollowedTable, change: Insert | Update | Delete
    ) -> Occurrence | None:
        self.changes += 1
        name = table.spec.name
        self.key = (type(change).__name__.lower(), name)
        if not self._is_heard(self.key):
            return None
        rows = self._rows.get(table.oid)
        if rows is None:
            relation = self._relations[table.oid]
            rows = self._rows[table.oid] = ChangeConverter(
                table.spec, relation, self._slot.connection
            )
        old, new = None, None
        if isinstance(change, Insert):
            new = rows.whole(change.new)
        elif isinstance(change, Update):
            old, new = rows.of_update(change)
        else:
            old = rows.whole(change.old) if change.is_whole else rows.key_alone(change.old)
        begin = self._begin
        # Ids sort in the order of the changes.
        id_ = f"{begin.lsn >> 32:08X}/{begin.lsn & 0xFFFFFFFF:08X}.{self.changes:08d}"
        return Occurrence(name, begin.committed_at, id=id_, old=old, new=new)
