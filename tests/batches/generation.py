"""Random workflows and lineages, by Hypothesis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from activedb.batches import (
    Due,
    Forming,
    Grouping,
    Lineage,
    Program,
    Requirement,
    State,
    Workflow,
)
from tests.batches.naive import Naive

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["lineages", "naive", "workflows"]


@st.composite
def groupings(draw: st.DrawFn) -> Grouping:
    parts = draw(st.sampled_from([1, 1, 2]))
    size = draw(st.integers(1, 3))
    return Grouping(parts, size, draw(st.integers(1, size)))


@st.composite
def workflows(draw: st.DrawFn, *, relax: Iterable[Requirement] = Requirement) -> Workflow:
    """One or two sources, up to four programs that read what comes before, maybe an OLTP one.

    Each program relaxes some of what is named by `relax`.
    """
    sources = ["a", "b"][: draw(st.integers(1, 2))]
    programs: list[Program] = []
    unread = list(sources)
    names = [str(each) for each in relax]
    relaxed = st.lists(st.sampled_from(names), max_size=2) if names else st.just([])
    count = draw(st.integers(len(sources), 4))
    for number in range(count):
        streams = [*sources, *(program.name for program in programs)]
        chosen = draw(st.lists(st.sampled_from(streams), min_size=1, max_size=2, unique=True))
        if unread and number >= count - len(unread):
            chosen = [unread.pop(0)]
        unread = [source for source in unread if source not in chosen]
        earlier = [program.name for program in programs if program.name not in chosen]
        after = draw(st.lists(st.sampled_from(earlier), max_size=1)) if earlier else []
        programs.append(
            Program(
                f"P{number}",
                {stream: draw(groupings()) for stream in chosen},
                after=after,
                relax=draw(relaxed),
            )
        )
    if draw(st.booleans()):
        above = draw(st.sampled_from([program.name for program in programs]))
        programs.append(Program("CALLED", after=above))
    return Workflow(programs, sources=sources)


@st.composite
def lineages(
    draw: st.DrawFn,
    *,
    relax: Iterable[Requirement] = Requirement,
    mishaps: bool = True,
    batches_max: int = 6,
) -> Lineage:
    """Some batches of a random workflow, arrived and executed in a random order.

    An OLTP program is triggered by some transactions. With `mishaps`, transactions fail, are given
    up, and are compensated.
    """
    workflow = draw(workflows(relax=relax))
    lineage, forming = Lineage(workflow), Forming(workflow)
    numbers = dict.fromkeys(workflow.sources, 0)
    left = draw(st.integers(1, batches_max))
    due: list[Due] = []
    while due or left:
        if left and (not due or draw(st.booleans())):
            source = draw(st.sampled_from(workflow.sources))
            numbers[source] += 1
            left -= 1
            due += forming.offer(lineage.arrive(source, numbers[source]))
            continue
        each = due.pop(draw(st.integers(0, len(due) - 1)))
        if mishaps and draw(st.integers(0, 9)) == 9:
            lineage.fail(each.program, each.inputs, number=each.number)
            due += forming.skip(each.program, each.number)
            continue
        done = lineage.execute(each.program, each.inputs, number=each.number)
        due += forming.offer(lineage.batch(done.output))
        called = workflow.programs.get("CALLED")
        if called and each.program in called.after and draw(st.booleans()):
            lineage.execute("CALLED", triggered_by=[done.id])
    if mishaps and lineage.transactions():
        ids = [each.id for each in lineage.transactions() if each.state is State.EXECUTED]
        if ids:
            lineage.compensate(draw(st.lists(st.sampled_from(ids), max_size=2)))
    return lineage


def naive(lineage: Lineage) -> Naive:
    """The definitions, over the same lineage."""
    programs = lineage.workflow.programs

    def relaxing(requirement: Requirement) -> set[str]:
        return {name for name, program in programs.items() if not program.requires(requirement)}

    return Naive(
        lineage.records(),
        list(programs),
        {name: set(program.after) for name, program in programs.items()},
        relaxing(Requirement.COMPLETION),
        relaxing(Requirement.MONOTONIC_EXECUTION),
    )
