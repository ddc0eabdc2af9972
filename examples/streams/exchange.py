"""Turnover of stocks: a stream of trades joined with a stream of quotes, for a day of four stocks.

The data is one day of one-minute bars (github.com/ilya-kolchinsky/OpenCEP, NASDAQ_MEDIUM.csv:
ticker, minute in New York, open, high, low, close, volume; no header). It has no individual quotes
and trades, so the program derives one of each per bar:

* a *quote* at the first second of the minute; its price is the bar's open,
* a *trade* at the last second of the minute; its size is the bar's whole volume.

Trades and quotes of one stock within one window of time match (Mao et al., section 8.6.2). The
join is a hash join, and its two hash tables are shared tables by ticker::

    QUOTE ──► probe Index(Traded)[ticker] ──► matches ──┐
         └──► expire, insert: Index(Quotes)[ticker]     ├──► turnover of each ticker and window
    TRADE ──► probe Index(Quotes)[ticker] ──► matches ──┘
         └──► expire, insert: Index(Traded)[ticker]

Each event is one s-transaction of two operations: the probe reads the opposite table; the insertion
drops the entries of earlier windows and adds the event. So every pair is found once, by the later
of the two. The streams arrive in batches, first all quotes of a batch and then all its trades, not
in the order of time; the scheduler puts them in order.

The *turnover* of a stock in a window is its volume there times the mean quoted price: the sum of
size x price over all matches, divided by the number of quotes. Its *rate* is the turnover per
minute. (The data does not say how many shares a company has, so there is no rate in shares.) Prices
are whole ten-thousandths of a dollar, so all sums are exact. With ``--check``, a join in SQLite
over the same bars must give the same result.
"""

from __future__ import annotations

import csv
import json
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

from _running import check_whole, data_folder, exit_status, parser, progress, scheduler
from rich.console import Console
from rich.table import Table

from activedb.errors import BadEvent, ConfigurationError, StreamError
from activedb.events import Occurrence
from activedb.scheduling import Access, Outcome, Program, ProgramRun, SharedTable

if TYPE_CHECKING:
    import argparse

    from activedb.scheduling import Scheduler

BATCH = 1_000  # events between two punctuations, as in the paper
WINDOW_MIN = 10
PRICE_UNITS = 10_000  # per dollar


class Bar(NamedTuple):
    """A bar, from which a quote and a trade are derived."""

    ticker: str
    start: datetime
    open: int  # in ten-thousandths of a dollar
    volume: int


class Entry(NamedTuple):
    """A tuple in a hash table."""

    window: int  # number of its window
    id: str
    amount: int  # a trade's size, a quote's price


class Match(NamedTuple):
    """A trade and a quote of one stock in one window."""

    ticker: str
    window: int
    trade: str
    quote: str
    value: int  # size x price


@dataclass(slots=True)
class Turnover:
    """Matches of one stock in one window."""

    matches: int = 0
    value: int = 0
    quotes: set[str] = field(default_factory=set)

    def dollars(self) -> float:
        """Return volume times mean quoted price."""
        return self.value / len(self.quotes) / PRICE_UNITS


Turnovers = dict[tuple[str, int], Turnover]  # by ticker and window
Joined = dict[tuple[str, int], tuple[int, ...]]  # matches, value and quotes, by ticker and window


# -- the program -----------------------------------------------------------------------------------


def hash_join(window_min: int = WINDOW_MIN) -> Program:
    """Return the join as a program, with separate hash tables; its outputs are lists of `Match`.

    Parameters
    ----------
    window_min : int
        Length of a window, in minutes.
    """
    traded = SharedTable("Index(Traded)", key=str, initial=())
    quotes = SharedTable("Index(Quotes)", key=str, initial=())
    join = Program("turnover", [traded, quotes])

    @join.pre_process
    def entry(type_: str, e: Mapping[str, Any]) -> Mapping[str, Any]:
        window = int(e["at"].timestamp()) // (60 * window_min)
        return {"ticker": e["ticker"], "entry": Entry(window, e["id"], e["amount"])}

    @join.on("TRADE")
    def trade(e: Mapping[str, Any], access: Access) -> None:
        access.read(quotes[e["ticker"]], function=probe, args=(e["entry"],))
        access.write(traded[e["ticker"]], expire_and_insert, e["entry"])

    @join.on("QUOTE")
    def quote(e: Mapping[str, Any], access: Access) -> None:
        access.read(traded[e["ticker"]], function=probe, args=(e["entry"],))
        access.write(quotes[e["ticker"]], expire_and_insert, e["entry"])

    @join.post_process
    def matches(type_: str, e: Mapping[str, Any], outcome: Outcome) -> list[Match] | None:
        if not outcome.committed:
            return None
        new, (found, _) = e["entry"], outcome.results
        pairs = ((new, other) if type_ == "TRADE" else (other, new) for other in found)
        return [
            Match(e["ticker"], new.window, trade.id, quote.id, trade.amount * quote.amount)
            for trade, quote in pairs
        ]

    return join


def probe(entries: tuple[Entry, ...], new: Entry) -> tuple[Entry, ...]:
    """Return the entries of the opposite table that match a new one."""
    return tuple(entry for entry in entries if entry.window == new.window)


def expire_and_insert(entries: tuple[Entry, ...], new: Entry) -> tuple[Entry, ...]:
    """Return the entries in the window of the new entry, and the new entry."""
    return (*probe(entries, new), new)


# -- the streams -----------------------------------------------------------------------------------


def read_bars(path: Path) -> list[Bar]:
    """Return the bars of a file.

    Raises
    ------
    ConfigurationError
        If the file does not exist.
    BadEvent
        If a line is not a bar.
    """
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}")
    bars = []
    with path.open(encoding="utf-8", newline="") as lines:
        for number, row in enumerate(csv.reader(lines), 1):
            try:
                ticker, minute, open_, _, _, _, volume = row
                start = datetime.strptime(f"{minute}-0500", "%Y%m%d%H%M%z")  # winter: UTC - 5 h
                bars.append(Bar(ticker, start, _price(open_), int(volume)))
            except (ValueError, InvalidOperation) as error:
                raise BadEvent(f"{path}, line {number} is not a bar: {','.join(row)}") from error
    return bars


def _price(text: str) -> int:
    units = Decimal(text) * PRICE_UNITS
    if units != units.to_integral_value():
        raise ValueError(f"{text} has more than four decimals")
    return int(units)


def events_of(bars: Iterable[Bar]) -> list[Occurrence]:
    """Return a quote and a trade for each bar, in the order of time."""
    events = []
    for ticker, start, price, volume in bars:
        for name, at, amount in (
            ("QUOTE", start, price),
            ("TRADE", start + timedelta(seconds=59), volume),
        ):
            id_ = f"{ticker} {start:%H:%M} {name}"
            params = {"ticker": ticker, "id": id_, "at": at, "amount": amount}
            events.append(Occurrence(name, at, params, id=id_))
    return sorted(events, key=lambda event: event.us)


def batches_of(
    events: Sequence[Occurrence], size: int = BATCH
) -> Iterator[tuple[list[Occurrence], int | None]]:
    """Yield batches in the order of arrival (quotes, then trades), each with its punctuation."""
    for start in range(0, len(events), size):
        batch = sorted(events[start : start + size], key=lambda event: event.name)
        following = events[start + size : start + size + 1]
        yield batch, following[0].us if following else None


def run(bars: Sequence[Bar], by: Scheduler, window_min: int = WINDOW_MIN) -> Turnovers:
    """Run the join over the streams of some bars, and return the turnovers.

    Parameters
    ----------
    bars : sequence of Bar
    by : Scheduler
    window_min : int
        Length of a window, in minutes.
    """
    join = ProgramRun(hash_join(window_min), by)
    events = events_of(bars)
    turnovers: Turnovers = {}
    with progress("events", len(events)) as advance:
        for batch, punctuation_us in batches_of(events):
            results = join.feed(batch, punctuation_us)
            ended = join.finish() if punctuation_us is None else results
            for aborted in check_whole(results) + check_whole(ended):
                raise StreamError(f"{aborted!r} aborted: {aborted.outcome}")
            for match in (match for output in ended.outputs for match in output):
                turnover = turnovers.setdefault((match.ticker, match.window), Turnover())
                turnover.matches += 1
                turnover.value += match.value
                turnover.quotes.add(match.quote)
            advance(len(batch))
    return turnovers


# -- the check -------------------------------------------------------------------------------------


def joined_by_sqlite(bars: Iterable[Bar], window_min: int) -> Joined:
    """Return matches, value and quotes of each ticker and window, joined by SQLite."""
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE bars (ticker, s, price, volume)")
    rows = [(ticker, int(at.timestamp()), price, size) for ticker, at, price, size in bars]
    db.executemany("INSERT INTO bars VALUES (?, ?, ?, ?)", rows)
    found = db.execute(
        """SELECT q.ticker, q.s / :w, count(*), sum(t.volume * q.price), count(DISTINCT q.s)
        FROM bars q JOIN bars t ON t.ticker = q.ticker AND (t.s + 59) / :w = q.s / :w
        GROUP BY 1, 2""",
        {"w": 60 * window_min},
    ).fetchall()
    db.close()
    return {(ticker, window): tuple(rest) for ticker, window, *rest in found}


# -- the command -----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    options = parser(__doc__ or "")
    options.add_argument(
        "--data", type=Path, metavar="DIR", help="the folder that holds the folder nasdaq"
    )
    options.add_argument(
        "--window",
        type=int,
        default=WINDOW_MIN,
        metavar="MINUTES",
        help="the length of a window (default: %(default)s)",
    )
    options.add_argument(
        "--check", action="store_true", help="join in SQLite, too; exit with 1 if it differs"
    )
    given = options.parse_args(arguments)
    if given.window < 1:
        options.error("--window: at least 1")
    return exit_status(_command, given)


def _command(options: argparse.Namespace) -> int:
    bars = read_bars(data_folder(options.data, "nasdaq") / "NASDAQ_MEDIUM.csv")
    began_s = time.perf_counter()
    turnovers = run(bars, scheduler(options.scheduler, options.threads), options.window)
    seconds = time.perf_counter() - began_s
    differing = None
    if options.check:
        expected = joined_by_sqlite(bars, options.window)
        ours = {key: (t.matches, t.value, len(t.quotes)) for key, t in turnovers.items()}
        differing = sum(ours.get(key) != expected.get(key) for key in ours.keys() | expected.keys())
    figures = {
        "scheduler": options.scheduler,
        "window_min": options.window,
        "events": 2 * len(bars),
        "matches": sum(t.matches for t in turnovers.values()),
        "turnover_dollars": round(sum(t.dollars() for t in turnovers.values()), 2),
        "seconds": round(seconds, 3),
        "events_per_s": round(2 * len(bars) / seconds),
    }
    if differing is not None:
        figures["windows_that_differ"] = differing
    if options.json:
        print(json.dumps(figures | {"windows": _rows(turnovers, options.window)}))
    else:
        _show(figures, _rows(turnovers, options.window))
    if differing:
        print(f"error: {differing} windows differ from SQLite's join", file=sys.stderr)
    return 1 if differing else 0


def _rows(turnovers: Turnovers, window_min: int) -> list[dict[str, Any]]:
    return [
        {
            "ticker": ticker,
            "start_s": window * 60 * window_min,
            "matches": t.matches,
            "turnover_dollars": round(t.dollars(), 2),
            "dollars_per_min": round(t.dollars() / window_min, 2),
        }
        for (ticker, window), t in sorted(turnovers.items())
    ]


def _show(figures: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    title = "turnover, and its rate per minute, in thousands of dollars"
    table = Table("ticker", title=title, title_justify="left")
    for name in ("windows", "matches", "turnover", "least rate", "mean", "most"):
        table.add_column(name, justify="right")
    for ticker in sorted({row["ticker"] for row in rows}):
        own = [row for row in rows if row["ticker"] == ticker]
        rates = [row["dollars_per_min"] for row in own]
        cells = [
            len(own),
            sum(row["matches"] for row in own),
            *(sum(row["turnover_dollars"] for row in own), min(rates), mean(rates), max(rates)),
        ]
        thousands = [f"{cell / 1000:,.1f}" for cell in cells[2:]]
        table.add_row(ticker, *(f"{cell:,}" for cell in cells[:2]), *thousands)
    console = Console()
    console.print(table)
    for name, value in figures.items():
        console.print(f"{name.replace('_', ' ')}: {value}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
