"""Detection that all strands of a scenario stand still, and of what each one waits for.

The stage is *settled* when each strand waits either for its next step or for another transaction:

* in the lock manager, as its snapshot says;
* for its superior to offer a lock, as its database says, after another look for itself;
* on the server, as ``pg_stat_activity`` and ``pg_blocking_pids`` say, or for the connection that
  another strand of its hierarchy uses to wait there;
* for its children to end, as its Python stack and the list of live children say.

Such a wait ends only when another strand goes on, so if all of them last from one look to the next
while the lock manager has counted nothing, no strand will move before the next step.
"""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
import threading
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from psycopg import Connection, OperationalError

from tests.databases import PATIENCE_S
from tests.scenarios.ground import reaches
from tests.scenarios.operations import VERBS
from tests.scenarios.strand import top_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from activedb import Database
    from tests.scenarios.stage import Stage
    from tests.scenarios.strand import Step, Strand
    from tests.scenarios.watched import WatchedOffers

__all__ = ["Stillness"]

_ENDINGS = ("commit", "abort", "fails", "result")
_SLEEPING = ("threading", "activedb.transactions._pool")
_CONNECTED = (
    "activedb.transactions._hierarchy",
    "activedb.store.session._flat",
    "activedb.store.session._session",
)
_LATCH = re.compile(r"\b(self\.latch|self\._latch|_latch\.acquire)\b")


def _offers_of(db: Database) -> WatchedOffers:
    return cast("WatchedOffers", db._forest.offers)


def _has_looked(offers: WatchedOffers, waiter: int, before: int) -> bool:
    """Return whether it has looked more often than before, or no longer waits."""
    return offers.looks[waiter] > before or waiter not in offers.awaited


class Stillness:
    """Observer of a stage's strands until all of them stand still."""

    def __init__(self, stage: Stage):
        self._stage = stage

    def wait(self) -> dict[str, str]:
        """Wait until all strands stand still; return for whom each one waits."""

        def twice() -> Any:
            first = self._look()
            if first is None:
                return None
            self._let_them_look()
            return first if first == self._look() else None

        waits: dict[str, str] = self.until(twice)[1]
        return waits

    def until(self, reached: Callable[[], Any]) -> Any:
        """Wait for something that strands bring about; return what is true of it."""
        deadline = time.monotonic() + PATIENCE_S
        pause = threading.Event()
        while not (found := reached()):
            if self._stage.broken is not None:
                raise self._stage.broken
            if time.monotonic() > deadline:
                raise AssertionError(f"nothing moves for an unknown reason:\n{self._scene()}")
            pause.wait(0.0005)
        return found

    def _let_them_look(self) -> None:
        """Let those who await an offer find out that none of those who could make it will move.

        They look now and then. The look that is under way may have begun too early to count.
        """
        for offers in self._offers():
            for waiter in offers.awaited:
                seen = offers.looks[waiter] + 1
                self.until(partial(_has_looked, offers, waiter, seen))

    def _look(self) -> tuple[Any, dict[str, str]] | None:
        """Return who waits for whom, or None if a strand moves."""
        stage = self._stage
        busy = stage.busy()
        if not busy:
            return (), {}
        if stage.broken is not None:
            return None
        counters, local = self._here()
        local |= self._awaited()
        frames = sys._current_frames()
        waits: dict[str, str] = {}
        tops: dict[str, set[str]] = {}
        server: dict[int, set[str]] | None = None
        crossing: set[str] = set()
        for strand in busy:
            step, frame = strand.current, frames.get(strand.thread)
            if step is None or frame is None:
                return None
            waited: set[str] | None = None
            if step.name in local:
                waited = local[step.name]
            elif self._may_wait_for_children(step, _module(frame)):
                waited = stage.live_children(self._ending(strand))
                if step.verb == "result":
                    waited &= {step.name}
            elif (number := self._connection_of(step, frame)) is not None:
                node = stage.nodes.get(step.name)
                if node is not None and node.is_rollback_only:
                    return None  # the server is about to end the wait
                if server is None:
                    server = stage.ground.server_waits()
                waited = server.get(number)
                crossing.add(top_of(step.name))
            if not waited:
                return None
            waits[step.name] = _names_for(step.name, waited)
            tops.setdefault(top_of(step.name), set()).update(
                top_of(name) for name in waited if top_of(name) != top_of(step.name)
            )
        if any(reaches(tops, top, top) for top in crossing):
            return None  # a deadlock through the server: one of them will be the victim
        return counters, waits

    def _here(self) -> tuple[list[tuple[int, ...]], dict[str, set[str]]]:
        """Return what the lock managers have counted, and who waits in them for whom."""
        counters: list[tuple[int, ...]] = []
        local: dict[str, set[str]] = {}
        for db in self._stage.ground.databases():
            snapshot = db._forest.locks.snapshot()
            c = db._forest.locks.counters
            counters.append((c.requests, c.grants, c.waits, c.timeouts, c.victims))
            for request in snapshot.queue:
                hard = [e for e in snapshot.edges if e.waiter == request.tid and e.kind != "commit"]
                edges = [e for e in hard if e.kind != "soft"] or hard
                name = self._stage.name_of(db, request.tid)
                local[name] = {self._stage.name_of(db, e.waited_for) for e in edges}
        return counters, local

    def _connection_of(self, step: Step, frame: FrameType) -> int | None:
        """Return the server's number of the connection that a thread uses or waits to use."""
        if _module(frame).startswith("psycopg"):
            return _backend_of(frame)
        if _is_at_a_latch(frame):
            return self._stage.ground.backend_of(top_of(step.name))
        return None

    def _may_wait_for_children(self, step: Step, module: str) -> bool:
        """Return whether a thread that is in this module may be there to wait for children.

        That holds for the end of a transaction, and for any step that has failed and ends it.
        """
        if step.verb in _ENDINGS:
            return module in _SLEEPING
        return step.verb in VERBS and module == _SLEEPING[1]

    def _awaited(self) -> dict[str, set[str]]:
        """Return the children that wait for their running superior to offer its locks."""
        found = {}
        for db in self._stage.ground.databases():
            for waiter, superior in _offers_of(db).awaited.items():
                found[self._stage.name_of(db, waiter)] = {self._stage.name_of(db, superior)}
        return found

    def _offers(self) -> list[WatchedOffers]:
        return [_offers_of(db) for db in self._stage.ground.databases()]

    def _ending(self, strand: Strand) -> str:
        """Return the innermost transaction of a strand that has not ended, or an empty name."""
        nodes = self._stage.nodes
        live = (name for name in reversed(strand.open) if not nodes[name].state.is_final)
        return next(live, "")

    def _scene(self) -> str:
        frames = sys._current_frames()
        lines = []
        for strand in self._stage.all_strands():
            lines.append(f"{strand.root}: {strand.current}")
            frame = frames.get(strand.thread)
            if strand.current is not None and frame is not None:
                lines += traceback.format_stack(frame)[-6:]
        lines += [db._forest.locks.dump() for db in self._stage.ground.databases()]
        return "\n".join(lines)


def _names_for(waiter: str, waited: set[str]) -> str:
    """Name those a strand waits for; of other hierarchies only the top-level transaction."""
    names = {name if top_of(name) == top_of(waiter) else top_of(name) for name in waited}
    return ", ".join(sorted(names))


def _module(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name


def _is_at_a_latch(frame: FrameType) -> bool:
    """Return whether a thread may be there to wait for the connection of its hierarchy."""
    while _module(frame) == "activedb.store.server._patience":  # inside the latch itself
        assert frame.f_back is not None
        frame = frame.f_back
    if _module(frame) not in _CONNECTED:
        return False
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return _LATCH.search(line) is not None


def _backend_of(frame: FrameType | None) -> int | None:
    """Return the server's number of the connection that a thread inside psycopg uses."""
    while frame is not None and _module(frame).startswith("psycopg"):
        user = frame.f_locals.get("self")
        if isinstance(user, Connection):
            with contextlib.suppress(OperationalError):  # it is being opened, or has been closed
                return user.info.backend_pid
            return None
        frame = frame.f_back
    return None
