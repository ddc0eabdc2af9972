"""Decisions left open by rules of a stream's programs, as rows of `db.decisions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from activedb.clock import Clock
from activedb.errors import BadEvent
from activedb.events import Occurrence
from activedb.firing import (
    BY_EVENTS,
    OF_PROGRAM,
    Letter,
    RuleFigures,
    decision_id,
    decision_row,
    shortened,
)
from activedb.metrics import NamedCounters
from activedb.scheduling import At, Detection, OpenChoice, STransaction
from activedb.store.journals import DecisionRows

__all__ = ["ProgramDecisions"]

_NAME_MAX = 200  # characters of the column
_OF_DECISIONS = 2**62 + 2**61
"""Offset of a decision's arrival number in the serial order, after all others of its time."""
_OF_PART = 2**20  # maximum number of decisions applied with one part


@dataclass(slots=True)
class _DecisionEffects:
    """Effects of one part on the decisions."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    choices: list[tuple[str, OpenChoice]] = field(default_factory=list)
    by_events: dict[str, list[int]] = field(default_factory=dict)
    applied: list[str] = field(default_factory=list)
    void: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)


class ProgramDecisions:
    """Decisions of one stream's programs, part by part.

    A decision resolved in any process is applied with the next part, by an s-transaction after all
    events the part has processed.

    Not thread-safe: used only by the thread that feeds the stream.
    """

    def __init__(
        self,
        stream: str,
        rows: DecisionRows,
        *,
        clock: Clock,
        counters: NamedCounters,
        figures: RuleFigures,
    ):
        self._stream = stream
        self._rows = rows
        self._clock = clock
        self._counters = counters
        self._figures = figures
        self._left = _DecisionEffects()
        self._has_looked = False  # for decisions resolved while no process had the stream
        self._chosen: dict[str, Mapping[str, Any]] = {}

    def take_back(self) -> None:
        """Discard the state of the current part, which has failed or ended."""
        self._has_looked = self._has_looked and not self._chosen
        self._left, self._chosen = _DecisionEffects(), {}

    def begin(self, detections: Mapping[str, Detection]) -> None:
        """Read the resolved decisions as a part begins: one statement if any decision is open.

        If none is open, only the first part reads.
        """
        if self._has_looked and not any(each.undecided for each in detections.values()):
            return
        self._chosen = {
            row["id"]: row
            for row in self._rows.read(statuses=["chosen"], stream=self._stream)
            if row["event"] == OF_PROGRAM
        }
        self._has_looked = True

    def found(
        self,
        program: str,
        undecided: Sequence[OpenChoice],
        decided: Sequence[tuple[OpenChoice, list[int]]],
    ) -> None:
        """Record choices that a program's rules left open in a part, or that events resolved."""
        for choice in undecided:
            row = self._row(program, choice)
            self._left.rows[row["id"]] = row
            self._left.choices.append((program, choice))
        for choice, numbers in decided:
            id_ = self._id(program, choice)
            self._left.by_events[id_] = numbers
            self._chosen.pop(id_, None)  # the events came first

    def apply(
        self, program: str, detection: Detection, sequence: int, reached_us: int
    ) -> tuple[list[tuple[str, STransaction]], list[Letter]]:
        """Apply the resolved choices of a program; return s-transactions by decision, and letters.

        REQUIRES: all s-transactions run so far are before `reached_us`.
        """
        made: list[tuple[str, STransaction]] = []
        letters: list[Letter] = []
        if not self._chosen:
            return made, letters
        for choice in detection.undecided:
            id_ = self._id(program, choice)
            row = self._chosen.get(id_)
            if row is None or len(self._left.applied) == _OF_PART:
                continue
            number = _OF_DECISIONS + sequence * _OF_PART + len(self._left.applied)
            try:
                at = At(reached_us - 1, "", number)
                one = detection.resolve(choice, row["chosen"], at, reached_us)
            except BadEvent as error:
                self._left.again.append(id_)
                letters.append(self._letter(row, error))
            else:
                self._left.applied.append(id_)
                if one is not None:
                    made.append((id_, one))
            del self._chosen[id_]
        return made, letters

    def rest(self, programs: Sequence[str]) -> list[Letter]:
        """Return letters for resolved choices of known programs that no detector retains."""
        letters: list[Letter] = []
        for id_, row in self._chosen.items():
            if row["choice"].get("program") not in programs:
                continue
            self._left.void.append(id_)
            if row["chosen"]:
                error = BadEvent("it can no longer be made, as its detector does not keep it")
                letters.append(self._letter(row, error))
        return letters

    def write(self, connection: Any) -> None:
        """Write the effects on the decisions, within the part's commit."""
        left, now = self._left, self._clock.now()
        self._rows.record(connection, left.rows.values())
        self._rows.settle(connection, left.by_events, BY_EVENTS, now, statuses=("open", "chosen"))
        self._rows.applied(connection, left.applied, "resolved")
        self._rows.applied(connection, left.void, "resolved", made=False)
        self._rows.applied(connection, left.again, "open", made=False)

    def committed(self) -> None:
        """Count the decisions left open, after the part has committed."""
        for program, choice in self._left.choices:
            self._counters.add("matches_undecided", len(choice.undecided.candidates))
            self._figures.undecided(_name(program, choice.rule), 1)
        self.take_back()

    # -- internals -------------------------------------------------------------------------

    def _row(self, program: str, choice: OpenChoice) -> dict[str, Any]:
        row = decision_row(
            choice.undecided,
            id=self._id(program, choice),
            rule=_name(program, choice.rule),
            event=OF_PROGRAM,
            stream=self._stream,
            holder=0,
            recorded_at=self._clock.now(),
            counters=self._counters,
        )
        row["choice"]["program"] = program
        return row

    def _id(self, program: str, choice: OpenChoice) -> str:
        identity = choice.undecided.identity
        return decision_id(OF_PROGRAM, program, choice.rule, self._stream, identity)

    def _letter(self, row: Mapping[str, Any], error: Exception) -> Letter:
        o = Occurrence("decision", row["us"] / 1e6, {"decision": row["id"]})
        identity = f"decision.{row['id']}.{row['decided_at']}"
        return Letter.of_detection(row["rule"], identity, o, error)


def _name(program: str, rule: str) -> str:
    return shortened(f"{program}.{rule}", _NAME_MAX)
