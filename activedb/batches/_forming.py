"""Formation of input batches: the transactions that become due as batches arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from activedb.batches._records import Batch, BatchKind, Piece
from activedb.batches._workflow import Grouping, Program, Requirement, Workflow
from activedb.errors import LineageError, RecordedTwice
from activedb.spelling import listed

__all__ = ["Due", "Forming"]

PieceOrGap = Piece | None
"""Place in an input batch: a piece, or a gap left by a withdrawn one."""


@dataclass(frozen=True, slots=True)
class Due:
    """A transaction that can be executed now.

    Attributes
    ----------
    program : str
    number : int
        Number of the transaction within its program, from 1.
    inputs : tuple of tuple of Piece
        An input batch of each stream that the program reads, oldest pieces first, as
        `Lineage.execute` takes them. Withdrawn pieces are left out.
    """

    program: str
    number: int
    inputs: tuple[tuple[Piece, ...], ...]


@dataclass
class _Intake:
    """Batches that a program has taken from one stream.

    Attributes
    ----------
    expected : int
        Lowest number that was not taken yet.
    taken : set of int
        Numbers behind it that were taken, while the program relaxed batch order.
    held : dict of int to str or None
        Early batches by number, if the program keeps batch order or did so when they came; None: a
        batch that will not come.
    window : list of PieceOrGap
        First pieces of the next input batch.
    formed : deque of list of PieceOrGap
        Input batches that wait for input batches of other streams.
    """

    expected: int = 1
    taken: set[int] = field(default_factory=set)
    held: dict[int, str | None] = field(default_factory=dict)
    window: list[PieceOrGap] = field(default_factory=list)
    formed: deque[list[PieceOrGap]] = field(default_factory=deque)

    def come(self, number: int, batch: str | None, grouping: Grouping, *, in_order: bool) -> None:
        """Take a batch and those that waited for it: all, or in order those it does not precede."""
        if in_order:
            self.held[number] = batch
        else:
            for early, waiting in sorted(self.held.items()):  # from before order was relaxed
                self._take(early, waiting, grouping)
            self.held.clear()
            self._take(number, batch, grouping)
        while self.expected in self.held or self.expected in self.taken:
            if self.expected in self.held:
                self._take(self.expected, self.held.pop(self.expected), grouping)
            self.taken.remove(self.expected)
            self.expected += 1

    def _take(self, number: int, batch: str | None, grouping: Grouping) -> None:
        """Cut a batch into pieces, and form the input batches that are complete."""
        self.taken.add(number)
        parts = range(1, grouping.parts + 1)
        self.window += [Piece(batch, part, grouping.parts) if batch else None for part in parts]
        while len(self.window) >= grouping.size:
            self.formed.append(self.window[: grouping.size])
            del self.window[: grouping.step]

    def withdraw(self, batches: set[str]) -> None:
        """Replace the pieces of some batches by gaps."""
        for places in (self.window, *self.formed):
            places[:] = [None if place and place.batch in batches else place for place in places]
        for number, batch in self.held.items():
            if batch in batches:
                self.held[number] = None


class Forming:
    """Formation of the input batches of all programs of a workflow, following their groupings.

    A program takes the batches of a stream by number, and early ones wait. A program that relaxes
    batch order takes them as they arrive; the first of them brings those that waited before it was
    relaxed. Input batches are numbered as they are formed, and so are the transactions. A program
    with several streams is due with the i-th input batch of each.

    This class neither runs nor records transactions: the caller executes those that are due,
    records them, and offers their outputs. It uses no threads.

    Parameters
    ----------
    workflow : Workflow
    state : mapping or None
        Result of `state`, to continue from there.

    Notes
    -----
    Waiting batches are kept by id: those that arrived before a predecessor, plus at most an input
    batch of each program and stream, as long as the streams of a program arrive at the same rate.
    An offer is O(pieces) of the input batches formed.
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
        """Offer a source batch or an output to all its readers.

        Returns
        -------
        tuple of Due
            Transactions that become due, in the order of programs.

        Raises
        ------
        RecordedTwice
            If a program that keeps batch order has already taken a batch of that number.
        LineageError
            If the batch is an input batch, or of no stream of the workflow.
        """
        if batch.kind is BatchKind.INPUT:
            raise LineageError(f"{batch.id} is an input batch already and cannot be formed again")
        return self._come(batch.stream, batch.number, batch.id)

    def skip(self, stream: str, number: int) -> tuple[Due, ...]:
        """Declare that a batch will not come, as its transaction has no output or is given up.

        Its places in input batches become gaps. An input batch that has gaps only is not due, and
        the output of its transaction is skipped in turn.

        Returns
        -------
        tuple of Due
            Transactions that waited for that batch only.

        Raises
        ------
        RecordedTwice, LineageError
            As `offer`.
        """
        return self._come(stream, number, None)

    def withdraw(self, batches: Iterable[str]) -> None:
        """Withdraw batches from all input batches that wait for them, leaving gaps.

        Transactions that are due already, or were executed, are not affected.
        """
        chosen = set(batches)
        for intake in self._intakes.values():
            intake.withdraw(chosen)

    def waiting(self) -> dict[str, tuple[str, ...]]:
        """Return the batches that wait to be used, by program, without programs that have none."""
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
        """Return the whole state as a JSON-serialisable dict."""
        return {
            "numbers": dict(self._numbers),
            "intakes": [
                {
                    "program": program,
                    "stream": stream,
                    "expected": intake.expected,
                    "taken": sorted(intake.taken),
                    "held": sorted([number, id] for number, id in intake.held.items()),
                    "window": [place and list(place) for place in intake.window],
                    "formed": [[p and list(p) for p in places] for places in intake.formed],
                }
                for (program, stream), intake in self._intakes.items()
            ],
        }

    # -- internals -------------------------------------------------------------------------

    def _restore(self, state: Mapping[str, Any]) -> None:
        intakes = {(each["program"], each["stream"]): each for each in state["intakes"]}
        if (
            intakes.keys() != self._intakes.keys()
            or state["numbers"].keys() != self._numbers.keys()
        ):
            raise LineageError(
                "the state belongs to another workflow, with the programs "
                f"{listed(sorted(state['numbers']))}: continue with that one, or start over"
            )
        self._numbers = {name: state["numbers"][name] for name in self._numbers}
        for key, each in intakes.items():
            self._intakes[key] = intake = _Intake(
                each["expected"],
                set(each.get("taken", ())),
                dict(each["held"]),
                [place and Piece(*place) for place in each["window"]],
                deque([p and Piece(*p) for p in places] for places in each["formed"]),
            )
            if "taken" not in each:  # an earlier version did not count them in relaxed order
                program, stream = key
                grouping = self._workflow.programs[program].reads[stream]
                formed = self._numbers[program] + len(intake.formed)
                pieces = formed * grouping.step + len(intake.window)
                intake.expected = 1 + pieces // grouping.parts

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
            if in_order and (
                number < intake.expected or number in intake.held or number in intake.taken
            ):
                raise RecordedTwice(
                    f"{program.name!r} has had number {number} of {stream!r} already"
                )

    def _take(self, program: Program, stream: str, number: int, id: str | None) -> None:
        in_order = program.requires(Requirement.BATCH_ORDER)
        intake = self._intakes[program.name, stream]
        intake.come(number, id, program.reads[stream], in_order=in_order)

    def _complete(self, program: Program) -> Iterable[Due]:
        intakes = [self._intakes[program.name, stream] for stream in program.reads]
        while all(intake.formed for intake in intakes):
            self._numbers[program.name] += 1
            inputs = tuple(
                tuple(place for place in intake.formed.popleft() if place) for intake in intakes
            )
            yield Due(program.name, self._numbers[program.name], inputs)
