"""Workflow: programs, the streams between them, groupings of batches, and requirements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import networkx as nx

from activedb.errors import DefinedTwice, UnknownName, WorkflowCycle, WorkflowError
from activedb.spelling import listed

__all__ = [
    "Grouping",
    "Program",
    "Requirement",
    "Workflow",
    "isolated",
    "merged",
    "overlapping",
    "relaxed_of",
    "split",
]


@dataclass(frozen=True, slots=True)
class Grouping:
    """Division of each batch into pieces, and of consecutive pieces into input batches.

    Attributes
    ----------
    parts : int
        Number of pieces of a batch of the stream.
    size : int
        Number of pieces of an input batch.
    step : int
        Distance in pieces between the starts of two input batches; less than `size`: they overlap.

    Raises
    ------
    WorkflowError
        If a number is not positive, or `step` is greater than `size`: some pieces would be left
        out, and their batches would never be complete.
    """

    parts: int = 1
    size: int = 1
    step: int = 1

    def __post_init__(self) -> None:
        numbers = (self.parts, self.size, self.step)
        if any(type(number) is not int or number < 1 for number in numbers):
            raise WorkflowError(
                f"parts, size and step of a grouping are whole numbers from 1 on, not {numbers}"
            )
        if self.step > self.size:
            raise WorkflowError(
                f"input batches of {self.size} pieces, every {self.step}, would leave pieces out: "
                "let step be at most size"
            )

    @property
    def overlaps(self) -> bool:
        """True if a piece is in several input batches."""
        return self.step < self.size

    @property
    def gathers(self) -> bool:
        """True if an input batch may have pieces of several batches."""
        return self.size > 1

    @property
    def is_isolated(self) -> bool:
        """True if each batch is an input batch as it is."""
        return self == Grouping()

    def __str__(self) -> str:
        if self.is_isolated:
            return "isolated"
        words = [f"split in {self.parts}"] if self.parts > 1 else []
        if self.overlaps:
            words.append(f"{self.size} overlapping, every {self.step}")
        elif self.gathers:
            words.append(f"{self.size} merged")
        return ", ".join(words)


def isolated() -> Grouping:
    """Return the grouping where each batch is an input batch as it is (section 3)."""
    return Grouping()


def split(parts: int) -> Grouping:
    """Return the grouping that cuts each batch into `parts` input batches (section 3, a)."""
    return Grouping(parts=parts)


def merged(count: int) -> Grouping:
    """Return the grouping that merges each `count` batches into one input batch (section 3, b)."""
    return Grouping(size=count, step=count)


def overlapping(count: int, *, every: int = 1) -> Grouping:
    """Return the grouping of `count` batches, with a new one `every` batches (section 4, a)."""
    return Grouping(size=count, step=every)


# -- requirements on a correct execution of batches; a program may relax each by name --------------


class Requirement(StrEnum):
    """Requirements 2 to 6 of the paper's section 2, over single transactions as atomic units.

    The first requirement, atomic units, is left out: a transaction is always executed
    completely or not at all.
    """

    SERIALIZABLE = "serializable"
    """The execution is equivalent to a serial one of the transactions."""
    TRANSACTION_ORDER = "transaction order"
    """A transaction comes after its predecessors in the transaction graph."""
    BATCH_ORDER = "batch order"
    """The transactions of a program come in the order of its input batches."""
    COMPLETION = "completion"
    """All transactions that a batch triggers are executed."""
    MONOTONIC_EXECUTION = "monotonic execution"
    """Requirement that the standing part of a composite transaction is a prefix of its graph."""


def relaxed_of(names: Iterable[str], program: str) -> frozenset[Requirement]:
    """Return the requirements that a program relaxes, given by name.

    Raises
    ------
    WorkflowError
        If there is no requirement of that name.
    """
    found = set()
    for name in [names] if isinstance(names, str) else names:
        try:
            found.add(Requirement(name))
        except ValueError:
            raise WorkflowError(
                f"program {program!r} cannot relax {name!r}: say one of "
                + ", ".join(repr(str(each)) for each in Requirement)
            ) from None
    return frozenset(found)


# -- workflow: programs, the streams between them, and their partial order -------------------------


class Program:
    """A transaction program; each execution of it is a transaction.

    Parameters
    ----------
    name : str
    reads : str, iterable of str, or mapping of str to Grouping
        Streams that it consumes: a source stream by its name, the output of a program by the
        program's name. A mapping gives the grouping of the input batches; the default is isolated.
        A program that reads several streams is executed with one input batch of each. Empty: an
        OLTP program, executed when it is called.
    after : str or iterable of str
        Programs that it follows in control order, without reading their output.
    relax : str or iterable of str
        Names of `Requirement` that its transactions need not fulfil.
    compensable : bool
        Whether it has a compensating action.

    Raises
    ------
    WorkflowError
        If the name is empty, or a requirement is unknown.

    Attributes
    ----------
    name, compensable
        As given.
    reads : mapping of str to Grouping
    after : frozenset of str
    relaxed : frozenset of Requirement
    """

    __slots__ = ("after", "compensable", "name", "reads", "relaxed")

    def __init__(
        self,
        name: str,
        reads: str | Iterable[str] | Mapping[str, Grouping] = (),
        *,
        after: str | Iterable[str] = (),
        relax: str | Iterable[str] = (),
        compensable: bool = True,
    ):
        if not isinstance(name, str) or not name:
            raise WorkflowError(f"the name of a program is a text that is not empty, not {name!r}")
        self.name = name
        if isinstance(reads, str):
            reads = (reads,)
        groupings = dict(reads) if isinstance(reads, Mapping) else dict.fromkeys(reads, isolated())
        for stream, grouping in groupings.items():
            if not isinstance(grouping, Grouping):
                raise WorkflowError(
                    f"program {name!r} reads {stream!r} by {grouping!r}: say isolated(), split(n), "
                    "merged(n) or overlapping(n)"
                )
        self.reads: Mapping[str, Grouping] = MappingProxyType(groupings)
        self.after = frozenset([after] if isinstance(after, str) else after)
        self.relaxed = relaxed_of(relax, name)
        self.compensable = compensable

    def requires(self, requirement: Requirement) -> bool:
        """Return whether its transactions have to fulfil a requirement."""
        return requirement not in self.relaxed

    def __repr__(self) -> str:
        return f"<Program {self.name}>"


class Workflow:
    """A composition of programs, with its composition graph (section 2).

    Source streams and programs share one namespace, as the output of a program is named after it.

    Parameters
    ----------
    programs : iterable of Program
    sources : str or iterable of str
        Source streams, which come from outside the workflow.

    Raises
    ------
    WorkflowError
        If there is no program, or no program reads a source.
    DefinedTwice, UnknownName, WorkflowCycle
        If a name is defined twice or unknown, or the programs form a cycle.

    Attributes
    ----------
    programs : mapping of str to Program
        In an order consistent with the partial order; as given, where that leaves it open.
    sources : tuple of str

    Notes
    -----
    O(programs² + edges), as the transitive closure of the partial order is kept.
    """

    def __init__(self, programs: Iterable[Program], *, sources: str | Iterable[str]):
        given = list(programs)
        self.sources = tuple([sources] if isinstance(sources, str) else sources)
        _check_names(given, self.sources)
        by_name = {program.name: program for program in given}
        self._graph = _composition_graph(given)
        self._rank = {name: number for number, name in enumerate(_in_order(self._graph))}
        self.programs: Mapping[str, Program] = MappingProxyType(
            {name: by_name[name] for name in self._rank}
        )
        readers: dict[str, list[Program]] = {name: [] for name in (*self.sources, *by_name)}
        for program in self.programs.values():
            for stream in program.reads:
                readers[stream].append(program)
        self._readers = {stream: tuple(found) for stream, found in readers.items()}
        unread = [source for source in self.sources if not self._readers[source]]
        if unread:
            raise WorkflowError(
                f"no program reads the source {listed(unread)}: its batches would never be "
                "processed; name it in reads= of a program"
            )
        self._followers = {name: frozenset(nx.descendants(self._graph, name)) for name in by_name}
        self._sources_above = self._all_sources_above()

    @property
    def has_control_order(self) -> bool:
        """True if a program follows another one whose output it does not read."""
        return any(program.after for program in self.programs.values())

    def readers(self, stream: str) -> tuple[Program, ...]:
        """Return the programs that consume a stream; empty if there is no such stream."""
        return self._readers.get(stream, ())

    def rank(self, program: str) -> int:
        """Return a program's place in `programs`."""
        return self._rank[program]

    def precedes(self, first: str, second: str) -> bool:
        """Return whether one program comes before another in the partial order."""
        return second in self._followers[first]

    def sources_above(self, stream: str) -> frozenset[str]:
        """Return the source streams that a stream is derived from; a source stream is its own."""
        return self._sources_above[stream]

    def completion_matters(self, program: str) -> bool:
        """Return whether completion is required of a program or of one that follows it."""
        return any(
            self.programs[name].requires(Requirement.COMPLETION)
            for name in (program, *self._followers[program])
        )

    def graph(self) -> nx.DiGraph:
        """Return a copy of the composition graph, with edges of ``kind`` stream or control."""
        return self._graph.copy()

    def _all_sources_above(self) -> dict[str, frozenset[str]]:
        above = {source: frozenset([source]) for source in self.sources}
        for name, program in self.programs.items():
            over = (*program.reads, *program.after)
            above[name] = frozenset().union(*(above[stream] for stream in over))
        return above

    def __repr__(self) -> str:
        return f"<Workflow {listed(self.sources)} → {listed(self.programs)}>"


def _check_names(programs: list[Program], sources: tuple[str, ...]) -> None:
    if not programs:
        raise WorkflowError("a workflow has at least one program")
    seen: set[str] = set()
    for name in [*sources, *(program.name for program in programs)]:
        if name in seen:
            raise DefinedTwice(
                f"{name!r} is defined twice: source streams and programs share one space of names, "
                "as the output of a program is named after it"
            )
        seen.add(name)
    names = {program.name for program in programs}
    for program in programs:
        for stream in program.reads:
            if stream not in seen:
                raise UnknownName(
                    f"program {program.name!r} reads {stream!r}, which is neither a source nor "
                    f"a program; there are {listed(sorted(seen))}"
                )
        for name in sorted(program.after):
            if name not in names:
                raise UnknownName(
                    f"program {program.name!r} comes after {name!r}, which is not a program; "
                    f"there are {listed(sorted(names))}"
                )


def _composition_graph(programs: list[Program]) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(program.name for program in programs)
    for program in programs:
        graph.add_edges_from(
            ((name, program.name) for name in sorted(program.after)), kind="control"
        )
        graph.add_edges_from(
            ((name, program.name) for name in program.reads if name in graph), kind="stream"
        )
    return graph


def _in_order(graph: nx.DiGraph) -> list[str]:
    try:
        return list(nx.lexicographical_topological_sort(graph, key=list(graph).index))
    except nx.NetworkXUnfeasible:
        raise WorkflowCycle.of([edge[0] for edge in nx.find_cycle(graph)]) from None
