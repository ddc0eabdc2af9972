"""An independent recount of ``examples/trading.py``: one loop over the bars in order of time."""

from __future__ import annotations

import csv
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NEW_YORK = timezone(timedelta(hours=-5))  # in winter


class Bar(NamedTuple):
    """One minute of one stock: when it began and the price at its end."""

    at: datetime
    ticker: str
    close: float


def read_bars(path: Path) -> list[Bar]:
    """Return the bars of a file, in its order."""
    bars = []
    with path.open(newline="") as lines:
        for ticker, minute, _open, _high, _low, close, _volume in csv.reader(lines):
            at = datetime.strptime(minute, "%Y%m%d%H%M").replace(tzinfo=NEW_YORK)
            bars.append(Bar(at, ticker, float(close)))
    return bars


def replay(bars: Iterable[Bar], step: float = 0.001) -> dict[str, list[tuple[Any, ...]]]:
    """Return what the tables must hold: table name to its rows, sorted, columns in table order."""
    recent: dict[str, list[Bar]] = {}
    stocks: dict[str, tuple[str, datetime, str]] = {}
    moves = []
    for bar in sorted(bars):
        if bar.ticker not in stocks:
            stocks[bar.ticker] = ("hold", bar.at, "first seen")
        three = recent[bar.ticker] = [*recent.get(bar.ticker, [])[-2:], bar]
        if len(three) < 3 or bar.at - three[0].at > timedelta(minutes=3):
            continue
        one, two, last = (b.close for b in three)
        group = stocks[bar.ticker][0]
        target = group
        if one < two < last and last - one >= step * one:
            pattern, target = "rise", {"sell": "hold", "hold": "buy", "buy": "buy"}[group]
        elif one > two > last and one - last >= step * one:
            pattern, target = "fall", {"buy": "hold", "hold": "sell", "sell": "sell"}[group]
        if target != group:
            stocks[bar.ticker] = (target, bar.at, pattern)
            moves.append((bar.ticker, bar.at, group, target, pattern))
    return {
        "stocks": sorted((ticker, *stock) for ticker, stock in stocks.items()),
        "moves": sorted(moves),
    }
