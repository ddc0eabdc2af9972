"""Firings as they are named and recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from activedb.engine._names import shortened
from activedb.engine._triggered import Part, Triggered
from activedb.errors import BadEvent, RuleFailed
from activedb.events import encode
from activedb.transactions import Run, Transaction
from coupling import Coupling

__all__ = ["STREAM_RUN", "coupling_of", "is_of_firing", "named", "row_of"]

STREAM_RUN = "stream/"
"""Names of runs that are replayed after a crash start with this."""

_NAME_MAX = 400  # characters of the column


def named(t: Transaction, items: list[Triggered], event: int) -> Iterator[tuple[str, Triggered]]:
    """What the `event`-th event of `t` triggered, with the names of the firings."""
    for number, item in enumerate(items):
        yield shortened(f"{t.path}#{event}.{number}.{item.rule.name}", _NAME_MAX), item


def is_of_firing(run: str) -> bool:
    """Whether a run of this name is itself a firing, and no batch or application's work."""
    return "#" in run


def coupling_of(item: Triggered, of_action: Coupling) -> Coupling:
    """How a firing is coupled to the transaction in which it was triggered."""
    return of_action if item.part is Part.ACTION else item.rule.coupling


def row_of(name: str, run: Run, item: Triggered) -> dict[str, Any]:
    """A firing as it is recorded; raises `RuleFailed` if its occurrence cannot be kept."""
    try:
        occurrence = encode(item.occurrence)
    except BadEvent as error:
        rule = item.rule.name
        raise RuleFailed(f"rule {rule} failed: {error}", rule=rule) from error
    if item.part is not Part.RULE:
        occurrence["part"] = str(item.part)
    return {
        "firing": name,
        "run": run.name,
        "rule": item.rule.name,
        "occurrence": occurrence,
        "keep": run.is_batch or run.is_detached,
        "done": False,
    }
