"""Output of ``activedb match``: tables for people, one JSON object, or a file of JSON lines."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime, tzinfo
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from activedb.analysis import printable
from activedb.cli._matching import Figures
from activedb.clock import moment_of
from activedb.errors import ConfigurationError
from activedb.events import Occurrence

__all__ = ["MatchReport"]

_SHOWN_MAX = 200
_LONG = 60  # characters of a value
_WIDTH = 10_000  # without a terminal lines are not wrapped
_ELEMENTS_SHOWN = 3
_PARAMS_SHOWN = 8
_STDOUT = Path("-")


class MatchReport:
    """Report that prints matches as they are made, and the figures at the end.

    Parameters
    ----------
    as_json : bool
        Print one object; written as the matches are made, so that none is kept.
    output : Path or None
        A file that gets the matches, an object a line; ``-`` for standard output, and then the
        figures go to standard error.
    zone : tzinfo
        Time zone of the shown times.
    """

    def __init__(self, *, as_json: bool, output: Path | None, zone: tzinfo):
        self._as_json = as_json
        if as_json and output == _STDOUT:
            raise ConfigurationError(
                "--json and --output - both write to standard output: give one"
            )
        self._output = output
        self._zone = zone
        self._is_dated = True
        self._rows: list[tuple[str, str, str, str]] = []
        self._left_out = 0
        self._lines: IO[str] | None = None
        self._count = 0

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep the output open; exit if the reader of standard output has gone.

        Raises
        ------
        ConfigurationError
            If the output file cannot be written.
        SystemExit
            With 1 if no process reads standard output any more, as is usual for programs.
        """
        with ExitStack() as stack:
            if self._output == _STDOUT:
                self._lines = sys.stdout
            elif self._output is not None:
                try:
                    self._lines = stack.enter_context(self._output.open("w", encoding="utf-8"))
                except OSError as error:
                    raise ConfigurationError(
                        f"cannot write {self._output}: {error.strerror}"
                    ) from error
            try:
                yield
                sys.stdout.flush()
            except BrokenPipeError:
                # Discard the rest of the buffer, so that the exit does not fail on it.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise SystemExit(1) from None

    def add(self, query: str, match: Occurrence, *, is_dated: bool) -> None:
        """Print a match, or keep it for the table."""
        self._is_dated = is_dated
        if self._lines is not None:
            self._lines.write(f"{_dumped(self._as_dict(query, match))}\n")
            if self._output == _STDOUT:
                self._lines.flush()  # a reader may be waiting for it
        elif self._as_json:
            sys.stdout.write('{"matches": [\n' if not self._count else ",\n")
            sys.stdout.write(_dumped(self._as_dict(query, match)))
        elif len(self._rows) < _SHOWN_MAX:
            self._rows.append(
                (self._when(match.us), query, self._parts(match), _listed(match.params))
            )
        else:
            self._left_out += 1
        self._count += 1

    def end(self, figures: Figures, unseen: list[str], partials: Mapping[str, int]) -> None:
        """Print the figures, and for people the tables."""
        if self._as_json:
            result = self._figures_as_dict(figures, unseen, partials)
            if self._lines is None:
                if not self._count:
                    sys.stdout.write('{"matches": [')
                sys.stdout.write(f"\n],\n{_dumped(result)[1:]}\n")
            else:
                sys.stdout.write(f"{_dumped(result)}\n")
            return
        out = sys.stderr if self._output == _STDOUT else sys.stdout
        console = Console(file=out)
        if not console.is_terminal:
            console = Console(file=out, width=_WIDTH)
        if self._rows:
            zone = f"time ({self._zone})" if self._is_dated else "time"
            table = Table(zone, "query", "parts", "parameters", box=None, header_style="bold")
            for row in self._rows:
                table.add_row(*(Text(printable(cell)) for cell in row))
            console.print(table)
        if self._left_out:
            console.print(
                Text(f"… and {self._left_out:,} more; --json or --output FILE prints all of them")
            )
        if self._rows:
            console.print()
        console.print(self._figures_table(figures, partials))

    def _figures_table(self, figures: Figures, partials: Mapping[str, int]) -> Table:
        table = Table(show_header=False, box=None)
        table.add_column(style="bold")
        table.add_column(justify="right")
        table.add_column()

        def row(label: str, count: int, note: str = "") -> None:
            table.add_row(Text(printable(label)), f"{count:,}", Text(printable(note)))

        note = "sorted by time" if figures.is_sorted else ""
        row("rows read", figures.rows, note)
        for reason, (count, first, detail) in figures.refused.items():
            shown = f": {detail}" if detail else ""
            row("refused", count, f"{reason}; first row {first}{shown}")
        if figures.unheard:
            types = ", ".join(name for name, _ in figures.unheard.most_common(_ELEMENTS_SHOWN))
            more = ", …" if len(figures.unheard) > _ELEMENTS_SHOWN else ""
            row("other types", figures.unheard.total(), f"{types}{more}")
        for name, count in figures.matches.items():
            still = partials[name]
            kept = f"{still:,} events kept for partial matches" if still else ""
            row(f"matches of {name}", count, kept)
        if figures.is_cut:
            table.add_row("", "", "stopped at the limit")
        return table

    def _figures_as_dict(
        self, figures: Figures, unseen: list[str], partials: Mapping[str, int]
    ) -> dict[str, Any]:
        moment = self._moment
        return {
            "rows": figures.rows,
            "refused": [
                {"reason": reason, "rows": count, "first_row": first, "detail": detail}
                for reason, (count, first, detail) in figures.refused.items()
            ],
            "events": dict(figures.seen),
            "other_types": dict(figures.unheard),
            "unseen_types": unseen,
            "first_event": None if figures.first_us is None else moment(figures.first_us),
            "last_event": None if figures.last_us is None else moment(figures.last_us),
            "sorted": figures.is_sorted,
            "cut": figures.is_cut,
            "queries": {
                name: {"matches": count, "kept": partials[name]}
                for name, count in figures.matches.items()
            },
        }

    def _as_dict(self, query: str, match: Occurrence) -> dict[str, Any]:
        result: dict[str, Any] = {"query": query, "at": self._moment(match.us)}
        if match.parts:
            result["parts"] = {
                name: [self._part(o) for o in part] if isinstance(part, tuple) else self._part(part)
                for name, part in match.parts.items()
            }
        else:
            result |= {"type": match.name, "id": match.id}
        return result | {"params": dict(match.params)}

    def _part(self, o: Occurrence) -> dict[str, Any]:
        return {
            "type": o.name,
            "at": self._moment(o.us),
            "id": o.id,
            "params": dict(o.params),
        }

    def _moment(self, us: int) -> str | int | float:
        if not self._is_dated:
            return us // 1_000_000 if us % 1_000_000 == 0 else us / 1_000_000
        return self._date(us).isoformat()

    def _date(self, us: int) -> datetime:
        return moment_of(us).astimezone(self._zone)

    def _when(self, us: int, near: int | None = None) -> str:
        """Return a time for people, without the date if it is that of `near`."""
        if not self._is_dated:
            return str(self._moment(us))
        date = self._date(us).replace(tzinfo=None)
        same_day = near is not None and self._date(near).date() == date.date()
        return (date.time() if same_day else date).isoformat(*([] if same_day else [" "]))

    def _parts(self, match: Occurrence) -> str:
        if not match.parts:
            return match.name
        shown = []
        for name, part in match.parts.items():
            elements = part if isinstance(part, tuple) else (part,)
            times = [self._when(o.us, match.us) for o in elements[:_ELEMENTS_SHOWN]]
            more = len(elements) - len(times)
            times += [f"… ({more} more)"] if more else []
            text = ", ".join(times)
            shown.append(f"{name} {f'({text})' if isinstance(part, tuple) else text}")
        return "; ".join(shown)


def _listed(params: Mapping[str, Any]) -> str:
    shown = [f"{name}={_short(str(value))}" for name, value in params.items()]
    more = ["…"] if len(shown) > _PARAMS_SHOWN else []
    return ", ".join(shown[:_PARAMS_SHOWN] + more)


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"


def _dumped(value: dict[str, Any]) -> str:
    try:
        return json.dumps(value, default=str, allow_nan=False)
    except ValueError:  # JSON has neither NaN nor infinities
        return json.dumps(_finite(value), default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
