"""Firings as they are named and recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from activedb.engine._names import shortened
from activedb.engine._triggered import Part, Triggered
from activedb.errors import BadEvent, RuleFailed
from activedb.events import encode
from activedb.transactions import Run, Transaction
from coupling import Coupling

__all__ = ["STREAM_RUN", "coupling_of", "is_lazy", "is_of_firing", "named", "row_of", "run_of"]

STREAM_RUN = "stream/"
"""Names of runs that are replayed after a crash start with this."""

_NAME_MAX = 400  # characters of the column
_ORIGIN = "origin"  # key, beside those of the encoded occurrence, of what `Run.origin` will be


def named(t: Transaction, items: list[Triggered], event: int) -> Iterator[tuple[str, Triggered]]:
    """What the `event`-th event of `t` triggered, with the names of the firings."""
    for number, item in enumerate(items):
        yield shortened(f"{t.path}#{event}.{number}.{item.rule.name}", _NAME_MAX), item


def is_lazy(run: str) -> bool:
    """Whether what a run of this name triggers commits without waiting for the disk.

    A stream's batch that is lost with its firings starts them again, and one that is durable has
    made them durable, too, as the server's log is written in order.
    """
    return run.startswith(STREAM_RUN)


def is_of_firing(run: str) -> bool:
    """Whether a run of this name is itself a firing, and no batch or application's work."""
    return "#" in run


def coupling_of(item: Triggered, of_action: Coupling) -> Coupling:
    """How a firing is coupled to the transaction in which it was triggered."""
    return of_action if item.part is Part.ACTION else item.rule.coupling


def run_of(row: Mapping[str, Any], item: Triggered, **how: Any) -> Run:
    """What the top-level transactions of a recorded firing are tries at; `how`: as for `Run`."""
    # The action alone follows its condition's commit if the rule is causally dependent.
    is_causal = item.rule.coupling is Coupling.CAUSAL
    coupling = coupling_of(item, Coupling.SEQUENTIAL if is_causal else Coupling.DETACHED)
    return Run(
        name=row["firing"],
        is_detached=True,
        rule=item.rule.name,
        coupling=str(coupling),
        origin=row["occurrence"].get(_ORIGIN),
        **how,
    )


def row_of(name: str, t: Transaction, item: Triggered) -> dict[str, Any]:
    """A firing as `t` records it; raises `RuleFailed` if its occurrence cannot be kept."""
    run = t.hierarchy.run
    try:
        occurrence = encode(item.occurrence)
    except BadEvent as error:
        rule = item.rule.name
        raise RuleFailed(f"rule {rule} failed: {error}", rule=rule) from error
    if item.part is not Part.RULE:
        occurrence["part"] = str(item.part)
    origin = t.origin()
    if origin is not None:
        occurrence[_ORIGIN] = origin
    return {
        "firing": name,
        "run": run.name,
        "rule": item.rule.name,
        "occurrence": occurrence,
        "keep": run.is_batch or run.is_detached,
        "done": False,
    }
