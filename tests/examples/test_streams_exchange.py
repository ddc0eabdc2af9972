"""Turnover by hash join against a join by nested loops, on paper and on real bars."""

from __future__ import annotations

import csv
import importlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from activedb.errors import BadEvent, StreamError
from activedb.scheduling import ProgramRun, SerialOrder
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

STREAMS = Path(__file__).resolve().parents[2] / "examples" / "streams"
OPENING = datetime(2008, 2, 1, 14, 30, tzinfo=UTC)  # a window of 10 minutes begins
LINES = [
    "MSFT,200802010930,31.25,31.3,31.2,31.3,100",
    "ORLY,200802010930,30,30,30,30,10",
    "MSFT,200802010931,31.35,31.4,31.3,31.3,300",
    "MSFT,200802010940,32,32,32,32,50",
]


@pytest.fixture
def exchange(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example, imported as its own folder's other files are."""
    monkeypatch.syspath_prepend(STREAMS)
    return importlib.import_module("exchange")


def joined(bars: Iterable[Any], minutes: int) -> dict[tuple[str, int], tuple[int, Fraction]]:
    """Matches and turnover ($) of each ticker and window, by nested loops over (ticker, window)."""
    opens, volumes = defaultdict(list), defaultdict(list)
    for ticker, start, price, volume in bars:
        window = (start - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(minutes=minutes)
        opens[ticker, window].append(Fraction(price, 10_000))
        volumes[ticker, window].append(volume)
    found = {}
    for key, prices in opens.items():
        pairs = [(price, volume) for price in prices for volume in volumes[key]]
        value = sum((price * volume for price, volume in pairs), Fraction(0))
        found[key] = (len(pairs), value / len(prices))
    return found


@pytest.fixture
def four_bars(tmp_path: Path) -> Path:
    """A data folder with the bars of `LINES`."""
    (tmp_path / "nasdaq").mkdir()
    path = tmp_path / "nasdaq" / "NASDAQ_MEDIUM.csv"
    path.write_text("\n".join(LINES) + "\n", "utf-8")
    return tmp_path


def test_bars_that_are_read_have_open_and_volume(exchange: ModuleType, four_bars: Path) -> None:
    bars = exchange.read_bars(four_bars / "nasdaq" / "NASDAQ_MEDIUM.csv")
    assert bars == [
        ("MSFT", OPENING, 312_500, 100),
        ("ORLY", OPENING, 300_000, 10),
        ("MSFT", OPENING + timedelta(minutes=1), 313_500, 300),
        ("MSFT", OPENING + timedelta(minutes=10), 320_000, 50),
    ]


@pytest.mark.parametrize(
    "line", ["MSFT,200802010930,31.25", "MSFT,noon,1,1,1,1,1", "MSFT,200802010930,x,1,1,1,1"]
)
def test_line_that_is_no_bar_is_named(exchange: ModuleType, four_bars: Path, line: str) -> None:
    path = four_bars / "nasdaq" / "NASDAQ_MEDIUM.csv"
    path.write_text(f"{LINES[0]}\n{line}\n", "utf-8")
    with pytest.raises(BadEvent, match="line 2 is not a bar"):
        exchange.read_bars(path)


def test_trade_and_quote_match_once_if_ticker_and_window_are_the_same(
    exchange: ModuleType, four_bars: Path
) -> None:
    bars = exchange.read_bars(four_bars / "nasdaq" / "NASDAQ_MEDIUM.csv")
    run = ProgramRun(exchange.hash_join(10), SerialOrder())
    results = run.feed(exchange.events_of(bars))
    results = run.finish()
    assert all(t.outcome and t.outcome.committed for t in results.transactions)
    matches = [
        (match.trade, match.quote, match.value) for some in results.outputs for match in some
    ]
    assert matches == [
        ("MSFT 09:30 TRADE", "MSFT 09:30 QUOTE", 100 * 312_500),
        ("ORLY 09:30 TRADE", "ORLY 09:30 QUOTE", 10 * 300_000),
        ("MSFT 09:30 TRADE", "MSFT 09:31 QUOTE", 100 * 313_500),  # the quote came later
        ("MSFT 09:31 TRADE", "MSFT 09:30 QUOTE", 300 * 312_500),
        ("MSFT 09:31 TRADE", "MSFT 09:31 QUOTE", 300 * 313_500),
        ("MSFT 09:40 TRADE", "MSFT 09:40 QUOTE", 50 * 320_000),
    ]


def test_hash_tables_hold_the_tuples_of_the_window_alone(
    exchange: ModuleType, four_bars: Path
) -> None:
    bars = exchange.read_bars(four_bars / "nasdaq" / "NASDAQ_MEDIUM.csv")
    run = ProgramRun(exchange.hash_join(10), SerialOrder())
    run.feed(exchange.events_of(bars))
    run.finish()
    held = {
        versions.table.name: {
            ticker: [entry.amount for entry in entries]
            for ticker, entries in versions.newest().items()
        }
        for versions in run.state
    }
    assert held == {
        "Index(Traded)": {"MSFT": [50], "ORLY": [10]},
        "Index(Quotes)": {"MSFT": [320_000], "ORLY": [300_000]},
    }


@pytest.mark.parametrize("scheduler", ["serial", "sei", "s2pl", "lwm", "tpg"])
def test_random_bars_arriving_in_any_order_give_the_turnover_of_nested_loops(
    exchange: ModuleType, monkeypatch: pytest.MonkeyPatch, scheduler: str
) -> None:
    random = Random(7)
    bars = [
        exchange.Bar(ticker, OPENING + timedelta(minutes=minute), random.randrange(1, 10**6), size)
        for ticker in ("MSFT", "ORLY", "DRIV")
        for minute in range(40)
        if (size := random.randrange(-20, 100)) >= 0  # some minutes have no bar
    ]
    random.shuffle(bars)
    monkeypatch.setattr(exchange, "BATCH", 50)
    turnovers = exchange.run(bars, exchange.scheduler(scheduler, 3), 7)
    assert {
        key: (t.matches, Fraction(t.value, len(t.quotes) * 10_000)) for key, t in turnovers.items()
    } == joined(bars, 7)


def test_events_of_a_batch_arrive_by_stream_and_punctuations_pass_them(
    exchange: ModuleType, four_bars: Path
) -> None:
    events = exchange.events_of(exchange.read_bars(four_bars / "nasdaq" / "NASDAQ_MEDIUM.csv"))
    batches = list(exchange.batches_of(events, 3))
    assert [[event.name for event in batch] for batch, _ in batches] == [
        ["QUOTE", "QUOTE", "TRADE"],
        ["QUOTE", "TRADE", "TRADE"],
        ["QUOTE", "TRADE"],
    ]
    assert [punctuation for _, punctuation in batches] == [events[3].us, events[6].us, None]


@pytest.mark.long
@pytest.mark.data
@pytest.mark.parametrize("minutes", [1, 10, 60])
def test_day_of_real_bars_gives_the_turnover_of_nested_loops_and_of_sqlite(
    exchange: ModuleType, data_folder: Path, minutes: int
) -> None:
    path = data_folder / "nasdaq" / "NASDAQ_MEDIUM.csv"
    bars = exchange.read_bars(path)
    with path.open(encoding="utf-8", newline="") as lines:
        rows = [
            (row[0], _utc(row[1]), Fraction(row[2]) * 10_000, int(row[6]))
            for row in csv.reader(lines)
        ]
    assert len(rows) == 1652
    turnovers = exchange.run(bars, SerialOrder(), minutes)
    expected = joined(rows, minutes)
    assert {
        key: (t.matches, Fraction(t.value, len(t.quotes) * 10_000)) for key, t in turnovers.items()
    } == expected
    assert {
        key: (t.matches, t.value, len(t.quotes)) for key, t in turnovers.items()
    } == exchange.joined_by_sqlite(bars, minutes)


def _utc(minute: str) -> datetime:
    return datetime.strptime(minute, "%Y%m%d%H%M").replace(tzinfo=UTC) + timedelta(hours=5)


@pytest.mark.long
def test_command_is_run_as_a_file_prints_one_json_object_and_checks(four_bars: Path) -> None:
    arguments = ["--json", "--check", "--scheduler", "lwm", "--threads", "2"]
    done = subprocess.run(
        [sys.executable, STREAMS / "exchange.py", *arguments],
        env=os.environ | {"ACTIVEDB_DATA": str(four_bars)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["events"], found["matches"], found["windows_that_differ"]) == (8, 6, 0)
    assert found["windows"][0] == {
        "ticker": "MSFT",
        "start_s": int(OPENING.timestamp()),
        "matches": 4,
        "turnover_dollars": 400 * 31.3,
        "dollars_per_min": 40 * 31.3,
    }


def test_command_shows_a_table_and_the_figures(
    exchange: ModuleType, four_bars: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exchange.main(["--data", str(four_bars), "--check"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "matches: 6" in shown
    assert "windows that differ: 0" in shown


def test_command_whose_check_finds_a_difference_exits_with_1(
    exchange: ModuleType,
    four_bars: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(exchange, "probe", lambda entries, new: entries)  # nothing expires
    assert exchange.main(["--data", str(four_bars), "--check", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["windows_that_differ"] == 1
    assert "1 windows differ" in captured.err


def test_command_without_data_says_where_they_belong(
    exchange: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ACTIVEDB_DATA", str(tmp_path))
    assert exchange.main([]) == 2
    message = capsys.readouterr().err
    assert f"there is no folder nasdaq in {tmp_path}" in message
    assert "--data" in message
    assert "ACTIVEDB_DATA" in message


@pytest.mark.parametrize("argument", ["--window=0", "--threads=0", "--scheduler=none"])
def test_command_called_wrongly_exits_with_2(
    exchange: ModuleType, capsys: pytest.CaptureFixture[str], argument: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        exchange.main([argument])
    assert ended.value.code == 2
    assert argument.partition("=")[0] in capsys.readouterr().err


def test_command_on_a_line_that_is_no_bar_exits_with_1(
    exchange: ModuleType, four_bars: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (four_bars / "nasdaq" / "NASDAQ_MEDIUM.csv").write_text("nothing\n", "utf-8")
    assert exchange.main(["--data", str(four_bars)]) == 1
    assert "line 1 is not a bar" in capsys.readouterr().err


def test_command_that_is_interrupted_exits_with_130(
    exchange: ModuleType,
    four_bars: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exchange, "run", interrupted)
    assert exchange.main(["--data", str(four_bars)]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_run_in_which_an_event_fails_ends_with_the_reason(
    exchange: ModuleType, four_bars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ArithmeticError("no room")

    bars = exchange.read_bars(four_bars / "nasdaq" / "NASDAQ_MEDIUM.csv")
    with monkeypatch.context() as patch:
        patch.setattr(exchange, "expire_and_insert", fails)
        with pytest.raises(StreamError, match="ArithmeticError: no room"):
            exchange.run(bars, SerialOrder())
    with monkeypatch.context() as patch:
        patch.setattr(exchange, "Match", fails)
        with pytest.raises(StreamError, match="has no output: ArithmeticError"):
            exchange.run(bars, SerialOrder())
    with monkeypatch.context() as patch:
        patch.setattr(exchange, "Entry", fails)
        with pytest.raises(StreamError, match="was refused: ArithmeticError"):
            exchange.run(bars, SerialOrder())
