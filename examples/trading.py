"""Stocks that move between the groups hold, buy and sell by patterns over one-minute bars.

The data is one day of four stocks (github.com/ilya-kolchinsky/OpenCEP, NASDAQ_MEDIUM.csv: ticker,
minute in New York, open, high, low, close, volume; no header). Run the program over the file's
folder::

    activedb run examples/trading.py --input ../shared/data/nasdaq

Three adjacent bars of a stock whose closes rise, or fall, by a thousandth form a pattern. The
meaning of a pattern depends on the stock's group *at the time of its last bar*, which an earlier
pattern has set: a rise moves a held stock to buy, but a stock to sell only back to hold. Moving a
stock changes data, which triggers the next rule, which logs the move. Afterwards::

    SELECT from_group, to_group, pattern, count(*) FROM moves GROUP BY 1, 2, 3;
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import Column, DateTime, Table, Text

import activedb as adb

if TYPE_CHECKING:
    from collections.abc import Mapping

STEP = 0.001  # minimum relative change of the close over three bars
AFTER_RISE = {"hold": "buy", "sell": "hold"}
AFTER_FALL = {"hold": "sell", "buy": "hold"}

db = adb.connect()

stocks = Table(
    "stocks",
    db.metadata,
    Column("ticker", Text, primary_key=True),
    Column("grp", Text, nullable=False),
    Column("since", DateTime(timezone=True), nullable=False),
    Column("pattern", Text, nullable=False),  # pattern that moved it there
)
moves = Table(
    "moves",
    db.metadata,
    Column("ticker", Text, primary_key=True),
    Column("at", DateTime(timezone=True), primary_key=True),
    Column("from_group", Text, nullable=False),
    Column("to_group", Text, nullable=False),
    Column("pattern", Text, nullable=False),
)

bars = db.stream(
    "bars",
    source=adb.Files(
        format="csv",
        schema="ticker STRING, minute STRING, open DOUBLE, high DOUBLE, low DOUBLE, close DOUBLE, "
        "volume BIGINT",
        glob="*.csv",
    ),
    type="'BAR'",
    timestamp="to_timestamp(concat(minute, '-05'), 'yyyyMMddHHmmX')",  # winter: UTC - 5 h
    id="concat(ticker, minute)",
    params={"ticker": "ticker", "close": "close"},
    types={"BAR": ("ticker", "close")},
    delay=timedelta(minutes=1),
)

three_bars = adb.seq(
    adb.event("BAR", alias="first"),
    ~adb.event("BAR"),
    adb.event("BAR", alias="second"),
    ~adb.event("BAR"),
    adb.event("BAR", alias="third"),
)
adjacent = three_bars.same("ticker").within(180)


def closes(parts: Mapping[str, adb.Occurrence]) -> tuple[float, float, float]:
    """Return the closing prices of the three bars of a pattern."""
    first, second, third = (parts[name].params["close"] for name in ("first", "second", "third"))
    return first, second, third


def rises(parts: Mapping[str, adb.Occurrence]) -> bool:
    """Return whether the closes rise from bar to bar, by STEP or more in total."""
    first, second, third = closes(parts)
    return first < second < third and third - first >= STEP * first


def falls(parts: Mapping[str, adb.Occurrence]) -> bool:
    """Return whether the closes fall from bar to bar, by STEP or more in total."""
    first, second, third = closes(parts)
    return first > second > third and first - third >= STEP * first


def group(t: adb.Transaction, o: adb.Occurrence) -> str:
    """Return the group of the stock at the time of the event."""
    stock = t.get(stocks, o.params["ticker"])
    return stock["grp"] if stock else ""


def move(t: adb.Transaction, o: adb.Occurrence, to: str, pattern: str) -> None:
    """Move the stock of a pattern to another group."""
    t.update(stocks, o.params["ticker"], grp=to, since=o.timestamp, pattern=pattern)


@db.rule(
    on=adb.event("BAR"),
    when=lambda t, o: t.get(stocks, o.params["ticker"]) is None,
    priority=10,  # before the patterns, which read the group
)
def first_seen(t: adb.Transaction, o: adb.Occurrence) -> None:
    """Hold a stock that is seen for the first time."""
    stock = {"ticker": o.params["ticker"], "grp": "hold", "since": o.timestamp}
    t.insert(stocks, stock | {"pattern": "first seen"})


@db.rule(on=adjacent.where(rises), when=lambda t, o: group(t, o) in AFTER_RISE)
def rise(t: adb.Transaction, o: adb.Occurrence) -> None:
    """Move a held stock to buy, and a stock to sell back to hold."""
    move(t, o, AFTER_RISE[group(t, o)], "rise")


@db.rule(on=adjacent.where(falls), when=lambda t, o: group(t, o) in AFTER_FALL)
def fall(t: adb.Transaction, o: adb.Occurrence) -> None:
    """Move a held stock to sell, and a stock to buy back to hold."""
    move(t, o, AFTER_FALL[group(t, o)], "fall")


@db.rule(on=adb.updated(stocks, "grp"))
def log_move(t: adb.Transaction, o: adb.Occurrence) -> None:
    """Log a move; the change made by another rule triggers this one."""
    old, new = o.old or {}, o.params
    moved = {"ticker": new["ticker"], "at": new["since"], "pattern": new["pattern"]}
    t.insert(moves, moved | {"from_group": old["grp"], "to_group": new["grp"]})
