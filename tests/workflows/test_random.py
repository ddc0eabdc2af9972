"""Random workflows against a naive interpreter: rows, survivors, states, lineage, restarts."""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

import activedb as adb
from activedb.batches import Act, Mode, Workflow, audit_batches, composite, overlapping
from activedb.errors import (
    AlreadyCompensated,
    HistoryForgotten,
    Interferes,
    NotRecorded,
    ProgramFailed,
)
from activedb.workflows._state import WorkflowState
from tests.batches.generation import workflows
from tests.drawing import SCALE, SEED, Worlds
from tests.workflows.marking import Marking, chain, marking, rows_of
from tests.workflows.naive import NaiveWorkflow

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Database
    from tests.databases import Place

HALF = max(1, settings().max_examples // 2)

_numbers = itertools.count()


def played(db: Database, workflow: Workflow, data: st.DataObject) -> tuple[Marking, NaiveWorkflow]:
    """Play feeds, failures that are corrected, and compensations, in both."""
    of = marking(db, workflow, name=f"w{next(_numbers)}")
    naive = NaiveWorkflow(workflow)
    of.failing = failing_at_first(7)
    fed: list[str] = []
    for step in range(data.draw(st.integers(1, 6), label="steps")):
        if fed and data.draw(st.integers(0, 3), label="compensate?") == 3:
            lineage = of.run.whole_lineage()
            derived = [*lineage.derived_from(fed), *composite(lineage, fed)]
            nodes = st.sampled_from(fed)
            chosen = data.draw(nodes | st.sampled_from(derived) if derived else nodes, label="of")
            mode = data.draw(st.sampled_from(Mode), label="mode")
            try:
                plan = of.run.compensate(chosen, mode, allow_interference=True)
            except AlreadyCompensated:
                assert chosen not in fed or not naive.is_whole(chosen)
            except Interferes:
                assert of.run.plan(chosen, mode).is_empty
            else:
                recalled = [chosen] if plan.cover is None else plan.cover.sources
                naive.compensate(recalled, plan.transactions)
            continue
        source = data.draw(st.sampled_from(workflow.sources), label="source")
        rows = rows_of(*(f"{step}.{row}" for row in range(data.draw(st.integers(0, 3)))))
        naive.feed(source, rows)
        try:
            fed.append(of.run.feed(source, rows))
        except ProgramFailed:
            fed.append(f"{source}#{len(naive.streams[source])}")
            resumed(of)
    return of, naive


def failing_at_first(every: int) -> Callable[[str], bool]:
    """Return a function that fails on one of `every` marks, the first time that it is asked."""
    had: set[str] = set()

    def fails(mark: str) -> bool:
        is_new = mark not in had
        had.add(mark)
        return is_new and zlib.crc32(mark.encode()) % every == 0

    return fails


def resumed(of: Marking) -> None:
    while of.run.due():
        try:
            of.run.resume()
        except ProgramFailed:
            continue


def check(of: Marking, naive: NaiveWorkflow) -> None:
    assert of.written() == naive.marks()
    assert set(of.executed()) == naive.executed()
    states = of.states()
    for id, state in states.items():
        if "'" not in id:
            assert (state == "whole") == naive.is_whole(id), (id, state)
    check_lineage(of)
    check_recorded(of)


def check_recorded(of: Marking) -> None:
    """Check that what is read anew is what is in memory, and that nothing is due."""
    kept = of.run._journal.load()
    assert kept is not None
    again, now = WorkflowState.of(of.run._workflow, kept), of.run._commits._state
    assert again.forming.state() == now.forming.state()
    assert again.due == now.due == {}
    key = lambda record: record.get("batch") or record["transaction"]  # noqa: E731
    assert sorted(again.lineage.records(), key=key) == sorted(now.lineage.records(), key=key)


def check_lineage(of: Marking) -> None:
    """One recursive query finds what networkx finds."""
    history = of.db.workflows.history(of.definition.name)
    graph = nx.DiGraph()
    for record in history.lineage.records():
        if "transaction" in record:
            graph.add_node(record["transaction"])
            graph.add_edges_from((id, record["transaction"]) for id in record["inputs"])
            if record["output"]:
                graph.add_edge(record["transaction"], record["output"])
        else:
            graph.add_node(record["batch"])
            graph.add_edges_from((piece[0], record["batch"]) for piece in record["pieces"])
    for id in list(graph)[:: max(1, len(graph) // 8)]:
        trace = history.trace(id)
        assert {row.id for row in trace.before} == nx.ancestors(graph, id)
        assert {row.id for row in trace.after} == nx.descendants(graph, id)
        assert set(trace.sources) == set(history.lineage.sources_of(id))


@pytest.mark.long
@given(workflow=workflows(relax=()), data=st.data())
def test_random_workflow_in_memory_equals_the_naive_one(
    workflow: Workflow, data: st.DataObject
) -> None:
    with closing(adb.connect("memory://")) as db:
        check(*played(db, workflow, data))


@pytest.mark.long
@settings(max_examples=HALF)
@given(workflow=workflows(relax=()), data=st.data())
def test_random_workflow_that_forgets_goes_on_as_the_naive_one(
    workflow: Workflow, data: st.DataObject
) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    with closing(adb.connect("memory://")) as db:
        of, naive = marking(db, workflow), NaiveWorkflow(workflow)
        fed: list[str] = []
        for step in range(data.draw(st.integers(2, 8), label="steps")):
            source = data.draw(st.sampled_from(workflow.sources), label="source")
            rows = rows_of(*(f"{step}.{row}" for row in range(2)))
            naive.feed(source, rows)
            fed.append(of.run.feed(source, rows))
            if data.draw(st.booleans(), label="forget?"):
                of.run.forget(later)
            if data.draw(st.integers(0, 3), label="restart?") == 3:
                db.workflows._runs.clear()
            if data.draw(st.integers(0, 3), label="compensate?") == 3:
                chosen = data.draw(st.sampled_from(fed), label="batch")
                try:
                    of.run.compensate(chosen, allow_interference=True)
                except (HistoryForgotten, NotRecorded):
                    continue  # it was complete and old
                except AlreadyCompensated:
                    assert not naive.is_whole(chosen)
                naive.compensate([chosen])
            assert of.written() == naive.marks()
            assert set(of.executed()) <= naive.executed()


def stands_behind(naive: NaiveWorkflow, batch: str) -> bool:
    return any(not each.is_compensated for each in naive.triggered(batch))


@pytest.mark.long
def test_overlapping_batches_that_are_compensated_and_forgotten_in_any_order() -> None:
    """A batch is used by several transactions, of which some are forgotten before others."""
    later = datetime.now(UTC) + timedelta(days=1)
    worlds = Worlds(60 * SCALE, "overlapping, forgotten", too_late=3, already=3)
    for random in worlds:
        sizes = [random.randint(2, 4) for _ in range(random.randint(1, 2))]
        workflow = Workflow(chain(*map(overlapping, sizes)), sources="a")
        with closing(adb.connect("memory://")) as db:
            of, naive = marking(db, workflow), NaiveWorkflow(workflow)
            fed: list[str] = []
            for step in range(10):
                naive.feed("a", rows_of(str(step)))
                fed.append(of.run.feed("a", rows_of(str(step))))
                if random.random() < 0.5:
                    of.run.forget(later)
                if random.random() < 0.25:
                    db.workflows._runs.clear()
                if random.random() < 0.5:
                    chosen = random.choice(fed[-4:])
                    stands = stands_behind(naive, chosen)
                    try:
                        of.run.compensate(chosen, allow_interference=True)
                    except NotRecorded:
                        continue  # it was complete and old
                    except HistoryForgotten:
                        worlds.met["too_late"] += 1
                        assert stands, (sizes, chosen, SEED)
                        continue
                    except AlreadyCompensated:
                        worlds.met["already"] += 1
                        assert not stands, (sizes, chosen, SEED)
                    naive.compensate([chosen])
                assert of.written() == naive.marks(), (sizes, SEED)
                for id, state in of.states().items():
                    if state == "dropped":
                        assert not stands_behind(naive, id), (sizes, id, SEED)


@pytest.mark.long
@settings(max_examples=HALF)
@given(workflow=workflows(), data=st.data())
def test_random_relaxed_workflow_has_the_marks_of_what_stands(
    workflow: Workflow, data: st.DataObject
) -> None:
    """Marks are right in parallel, with failures that compensate, and any compensation."""
    modes = st.sampled_from(list(map(str, Mode)))
    with closing(adb.connect("memory://", threads=4)) as db:
        of = marking(
            db,
            workflow,
            on_failure=data.draw(st.sampled_from(["stop", "compensate"])),
            mode=data.draw(modes),
            allow_interference=data.draw(st.booleans()),
        )
        of.failing = failing_at_first(4)
        for step in range(data.draw(st.integers(1, 6), label="steps")):
            source = data.draw(st.sampled_from(workflow.sources), label="source")
            try:
                of.run.feed(source, rows_of(f"{step}.a", f"{step}.b"))
            except ProgramFailed:
                resumed(of)
            ids = [batch.id for batch in of.run.whole_lineage().batches()]
            if ids and data.draw(st.integers(0, 4), label="compensate?") == 4:
                # How many there are may depend on threads, and what is drawn from must not.
                chosen = ids[data.draw(st.integers(0, 1_000), label="of") % len(ids)]
                mode = data.draw(modes)
                with suppress(AlreadyCompensated, Interferes):
                    of.run.compensate(chosen, mode, allow_interference=data.draw(st.booleans()))
        marked = Counter(mark.partition("(")[0] for mark in of.written())
        assert marked == Counter(id.partition("#")[0] for id in of.executed())
        check_recorded(of)


@settings(max_examples=HALF)
@given(
    workflow=workflows(relax=()).filter(lambda workflow: not workflow.has_control_order),
    data=st.data(),
)
def test_random_workflow_fulfils_all_requirements(workflow: Workflow, data: st.DataObject) -> None:
    with closing(adb.connect("memory://")) as db:
        of = marking(db, workflow)
        for step in range(data.draw(st.integers(1, 6), label="steps")):
            of.run.feed(data.draw(st.sampled_from(workflow.sources)), rows_of(str(step)))
        lineage = of.run.whole_lineage()
        history = [(Act.EXECUTE, each.id) for each in lineage.transactions()]
        assert audit_batches(lineage, history) == ()
        nodes = [*(each.id for each in lineage.batches()), *(id for _, id in history)]
        chosen, mode = data.draw(st.sampled_from(nodes)), data.draw(st.sampled_from(Mode))
        # It has triggered nothing, or others need everything.
        with suppress(AlreadyCompensated, Interferes):
            plan = of.run.compensate(chosen, mode, allow_interference=True)
            history += [(Act.COMPENSATE, id) for id in plan.order]
            assert set(plan.order).isdisjoint(of.executed())
            broken = audit_batches(lineage, history)
            assert {(v.requirement, v.of) for v in broken if v.of not in plan.given_up} == {
                (each.requirement, each.of) for each in plan.broken if each.of not in plan.given_up
            }


@pytest.mark.long
@settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(workflow=workflows(relax=()), data=st.data())
def test_random_workflow_anywhere_equals_the_naive_one(
    where: Place, workflow: Workflow, data: st.DataObject
) -> None:
    db = where._opened[0] if where._opened else where.open()
    if "marks" in db.metadata.tables:
        db.run(lambda t: t.execute(delete(db.metadata.tables["marks"])))
    check(*played(db, workflow, data))
