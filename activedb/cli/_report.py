"""Output for users: progress during a run, a table at the end, or one JSON object."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from typing import IO, Any

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from activedb.database import Database
from activedb.spelling import printable
from activedb.streams import StreamRun

__all__ = ["Reporter", "RunFigures", "console_of"]

_LINE_EVERY_S = 5.0
_SHORT_S = 1.0
_SHOWN_MAX = 200  # rows of a list
_WIDTH = 10_000  # of lines that no terminal shows


def console_of(out: IO[str]) -> Console:
    """Return a console for `out`, whose lines are neither wrapped nor cut without a terminal."""
    console = Console(file=out)
    return console if console.is_terminal else Console(file=out, width=_WIDTH)


@dataclass(slots=True)
class RunFigures:
    """The figures of one run of a stream.

    Attributes
    ----------
    figures : dict
        Label to number or text, in display order; the JSON object has the same.
    """

    figures: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, db: Database, run: StreamRun, before: Mapping[str, int], seconds: float
    ) -> RunFigures:
        """Collect the figures of a run that took `seconds`, from ledger totals `before` it."""
        totals = run.totals()
        counts = db.admin.counters()
        now = {name: totals[name] - before[name] for name in totals}

        def transactions(outcome: str) -> dict[str, int]:
            return {
                "top-level": counts.get(f"transactions_{outcome}", 0),
                "subtransactions": counts.get(f"subtransactions_{outcome}", 0),
            }

        return cls(
            {
                "events": now["events"],
                "late events": now["late"],
                "dead letters": now["dead"],
                "matches": counts.get("matches", 0),
                "matches undecided": counts.get("matches_undecided", 0),
                "rules fired": counts.get("rules_fired", 0),
                "rules failed": counts.get("rules_failed", 0),
                "transactions committed": transactions("committed"),
                "transactions aborted": transactions("aborted"),
                "transactions retried": counts.get("transactions_retried", 0),
                "rows": db.admin.row_counts(),
                "seconds": round(seconds, 2),
                "events per second": round(now["events"] / seconds) if seconds else 0,
                "rule latency p50 ms": round(db.admin.rule_latency_s(0.50) * 1000, 3),
                "rule latency p99 ms": round(db.admin.rule_latency_s(0.99) * 1000, 3),
                "events since the stream began": totals["events"],
            }
        )


class Reporter:
    """Progress on standard error, the result on standard output."""

    def __init__(self, *, as_json: bool):
        self._as_json = as_json
        self._out = console_of(sys.stdout)
        self._err = Console(stderr=True)
        self._status: Status | None = None
        self._began = self._printed = time.monotonic()
        self._events = 0

    @contextmanager
    def own_output(self) -> Iterator[None]:
        """Send the output of a user's file to standard error if the result is JSON."""
        with redirect_stdout(sys.stderr) if self._as_json else nullcontext():
            yield

    @contextmanager
    def working(self, doing: str) -> Iterator[None]:
        """Show progress while the block runs."""
        self._began = self._printed = time.monotonic()
        if self._err.is_terminal:
            with self._err.status(_plain(doing)) as self._status:
                yield
            self._status = None
        else:
            self._line(doing)
            yield

    @contextmanager
    def looking(self, doing: str) -> Iterator[None]:
        """Show progress if the block, which is usually short, takes longer than a second."""
        self._began = self._printed = time.monotonic()
        latch = threading.Lock()
        shown: list[Status] = []
        is_over = False

        def show() -> None:
            with latch:
                if is_over:
                    return
                if not self._err.is_terminal:
                    self._line(doing)
                    return
                self._status = self._err.status(_plain(doing))
                self._status.start()
                shown.append(self._status)

        timer = threading.Timer(_SHORT_S, show)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            with latch:
                is_over = True
            for status in shown:
                status.stop()
            self._status = None

    def progress(self, db: Database, run: StreamRun, events: int, batch: object = None) -> None:
        """Count `events` more, which are durable now; `batch`: the feed's last report."""
        self._events += events
        counts = db.admin.counters()
        rate = self._events / max(time.monotonic() - self._began, 1e-9)
        text = (
            f"{self._events:,} events done, {run.waiting:,} waiting, "
            f"{counts.get('rules_fired', 0):,} rules fired, {rate:,.0f} events/s"
        )
        self.update(text if batch is None else f"{text}; {batch}")

    def update(self, text: str) -> None:
        """Show the progress; without a terminal only now and then."""
        now = time.monotonic()
        if self._status is not None:
            self._status.update(_plain(text))
        elif now - self._printed >= _LINE_EVERY_S:
            self._printed = now
            self._line(text)

    def note(self, text: str) -> None:
        """Print a note."""
        self._line(text)

    def result(self, title: str, outcome: RunFigures) -> None:
        """Print the figures: a table, or one JSON object."""
        if self._as_json:
            self.json(outcome.figures)
            return
        table = Table(title=_plain(title), show_header=False, title_justify="left")
        table.add_column(style="bold")
        table.add_column(justify="right")
        for label, value in outcome.figures.items():
            for name, figure in _lines(label, value):
                table.add_row(_plain(name), _plain(figure))
        self._out.print(table)

    def json(self, record: Mapping[str, Any]) -> None:
        """Print one JSON object; in ASCII if it has characters that may control a terminal."""
        text = json.dumps(record, default=str, ensure_ascii=False)
        self._out.print_json(text, ensure_ascii=not text.isprintable())

    def says(self, text: str | Text, record: Mapping[str, Any]) -> None:
        """Print a text, or one JSON object."""
        if self._as_json:
            self.json(record)
        else:
            self._out.print(_plain(text), soft_wrap=True)

    def rows(
        self,
        title: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[str | Text]],
        as_json: Mapping[str, Any],
    ) -> None:
        """Print a table with a header, or one JSON object.

        No cell is cut, so that an id can be passed to the next command.
        """
        if self._as_json:
            self.json(as_json)
            return
        table = Table(title=_plain(title), title_justify="left")
        for column in columns:
            table.add_column(_plain(column), overflow="fold")
        for row in rows:
            table.add_row(*map(_plain, row))
        self._out.print(table)

    def first_rows(
        self,
        title: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[str | Text]],
        as_json: Mapping[str, Any],
    ) -> None:
        """Print the first rows, and say if there are more; or one JSON object with all."""
        self.rows(title, columns, rows[:_SHOWN_MAX], as_json)
        if len(rows) > _SHOWN_MAX and not self._as_json:
            self.note(f"only the first {_SHOWN_MAX} are shown; --json prints all of them")

    def _line(self, text: str) -> None:
        self._err.print(_plain(text), soft_wrap=True)


def _plain(text: str | Text) -> Text:
    """Return a text whose characters Rich neither reads as markup nor passes on as controls."""
    if isinstance(text, Text):
        return text
    return Text("\n".join(map(printable, text.split("\n"))))


def _lines(label: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield f"{label}: {name}", _figure(part)
    else:
        yield label, _figure(value)


def _figure(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)
