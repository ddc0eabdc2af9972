"""Streaming Ledger by every scheduler against a plain loop, and what its generator makes."""

from __future__ import annotations

import numpy as np
import pytest

from activedb.columns.program._layout import supports
from activedb.columns.program._run import ColumnRun
from benchmarks._examples import load
from tests.examples.stream_programs import SCHEDULERS, command, one_by_one, wrong

sl = load("streaming_ledger")
LITTLE = 50  # accounts
PROGRAM = sl.program(LITTLE)  # compiled once for all tests


@pytest.mark.parametrize("by", SCHEDULERS)
def test_every_scheduler_gives_what_the_loop_gives(by: str) -> None:
    events = sl.columns(300, accounts=LITTLE, skew=1.0, aborts=0.3, disorder=40, seed=7)
    assert wrong(PROGRAM, events, lambda e: sl.replay(e, LITTLE), by) == []


@pytest.mark.parametrize("by", ["s2pl", "tpg"])
@pytest.mark.parametrize("length", [2, 10])
def test_transfers_of_any_length_give_what_the_loop_gives(by: str, length: int) -> None:
    events = sl.columns(300, accounts=LITTLE, length=length, deposits=0.5, aborts=0.1, seed=8)
    program = sl.program(LITTLE, length)
    assert wrong(program, events, lambda e: sl.replay(e, LITTLE), by) == []


def test_figure_1_a_transfer_of_what_was_deposited_and_one_of_too_much() -> None:
    program = sl.program(4, length=2)
    accounts = program.tables[0]
    everything = sl.BALANCE + 50
    run, results = one_by_one(
        program,
        [
            ("DEPOSIT", {"to0": 0, "amount0": 50}),
            ("TRANSFER", {"from0": 0, "to0": 1, "amount0": everything}),
            ("TRANSFER", {"from0": 0, "to0": 1, "amount0": 1}),
            ("TRANSFER", {"from0": 1, "to0": 0, "amount0": 30}),
        ],
    )
    assert [t.outcome.committed for t in results.transactions] == [True, True, False, True]
    assert run.state.of(accounts).newest() == {0: 30, 1: sl.BALANCE + everything - 30}


def test_a_transfer_with_too_few_assets_moves_no_money_either() -> None:
    program = sl.program(4)
    moved = {"from0": 0, "to0": 1, "amount0": 5, "from1": 2, "to1": 3, "amount1": sl.TOO_MUCH}
    run, results = one_by_one(program, [("TRANSFER", moved)])
    assert not results.transactions[0].outcome.committed
    assert [run.state.of(table).newest() for table in program.tables] == [{}, {}]


def test_generator_at_the_defaults_makes_the_paper_s_events() -> None:
    events = sl.columns(20_000)
    assert sl.ACCOUNTS == 122_880
    deposits = events.codes == 0
    assert deposits.mean() == pytest.approx(0.25, abs=0.02)
    assert sum(name.startswith(("from", "to")) for name in events.takes["TRANSFER"]) == 4
    assert sl.replay(events).committed.count(False) / 20_000 == pytest.approx(0.01, abs=0.004)
    for table in "01":
        sender, receiver = events.params[f"from{table}"], events.params[f"to{table}"]
        assert (sender != receiver).all()
        assert min(sender.min(), receiver.min()) >= 0
        assert max(sender.max(), receiver.max()) < sl.ACCOUNTS


def test_generator_same_seed_same_events_and_another_seed_others() -> None:
    one, two, other = (sl.columns(500, seed=seed, disorder=20) for seed in (3, 3, 4))
    assert all((one.params[name] == two.params[name]).all() for name in one.params)
    assert (one.us == two.us).all()
    assert any((one.params[name] != other.params[name]).any() for name in one.params)


@pytest.mark.long
def test_generator_skew_makes_some_accounts_busier() -> None:
    shares = []
    for skew in (0.0, 0.6, 1.2):
        drawn = sl.columns(20_000, accounts=1_000, skew=skew).params["from0"]
        shares.append(np.bincount(drawn).max() / len(drawn))
    assert shares[0] < 0.005 < shares[1] < 0.05 < shares[2]


def test_generator_disorder_is_bounded_and_no_punctuation_comes_too_early() -> None:
    events = sl.columns(1_000, disorder=30)
    late = np.argsort(np.argsort(events.us)) - np.arange(1_000)
    assert 0 < np.abs(late).max() <= 30
    seen = 0
    for part, punctuation_us in events.batches(64):
        seen += len(part)
        assert (punctuation_us is None) == (seen == 1_000)
        assert punctuation_us is None or (events.us[seen:] >= punctuation_us).all()


@pytest.mark.long
def test_program_is_compiled_as_a_whole() -> None:
    assert supports(PROGRAM) is None
    run = ColumnRun(PROGRAM)
    run.feed(sl.columns(100, accounts=LITTLE).columns())
    run.finish()
    assert run.not_compiled is None


def test_check_says_what_is_wrong() -> None:
    def other(events: object) -> object:
        expected = sl.replay(events, LITTLE)
        expected.committed[5] ^= True
        expected.tables["assets"][9] += 1
        expected.totals["accounts"] -= 1
        return expected

    said = wrong(PROGRAM, sl.columns(100, accounts=LITTLE), other, "serial")
    assert [text.split(":")[0] for text in said] == ["committed", "assets", "accounts"]
    assert "the first that of number 5" in said[0]
    assert "the first that of key 9" in said[1]


@pytest.mark.long
def test_command_in_a_process_is_right() -> None:
    status, figures, errors = command(
        "streaming_ledger", "--events", "500", "--scheduler", "lwm", "--skew", "0.6", "--check"
    )
    assert status == 0, errors
    assert figures["check"] == "right"
    assert figures["committed"] + figures["aborted"] == figures["events"] == 500


def test_command_that_differs_from_the_loop_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sl, "deposit", lambda balance, amount: balance + amount)
    assert sl.main(["--events", "200", "--aborts", "0.5", "--check", "--json"]) == 1
    said = capsys.readouterr()
    assert '"check": "wrong"' in said.out
    assert "error: committed: " in said.err or "error: accounts: " in said.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--length", "3"], "an even number"),
        (["--events", "0"], "from 1 to"),
        (["--aborts", "1.5"], "from 0 to 1, not 1.5"),
        (["--skew", "nan"], "not nan"),
        (["--scheduler", "best"], "invalid choice"),
    ],
)
def test_command_bad_usage_exits_with_2_and_says_what(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        sl.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_command_shows_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert sl.main(["--events", "100", "--check"]) == 0
    shown = capsys.readouterr().out
    assert "events per s" in shown
    assert "right" in shown
