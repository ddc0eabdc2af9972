"""Random workflows against a naive interpreter: rows, what stands, states, lineage, restarts."""

from __future__ import annotations

import itertools
import zlib
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import networkx as nx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

import activedb as adb
from activedb.batches import Act, audit_batches
from activedb.engine.workflows._state import WorkflowState
from activedb.errors import (
    AlreadyCompensated,
    HistoryForgotten,
    NotRecorded,
    ProgramFailed,
)
from tests.batches.generation import workflows
from tests.engine.workflows.marking import Marking, marking, rows_of
from tests.engine.workflows.naive import NaiveWorkflow

if TYPE_CHECKING:
    from activedb import Database
    from activedb.batches import Workflow
    from tests.databases import Place

_numbers = itertools.count()


def played(db: Database, workflow: Workflow, data: st.DataObject) -> tuple[Marking, NaiveWorkflow]:
    """Feeds, failures that are mended, and compensations, in both."""
    of = marking(db, workflow, name=f"w{next(_numbers)}")
    naive = NaiveWorkflow(workflow)
    had: set[str] = set()

    def fails_at_first(mark: str) -> bool:
        is_new = mark not in had
        had.add(mark)
        return is_new and zlib.crc32(mark.encode()) % 7 == 0

    of.failing = fails_at_first
    fed: list[str] = []
    for step in range(data.draw(st.integers(1, 6), label="steps")):
        if fed and data.draw(st.integers(0, 3), label="compensate?") == 3:
            chosen = data.draw(st.sampled_from(fed), label="batch")
            try:
                of.run.compensate(chosen, allow_interference=True)
            except AlreadyCompensated:
                assert not naive.is_whole(chosen)
            naive.compensate(chosen)
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
    history = of.db.batch_history(of.definition.name)
    check_lineage(of)
    kept = of.run._journal.load()
    assert kept is not None
    again, now = WorkflowState.of(of.run._workflow, kept), of.run._commits._state
    assert again.forming.state() == now.forming.state()
    assert again.due == now.due == {}
    key = lambda record: record.get("batch") or record["transaction"]  # noqa: E731
    assert sorted(history.lineage.records(), key=key) == sorted(now.lineage.records(), key=key)


def check_lineage(of: Marking) -> None:
    """One recursive query finds what networkx finds."""
    history = of.db.batch_history(of.definition.name)
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


@given(workflow=workflows(relax=False), data=st.data())
def test_random_workflow_in_memory_equals_the_naive_one(
    workflow: Workflow, data: st.DataObject
) -> None:
    with closing(adb.connect("memory://")) as db:
        check(*played(db, workflow, data))


@settings(max_examples=max(10, settings.default.max_examples // 2))  # type: ignore[attr-defined]
@given(workflow=workflows(relax=False), data=st.data())
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
                db._batch_runs.clear()
            if data.draw(st.integers(0, 3), label="compensate?") == 3:
                chosen = data.draw(st.sampled_from(fed), label="batch")
                try:
                    of.run.compensate(chosen, allow_interference=True)
                except (HistoryForgotten, NotRecorded):
                    continue  # it was complete and old
                except AlreadyCompensated:
                    assert not naive.is_whole(chosen)
                naive.compensate(chosen)
            assert of.written() == naive.marks()
            assert set(of.executed()) <= naive.executed()


@given(
    workflow=workflows(relax=False).filter(lambda workflow: not workflow.has_control_order),
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


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(workflow=workflows(relax=False), data=st.data())
def test_random_workflow_anywhere_equals_the_naive_one(
    where: Place, workflow: Workflow, data: st.DataObject
) -> None:
    db = where._opened[0] if where._opened else where.open()
    if "marks" in db.metadata.tables:
        db.run(lambda t: t.execute(delete(db.metadata.tables["marks"])))
    check(*played(db, workflow, data))
