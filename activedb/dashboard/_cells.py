"""Columns, rows and cells of tables, and the difference between two sets of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Column", "Row", "cell", "difference", "packed"]

Row = Mapping[str, Any]
"""A row by column name, with its ``key``; a cell is a text, a number or a mapping (`cell`)."""


def cell(
    shown: str | float | None,
    *,
    sort: float | str | None = None,
    href: str | None = None,
    tone: str | None = None,
    hint: str | None = None,
) -> Any:
    """Return a cell of a table.

    Parameters
    ----------
    shown : str, float or None
        Its text; in a column of ages, a moment.
    sort : float or str or None
        Sort key, if the text is not.
    href : str or None
        Page of the dashboard to link to.
    tone : str or None
        ``good``, ``bad``, ``warn``, ``accent`` or ``muted``: the meaning of the text, shown as a
        colour.
    hint : str or None
        Longer text, shown as a tooltip.
    """
    given = {"sort": sort, "href": href, "tone": tone, "hint": hint}
    more = {name: value for name, value in given.items() if value is not None}
    return {"text": shown, **more} if more else shown


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a `LiveTable`.

    Attributes
    ----------
    name, label : str
        The key of its cells, and the text of the header.
    align : str
        ``right`` for numbers.
    kind : str
        Type of the cells, which decides how the browser shows them. ``age``: moments, as the time
        since then; ``time``: moments, as clock times; ``span``: durations in seconds;
        ``transaction``: numbers of transactions, or lists of number, name and level of indentation;
        ``action``: buttons. Otherwise texts, numbers or results of `cell`.
    sort : bool
        Whether the header sorts the rows.
    wide : bool
        Whether the column is left out on narrow screens.
    wrap : bool
        Whether a cell may take several lines; for texts.
    tones : mapping of str to str
        Tones (see `cell`) of some of its texts.
    """

    name: str
    label: str
    align: Literal["left", "right"] = "left"
    kind: Literal["", "age", "time", "span", "transaction", "action"] = ""
    sort: bool = True
    wide: bool = False
    wrap: bool = False
    tones: Mapping[str, str] = field(default_factory=dict)


def packed(row: Row, columns: Sequence[Column]) -> list[Any]:
    """Return a row as it is sent: its key, its tone, and its cells in the order of the columns."""
    cells = (_rounded(row.get(column.name), column.kind) for column in columns)
    return [row["key"], row.get("tone", ""), *cells]


def _rounded(value: Any, kind: str) -> Any:
    """Round a number to the digits that are shown: milliseconds, or four figures of a duration."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.4g}") if kind == "span" else round(value, 3)


def difference(old: Mapping[str, Row], new: Mapping[str, Row]) -> dict[str, Any] | None:
    """Return the patch from `old` to `new`: rows to put, keys to drop, the order if changed."""
    put = [row for key, row in new.items() if old.get(key) != row]
    drop = [key for key in old if key not in new]
    patch: dict[str, Any] = {"put": put, "drop": drop}
    if list(old) != list(new):
        patch["order"] = list(new)
    return patch if put or drop or "order" in patch else None
