"""Forming input batches: which transactions are due as batches come along."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from activedb.batches._grouping import Grouping
from activedb.batches._records import Batch, BatchKind, Piece
from activedb.batches._requirements import Requirement
from activedb.batches._workflow import Program, Workflow
from activedb.errors import LineageError, RecordedTwice
from activedb.spelling import listed

__all__ = ["Due", "Forming"]

PieceOrGap = Piece | None
"""A place in an input batch: a piece, or a gap that a withdrawn one has left."""


@dataclass(frozen=True, slots=True)
class Due:
    """A transaction that can be executed now.

    Attributes
    ----------
    program : str
    number : int
        The how manieth of its program, from 1.
    inputs : tuple of tuple of Piece
        An input batch of each stream that the program reads, oldest pieces first, as
        `Lineage.execute` takes them. Without what was withdrawn.
    """

    program: str
    number: int
    inputs: tuple[tuple[Piece, ...], ...]


@dataclass
class _Intake:
    """What a program has taken of one stream.

    Attributes
    ----------
    expected : int
        The number of the batch that it takes next, if it keeps batch order.
    held : dict of int to str or None
        Batches that came too early, by number; None: one that will not come.
    window : list of PieceOrGap
        Pieces of which the next input batch begins.
    formed : deque of list of PieceOrGap
        Input batches that wait for those of other streams.
    """

    expected: int = 1
    held: dict[int, str | None] = field(default_factory=dict)
    window: list[PieceOrGap] = field(default_factory=list)
    formed: deque[list[PieceOrGap]] = field(default_factory=deque)

    def take(self, batch: str | None, grouping: Grouping) -> None:
        """Cut a batch into pieces, and form what can be formed."""
        parts = range(1, grouping.parts + 1)
        self.window += [Piece(batch, part, grouping.parts) if batch else None for part in parts]
        while len(self.window) >= grouping.size:
            self.formed.append(self.window[: grouping.size])
            del self.window[: grouping.step]

    def withdraw(self, batches: set[str]) -> None:
        """Leave gaps where pieces of some batches are."""
        for places in (self.window, *self.formed):
            places[:] = [None if place and place.batch in batches else place for place in places]
        for number, batch in self.held.items():
            if batch in batches:
                self.held[number] = None


class Forming:
    """Forms the input batches of all programs of a workflow, as their groupings say.

    A program takes the batches of a stream by their numbers, and what comes too early waits; one
    that relaxes batch order takes them as they come. Input batches are numbered as they are formed,
    and so are the transactions. A program with several streams is due with the i-th input batch of
    each.

    Decides nothing about running, and records nothing: the caller executes what is due, records it,
    and offers what was given out. No threads.

    Parameters
    ----------
    workflow : Workflow
    state : mapping or None
        What `state` gave, to go on from there.

    Notes
    -----
    Waiting batches are kept, by their ids: as many as have come without a predecessor, and at most
    an input batch of each program and stream besides, as long as the streams of a program come
    alike. An offer is O(pieces) of what is formed.
    """

    def __init__(self, workflow: Workflow, state: Mapping[str, Any] | None = None):
        self._workflow = workflow
        self._numbers = dict.fromkeys(workflow.programs, 0)
        self._intakes = {
            (name, stream): _Intake()
            for name, program in workflow.programs.items()
            for stream in program.reads
        }
        if state is not None:
            self._restore(state)

    def offer(self, batch: Batch) -> tuple[Due, ...]:
        """Take a source batch or an output to all its readers.

        Returns
        -------
        tuple of Due
            What is due by that, by the order of programs.

        Raises
        ------
        RecordedTwice
            If a batch of that number has been taken before by a program that keeps batch order.
        LineageError
            If it is an input batch, or of no stream of the workflow.
        """
        if batch.kind is BatchKind.INPUT:
            raise LineageError(f"{batch.id} is an input batch already: nobody forms it again")
        return self._come(batch.stream, batch.number, batch.id)

    def skip(self, stream: str, number: int) -> tuple[Due, ...]:
        """Do without a batch: it will not come, as its transaction gave out nothing or is given up.

        Its places in input batches are gaps; an input batch of gaps only is not due, and the output
        of that transaction is skipped in turn.

        Returns
        -------
        tuple of Due
            What has waited for that batch only.

        Raises
        ------
        RecordedTwice, LineageError
            As `offer`.
        """
        return self._come(stream, number, None)

    def withdraw(self, batches: Iterable[str]) -> None:
        """Take batches from all that wait for them; gaps stay in their places.

        What is due already, or was executed, is not affected.
        """
        chosen = set(batches)
        for intake in self._intakes.values():
            intake.withdraw(chosen)

    def waiting(self) -> dict[str, tuple[str, ...]]:
        """The batches that wait to be used, by program; those without are left out."""
        found = {}
        for name, program in self._workflow.programs.items():
            ids: dict[str, None] = {}
            for stream in program.reads:
                intake = self._intakes[name, stream]
                for places in (*intake.formed, intake.window):
                    ids.update((place.batch, None) for place in places if place)
                ids.update((id, None) for _, id in sorted(intake.held.items()) if id)
            if ids:
                found[name] = tuple(ids)
        return found

    def state(self) -> dict[str, Any]:
        """All that it remembers, as plain data."""
        return {
            "numbers": dict(self._numbers),
            "intakes": [
                {
                    "program": program,
                    "stream": stream,
                    "expected": intake.expected,
                    "held": sorted([number, id] for number, id in intake.held.items()),
                    "window": [place and list(place) for place in intake.window],
                    "formed": [[p and list(p) for p in places] for places in intake.formed],
                }
                for (program, stream), intake in self._intakes.items()
            ],
        }

    # -- inside ----------------------------------------------------------------------------

    def _restore(self, state: Mapping[str, Any]) -> None:
        intakes = {(each["program"], each["stream"]): each for each in state["intakes"]}
        if (
            intakes.keys() != self._intakes.keys()
            or state["numbers"].keys() != self._numbers.keys()
        ):
            raise LineageError(
                "the state is that of another workflow, with the programs "
                f"{listed(sorted(state['numbers']))}: go on with that one, or begin anew"
            )
        self._numbers = {name: state["numbers"][name] for name in self._numbers}
        for key, each in intakes.items():
            self._intakes[key] = _Intake(
                each["expected"],
                dict(each["held"]),
                [place and Piece(*place) for place in each["window"]],
                deque([p and Piece(*p) for p in places] for places in each["formed"]),
            )

    def _come(self, stream: str, number: int, id: str | None) -> tuple[Due, ...]:
        programs = self._workflow.programs
        if stream not in self._workflow.sources and stream not in programs:
            raise LineageError(f"the workflow has no stream {stream!r}")
        self._check_new(stream, number)
        due: list[Due] = []
        coming: deque[tuple[str, int, str | None]] = deque([(stream, number, id)])
        while coming:
            stream, number, id = coming.popleft()
            for program in self._workflow.readers(stream):
                self._take(program, stream, number, id)
                for found in self._complete(program):
                    if any(found.inputs):
                        due.append(found)
                    else:
                        coming.append((program.name, found.number, None))
        return tuple(sorted(due, key=lambda d: (self._workflow.rank(d.program), d.number)))

    def _check_new(self, stream: str, number: int) -> None:
        for program in self._workflow.readers(stream):
            intake = self._intakes[program.name, stream]
            in_order = program.requires(Requirement.BATCH_ORDER)
            if in_order and (number < intake.expected or number in intake.held):
                raise RecordedTwice(
                    f"{program.name!r} has had number {number} of {stream!r} already"
                )

    def _take(self, program: Program, stream: str, number: int, id: str | None) -> None:
        intake, grouping = self._intakes[program.name, stream], program.reads[stream]
        if not program.requires(Requirement.BATCH_ORDER):
            intake.take(id, grouping)
            return
        intake.held[number] = id
        while intake.expected in intake.held:
            intake.take(intake.held.pop(intake.expected), grouping)
            intake.expected += 1

    def _complete(self, program: Program) -> Iterable[Due]:
        intakes = [self._intakes[program.name, stream] for stream in program.reads]
        while all(intake.formed for intake in intakes):
            self._numbers[program.name] += 1
            inputs = tuple(
                tuple(place for place in intake.formed.popleft() if place) for intake in intakes
            )
            yield Due(program.name, self._numbers[program.name], inputs)
