"""Random workflows and lineages against the definitions (`naive.py`)."""

from __future__ import annotations

import json
from collections import deque

import networkx as nx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from activedb.batches import (
    Act,
    Closing,
    CompensationPlan,
    Forming,
    Grouping,
    Lineage,
    Mode,
    Piece,
    Program,
    Requirement,
    State,
    Workflow,
    audit_batches,
    batch_graph,
    composite,
    independent_scover,
    is_independent,
    plan_compensation,
    scover,
    shared_transactions,
    transaction_graph,
)
from tests.batches.generation import lineages, naive, workflows
from tests.drawing import SCALE, SEED, Worlds

SUBSETS_MAX = 10


def batches_of(lineage: Lineage) -> list[str]:
    return [batch.id for batch in lineage.batches()]


@given(lineages())
def test_random_composites_and_least_covers_are_those_of_the_definition(lineage: Lineage) -> None:
    model = naive(lineage)
    graph = batch_graph(lineage)
    for id in batches_of(lineage):
        assert set(composite(lineage, id)) == model.composite(id)
        assert set(scover(lineage, id)) == model.sources_of(id)
        derived = nx.ancestors(graph, id) | {id}
        if not any(each.triggered_by for each in lineage.transactions()):
            assert set(scover(lineage, id)) == {b for b in derived if lineage.is_source(b)}
            assert set(lineage.derived_from(id)) == nx.descendants(graph, id)


@given(lineages())
def test_random_transaction_order_agrees_with_the_graph(lineage: Lineage) -> None:
    model = naive(lineage)
    graph = transaction_graph(lineage)
    assert set(graph.edges) == model.triggers | model.controls
    place = {id: n for n, id in enumerate(lineage.in_transaction_order(graph.nodes))}
    assert all(place[first] < place[second] for first, second in graph.edges)
    assert nx.is_directed_acyclic_graph(transaction_graph(lineage, batch_order=True))


@given(lineages(), st.data())
def test_random_construction_goes_through_the_sets_of_the_paper(
    lineage: Lineage, data: st.DataObject
) -> None:
    model = naive(lineage)
    id = data.draw(st.sampled_from(batches_of(lineage)))
    cover = independent_scover(lineage, id)
    expected = model.rounds(id)
    assert len(cover.rounds) == len(expected)
    above: set[str] = set()
    sources: set[str] = set()
    for found, (_, all_above, all_sources) in zip(cover.rounds, expected, strict=True):
        assert above.isdisjoint(found.upstream)
        above |= set(found.upstream)
        sources |= set(found.sources)
        assert above == all_above
        assert sources == all_sources
    assert set(cover.reached) == sources
    assert model.is_independent(sources)


@given(lineages(batches_max=5), st.data())
def test_random_independent_cover_is_the_least_one(lineage: Lineage, data: st.DataObject) -> None:
    model = naive(lineage)
    id = data.draw(st.sampled_from(batches_of(lineage)))
    cover = independent_scover(lineage, id)
    if cover.closing is not Closing.ENDLESS:
        assert set(cover.sources) == model.least_independent(model.sources_of(id))
        assert cover.is_independent
    else:
        assert cover.sources == scover(lineage, id)
        assert set(cover.reached) == model.least_independent(model.sources_of(id))
    assert cover.is_independent == model.is_independent(set(cover.sources))


@pytest.mark.long
@given(lineages(batches_max=5), st.data())
def test_random_consecutive_cover_is_consecutive_and_independent(
    lineage: Lineage, data: st.DataObject
) -> None:
    id = data.draw(st.sampled_from(batches_of(lineage)))
    cover = independent_scover(lineage, id, consecutive=True)
    plain = independent_scover(lineage, id)
    assert set(plain.reached) <= set(cover.reached)
    assert is_independent(lineage, cover.reached)
    for stream in lineage.workflow.sources:
        numbers = [b.number for b in lineage.source_batches(stream) if b.id in cover.reached]
        between = range(min(numbers, default=1), max(numbers, default=0) + 1)
        assert numbers == list(between)


@pytest.mark.long
@given(lineages(), st.data())
def test_random_disjoint_independent_covers_share_no_transaction(
    lineage: Lineage, data: st.DataObject
) -> None:
    model = naive(lineage)
    ids = st.sampled_from(batches_of(lineage))
    first = independent_scover(lineage, data.draw(ids)).reached
    second = independent_scover(lineage, data.draw(ids)).reached
    if set(first).isdisjoint(second):
        assert not any(map(model.counts, shared_transactions(lineage, first, second)))
    elif all(
        program.requires(Requirement.COMPLETION) for program in lineage.workflow.programs.values()
    ):
        # Without relaxations and compensations, covers are classes.
        states = {each.state for each in lineage.transactions()}
        assert first == second or State.COMPENSATED in states


@given(lineages(batches_max=4), st.data())
def test_random_non_intrusive_plan_is_the_largest_prefix(
    lineage: Lineage, data: st.DataObject
) -> None:
    model = naive(lineage)
    id = data.draw(st.sampled_from(batches_of(lineage)))
    assume(len(model.composite(id)) <= SUBSETS_MAX)
    plan = plan_compensation(lineage, id, Mode.NON_INTRUSIVE)
    assert set(plan.transactions) == model.non_intrusive(id)
    assert not plan.is_interfering
    live = {each for each in model.composite(id) if model.state[each] != "compensated"}
    assert {each.transaction for each in plan.kept} == live - set(plan.transactions)


@pytest.mark.long
@given(lineages(), st.data())
def test_random_plans_say_what_becomes_of_everything(lineage: Lineage, data: st.DataObject) -> None:
    model = naive(lineage)
    id = data.draw(st.sampled_from(batches_of(lineage)))
    plan = plan_compensation(lineage, id, data.draw(st.sampled_from(Mode)))
    gone = set(plan.transactions)
    shared = {each.batch: set(each.shared) for each in plan.interference}
    assert shared == model.interference(gone, set(plan.given_up))
    place = {each: n for n, each in enumerate(plan.order)}
    edges = model.triggers | model.controls
    assert all(place[s] < place[f] for f, s in edges if f in place and s in place)
    # Of a batch that is dropped, nothing stands that has used it, or what was derived from it.
    for batch in (*plan.dropped, *plan.partially_dropped):
        users = model.below(model.consumers(batch))
        left = {each for each in users if model.state[each] != "compensated"} - gone
        assert not left or batch in plan.partially_dropped
        producer = model.producer.get(batch)
        assert producer not in gone
        assert producer is None or model.state[producer] != "compensated"
    touched = {b for b in model.sources if model.composite(b) & gone}
    assert touched <= {*plan.dropped, *plan.partially_dropped}
    assert set(plan.withdrawn) == {b for b, t in model.producer.items() if t in gone}
    stranded = {s for f, s in model.triggers if f in gone and s not in gone}
    stranded = {each for each in stranded if model.state[each] == "executed"}
    assert {each.transaction for each in plan.lost_input} == stranded
    assert json.loads(json.dumps(plan.record())) == plan.record()
    assert all(plan.explain())


@given(lineages(mishaps=False), st.data())
def test_random_carried_out_plan_breaks_what_it_says_and_nothing_else(
    lineage: Lineage, data: st.DataObject
) -> None:
    nodes = [*batches_of(lineage), *(each.id for each in lineage.transactions())]
    plan = plan_compensation(
        lineage, data.draw(st.sampled_from(nodes)), data.draw(st.sampled_from(Mode))
    )
    executed = lineage.in_transaction_order(each.id for each in lineage.transactions())
    history = [(Act.EXECUTE, id) for id in executed]
    assert not audit_batches(lineage, history)
    found = audit_batches(lineage, [*history, *((Act.COMPENSATE, id) for id in plan.order)])
    # What was given up is incomplete as it was asked for.
    assert {(v.requirement, v.of) for v in found if v.of not in plan.given_up} == {
        (each.requirement, each.of) for each in plan.broken if each.of not in plan.given_up
    }
    # A batch of which nothing stands any more is not incomplete: it is dropped.
    incomplete = {v.of for v in found if v.requirement is Requirement.COMPLETION}
    affected = {each.batch for each in plan.interference if lineage.is_source(each.batch)}
    assert affected - incomplete <= {*plan.dropped, *plan.partially_dropped}
    if all(map(lineage.is_source, plan.asked)):
        assert incomplete - set(plan.given_up) <= affected
    if plan.cover is not None and plan.cover.is_independent:
        assert not found


class Fed:
    """A workflow that executes at once what is due."""

    def __init__(self, workflow: Workflow):
        self.lineage, self.forming = Lineage(workflow), Forming(workflow)

    def feed(self, source: str) -> None:
        due = deque(self.forming.offer(self.lineage.arrive(source)))
        while due:
            each = due.popleft()
            done = self.lineage.execute(each.program, each.inputs, number=each.number)
            due += self.forming.offer(self.lineage.batch(done.output))

    def carry_out(self, plan: CompensationPlan) -> None:
        self.lineage.compensate(plan.transactions)
        self.lineage.withdraw(plan.to_withdraw)
        self.forming.withdraw(plan.to_withdraw)

    def used(self) -> dict[str, list[tuple[Piece, ...]]]:
        """The transactions, with the pieces of each input batch."""
        batches = {
            each.id: map(self.lineage.batch, each.inputs) for each in self.lineage.transactions()
        }
        return {id: [b.pieces or (Piece(b.id),) for b in of] for id, of in batches.items()}


@pytest.mark.long
def test_random_independent_cover_breaks_nothing() -> None:
    """No transaction stands that follows a compensated one in control order."""
    for random in (worlds := Worlds(150 * SCALE, "independent covers", followed=5)):
        programs: list[Program] = []
        for number in range(random.randint(2, 4)):
            streams = random.sample(["a", *(each.name for each in programs)], min(number + 1, 2))
            sizes = {stream: random.randint(1, 3) for stream in streams}
            before = [each.name for each in programs if each.name not in sizes]
            programs.append(
                Program(
                    f"P{number}",
                    {of: Grouping(random.randint(1, 2), size, size) for of, size in sizes.items()},
                    after=random.sample(before, min(len(before), 1)),
                    relax=["completion"] if random.random() < 0.4 else (),
                )
            )
        fed = Fed(Workflow(programs, sources="a"))
        for _ in range(random.randint(2, 8)):
            fed.feed("a")
        lineage = fed.lineage
        executed = lineage.in_transaction_order(each.id for each in lineage.transactions())
        history = [(Act.EXECUTE, id) for id in executed]
        asked = random.choice([*batches_of(lineage), *executed])
        plan = plan_compensation(lineage, asked, Mode.INDEPENDENT_COVER)
        history += [(Act.COMPENSATE, id) for id in plan.order]
        worlds.met["followed"] += set(plan.order) > set(composite(lineage, plan.given_up))
        assert not plan.is_interfering, SEED
        assert not plan.broken, SEED
        assert not audit_batches(lineage, history), SEED


@pytest.mark.long
@given(
    workflows(relax=[Requirement.COMPLETION, Requirement.MONOTONIC_EXECUTION]),
    st.data(),
)
def test_random_compensation_takes_from_what_comes_later_its_own_batches_and_nothing_else(
    workflow: Workflow, data: st.DataObject
) -> None:
    """Batches after a compensation are the same as without it, except for gaps.

    Gaps stem from the requested batches, or the cover, and from the output of the compensated
    transactions.
    """
    compensated, untouched = Fed(workflow), Fed(workflow)
    feeds = data.draw(st.lists(st.sampled_from(workflow.sources), min_size=2, max_size=8))
    gone: set[str] = set()
    first = data.draw(st.integers(1, len(feeds) - 1))
    until: dict[str, set[str]] = {}
    for step, source in enumerate(feeds):
        if step == first or (step > first and data.draw(st.booleans())):
            lineage = compensated.lineage
            nodes = [*batches_of(lineage), *(each.id for each in lineage.transactions())]
            asked, mode = data.draw(st.sampled_from(nodes)), data.draw(st.sampled_from(Mode))
            plan = plan_compensation(lineage, asked, mode)
            compensated.carry_out(plan)
            recalled = [asked] if plan.cover is None else plan.cover.sources
            gone = gone | {*recalled, *plan.withdrawn}
        for each in (compensated, untouched):
            each.feed(source)
        for id in untouched.used():
            until.setdefault(id, gone)
    expected = {}
    skipped: set[str] = set()
    for id, inputs in untouched.used().items():
        left = [tuple(p for p in of if p.batch not in until[id] | skipped) for of in inputs]
        if any(left):
            expected[id] = [pieces for pieces in left if pieces]
        else:
            skipped.add(f"{id}'")
    assert compensated.used() == expected


@given(lineages())
def test_random_records_make_the_same_lineage(lineage: Lineage) -> None:
    records = json.loads(json.dumps(lineage.records()))
    other = Lineage.of(lineage.workflow, records)
    assert other.records() == lineage.records()
    assert [b.id for b in other.batches()] == batches_of(lineage)
    assert all(other.is_still_due(id) == lineage.is_still_due(id) for id in batches_of(lineage))


@settings(max_examples=30)
@given(lineages(relax=(), mishaps=False), st.data())
def test_random_recorded_compensation_leaves_nothing_to_do(
    lineage: Lineage, data: st.DataObject
) -> None:
    id = data.draw(st.sampled_from(batches_of(lineage)))
    plan = plan_compensation(lineage, id)
    lineage.compensate(plan.transactions)
    assert all(lineage.transaction(each).state is State.COMPENSATED for each in plan.transactions)
    again = plan_compensation(lineage, id)
    assert again.order == ()
    assert not again.is_interfering


@settings(max_examples=30)
@given(lineages(relax=(), mishaps=False))
def test_random_forming_is_that_of_slices(lineage: Lineage) -> None:
    """Whatever the order of arrival and execution, input batches are slices of a row of pieces."""
    workflow = lineage.workflow
    made = {(t.program, t.number): t for t in lineage.transactions()}
    for name, program in workflow.programs.items():
        if not program.reads:
            continue
        rows = []
        for stream, grouping in program.reads.items():
            batches = sorted(
                (b for b in lineage.batches() if b.stream == stream and b.kind != "input"),
                key=lambda batch: batch.number,
            )
            row = [
                (batch.id, part, grouping.parts)
                for batch in batches
                for part in range(1, grouping.parts + 1)
            ]
            starts = range(0, len(row) - grouping.size + 1, grouping.step)
            rows.append([tuple(row[start : start + grouping.size]) for start in starts])
        expected = list(zip(*rows, strict=False))
        assert {n for program_, n in made if program_ == name} == set(range(1, len(expected) + 1))
        for number, inputs in enumerate(expected, 1):
            batches_used = [lineage.batch(id) for id in made[name, number].inputs]
            assert tuple(b.pieces or ((b.id, 1, 1),) for b in batches_used) == inputs


@settings(max_examples=30)
@given(lineages(mishaps=False), st.data())
def test_random_forming_goes_on_from_its_state(lineage: Lineage, data: st.DataObject) -> None:
    batches = [batch for batch in lineage.batches() if batch.kind != "input"]
    cut = data.draw(st.integers(0, len(batches)))
    whole, first = Forming(lineage.workflow), Forming(lineage.workflow)
    expected = [whole.offer(batch) for batch in batches]
    found = [first.offer(batch) for batch in batches[:cut]]
    second = Forming(lineage.workflow, json.loads(json.dumps(first.state())))
    found += [second.offer(batch) for batch in batches[cut:]]
    assert found == expected
    assert second.state() == whole.state()
    assert second.waiting() == whole.waiting()
