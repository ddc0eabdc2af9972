"""The operation state machine: figures 8 and 9, aborts and rollback by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from activedb.scheduling import Abort, Ref, SharedState, SharedTable, STransaction
from activedb.scheduling.tpg import Decision, OperationState
from activedb.scheduling.tpg._execution import GraphExecution
from activedb.scheduling.tpg._parts import outcome_of
from activedb.scheduling.tpg._vertex import ABT, BLK, EXE, RDY, Vertex
from tests.scheduling.tpg.ledger import operations, read, s_transaction, write
from tests.scheduling.tpg.simulation import Simulation, planned

Moves = list[tuple[str, str]]
accounts = SharedTable("accounts", key=str, initial=0)
mixed = SharedTable("mixed", initial=0)
A, B, C, D = (accounts[key] for key in "ABCD")


def fails(*values: Any) -> Any:
    raise Abort("it fails")


def started(
    *transactions: STransaction, decision: Decision | None = None, workers: int = 2
) -> tuple[Simulation, SharedState, list[Vertex], Moves]:
    """A simulation, its operations, and the moves that were made: ("O1", "T2")."""
    state, graph, moves = SharedState([accounts, mixed]), planned(*transactions), []
    names = {vertex: f"O{n}" for n, vertex in enumerate(operations(graph), 1)}

    def on_move(vertex: Vertex, old: OperationState, new: OperationState, name: str) -> None:
        assert name == ALLOWED[old, new]
        moves.append((names[vertex], name))

    execution = GraphExecution(graph, state, decision or Decision(), workers, on_move)
    return Simulation(execution, workers), state, operations(graph), moves


def taken(simulation: Simulation, worker: int, vertex: Vertex) -> None:
    """The worker takes an operation, which must be this one."""
    assert simulation.step(worker) is vertex


def ended(simulation: Simulation, worker: int) -> None:
    """The worker evaluates and finishes what it has taken."""
    simulation.step(worker)
    simulation.step(worker)


ALLOWED = {
    (BLK, RDY): "T1",
    (RDY, EXE): "T2",
    (BLK, EXE): "T3",
    (BLK, ABT): "T4",
    (RDY, ABT): "T4",
    (EXE, ABT): "T4",
    (EXE, RDY): "T5",
    (ABT, RDY): "T5",
    (EXE, BLK): "T6",
    (RDY, BLK): "T6",
    (ABT, BLK): "T6",
}


@pytest.mark.parametrize("new", OperationState)
@pytest.mark.parametrize("old", OperationState)
def test_figure_8_moves_that_are_not_in_it_are_refused(
    old: OperationState, new: OperationState
) -> None:
    simulation, _, (vertex,), moves = started(s_transaction(1, write(A)))
    vertex.state = old
    moves.clear()
    if (old, new) in ALLOWED:
        simulation.execution.move(vertex, new)
        assert vertex.state is new
        assert moves == [("O1", ALLOWED[old, new])]
    else:
        with pytest.raises(AssertionError, match=f"from {old.name} to {new.name}"):
            simulation.execution.move(vertex, new)
        assert (vertex.state, moves) == (old, [])


def figure_9(function: Callable[..., Any] | None) -> tuple[STransaction, STransaction]:
    """O1 and O2 depend on each other logically, O3 on O2 parametrically."""
    first = s_transaction(1, write(A, function=function), write(B))
    return first, s_transaction(2, write(C, C, B))


def test_figure_9_execution() -> None:
    simulation, state, (o1, o2, o3), moves = started(*figure_9(None))
    assert (o1.state, o2.state, o3.state) == (RDY, RDY, BLK)
    taken(simulation, 0, o1)
    taken(simulation, 1, o2)
    ended(simulation, 1)
    assert (o1.state, o2.state, o3.state) == (RDY, EXE, RDY)
    taken(simulation, 1, o3)
    ended(simulation, 1)
    ended(simulation, 0)
    assert (o1.state, o2.state, o3.state) == (EXE, EXE, EXE)
    assert state.of(accounts).newest() == {"A": 1, "B": 1, "C": 2}
    assert moves[2:] == [("O2", "T2"), ("O3", "T1"), ("O3", "T2"), ("O1", "T2")]


def test_figure_9_abort_and_rollback() -> None:
    simulation, state, (o1, o2, o3), moves = started(*figure_9(fails))
    taken(simulation, 0, o1)
    taken(simulation, 1, o2)
    ended(simulation, 1)
    taken(simulation, 1, o3)
    ended(simulation, 1)
    assert state.of(accounts).newest() == {"B": 1, "C": 2}
    ended(simulation, 0)
    assert (o1.state, o2.state, o3.state) == (RDY, EXE, EXE), "the coordinator has still to act"
    del moves[:]
    taken(simulation, 0, o3)
    assert moves == [("O1", "T4"), ("O2", "T4"), ("O3", "T5")]
    ended(simulation, 0)
    assert moves[3:] == [("O3", "T2")]
    assert state.of(accounts).newest() == {"C": 1}


def test_rollback_of_a_chain_is_to_blocked_but_for_its_first() -> None:
    first = s_transaction(1, write(A, function=fails), write(B))
    chain = [s_transaction(n, write(B)) for n in (2, 3)]
    simulation, _, (o1, o2, o3, o4), moves = started(first, *chain)
    taken(simulation, 0, o1)
    for vertex in (o2, o3, o4):
        taken(simulation, 1, vertex)
        ended(simulation, 1)
    ended(simulation, 0)
    del moves[:]
    taken(simulation, 0, o3)
    assert moves == [("O1", "T4"), ("O2", "T4"), ("O3", "T5"), ("O4", "T6")]
    simulation.run(min)
    assert (o3.state, o4.state) == (EXE, EXE)


def test_operation_that_runs_while_its_source_is_taken_back_is_run_again() -> None:
    simulation, state, (o1, o2, o3), _ = started(*figure_9(fails))
    taken(simulation, 0, o1)
    taken(simulation, 1, o2)
    ended(simulation, 1)
    taken(simulation, 1, o3)
    simulation.step(1)  # it has read what O2 wrote
    ended(simulation, 0)
    simulation.step(0)  # O1 and O2 abort
    assert o3.stale
    simulation.run(max)
    assert o3.effect is not None
    assert state.of(accounts).newest() == {"C": 1}
    assert o2.state == ABT


def test_eager_abort_is_done_by_the_worker_that_took_the_head() -> None:
    first = s_transaction(1, write(A), write(B, function=fails))
    simulation, _, (o1, o2), moves = started(first)
    taken(simulation, 0, o1)
    taken(simulation, 1, o2)
    ended(simulation, 1)
    simulation.step(1)
    assert o2.state == RDY, "the other one is not the coordinator"
    ended(simulation, 0)
    assert o1.state == EXE
    simulation.step(0)
    assert moves[-2:] == [("O1", "T4"), ("O2", "T4")]


def test_breadth_first_eager_abort_is_done_after_the_stratum() -> None:
    first = s_transaction(1, write(A, function=fails), write(B))
    others = [s_transaction(2, write(B)), s_transaction(3, write(C)), s_transaction(4, write(D))]
    simulation, _, (o1, o2, o3, o4, o5), moves = started(
        first, *others, decision=Decision("breadth-first"), workers=1
    )
    for vertex in (o1, o2, o4, o5):
        taken(simulation, 0, vertex)
        ended(simulation, 0)
    assert o3.state == RDY, "it is of the next stratum"
    assert o1.state == RDY
    taken(simulation, 0, o3)
    assert moves[-2:] == [("O1", "T4"), ("O2", "T4")]


def test_lazy_abort_is_done_when_all_was_explored() -> None:
    first = s_transaction(1, write(A, function=fails), write(B))
    simulation, state, (o1, o2, o3, o4), moves = started(
        first,
        s_transaction(2, write(B)),
        s_transaction(3, write(C)),
        decision=Decision(abort="lazy"),
        workers=1,
    )
    for vertex in (o1, o2, o3, o4):
        taken(simulation, 0, vertex)
        ended(simulation, 0)
    assert state.of(accounts).newest() == {"B": 2, "C": 1}
    del moves[:]
    taken(simulation, 0, o3)
    assert moves == [("O1", "T4"), ("O2", "T4"), ("O3", "T5")]
    simulation.run(min)
    assert state.of(accounts).newest() == {"B": 1, "C": 1}


@pytest.mark.parametrize("abort", ["eager", "lazy"])
def test_abort_for_what_an_aborted_one_wrote_is_taken_back(abort: str) -> None:
    def not_one(value: int) -> int:
        if value == 1:
            raise Abort("one is too much")
        return value + 10

    # O3 fails on what O2 has written; but O1 fails too, and so O2 has not written it.
    first = s_transaction(1, write(A, function=fails), write(B))
    second = s_transaction(2, write(B, function=not_one), write(C))
    decision = Decision(abort=abort)  # type: ignore[arg-type]
    simulation, state, (o1, o2, o3, o4), moves = started(first, second, decision=decision)
    taken(simulation, 0, o1)
    taken(simulation, 1, o2)
    ended(simulation, 1)
    for vertex in (o3, o4) if abort == "lazy" else (o3,):
        taken(simulation, 1, vertex)
        ended(simulation, 1)
    simulation.step(1)
    if abort == "eager":
        assert (o3.state, o4.state) == (ABT, ABT)
    ended(simulation, 0)
    simulation.run(min)
    assert (o3.state, o4.state) == (EXE, EXE)
    assert state.of(accounts).newest() == {"B": 10, "C": 1}
    assert (("O3", "T5") in moves) == (abort == "eager")


def test_two_failures_give_the_reason_of_the_first_statement() -> None:
    def also(value: int) -> int:
        raise ValueError("as well")

    first = s_transaction(1, write(C))
    second = s_transaction(2, write(A, C, function=fails), write(B, function=also))
    simulation, state, (_, _, o3), _ = started(first, second, workers=1)
    execution = simulation.execution
    # The second statement fails before the first could be run.
    waiting = execution.take(0)
    assert isinstance(waiting, Vertex)
    other = execution.take(0)
    assert other is o3
    execution.finish(0, o3, *execution.evaluate(o3))
    execution.finish(0, waiting, *execution.evaluate(waiting))
    simulation.run(min)
    outcome = outcome_of(o3.node, state)
    assert outcome.reason == "it fails"


def test_speculation_that_was_right_goes_from_blocked_to_executed() -> None:
    computed: Ref = accounts.computed(lambda: "D")
    first = s_transaction(1, write(computed))
    simulation, state, (_, o2), moves = started(
        first, s_transaction(2, write(A)), decision=Decision(speculative=True)
    )
    simulation.step(0)
    taken(simulation, 1, o2)
    assert o2.guessing
    ended(simulation, 1)
    assert o2.state == BLK
    ended(simulation, 0)
    assert moves == [("O1", "T1"), ("O1", "T2"), ("O2", "T3")]
    assert state.of(accounts).newest() == {"A": 1, "D": 1}


def test_speculation_that_was_wrong_is_run_again() -> None:
    first = s_transaction(1, write(A))
    simulation, state, (_, o2), moves = started(
        first, s_transaction(2, write(A)), decision=Decision(speculative=True)
    )
    simulation.step(0)
    taken(simulation, 1, o2)
    ended(simulation, 1)
    ended(simulation, 0)
    assert moves[-1] == ("O2", "T1")
    simulation.run(min)
    assert moves[-1] == ("O2", "T2")
    assert state.of(accounts).newest() == {"A": 2}


def test_speculation_whose_read_failed_is_run_again() -> None:
    simulation, state, (_, o2, o3, o4), _ = started(
        s_transaction(1, write(mixed[5])),
        s_transaction(2, write(mixed["x"]), write(A, function=fails)),
        s_transaction(3, read(mixed.range(0, 10))),
        decision=Decision(speculative=True),
        workers=3,
    )
    simulation.step(0)
    taken(simulation, 1, o2)
    ended(simulation, 1)
    taken(simulation, 1, o3)
    taken(simulation, 2, o4)  # fails, as "x" and 10 do not compare
    assert o4.guessing
    ended(simulation, 2)
    ended(simulation, 1)
    simulation.step(1)  # aborts: "x" is gone
    assert not state.of(mixed).newest()
    ended(simulation, 0)
    simulation.run(min)
    outcome = outcome_of(o4.node, state)
    assert (outcome.reason, outcome.results) == (None, ({5: 1},))
