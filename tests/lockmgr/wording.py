"""Words of the scenario language: how its steps are read, and how outcomes are written."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from lockmgr import Counters, DeadlockReport, Edge, Mode, OneOf, Predicate, Resource
from lockmgr._replies import resource_text

WIDTH_MAX = 100


def path(text: str) -> Resource:
    """Read ``a/7`` as ``("a", 7)``, ``a/x=1`` with a predicate; ``.`` is the empty path."""
    parts = () if text == "." else text.split("/")
    return tuple(_part(part) for part in parts)


def _part(text: str) -> int | str | Predicate:
    if text.isdigit():
        return int(text)
    column, is_predicate, value = text.partition("=")
    return Predicate([OneOf(column, [int(value)])]) if is_predicate else text


def row(text: str) -> dict[str, int]:
    """Read ``x=1,y=2`` as the columns of a row."""
    return {column: int(value) for column, value in (c.split("=") for c in text.split(","))}


def newcomers(words: list[str]) -> tuple[list[int], int | None, dict[str, Any]]:
    """Read ``2 3 in 1``, ``2 in 1 inline`` or ``5 causes 1 2``: who begins, in whom, and how."""
    options: dict[str, Any] = {}
    parent = None
    if words[-1] == "inline":
        options["inline"] = True
        words = words[:-1]
    if "causes" in words:
        place = words.index("causes")
        options["causes"] = tuple(map(int, words[place + 1 :]))
        words = words[:place]
    if "in" in words:
        *words, _, superior = words
        parent = int(superior)
    return [int(tid) for tid in words], parent, options


def timeout_s(limit: list[str]) -> float | None:
    """Read ``nowait``, ``within 5 s`` or nothing."""
    match limit:
        case []:
            return None
        case ["nowait"]:
            return 0
        case ["within", seconds, "s"]:
            return float(seconds)
    raise AssertionError(f"not a limit: {' '.join(limit)}")


def told(command: str, happened: list[str]) -> list[str]:
    """Put what happened behind the command, or below it if it is too long."""
    line = f"{command} -> {'; '.join(happened)}" if happened else command
    if len(line) <= WIDTH_MAX:
        return [line]
    return [command, *(f"  -> {part}" for part in happened)]


def waits(edges: tuple[Edge, ...]) -> str:
    """Write ``1 (held), 3 (soft)``."""
    return ", ".join(f"{edge.waited_for} ({edge.kind})" for edge in edges)


def cycle(report: DeadlockReport) -> str:
    """Write ``2 -held-> 1 -commit-> 2``."""
    return f"{report.victim}" + "".join(f" -{e.kind}-> {e.waited_for}" for e in report.cycle)


def locks(owned: dict[Resource, Mode]) -> str:
    """Write ``IX a, X a/7``."""
    return ", ".join(f"{mode.name} {resource_text(r)}" for r, mode in owned.items()) or "nothing"


def counts(counters: Counters) -> str:
    """Write the counters that are not zero, without the times."""
    values = {field.name: getattr(counters, field.name) for field in fields(counters)}
    return ", ".join(f"{n} {v}" for n, v in values.items() if v and isinstance(v, int)) or "none"
