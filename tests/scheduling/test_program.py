"""Programs: the three steps, the short form, and runs from punctuation to punctuation."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import pytest

from activedb.scheduling import (
    REMOVED,
    Abort,
    Access,
    Outcome,
    Program,
    ProgramRun,
    Results,
    SerialOrder,
    SharedTable,
    View,
)
from tests.scheduling.events import event

Params = Mapping[str, Any]


@pytest.fixture
def accounts() -> SharedTable:
    return SharedTable("accounts", initial=0, history=10e-6)


@pytest.fixture
def bank(accounts: SharedTable) -> Program:
    """Deposits and transfers, as in the streaming ledger (Mao et al., figure 1)."""
    program = Program("bank", [accounts])

    @program.on("DEPOSIT")
    def deposit(e: Params, access: Access) -> None:
        access.write(accounts[e["to"]], operator.add, e["amount"])

    def taken(source: int, amount: int) -> int | None:
        return source - amount if source > amount else None

    def given(target: int, source: int, amount: int) -> int | None:
        return target + amount if source > amount else None

    @program.on("TRANSFER")
    def transfer(e: Params, access: Access) -> None:
        source, target = accounts[e["from"]], accounts[e["to"]]
        access.write(source, taken, e["amount"])
        access.write(target, given, e["amount"], reads=(target, source))

    return program


def run_of(program: Program) -> ProgramRun:
    return ProgramRun(program, SerialOrder())


def ends(source: str, target: str, amount: int) -> dict[str, Any]:
    """Parameters of a transfer."""
    return {"from": source, "to": target, "amount": amount}


def outcomes(results: Results) -> list[Outcome | None]:
    return [t.outcome for t in results.transactions]


def test_streaming_ledger_of_figure_1_gives_the_order_of_timestamps(
    bank: Program, accounts: SharedTable
) -> None:
    deposit = event("DEPOSIT", 1, to="A", amount=100)
    there = event("TRANSFER", 2, **ends("A", "B", 30))
    back = event("TRANSFER", 3, **ends("B", "A", 20))
    run = run_of(bank)
    results = run.feed([back, deposit, there], 4)
    assert outcomes(results) == [Outcome((100,)), Outcome((70, 30)), Outcome((10, 90))]
    assert run.state.of(accounts).newest() == {"A": 90, "B": 10}


def test_transfer_without_cover_aborts_both_of_its_writes(
    bank: Program, accounts: SharedTable
) -> None:
    run = run_of(bank)
    overdrawn = event("TRANSFER", 2, **ends("A", "B", 100))
    results = run.feed([overdrawn, event("DEPOSIT", 1, to="A", amount=100)], 4)
    assert results.transactions[1].outcome is not None
    assert results.transactions[1].outcome.reason == (
        "accounts['A'] was not written: the function gave None"
    )
    assert isinstance(results.transactions[1].outcome.error, Abort)
    assert run.state.of(accounts).newest() == {"A": 100}


# -- operations ----------------------------------------------------------------------------------


def test_operations_do_not_see_each_others_writes(accounts: SharedTable) -> None:
    program = Program("p", [accounts])

    @program.on("SWAP")
    def swap(e: Params, access: Access) -> None:
        one, other = accounts["one"], accounts["other"]
        access.write(one, lambda value: value, reads=(other,))
        access.write(other, lambda value: value, reads=(one,))
        access.read(one, other)

    @program.on("SET")
    def put(e: Params, access: Access) -> None:
        access.write(accounts["one"], lambda: 1, reads=())
        access.write(accounts["other"], lambda: 2, reads=())

    run = run_of(program)
    results = run.feed([event("SET", 1), event("SWAP", 2)], 3)
    assert outcomes(results) == [Outcome((1, 2)), Outcome((2, 1, (1, 2)))]
    assert run.state.of(accounts).newest() == {"one": 2, "other": 1}


def test_results_of_reads_are_a_value_a_tuple_or_what_the_function_gives(
    accounts: SharedTable,
) -> None:
    program = Program("p", [accounts])

    @program.on("READ")
    def read(e: Params, access: Access) -> None:
        access.read(accounts[1])
        access.read(accounts[1], accounts[2])
        access.read(accounts[1], accounts[2], function=lambda *given: given, args=("more",))
        access.read(accounts.range(1, 3))
        access.read(accounts[1].window(5e-6), function=sum)

    @program.on("WRITE")
    def write(e: Params, access: Access) -> None:
        access.write(accounts[e["key"]], lambda value, new: new, e["value"])

    run = run_of(program)
    writes = [event("WRITE", us, key=key, value=us) for us, key in enumerate([1, 1, 1, 2, 3])]
    results = run.feed([*writes, event("READ", 6)], 7)
    assert outcomes(results)[-1] == Outcome((2, (2, 3), (2, 3, "more"), {1: 2, 2: 3}, 3))


def test_computed_key_is_computed_of_what_came_before(accounts: SharedTable) -> None:
    program = Program("p", [accounts])

    @program.on("FOLLOW")
    def follow(e: Params, access: Access) -> None:
        key = accounts.computed(operator.add, e["step"], reads=(accounts["next"],))
        access.write(key, lambda value, us: us, e["us"])
        access.write(accounts["next"], operator.add, 1)

    run = run_of(program)
    run.feed([event("FOLLOW", us, step=10, us=us) for us in (3, 1, 2)], 9)
    assert run.state.of(accounts).newest() == {"next": 3, 10: 1, 11: 2, 12: 3}


def test_removed_value_reads_as_the_initial_one(accounts: SharedTable) -> None:
    program = Program("p", [accounts])

    @program.on("REMOVE")
    def remove(e: Params, access: Access) -> None:
        access.write(accounts[1], lambda value: REMOVED)

    @program.on("ADD")
    def add(e: Params, access: Access) -> None:
        access.write(accounts[1], operator.add, 5)
        access.read(accounts.range())

    run = run_of(program)
    results = run.feed([event("ADD", 1), event("REMOVE", 2), event("ADD", 3)], 4)
    assert outcomes(results) == [Outcome((5, {})), Outcome((REMOVED,)), Outcome((5, {}))]


# -- the short form ------------------------------------------------------------------------------


def test_body_sees_its_own_writes(accounts: SharedTable) -> None:
    program = Program("p", [accounts])

    @program.transaction("BODY", writes=lambda e: [accounts.range(), accounts[1].window(5e-6)][:1])
    def body(t: View, e: Params) -> list[Any]:
        t.write(accounts[1], 5)
        t.write(accounts[1], t.read(accounts[1]) + 1)
        t.write(accounts[2], REMOVED)
        t.write(accounts[3], 1)
        by_key = accounts.computed(abs, reads=(accounts[3],))
        t.write(accounts.computed(operator.add, 7, reads=(accounts[3],)), "eight")
        return [
            t.read(by_key),
            t.read(accounts[2]),
            t.read(accounts.range(2)),
            t.read(accounts[1].window(5e-6)),
        ]

    @program.on("SET")
    def put(e: Params, access: Access) -> None:
        for key in (1, 2, 9):
            access.write(accounts[key], lambda value, key: -key, key)

    run = run_of(program)
    results = run.feed([event("SET", 1), event("BODY", 2)], 3)
    expected: list[Any] = [6, 0, {3: 1, 8: "eight", 9: -9}, [-1]]
    assert outcomes(results)[1] == Outcome((expected,))
    assert run.state.of(accounts).newest() == {1: 6, 3: 1, 8: "eight", 9: -9}


def test_body_with_declared_reads_alone_writes_nothing(accounts: SharedTable) -> None:
    program = Program("p", [accounts])
    program.transaction("READ", reads=lambda e: [accounts[1]])(lambda t, e: t.read(accounts[1]))
    (operation,) = program.operations("READ", {})
    assert operation.targets == ()
    assert operation.sources == (accounts[1],)


# -- pre- and post-processing --------------------------------------------------------------------


def test_pre_processing_makes_parameters_or_drops_and_post_processing_makes_outputs(
    bank: Program, accounts: SharedTable
) -> None:
    @bank.pre_process
    def pre_process(type_: str, params: Params) -> Params | None:
        if params["amount"] == 0:
            return None
        return {**params, "amount": params["amount"] * 100}

    @bank.post_process
    def post_process(type_: str, params: Params, outcome: Outcome) -> Any:
        if outcome.committed and params["to"] == "silent":
            return None
        return type_, params["amount"], outcome.results, outcome.reason

    amounts = {"A": 1, "silent": 2, "B": 0, "C": "many"}
    events = [event("DEPOSIT", n, to=to, amount=x) for n, (to, x) in enumerate(amounts.items())]
    run = run_of(bank)
    results = run.feed(events, 10)
    assert results.dropped == 1
    assert results.outputs[0] == ("DEPOSIT", 100, (100,), None)
    assert results.outputs[1][2] == ()
    assert results.outputs[1][3].startswith("TypeError: ")
    assert len(results.outputs) == 2
    assert bank.types == ("DEPOSIT", "TRANSFER")


# -- runs ----------------------------------------------------------------------------------------


def test_run_waits_for_punctuations_and_ends_with_the_stream(
    bank: Program, accounts: SharedTable
) -> None:
    run = run_of(bank)
    deposits = [event("DEPOSIT", us, to="A", amount=us) for us in (30, 10, 20)]
    assert run.feed(deposits).transactions == []
    assert run.waiting == 3
    assert outcomes(run.feed([], 20)) == [Outcome((10,))]  # what is at 20 may still have company
    assert run.feed([], 15).transactions == []  # an older punctuation says nothing
    assert run.punctuation_us == 20
    assert run.waiting == 2
    assert outcomes(run.finish()) == [Outcome((30,)), Outcome((60,))]
    assert run.waiting == 0
    assert run.finish().transactions == []


def test_run_that_has_finished_takes_only_later_events(
    bank: Program, accounts: SharedTable
) -> None:
    run = run_of(bank)
    run.feed([event("DEPOSIT", 30, to="A", amount=1)])
    run.finish()
    late, later = (event("DEPOSIT", us, to="A", amount=2) for us in (30, 31))
    assert [r.event for r in run.feed([late, later]).refused] == [late]
    assert outcomes(run.finish()) == [Outcome((3,))]


def test_events_of_one_time_are_in_the_order_of_ids_then_of_arrival(
    bank: Program, accounts: SharedTable
) -> None:
    @bank.on("PUT")
    def put(e: Params, access: Access) -> None:
        access.write(accounts["A"], lambda value, digit: value * 10 + digit, e["digit"])

    ids = ["b", "a", None, "b", None]
    events = [event("PUT", 5, id=id_, digit=n) for n, id_ in enumerate(ids, 1)]
    run = run_of(bank)
    run.feed(events, 6)
    assert run.state.of(accounts).newest() == {"A": 35214}
