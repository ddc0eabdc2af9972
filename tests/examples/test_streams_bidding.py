"""Online Bidding by every scheduler against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest

from activedb.columns.program._layout import supports
from activedb.columns.program._run import ColumnRun
from benchmarks._examples import load
from tests.examples.stream_programs import SCHEDULERS, command, one_by_one, wrong

ob = load("online_bidding")
FEW = 20  # items
PROGRAM = ob.program(FEW)  # compiled once for all tests


@pytest.mark.long
@pytest.mark.parametrize("by", SCHEDULERS)
def test_every_scheduler_gives_what_the_loop_gives(by: str) -> None:
    events = ob.columns(400, items=FEW, skew=0.8, aborts=0.1, disorder=40, seed=13)
    assert wrong(PROGRAM, events, lambda e: ob.replay(e, FEW), by) == []


@pytest.mark.parametrize("length", [1, 10])
def test_events_about_many_items_give_what_the_loop_gives(length: int) -> None:
    events = ob.columns(400, items=FEW, length=length, aborts=0.1, seed=14)
    program = ob.program(FEW, length)
    assert wrong(program, events, lambda e: ob.replay(e, FEW), "tpg") == []


def test_bids_by_hand() -> None:
    program = ob.program(4, length=2)
    prices, quantities = program.tables
    bid = {"item0": 1, "price0": ob.PRICE, "quantity0": ob.QUANTITY}
    cheaper = {"item0": 1, "price0": 9.0, "item1": 2, "price1": 8.0}
    more = {"item0": 1, "quantity0": 5.0, "item1": 3, "quantity1": 6.0}
    run, results = one_by_one(
        program,
        [
            ("BID", {**bid, "price0": ob.PRICE - 1}),  # offers too little
            ("BID", bid),  # takes all
            ("BID", bid),  # nothing left
            ("TOP_UP", more),
            ("TOP_UP", {**more, "quantity1": 0.0}),  # nothing is added: neither is the other
            ("ALTER_PRICE", cheaper),
            ("ALTER_PRICE", {**cheaper, "price1": 0.0}),
            ("BID", {**bid, "price0": 9.0, "quantity0": 4.0}),
        ],
    )
    expected = [False, True, False, True, False, True, False, True]
    assert [t.outcome.committed for t in results.transactions] == expected
    assert results.outputs == [0, 1]
    assert run.state.of(prices).newest() == {1: 9, 2: 8}
    assert run.state.of(quantities).newest() == {1: 1, 3: ob.QUANTITY + 6}


@pytest.mark.long
def test_program_is_compiled_as_a_whole() -> None:
    assert supports(PROGRAM) is None
    run = ColumnRun(PROGRAM)
    run.feed(ob.columns(100, items=FEW).columns())
    run.finish()
    assert run.not_compiled is None


def test_generator_types_and_aborts_are_as_asked_for() -> None:
    events = ob.columns(20_000, aborts=0.0)
    shares = np.bincount(events.codes) / len(events)
    assert shares.tolist() == pytest.approx(ob.SHARES, abs=0.02)
    few, many = (ob.replay(ob.columns(5_000, aborts=a)).committed.count(False) for a in (0, 0.5))
    assert few < 0.05 * 5_000
    assert many > 0.45 * 5_000


@pytest.mark.long
def test_command_in_a_process_is_right() -> None:
    arguments = ["--events", "500", "--scheduler", "s2pl", "--threads", "3", "--check"]
    status, figures, errors = command("online_bidding", *arguments)
    assert status == 0, errors
    assert figures["check"] == "right"
    assert figures["threads"] == 3
