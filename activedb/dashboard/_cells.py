"""Columns, rows and cells of tables, and how two sets of rows differ."""

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
    """A cell of a table.

    Parameters
    ----------
    shown : str, float or None
        Its text; a moment in a column of ages.
    sort : float or str or None
        By what its column is sorted, if not by its text.
    href : str or None
        A page of the dashboard that it leads to.
    tone : str or None
        ``good``, ``bad``, ``warn``, ``accent`` or ``muted``: what it means, beside its words.
    hint : str or None
        More words, for those who point at it.
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
        The key of its cells, and what the header says.
    align : str
        ``right`` for numbers.
    kind : str
        What its cells are, and so how the browser shows them: ``age``, moments, as how long ago;
        ``time``, moments, by the clock; ``span``, durations in seconds; ``transaction``, numbers
        of transactions, or lists of number, name and level of indentation; ``action``, buttons.
        Else texts, numbers or what `cell` makes.
    sort : bool
        Whether the header sorts the rows.
    wide : bool
        Left out where there is little room.
    wrap : bool
        Whether its cells may take several lines; for texts.
    tones : mapping of str to str
        What some of its texts mean: their `cell` tones.
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
    """A row as it is sent: its key, its tone, and its cells in the order of the columns."""
    cells = (_rounded(row.get(column.name), column.kind) for column in columns)
    return [row["key"], row.get("tone", ""), *cells]


def _rounded(value: Any, kind: str) -> Any:
    """A number with as many digits as are shown: milliseconds, or four figures of a duration."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.4g}") if kind == "span" else round(value, 3)


def difference(old: Mapping[str, Row], new: Mapping[str, Row]) -> dict[str, Any] | None:
    """What makes `new` of `old`: rows to put, keys to drop, the order if it is another one."""
    put = [row for key, row in new.items() if old.get(key) != row]
    drop = [key for key in old if key not in new]
    patch: dict[str, Any] = {"put": put, "drop": drop}
    if list(old) != list(new):
        patch["order"] = list(new)
    return patch if put or drop or "order" in patch else None
