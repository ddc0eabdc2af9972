"""activedb's own rows: pending firings, which processes share, and dead letters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    delete,
    exists,
    func,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from activedb.store.server import translated
from activedb.store.session import Hints, Store
from activedb.store.system import dead_letters, pending_firings

__all__ = ["Journal", "Standing"]

_NAMES_MAX = 1_000  # in one statement


def _flavour(connection: Connection) -> Any:
    return sqlite_insert if connection.dialect.name == "sqlite" else postgres_insert


class Standing(NamedTuple):
    """How many rows of activedb's own there are.

    Attributes
    ----------
    letters : dict of str to int
        Dead letters by kind, ``"event"`` or ``"rule"``; without those of which there are none.
    pending : int
        Firings that are recorded and not done, without intents.
    """

    letters: dict[str, int]
    pending: int


class Journal:
    """Firings of rules in top-level transactions that are due, and letters about what failed.

    A firing is *held* by the process that runs it, under its lease: nobody else takes it while
    that process lives. One that nobody holds is for whoever claims it first. An *intent* is a
    firing that will be due if its triggering transaction aborts.

    Parameters
    ----------
    store : Store
    is_queued : bool
        What is recorded here is held by nobody: it is for workers to run.

    Attributes
    ----------
    letters_table : sqlalchemy.Table
        The dead letters, for a transaction that locks and deletes one with its other changes.
    """

    letters_table: Any = dead_letters

    def __init__(self, store: Store, *, is_queued: bool = False):
        self._store = store
        self.is_queued = is_queued

    def hints(self) -> Hints:
        """What wakes up a worker; raises `ConfigurationError` if there can be none."""
        return self._store.hints()

    def record(self, firings: Iterable[Mapping[str, Any]], *, held: bool | None = None) -> set[str]:
        """Record firings durably, in a transaction of their own; see `record_on`."""
        with translated("record detached rules"), self._store.short() as connection:
            return self.record_on(connection, firings, held=held)

    def record_on(
        self,
        connection: Connection,
        firings: Iterable[Mapping[str, Any]],
        *,
        held: bool | None = None,
    ) -> set[str]:
        """Record firings with a commit; returns those that were not there, pending or done.

        Parameters
        ----------
        held : bool, optional
            This process runs them; otherwise whoever is first, and workers are woken up. Left
            out: unless it is queued for workers.
        """
        held = not self.is_queued if held is None else held
        holder = self._store.lease.take() if held else None
        rows = [{**firing, "holder": holder} for firing in firings]
        if not rows:
            return set()
        statement = _flavour(connection)(pending_firings).on_conflict_do_nothing()
        new = connection.execute(statement.returning(pending_firings.c.firing), rows)
        names = set(new.scalars())
        if names and not held:
            self._store.give_hint(connection)
        return names

    def pending(self, *, run: str | None = None) -> list[Mapping[str, Any]]:
        """Firings that are recorded and not done, no intents, by name; all, or those of a run."""
        c = pending_firings.c
        statement = select(pending_firings).where(~c.done, ~c.intent).order_by(c.firing)
        if run is not None:
            statement = statement.where(c.run == run)
        with translated("read the pending rules"), self._store.short() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def standing(self) -> Standing:
        """How much there is, as of one moment; O(rows)."""
        c, kind = pending_firings.c, dead_letters.c.kind
        letters = select(kind, func.count()).group_by(kind)
        due = select(func.count()).select_from(pending_firings).where(~c.done, ~c.intent)
        with translated("count letters and rules"), self._store.short() as connection:
            of_kinds = {row[0]: row[1] for row in connection.execute(letters)}
            return Standing(of_kinds, connection.execute(due).scalar_one())

    # -- intents ---------------------------------------------------------------------------

    def intend(self, firings: Iterable[Mapping[str, Any]]) -> None:
        """Record intents of ours durably, in a transaction of their own.

        One that is there already, as a retry of the same work gives the same names, becomes ours;
        a firing that is there and no intent is left as it is.
        """
        holder = self._store.lease.take()
        rows = [{**firing, "intent": True, "holder": holder} for firing in firings]
        if not rows:
            return
        with translated("record exclusive rules"), self._store.short() as connection:
            statement = _flavour(connection)(pending_firings)
            statement = statement.on_conflict_do_update(
                index_elements=[pending_firings.c.firing],
                set_={"holder": statement.excluded.holder},
                where=pending_firings.c.intent,
            )
            connection.execute(statement, rows)

    def erase_intents(self, connection: Connection, names: Collection[str]) -> bool:
        """Delete intents within the triggering commit; False if one is no intent any more.

        Then another process has taken it over, because our lease was lost, and runs it or has run
        it as if the triggering transaction had aborted: so that one must not commit.
        """
        c = pending_firings.c
        gone = 0
        for some in _portions(names):
            gone += connection.execute(
                delete(pending_firings).where(c.firing.in_(some), c.intent)
            ).rowcount
        return gone == len(set(names))

    def fall_due(self, names: Collection[str]) -> list[dict[str, Any]]:
        """Make intents firings that are due, as what triggered them has aborted.

        In a transaction of its own; returns the rows of those that were still intents, by name.
        """
        if not names:
            return []
        holder = None if self.is_queued else self._store.lease.take()
        c = pending_firings.c
        rows: list[dict[str, Any]] = []
        with translated("make exclusive rules due"), self._store.short() as connection:
            for some in _portions(names):
                due = update(pending_firings).where(c.firing.in_(some), c.intent)
                due = due.values(intent=False, holder=holder)
                found = connection.execute(due.returning(pending_firings)).mappings()
                rows += [dict(row) for row in found]
            if rows and self.is_queued:
                self._store.give_hint(connection)
        return sorted(rows, key=lambda row: str(row["firing"]))

    # -- sharing them ----------------------------------------------------------------------

    def claim(
        self,
        limit: int,
        *,
        knows: Callable[[str], bool] = lambda rule: True,
        without: Collection[str] = (),
        of_dead: bool = True,
    ) -> list[dict[str, Any]]:
        """Take over firings that are not done and that nobody holds; the oldest first.

        In one transaction, beside other claims that are made at the same time. Intents of
        processes that have died are due now: a crash is an abort.

        Parameters
        ----------
        limit : int
            The most to take; at most a thousand are.
        knows : callable ``(rule)``
            Whether this process has a rule; firings of others stay, or become, nobody's.
        without : collection of str
            Rules that are not worth looking at, as they are not known.
        of_dead : bool
            Also look for those of processes that have died. O(pending firings) then, O(limit)
            otherwise.
        """
        lease = self._store.lease
        number, left, unknown = lease.take(), min(limit, _NAMES_MAX), set(without)
        rows: list[dict[str, Any]] = []
        with translated("take over pending rules"), self._store.short() as connection:
            is_free = self._is_free(connection, number, of_dead=of_dead)
            while left > 0:
                some = self._lock_free(connection, is_free, unknown, left)
                strange = {row["rule"] for row in some if not knows(row["rule"])}
                ours = [row for row in some if row["rule"] not in strange]
                _hold(connection, [row["firing"] for row in ours], number)
                others = [row for row in some if row["rule"] in strange and row["holder"]]
                _hold(connection, [row["firing"] for row in others], None)
                rows += [{**row, "intent": False, "holder": number} for row in ours]
                if not strange:
                    break
                unknown |= strange
                left -= len(ours)
        return rows

    def held(self) -> list[dict[str, Any]]:
        """Firings of ours that are not done, no intents, the oldest first."""
        c = pending_firings.c
        statement = (
            select(pending_firings)
            .where(~c.done, ~c.intent, c.holder == self._store.lease.number)
            .order_by(c.recorded_at, c.firing)
        )
        with translated("read the pending rules"), self._store.short() as connection:
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
        found = select(pending_firings).where(~c.done, is_free)
        if without:
            found = found.where(c.rule.not_in(without))
        found = found.order_by(c.recorded_at, c.firing).limit(limit)
        return connection.execute(found.with_for_update(skip_locked=True)).mappings().all()

    # -- done ------------------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        """Whether a server keeps it, which may crash alone."""
        return self._store.is_shared

    def done(self, run_prefix: str) -> dict[str, str]:
        """The firings of runs that are done, and the names of their runs."""
        c = pending_firings.c
        statement = select(c.firing, c.run).where(
            c.run.startswith(run_prefix, autoescape=True), ~c.run.contains("#"), c.done
        )
        with translated("read the done rules"), self._store.short() as connection:
            return {row.firing: row.run for row in connection.execute(statement)}

    def finish(self, connection: Connection, firing: Mapping[str, Any], *, keep: bool) -> bool:
        """Mark a firing done within its own transaction; False if somebody did before.

        The firings that it triggered itself, and that are done, are forgotten: it will not
        trigger them again.

        Parameters
        ----------
        keep : bool
            Leave a row that says so; it need not be recorded yet. Otherwise the recorded row is
            deleted, unless another firing triggered it that is not done, and will find it then.
        """
        # In this order, down from what triggered it: so none waits for another in a circle, and
        # each leaves a row if and only if the one above will delete it.
        keep = keep or (firing["keep"] and self._may_be_triggered_again(connection, firing))
        c = pending_firings.c
        if keep:
            marked = _flavour(connection)(pending_firings).values(**{**firing, "done": True})
            marked = marked.on_conflict_do_update(
                index_elements=[c.firing], set_={"done": True}, where=~c.done
            )
            is_first = connection.execute(marked.returning(c.firing)).first() is not None
        else:
            gone = delete(pending_firings).where(c.firing == firing["firing"], ~c.done)
            is_first = connection.execute(gone).rowcount == 1
        connection.execute(delete(pending_firings).where(c.run == firing["firing"], c.done))
        return is_first

    def _may_be_triggered_again(self, connection: Connection, firing: Mapping[str, Any]) -> bool:
        """Whether the firing that triggered this one is recorded and not done.

        It is locked until the end of the transaction, so it cannot be done meanwhile.
        """
        if "#" not in firing["run"]:
            return False
        c = pending_firings.c
        above = select(c.firing).where(c.firing == firing["run"], ~c.done)
        return connection.execute(above.with_for_update(read=True)).first() is not None

    def forget_done(self, connection: Connection, firings: Sequence[str]) -> set[str]:
        """Delete those of these firings that are done; returns which."""
        c = pending_firings.c
        gone: set[str] = set()
        for some in _portions(firings):
            done = delete(pending_firings).where(c.firing.in_(some), c.done)
            gone.update(connection.execute(done.returning(c.firing)).scalars())
        return gone

    def prune(self, run: str) -> None:
        """Delete the done firings of runs that have ended, in a transaction of its own.

        Parameters
        ----------
        run : str
            Name of a stream's runs; all its batches have committed.
        """
        c = pending_firings.c
        trigger = pending_firings.alias("trigger")
        is_pending = exists().where(trigger.c.firing == c.run, ~trigger.c.done)
        of_rules = c.run.contains("#") & ~is_pending
        with translated("forget done firings"), self._store.short() as connection:
            connection.execute(delete(pending_firings).where((c.run == run) | of_rules, c.done))

    def bury(self, firing: Mapping[str, Any], letter: Mapping[str, Any], *, keep: bool) -> None:
        """Turn a firing into a dead letter, in a transaction of its own; see `finish`."""
        with translated("write a dead letter"), self._store.short() as connection:
            if self.finish(connection, firing, keep=keep):
                self.write_letters(connection, [letter])

    # -- letters ---------------------------------------------------------------------------

    def letters(
        self, *, source: str | None = None, identity: str | None = None, kind: str | None = None
    ) -> list[Mapping[str, Any]]:
        """Committed dead letters by source and identity; those of which all is as asked for."""
        c = dead_letters.c
        asked = [(c.source, source), (c.identity, identity), (c.kind, kind)]
        statement = (
            select(dead_letters)
            .where(*(column == value for column, value in asked if value is not None))
            .order_by(c.source, c.identity)
        )
        with translated("read the dead letters"), self._store.short() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def keep_letter(self, letter: Mapping[str, Any]) -> None:
        """Write one dead letter in a transaction of its own."""
        with translated("write a dead letter"), self._store.short() as connection:
            self.write_letters(connection, [letter])

    def write_letters(self, connection: Connection, letters: Iterable[Mapping[str, Any]]) -> None:
        """Write dead letters; one that is there already is left as it is."""
        rows = [dict(letter) for letter in letters]
        if rows:
            connection.execute(_flavour(connection)(dead_letters).on_conflict_do_nothing(), rows)


def _hold(connection: Connection, names: Collection[str], holder: int | None) -> None:
    """Give firings that are due another holder."""
    c = pending_firings.c
    for some in _portions(names):
        connection.execute(
            update(pending_firings).where(c.firing.in_(some)).values(intent=False, holder=holder)
        )


def _portions(names: Collection[str]) -> Iterator[Sequence[str]]:
    """`names`, each once and in order, as many at a time as one statement takes."""
    ordered = sorted(set(names))
    for start in range(0, len(ordered), _NAMES_MAX):
        yield ordered[start : start + _NAMES_MAX]
