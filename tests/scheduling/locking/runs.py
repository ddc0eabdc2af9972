"""S-transactions over two tables, run under each locking scheduler."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from activedb.scheduling import Access, At, Scheduler, SharedState, SharedTable, STransaction
from activedb.scheduling.locking import LWM, S2PL, Gate
from tests.patience import PATIENCE_S

__all__ = ["KINDS", "a", "b", "made", "outcome_of", "run", "scheduler"]

KINDS = ["s2pl table", "s2pl row", "lwm table", "lwm row"]
a = SharedTable("a", key=int, initial=0)
b = SharedTable("b", key=int, initial=0)


def scheduler(kind: str, threads: int, gate: Gate | None = None) -> Scheduler:
    protocol, granularity = kind.split()
    return (S2PL if protocol == "s2pl" else LWM)(granularity, threads=threads, gate=gate)


def made(place: At, *steps: Callable[[Access], None]) -> STransaction:
    access = Access()
    for step in steps:
        step(access)
    return STransaction(place, "X", {}, tuple(access.operations))


def run(
    chosen: Scheduler, transactions: Sequence[STransaction], state: SharedState | None = None
) -> SharedState:
    if state is None:
        state = SharedState([a, b])
    for transaction in transactions:
        chosen.add(transaction)
    chosen.run(state)
    return state


def outcome_of(act: Callable[[], object]) -> BaseException | None:
    """Return what `act` raises, None if it returns; fail if it does neither.

    It runs on a daemon thread, whose own threads are daemons, too: so a run that hangs does not
    keep the tests from ending.
    """
    raised: list[BaseException] = []

    def watched() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=watched, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), f"it has not ended within {PATIENCE_S} seconds"
    return raised[0] if raised else None
