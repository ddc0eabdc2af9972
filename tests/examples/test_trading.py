"""The trading example against its independent recount, on paper and on real bars."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from tests.examples.replay_trading import Bar, read_bars, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import ModuleType

OPENING = datetime(2008, 2, 1, 14, 30, tzinfo=UTC)


def minutes(*closes: float | None, ticker: str = "MSFT") -> list[Bar]:
    """Return one bar a minute from the opening on; None is a minute without a bar."""
    return [
        Bar(OPENING + timedelta(minutes=minute), ticker, close)
        for minute, close in enumerate(closes)
        if close is not None
    ]


def moves(bars: Iterable[Bar]) -> list[tuple[int, str, str, str]]:
    """Return the recounted moves as (minute, from, to, pattern)."""
    return [
        ((at - OPENING) // timedelta(minutes=1), old, new, pattern)
        for _, at, old, new, pattern in replay(bars)["moves"]
    ]


def events(bars: Iterable[Bar], seed: int) -> list[adb.Occurrence]:
    """Return bars as the stream's events, shuffled."""
    shuffled = [
        adb.Occurrence(
            "BAR",
            bar.at,
            {"ticker": bar.ticker, "close": bar.close},
            id=f"{bar.ticker}{bar.at:%Y%m%d%H%M}",
        )
        for bar in bars
    ]
    Random(seed).shuffle(shuffled)
    return shuffled


def test_replay_first_bar_of_a_stock_holds_it() -> None:
    assert replay(minutes(10.0)) == {
        "stocks": [("MSFT", "hold", OPENING, "first seen")],
        "moves": [],
    }


def test_replay_rises_and_falls_move_a_stock_one_group_at_a_time() -> None:
    bars = minutes(10.0, 11.0, 12.0, 13.0, 12.0, 11.0, 10.0, 9.0, 10.0, 11.0, 12.0)
    assert moves(bars) == [
        (2, "hold", "buy", "rise"),  # 10 11 12; the rise 11 12 13 finds the stock in buy already
        (5, "buy", "hold", "fall"),  # 13 12 11
        (6, "hold", "sell", "fall"),  # 12 11 10
        (9, "sell", "hold", "rise"),  # 9 10 11
        (10, "hold", "buy", "rise"),  # 10 11 12
    ]
    assert replay(bars)["stocks"] == [("MSFT", "buy", OPENING + timedelta(minutes=10), "rise")]


@pytest.mark.parametrize(
    ("closes", "expected"),
    [
        pytest.param((10.0, 12.0, 11.0), [], id="not monotonous"),
        pytest.param((10.0, 10.0, 11.0), [], id="an equal close is no rise"),
        pytest.param((100.0, 100.02, 100.05), [], id="less than a thousandth"),
        pytest.param((10.0, None, 11.0, 12.0), [3], id="three minutes are within the window"),
        pytest.param((10.0, None, 11.0, None, 12.0), [], id="four minutes are not"),
        pytest.param((10.0, 11.0, 9.0, 12.0), [], id="the bars must be adjacent"),
    ],
)
def test_replay_three_bars_move_a_held_stock_only_as_defined(
    closes: tuple[float | None, ...], expected: list[int]
) -> None:
    assert [minute for minute, *_ in moves(minutes(*closes))] == expected


def test_replay_bars_of_another_stock_do_not_part_adjacent_bars() -> None:
    bars = minutes(10.0, 11.0, 12.0) + minutes(5.0, 4.0, 3.0, ticker="ORLY")
    assert [(ticker, new) for ticker, _, _, new, _ in replay(bars)["moves"]] == [
        ("MSFT", "buy"),
        ("ORLY", "sell"),
    ]


def test_example_hand_written_bars_in_any_order_give_the_recounted_tables(
    load_example: Callable[[str], ModuleType], rows_of: Callable[..., dict[str, Any]]
) -> None:
    trading = load_example("trading")
    bars = minutes(10.0, 11.0, 12.0, 13.0, 12.0, 11.0, 10.0, 9.0, None, 10.0, None, 11.0, 12.0)
    bars += minutes(5.0, 4.0, None, 3.0, 3.0, 4.0, 5.0, 6.0, ticker="ORLY")
    trading.bars.feed(events(bars, seed=1))
    assert rows_of(trading.db, trading.stocks, trading.moves) == replay(bars)


@pytest.mark.data
def test_example_day_of_real_bars_gives_the_recounted_tables(
    load_example: Callable[[str], ModuleType],
    rows_of: Callable[..., dict[str, Any]],
    data_folder: Path,
) -> None:
    trading = load_example("trading")
    bars = read_bars(data_folder / "nasdaq" / "NASDAQ_MEDIUM.csv")
    expected = replay(bars)
    assert len(bars) == 1652
    assert len(expected["moves"]) == 225
    trading.bars.feed(events(bars, seed=2))
    assert rows_of(trading.db, trading.stocks, trading.moves) == expected
