"""The hygiene logic of figure 1 as rules over a shared table of badges.

The events, and the same logic as one loop, are those of `tests.streams.hygiene`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from activedb.events import Expression, Occurrence, event, seq
from activedb.scheduling import Outcome, Program, ProgramRun, Ref, Scheduler, SharedTable, View
from tests.streams.hygiene import MASK_WINDOW_S, WINDOW_S, seconds

__all__ = ["Change", "badges", "history_of", "ward"]

Change = tuple[float, int, str]
badges = SharedTable("badges", key=int, initial="safe")


def ward() -> Program:
    """Q1 to Q3 with R1 to R3, and R4; outputs are what changed: time, worker, new status."""
    program = Program("ward", [badges])
    exit_, sanitize, enter = event("EXIT"), event("SANITIZE"), event("ENTER")

    def rule(name: str, on: Expression, turns_to: str, is_due: Callable[[str], bool]) -> None:
        def when(t: View, o: Occurrence) -> bool:
            return is_due(t.read(_of(o)))

        @program.rule(on, name=name, reads=_badge, writes=_badge, when=when)
        def turn(t: View, o: Occurrence) -> Change:
            t.write(_of(o), turns_to)
            return seconds(o), o.params["worker"], turns_to

    q1 = (
        seq(exit_, ~sanitize, enter)
        .same("worker")
        .where(lambda parts: parts["EXIT"].params["location"] != parts["ENTER"].params["location"])
        .within(WINDOW_S)
    )
    q2 = seq(event("MASK"), exit_).same("worker").within(MASK_WINDOW_S)
    q3 = seq(enter, ~sanitize, event("TOUCH")).same("worker").within(WINDOW_S)
    rule("R1", q1, "warning", lambda status: status == "safe")
    rule("R2", q2, "safe", lambda status: status == "warning")
    rule("R3", q3, "violation", lambda status: status == "warning")
    rule("R4", sanitize, "safe", lambda status: status != "safe")

    @program.post_process
    def changes(type_: str, params: Mapping[str, Any], outcome: Outcome) -> list[Change]:
        (reactions,) = outcome.results
        return [reaction.result for reaction in reactions if reaction.fired]

    return program


def history_of(
    scheduler: Scheduler, feeds: Iterable[tuple[list[Occurrence], int | None]]
) -> tuple[dict[int, str], list[Change]]:
    """The badges in the end, and each change, in the order in which it was made."""
    run = ProgramRun(ward(), scheduler)
    outputs = []
    for events, punctuation_us in feeds:
        outputs += run.feed(events, punctuation_us).outputs
    outputs += run.finish().outputs
    newest = run.state.of(badges).newest()
    return {worker: newest.get(worker, "safe") for worker in (1, 2)}, [
        change for changes in outputs for change in changes
    ]


def _of(o: Occurrence) -> Ref:
    return badges[o.params["worker"]]


def _badge(o: Occurrence) -> list[Ref]:
    return [_of(o)]
