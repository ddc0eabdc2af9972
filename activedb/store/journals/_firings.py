"""Rows of activedb itself: pending firings, which processes share, and dead letters."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    bindparam,
    case,
    delete,
    exists,
    false,
    func,
    literal_column,
    null,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from activedb.store.server import Step, fetch, translate_errors
from activedb.store.session import Store, Wakeups
from activedb.store.system import dead_letters, pending_firings

__all__ = [
    "ABOVE",
    "FiringCounts",
    "Journal",
    "Repeated",
]


class Repeated(StrEnum):
    """Kind of a batch: of work that is repeated after a crash, under the same name.

    Attributes
    ----------
    prefix : str
        Beginning of the names of these batches, and of the firings that they trigger.
    """

    STREAM = "stream"  # parts of a stream
    WORKFLOW = "workflow"  # a transaction of a workflow
    CLOCK = "clock"  # a moment of the clock
    DECISION = "decision"  # a decision that is applied

    def __init__(self, value: str):
        self.prefix = f"{value}/"


ABOVE = "above"
"""Key in the occurrence of a firing with a name that was too long, triggered by an unrecorded one.

The value has the names of what is above it, the nearest first, up to the first recorded firing: one
in each line.
"""

_REPEATED = tuple([kind.prefix for kind in Repeated])
_NAMES_MAX = 1_000  # in one statement
_TOGETHER_MAX = 20  # firings recorded by single statements in one message

_C = pending_firings.c
_IS_NEW: ColumnElement[bool] = literal_column("xmax = 0")  # not updated: the row was inserted
_OWN, _BELOW = _C.firing == bindparam("name"), _C.run == bindparam("name")
_DELETE = delete(pending_firings).returning(_C.firing)
_DELETE_OWN = _DELETE.where(_OWN, ~_C.done)
_MARK_OWN = update(pending_firings).where(_OWN, ~_C.done).returning(_C.firing).values(done=true())
_LEAVE_OWN = _MARK_OWN.values(holder=null())
_DELETE_DONE = _DELETE.where(_BELOW, _C.done)
_DELETE_OVER = _DELETE.where(_BELOW, _C.done | (_C.intent & (_C.holder != bindparam("own"))))


def _flavour(connection: Connection) -> Any:
    return sqlite_insert if connection.dialect.name == "sqlite" else postgres_insert


@lru_cache(maxsize=64)
def _recorded(flavour: Any, columns: tuple[str, ...]) -> Any:
    """Return the statement that records a firing, given the columns that it has."""
    values: dict[str, Any] = {name: bindparam(name) for name in columns}
    return flavour(pending_firings).values(values).on_conflict_do_nothing().returning(_C.firing)


class FiringCounts(NamedTuple):
    """Numbers of pending firings and dead letters.

    Attributes
    ----------
    letters : dict of str to int
        Dead letters by kind, ``"event"`` or ``"rule"``; kinds without any are left out.
    pending : int
        Firings that are recorded and not done, without intents.
    """

    letters: dict[str, int]
    pending: int


class Journal:
    """Due firings of rules that run in top-level transactions, and dead letters.

    A firing is *held* by the process that runs it, under its lease: no other process takes it
    while the holder is alive. Any process may claim a firing without a holder. An *intent* is a
    firing that becomes due if its triggering transaction aborts. As long as that is the transaction
    of a firing that is recorded and not done, which is repeated after a crash, the intent is
    *undecided*: no process may take it over.

    The name of a firing begins with the names of those above it, each followed by ``#`` or ``/``:
    the firing that triggered it, the one that triggered that one, up to a run of the application,
    a stream or a workflow. A name too long for its column begins with some of them only; then
    ``run``, and `ABOVE`, tell what is above it. A firing that may be triggered again once it is
    done leaves a *done row* to be found then.

    Parameters
    ----------
    store : Store
    is_queued : bool
        Record firings without a holder, for workers to run.

    Attributes
    ----------
    letters_table : sqlalchemy.Table
        Table of dead letters, for a transaction that locks and deletes one with its other changes.
    """

    letters_table: Any = dead_letters

    def __init__(self, store: Store, *, is_queued: bool = False):
        self._store = store
        self.is_queued = is_queued

    def wakeups(self) -> Wakeups:
        """Return the wake-ups for a worker; raise `ConfigurationError` if there can be none."""
        return self._store.wakeups()

    def record(
        self,
        firings: Iterable[Mapping[str, Any]],
        *,
        held: bool | None = None,
        by: str | None = None,
        is_recorded: bool = False,
    ) -> set[str] | None:
        """Record firings durably, in a separate transaction; see `record_on`.

        Parameters
        ----------
        by : str, optional
            Firing that triggers them. If it has ended, None is returned, and nothing is recorded:
            another process has also started, and perhaps ended, what it triggers.
        is_recorded : bool
            Whether `by` has a row until it ends.
        """
        with translate_errors("record detached rules"), self._store.short() as connection:
            if by is not None and self._store.is_shared:
                # Shared, until what it triggers is recorded; whoever ends it waits as long.
                row = select(_C.done).where(_C.firing == by).with_for_update(read=True)
                is_done = connection.execute(row).scalar()
                if is_done or (is_done is None and is_recorded):
                    return None
            return self.record_on(connection, firings, held=held)

    def record_on(
        self,
        connection: Connection,
        firings: Iterable[Mapping[str, Any]],
        *,
        held: bool | None = None,
    ) -> set[str]:
        """Record firings with a commit; return the names of those that had no row, pending or done.

        Parameters
        ----------
        held : bool, optional
            Whether this process runs them; otherwise any process may claim them, and workers are
            woken up. Default: held, unless the journal is queued.
        """
        held = not self.is_queued if held is None else held
        holder = self._store.lease.take() if held else None
        rows = [{**firing, "holder": holder} for firing in firings]
        if len(rows) < _TOGETHER_MAX:
            steps = [(_recorded(_flavour(connection), tuple(row)), row) for row in rows]
            names = {name for found in fetch(connection, steps) for (name,) in found}
        else:
            statement = _flavour(connection)(pending_firings).on_conflict_do_nothing()
            names = set(connection.execute(statement.returning(_C.firing), rows).scalars())
        if names and not held:
            self._store.send_wakeup(connection)
        return names

    def pending(self, *, run: str | None = None) -> list[Mapping[str, Any]]:
        """Return firings that are not done, without intents, by name; all, or of one run."""
        c = pending_firings.c
        statement = select(pending_firings).where(~c.done, ~c.intent).order_by(c.firing)
        if run is not None:
            statement = statement.where(c.run == run)
        with translate_errors("read the pending rules"), self._store.short() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def standing(self) -> FiringCounts:
        """Count pending firings and dead letters, as of one moment; O(rows)."""
        c, kind = pending_firings.c, dead_letters.c.kind
        letters = select(kind, func.count()).group_by(kind)
        due = select(func.count()).select_from(pending_firings).where(~c.done, ~c.intent)
        with translate_errors("count letters and rules"), self._store.short() as connection:
            of_kinds = {row[0]: row[1] for row in connection.execute(letters)}
            return FiringCounts(of_kinds, connection.execute(due).scalar_one())

    # -- intents ---------------------------------------------------------------------------

    def intend(self, firings: Iterable[Mapping[str, Any]]) -> None:
        """Record intents of this process durably, in a separate transaction.

        An existing intent, which a retry of the same work names alike, becomes an intent of this
        process; an existing firing that is no intent is left unchanged.
        """
        holder = self._store.lease.take()
        rows = [{**firing, "intent": True, "holder": holder} for firing in firings]
        if not rows:
            return
        with translate_errors("record exclusive rules"), self._store.short() as connection:
            statement = _flavour(connection)(pending_firings)
            statement = statement.on_conflict_do_update(
                index_elements=[pending_firings.c.firing],
                set_={"holder": statement.excluded.holder},
                where=pending_firings.c.intent,
            )
            connection.execute(statement, rows)

    def erase_intents(self, connection: Connection, names: Collection[str]) -> bool:
        """Delete intents within the triggering commit; return False if any is no longer an intent.

        In that case this process's lease was lost, and another process has claimed the firing and
        runs it as if the triggering transaction had aborted: that transaction must not commit.
        """
        c = pending_firings.c
        gone = 0
        for some in _portions(names):
            gone += connection.execute(
                delete(pending_firings).where(c.firing.in_(some), c.intent)
            ).rowcount
        return gone == len(set(names))

    def withdraw_intents(self, names: Collection[str]) -> None:
        """Delete those that are still intents of this process, in a separate transaction."""
        c = pending_firings.c
        ours = delete(pending_firings).where(c.intent, c.holder == self._store.lease.number)
        with translate_errors("erase exclusive rules"), self._store.short() as connection:
            for some in _portions(names):
                connection.execute(ours.where(c.firing.in_(some)))

    def activate_intents(self, names: Collection[str]) -> list[dict[str, Any]]:
        """Make intents due firings, after their triggering transaction has aborted.

        Uses a separate transaction; returns the rows of those that were still intents, by name.
        Undecided ones stay intents.
        """
        if not names:
            return []
        holder = None if self.is_queued else self._store.lease.take()
        c = pending_firings.c
        rows: list[dict[str, Any]] = []
        with translate_errors("make exclusive rules due"), self._store.short() as connection:
            for some in _portions(names):
                due = update(pending_firings).where(c.firing.in_(some), c.intent)
                due = due.where(~_is_triggered_by_pending())
                due = due.values(intent=False, holder=holder)
                found = connection.execute(due.returning(pending_firings)).mappings()
                rows += [dict(row) for row in found]
            if rows and self.is_queued:
                self._store.send_wakeup(connection)
        return sorted(rows, key=lambda row: str(row["firing"]))

    # -- sharing them ----------------------------------------------------------------------

    def claim(
        self,
        limit: int,
        *,
        knows: Callable[[str], bool] = lambda rule: True,
        without: Collection[str] = (),
        of_dead: bool = True,
        run: str | None = None,
    ) -> list[dict[str, Any]]:
        """Take over firings that are not done and have no holder, oldest first.

        Uses one transaction, which does not wait for concurrent claims. Intents of dead processes
        are due now, unless they are undecided: a crash is an abort. The rows returned have one more
        item: ``is_inherited``, True if a dead process held it.

        Parameters
        ----------
        limit : int
            Maximum number of firings; capped at 1,000.
        knows : callable ``(rule)``
            Return whether this process has a rule; firings of other rules end up without a holder.
        without : collection of str
            Rules to skip, because they are unknown.
        of_dead : bool
            Also claim firings of dead processes. O(pending firings) then, O(limit) otherwise.
        run : str, optional
            Claim only what this run has triggered.
        """
        lease = self._store.lease
        number, left, unknown = lease.take(), min(limit, _NAMES_MAX), set(without)
        rows: list[dict[str, Any]] = []
        with translate_errors("take over pending rules"), self._store.short() as connection:
            is_free = self._is_free(connection, number, of_dead=of_dead)
            if run is not None:
                is_free &= pending_firings.c.run == run
            while left > 0:
                some = self._lock_free(connection, is_free, unknown, left)
                strange = {row["rule"] for row in some if not knows(row["rule"])}
                ours = [row for row in some if row["rule"] not in strange]
                _hold(connection, [row["firing"] for row in ours], number)
                others = [row for row in some if row["rule"] in strange and row["holder"]]
                _hold(connection, [row["firing"] for row in others], None)
                now = {"intent": False, "holder": number}
                rows += [{**row, **now, "is_inherited": row["holder"] is not None} for row in ours]
                if not strange:
                    break
                unknown |= strange
                left -= len(ours)
        return rows

    def held(self) -> list[dict[str, Any]]:
        """Return this process's firings that are not done, without intents, oldest first."""
        c = pending_firings.c
        statement = (
            select(pending_firings)
            .where(~c.done, ~c.intent, c.holder == self._store.lease.number)
            .order_by(c.recorded_at, c.firing)
        )
        with translate_errors("read the pending rules"), self._store.short() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def _is_free(
        self, connection: Connection, number: int, *, of_dead: bool
    ) -> ColumnElement[bool]:
        c = pending_firings.c
        is_free: ColumnElement[bool] = c.holder.is_(None)
        if of_dead:
            holders = select(c.holder).where(~c.done, c.holder != number).distinct()
            found = list(connection.execute(holders).scalars())
            dead = self._store.lease.dead(connection, found)
            if dead:
                is_free = is_free | c.holder.in_(dead)
        return is_free

    def _lock_free(
        self,
        connection: Connection,
        is_free: ColumnElement[bool],
        without: Collection[str],
        limit: int,
    ) -> Sequence[RowMapping]:
        c = pending_firings.c
        is_undecided = c.intent & _is_triggered_by_pending()
        found = select(pending_firings).where(~c.done, is_free, ~is_undecided)
        if without:
            found = found.where(c.rule.not_in(without))
        found = found.order_by(c.recorded_at, c.firing).limit(limit)
        return connection.execute(found.with_for_update(skip_locked=True)).mappings().all()

    # -- done ------------------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        """True if the rows are on a server, which may crash while this process survives."""
        return self._store.is_shared

    def done(self, run_prefix: str) -> dict[str, str]:
        """Return the done firings of the runs, or below them, each with what triggered it.

        Those below unfinished firings are left out: the end of these deletes them.
        """
        c = pending_firings.c
        is_of_runs = c.run.startswith(run_prefix, autoescape=True)
        is_awaited = c.run.contains("#") & _is_below_pending()
        statement = select(c.firing, c.run).where(is_of_runs, c.done, ~is_awaited)
        with translate_errors("read the done rules"), self._store.short() as connection:
            return {row.firing: row.run for row in connection.execute(statement)}

    def finish(
        self,
        connection: Connection,
        firing: Mapping[str, Any],
        *,
        keep: bool,
        on_new: Callable[[], None] | None = None,
    ) -> bool:
        """Mark a firing done within its own transaction; return False if it was done before.

        Done firings that it triggered itself are deleted: it will not trigger them again. So are
        the intents that other processes recorded for it, before they died or lost their lease;
        those of this process are left to `erase_intents`.

        Parameters
        ----------
        keep : bool
            Leave a row marked done. Otherwise the recorded row is deleted, unless the firing that
            triggered it is not done yet and will look for the row.
        on_new : callable, optional
            Given for the firing of a batch that is not known to have committed: with `keep`, such
            a firing need not have a row, and this is called if one is added. If any other firing
            has none, another process has ended it.
        """
        over = {"name": firing["firing"], "own": self._store.lease.number}
        below = _DELETE_OVER, over
        return self._end(connection, firing, below, keep=keep, on_new=on_new)

    def _end(
        self,
        connection: Connection,
        firing: Mapping[str, Any],
        below: Step,
        *,
        keep: bool,
        on_new: Callable[[], None] | None,
    ) -> bool:
        """Mark a firing done, and delete those that it triggered and that are over: `below`."""
        # Locking downwards from the triggering firing avoids deadlocks, and a row is left if and
        # only if the firing above will delete it. A row that stays for the sake of this process
        # keeps its holder, so that `forget_left` leaves it alone.
        own = {"name": firing["firing"]}
        if keep and on_new is not None:
            row = {name: value for name, value in firing.items() if name in _C}
            marked = _flavour(connection)(pending_firings).values(**{**row, "done": True})
            marked = marked.on_conflict_do_update(
                index_elements=[_C.firing], set_={"done": True}, where=~_C.done
            )
            is_new: Any = _IS_NEW if self._store.is_shared else false()
            found = connection.execute(marked.returning(is_new)).first()
            fetch(connection, [below])
            if found is not None and found[0]:
                on_new()
            return found is not None
        if keep:
            end: Any = _MARK_OWN
        elif firing["keep"] and self._may_be_triggered_again(connection, firing):
            end = _LEAVE_OWN
        else:
            end = _DELETE_OWN
        ended, _ = fetch(connection, [(end, own), below])
        return bool(ended)

    def lineage(self, connection: Connection, firing: Mapping[str, Any]) -> dict[str, bool]:
        """Return whether a firing, and each recorded one above it, is done, as one connection sees.

        The record of a firing, unlike rows of the application, must be seen as it is at the end of
        the firing's transaction. One that reads from a snapshot compares this with `lineage_now`.
        """
        c = pending_firings.c
        names = [firing["firing"], *_above(firing)]
        found = connection.execute(select(c.firing, c.done).where(c.firing.in_(names)))
        return {row.firing: row.done for row in found}

    def lineage_now(self, firing: Mapping[str, Any]) -> dict[str, bool]:
        """Return what `lineage` is by now, in a separate transaction."""
        with translate_errors("look at the record of a firing"), self._store.short() as connection:
            return self.lineage(connection, firing)

    def _may_be_triggered_again(self, connection: Connection, firing: Mapping[str, Any]) -> bool:
        """Return whether a run above this firing may be repeated, and has to find its row.

        The nearest firing above it that has a row decides: it is repeated unless it is done. It is
        locked until the end of the transaction, so it cannot be done meanwhile. If there is none,
        and the process that triggered this firing is dead, a batch may repeat it.
        """
        if not _is_of_firing(firing):
            return False
        c, names = pending_firings.c, _above(firing)
        nearest = case({name: place for place, name in enumerate(names)}, value=c.firing)
        above = select(c.done).where(c.firing.in_(names)).order_by(nearest).limit(1)
        is_done = connection.execute(above.with_for_update(read=True)).scalar()
        if is_done is not None:
            return not is_done
        is_of_batch = firing["firing"].startswith(_REPEATED)
        return is_of_batch and bool(firing.get("is_inherited"))

    def forget_done(self, connection: Connection, firings: Sequence[str]) -> set[str]:
        """Delete the done firings among `firings`; return the names of those deleted."""
        c = pending_firings.c
        gone: set[str] = set()
        for some in _portions(firings):
            done = delete(pending_firings).where(c.firing.in_(some), c.done)
            gone.update(connection.execute(done.returning(c.firing)).scalars())
        return gone

    def forget_triggered(self, firings: Sequence[str]) -> None:
        """Delete the done firings among `firings`, in a separate transaction.

        Those triggered by a firing that is recorded and not done are left to its end.
        """
        with translate_errors("forget done firings"), self._store.short() as connection:
            for some in _portions(firings):
                c = pending_firings.c
                done = delete(pending_firings).where(c.firing.in_(some), c.done)
                connection.execute(done.where(~_is_triggered_by_pending()))

    def forget_left(self) -> None:
        """Delete done rows that dead processes have left, in a separate transaction. O(rows).

        Those below unfinished firings stay, and those of batches that may be repeated: `prune`
        deletes those of streams and workflows, and the commit of any other batch its own. A process
        that has only lost its lease does not need its rows: while it lives, it remembers what its
        unfinished runs have triggered.
        """
        if not self._store.is_shared:
            return
        lease, c = self._store.lease, pending_firings.c
        with translate_errors("forget done firings"), self._store.short() as connection:
            holders = select(c.holder).where(c.done, c.holder.is_not(None)).distinct()
            dead = lease.dead(connection, list(connection.execute(holders).scalars()))
            is_left = c.done & (c.holder.is_(None) | c.holder.in_(dead))
            for prefix in _REPEATED:
                is_left &= ~c.run.startswith(prefix)
            connection.execute(delete(pending_firings).where(is_left, ~_is_below_pending()))

    def prune(self, run: str) -> None:
        """Delete the done firings of runs that have ended, in a separate transaction.

        Parameters
        ----------
        run : str
            Name of the runs of a stream all of whose batches have committed. The names of the
            firings that they have triggered, and that have triggered others, begin with it.
        """
        with translate_errors("forget done firings"), self._store.short() as connection:
            self.prune_on(connection, run)

    def prune_on(self, connection: Connection, run: str) -> None:
        """Delete the done firings of runs that have ended, with a commit; see `prune`."""
        c = pending_firings.c
        is_below = c.run.startswith(f"{run}/", autoescape=True)
        is_below |= c.run.startswith(f"{run}#", autoescape=True)
        of_rules = is_below & c.run.contains("#") & ~_is_below_pending()
        connection.execute(delete(pending_firings).where((c.run == run) | of_rules, c.done))

    def move_to_dead_letters(
        self,
        firing: Mapping[str, Any],
        letter: Mapping[str, Any],
        *,
        keep: bool,
        on_new: Callable[[], None] | None = None,
        also: Callable[[Connection], None] = lambda connection: None,
    ) -> bool:
        """Turn a firing into a dead letter, in a separate transaction.

        See `finish`; but its intents become due, for any process, and `also` makes further writes.
        Returns False if the firing was done before.
        """
        c = pending_firings.c
        with translate_errors("write a dead letter"), self._store.short() as connection:
            below = _DELETE_DONE, {"name": firing["firing"]}
            is_first = self._end(connection, firing, below, keep=keep, on_new=on_new)
            if is_first:
                self.write_letters(connection, [letter])
                also(connection)
                due = update(pending_firings).where(c.run == firing["firing"], c.intent)
                if connection.execute(due.values(intent=False, holder=None)).rowcount:
                    self._store.send_wakeup(connection)
        return is_first

    # -- letters ---------------------------------------------------------------------------

    def letters(
        self, *, source: str | None = None, identity: str | None = None, kind: str | None = None
    ) -> list[Mapping[str, Any]]:
        """Return committed dead letters that match all given values, by source and identity."""
        c = dead_letters.c
        asked = [(c.source, source), (c.identity, identity), (c.kind, kind)]
        statement = (
            select(dead_letters)
            .where(*(column == value for column, value in asked if value is not None))
            .order_by(c.source, c.identity)
        )
        with translate_errors("read the dead letters"), self._store.short() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def last_letters(self, count: int) -> list[Mapping[str, Any]]:
        """Return the committed dead letters that were written last, the newest last; O(letters).

        No column has the time: the order is that of the transactions that have written them.
        """
        with translate_errors("read the dead letters"), self._store.short() as connection:
            is_memory = connection.dialect.name == "sqlite"
            newest: ColumnElement[Any] = literal_column("rowid DESC" if is_memory else "age(xmin)")
            c = dead_letters.c
            statement = select(dead_letters).order_by(newest, c.source.desc(), c.identity.desc())
            found = connection.execute(statement.limit(count)).mappings().all()
            return [dict(row) for row in reversed(found)]

    def add_dead_letter(self, letter: Mapping[str, Any]) -> None:
        """Write one dead letter in a separate transaction."""
        with translate_errors("write a dead letter"), self._store.short() as connection:
            self.write_letters(connection, [letter])

    def write_letters(self, connection: Connection, letters: Iterable[Mapping[str, Any]]) -> None:
        """Write dead letters; existing ones are left unchanged."""
        rows = [dict(letter) for letter in letters]
        if rows:
            connection.execute(_flavour(connection)(dead_letters).on_conflict_do_nothing(), rows)


def _is_triggered_by_pending() -> ColumnElement[bool]:
    """Return whether a row's triggering run is a firing that is recorded and not done."""
    trigger = pending_firings.alias("trigger")
    return exists().where(trigger.c.firing == pending_firings.c.run, ~trigger.c.done)


def _is_below_pending() -> ColumnElement[bool]:
    """Return whether a row's triggering run is, or is below, a firing recorded and not done."""
    c, above = pending_firings.c, pending_firings.alias("above")
    is_above = func.substr(c.run, 1, func.length(above.c.firing)) == above.c.firing
    listed = c.occurrence[ABOVE].as_string()
    is_above |= (c.run == above.c.firing) | (func.replace(listed, above.c.firing, "") != listed)
    return exists().where(is_above, ~above.c.done)


def _is_of_firing(firing: Mapping[str, Any]) -> bool:
    """Return whether a firing has triggered this one, not a batch or work of the application."""
    return "#" in firing["run"]


def _above(firing: Mapping[str, Any]) -> list[str]:
    """Return what may be the names of the firings above one, the nearest first; O(depth).

    A name that was too long does not begin with those of all firings above it. Then the firing that
    has triggered it decides; the row lists more if that one was not recorded.
    """
    name, run = firing["firing"], firing["run"]
    if not name.startswith(run):
        listed: str = firing["occurrence"].get(ABOVE, run)
        return listed.split("\n")
    return [name[: found.start()] for found in re.finditer("[#/]", name)][::-1]


def _hold(connection: Connection, names: Collection[str], holder: int | None) -> None:
    """Set the holder of firings, and make intents among them due."""
    c = pending_firings.c
    for some in _portions(names):
        connection.execute(
            update(pending_firings).where(c.firing.in_(some)).values(intent=False, holder=holder)
        )


def _portions(names: Collection[str]) -> Iterator[Sequence[str]]:
    """Yield the distinct `names` in order, in portions that fit into one statement."""
    ordered = sorted(set(names))
    for start in range(0, len(ordered), _NAMES_MAX):
        yield ordered[start : start + _NAMES_MAX]
