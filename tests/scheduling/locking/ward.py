"""The s-transactions of examples 1 to 5 (Wang, Rundensteiner, Ellison 2011, sections 2 and 5).

Q1 reads a worker's badge when the worker enters, and if it is safe R1 writes a warning; Q2 reads it
when the worker leaves. The stream is exit², enter¹⁰ and exit¹⁵.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from activedb.scheduling import Access, At, Program, SharedState, SharedTable, STransaction, View

__all__ = ["ENTER_10", "EXIT_2", "EXIT_15", "LATER_18", "at", "badges", "new_state", "paper_stream"]

badges = SharedTable("badges", key=int, initial="safe")
ward = Program("ward", [badges])
WORKER = 7


@ward.on("EXIT")
def leaves(e: Mapping[str, Any], access: Access) -> None:
    """Q2 looks at the badge."""
    access.read(badges[e["worker"]])


@ward.transaction(
    "ENTER",
    reads=lambda e: [badges[e["worker"]]],
    writes=lambda e: [badges[e["worker"]]],
)
def enters(t: View, e: Mapping[str, Any]) -> Any:
    """Q1 looks at the badge, and R1 changes it."""
    status = t.read(badges[e["worker"]])
    if status == "safe":
        t.write(badges[e["worker"]], "warning")
    return status


def at(second: int) -> At:
    """The place of the s-transaction of a second."""
    return At(second, "", second)


EXIT_2, ENTER_10, EXIT_15, LATER_18 = at(2), at(10), at(15), at(18)


def paper_stream() -> list[STransaction]:
    """T1 of exit², T2 of enter¹⁰, T3 of exit¹⁵."""
    return [_made(EXIT_2, "EXIT"), _made(ENTER_10, "ENTER"), _made(EXIT_15, "EXIT")]


def later() -> STransaction:
    """T4 of figure 4, which may write at 18."""
    return _made(LATER_18, "ENTER")


def new_state() -> SharedState:
    """Return a state with the initial version of figure 4: (1, safe)."""
    state = SharedState([badges])
    state.write([(badges, WORKER, "safe")], at(1))
    return state


def _made(place: At, type_: str) -> STransaction:
    params = {"worker": WORKER}
    return STransaction(place, type_, params, ward.operations(type_, params))
