"""Workflows run in the plainest way: every program looks through all pieces that there are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.workflows.marking import mark_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from activedb.batches import Grouping, Workflow

__all__ = ["NaiveWorkflow"]


@dataclass
class _Entry:
    """A batch of a stream; without rows: a gap."""

    id: str
    rows: list[dict[str, Any]] | None


@dataclass
class _Done:
    """An execution: what it has written down, and which batches it has used."""

    id: str
    mark: str
    used: list[str]
    output: str
    is_compensated: bool = False


@dataclass
class NaiveWorkflow:
    """One thread, no groups that are kept, no graph."""

    workflow: Workflow
    streams: dict[str, list[_Entry]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    done: list[_Done] = field(default_factory=list)
    recalled: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        names = (*self.workflow.sources, *self.workflow.programs)
        self.streams = {name: [] for name in names}
        self.numbers = dict.fromkeys(self.workflow.programs, 0)

    def feed(self, source: str, rows: list[dict[str, Any]]) -> str:
        entries = self.streams[source]
        entries.append(_Entry(f"{source}#{len(entries) + 1}", rows))
        names = [name for name, program in self.workflow.programs.items() if program.reads]
        while any(self._step(name) for name in names):
            pass
        return entries[-1].id

    def triggered(self, batch: str) -> list[_Done]:
        """T(b), by going through all executions again and again."""
        reached, size = {batch}, 0
        while size < len(reached):
            size = len(reached)
            for each in self.done:
                if reached & set(each.used):
                    reached |= {each.id, each.output}
        return [each for each in self.done if each.id in reached]

    def compensate(self, batches: Iterable[str], transactions: Iterable[str] | None = None) -> None:
        """Compensate transactions, by default all that some batches have triggered.

        These batches, and what the transactions gave out, are gaps from now on, and no others.
        """
        gone = set(batches)
        if transactions is None:
            transactions = [each.id for batch in gone for each in self.triggered(batch)]
        self.recalled |= {batch for batch in gone if self._waits(batch)}
        chosen = set(transactions)
        for each in self.done:
            if each.id in chosen:
                each.is_compensated = True
                gone.add(each.output)
        for entries in self.streams.values():
            for entry in entries:
                if entry.id in gone:
                    entry.rows = None

    def marks(self) -> list[str]:
        return sorted(each.mark for each in self.done if not each.is_compensated)

    def executed(self) -> set[str]:
        return {each.id for each in self.done if not each.is_compensated}

    def is_whole(self, batch: str) -> bool:
        gone = any(each.is_compensated for each in self.triggered(batch))
        return not gone and batch not in self.recalled

    def _waits(self, batch: str) -> bool:
        """Return whether a program is still to use a batch."""
        return any(
            piece is not None and piece.id == batch
            for name, program in self.workflow.programs.items()
            for stream, grouping in program.reads.items()
            for piece in list(self._pieces(stream, grouping.parts))[
                self.numbers[name] * grouping.step :
            ]
        )

    def _step(self, name: str) -> bool:
        """Execute a program once, if it can be."""
        program, number = self.workflow.programs[name], self.numbers[name]
        found = [self._input(stream, g, number) for stream, g in program.reads.items()]
        inputs = [pieces for pieces in found if pieces is not None]
        if len(inputs) < len(found):
            return False
        self.numbers[name] = number = number + 1
        output = _Entry(f"{name}#{number}'", None)
        self.streams[name].append(output)
        if any(piece is not None for pieces in inputs for piece in pieces):
            rows = [[row for p in pieces if p for row in p.rows or ()] for pieces in inputs]
            used = [p.id for pieces in inputs for p in pieces if p]
            mark = mark_of(name, rows)
            self.done.append(_Done(f"{name}#{number}", mark, used, output.id))
            if not name.endswith("0"):
                output.rows = [{"of": f"{name}:{row['of']}"} for part in rows for row in part]
        return True

    def _input(self, stream: str, grouping: Grouping, index: int) -> list[_Entry | None] | None:
        """The pieces of an input batch, gaps with them; None if there are not enough."""
        pieces = list(self._pieces(stream, grouping.parts))
        first = index * grouping.step
        chosen = pieces[first : first + grouping.size]
        return chosen if len(chosen) == grouping.size else None

    def _pieces(self, stream: str, parts: int) -> Iterator[_Entry | None]:
        for entry in self.streams[stream]:
            for part in range(parts):
                if entry.rows is None:
                    yield None
                else:
                    count = len(entry.rows)
                    cut = slice(count * part // parts, count * (part + 1) // parts)
                    yield _Entry(entry.id, entry.rows[cut])
