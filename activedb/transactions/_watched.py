"""Sessions of the application whose flushes raise data events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from activedb.store.sql import Key, Row, TableSpec, listen_to_flushes
from activedb.transactions._node import TransactionNode, Version, current_transaction
from activedb.transactions._rows import lock_rows

if TYPE_CHECKING:
    from activedb.transactions._forest import Forest

__all__ = ["WatchedSessions"]

_KEYS_MAX = 2_000  # in one read
_Rows = dict[tuple[TableSpec, Key], Row | None]


class WatchedSessions:
    """Sessions whose flushes raise data events.

    Before a flush its rows are locked, like the rows that any transaction writes, and read. After
    the flush they are read again, and the changed rows of each table are reported to the listener,
    like those of one statement.
    """

    def __init__(self, forest: Forest):
        self._forest = forest
        self._stops: list[Callable[[], None]] = []
        self._old: WeakKeyDictionary[Any, _Rows] = WeakKeyDictionary()

    def watch(self, target: Any) -> None:
        """Listen to a session, or to all sessions that a sessionmaker or Session class makes.

        A session that is watched in several ways raises each event once.
        """
        self._stops.append(listen_to_flushes(target, self._before, self._after))

    def moved_to(self, forest: Forest) -> None:
        """Hand the sessions over to another forest. REQUIRES: no flush is in progress."""
        self._forest = forest

    def close(self) -> None:
        """Stop listening. Idempotent."""
        while self._stops:
            self._stops.pop()()

    def _before(self, session: Any, written: list[tuple[Any, tuple[Any, ...]]]) -> None:
        rows: _Rows = {}
        if written:
            with self._locked(session, written) as (t, rows):
                pass
            t.hierarchy.session.raises(True)
        self._old[session] = rows

    def _after(self, session: Any, written: list[tuple[Any, tuple[Any, ...]]]) -> None:
        old = self._old.pop(session, None)
        if old is None or not written:  # None: another watch has reported it
            return
        with self._locked(session, written) as (t, rows):
            t.hierarchy.session.raises(False)
            versions: dict[TableSpec, list[Version]] = {}
            for (spec, key), new in rows.items():
                before = old.get((spec, key))
                if before != new:
                    versions.setdefault(spec, []).append((key, before, new))
            for spec, written_rows in versions.items():
                self._forest.listener.changed_all(t, spec, written_rows)

    @contextmanager
    def _locked(
        self, session: Any, written: list[tuple[Any, tuple[Any, ...]]]
    ) -> Iterator[tuple[TransactionNode, _Rows]]:
        around = current_transaction()
        if around is not None and around.condition_of is not None:
            around.refuse_write("a flush of a watched session")
        by_spec: dict[TableSpec, list[Key]] = {}
        for table, key in written:
            spec = self._forest.tables.spec(table)
            by_spec.setdefault(spec, []).append(spec.key(key))
        with self._forest.joined.block(session) as t:
            rows: _Rows = {}
            for spec, keys in by_spec.items():
                in_order = spec.in_order(keys)
                for start in range(0, len(in_order), _KEYS_MAX):
                    found = lock_rows(t, spec, in_order[start : start + _KEYS_MAX])
                    rows.update({(spec, key): row for key, row in found.items()})
            yield t, rows
