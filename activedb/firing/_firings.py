"""Firings as they are named and recorded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from activedb.errors import BadEvent, RuleFailed
from activedb.events import Occurrence, encode
from activedb.firing._cascades import failed_in
from activedb.firing._names import shortened
from activedb.firing._triggered import Firing, Part, Triggered
from activedb.firing._turns import Turn
from activedb.transactions import Run, Transaction
from coupling import Coupling

__all__ = [
    "STREAM_RUN",
    "Named",
    "coupling_of",
    "in_turn",
    "is_lazy",
    "is_of_firing",
    "line_up",
    "named",
    "row_of",
    "run_of",
    "turn_of",
]

STREAM_RUN = "stream/"
"""Names of runs that are replayed after a crash start with this."""

_NAME_MAX = 400  # characters of the column
_ORIGIN = "origin"  # key, beside those of the encoded occurrence, of what `Run.origin` will be
_TURN = "turn"  # likewise: a line of firings and the priority in it, see `Turns`
_DIGEST_BYTES = 8
_TIMES = ("timestamp", "stamp")


class Named(NamedTuple):
    """Firings of the rules that an event has triggered, as they will be named and recorded.

    Attributes
    ----------
    name : str
        Place and occurrence: a try that does the same at the same place gives the same name, one
        that does something else another one.
    item : Triggered
    occurrence : dict, or BadEvent
        Its occurrence encoded, or why that is not possible.
    """

    name: str
    item: Triggered
    occurrence: dict[str, Any] | BadEvent


def named(
    t: Transaction, items: list[Triggered], event: int, undated: Container[int]
) -> Iterator[Named]:
    """Name the firings of the rules that the `event`-th event of `t` triggered.

    Parameters
    ----------
    undated : container of int
        Identities (`id`) of occurrences whose times are only when this try came to them, so that
        they do not tell two tries apart.
    """
    for number, item in enumerate(items):
        data: dict[str, Any] | BadEvent
        try:
            data = encode(item.occurrence)
        except BadEvent as error:
            data, digest = error, ""
        else:
            digest = "~" + _digest(item, data, undated)
        place = f"{t.path}#{event}.{number}.{item.rule.name}"
        yield Named(shortened(place + digest, _NAME_MAX), item, data)


def _digest(item: Triggered, data: dict[str, Any], undated: Container[int]) -> str:
    own = {id(o) for o in item.undated}
    if own or item.occurrence.parts:
        data = _without_times(item.occurrence, data, lambda o: id(o) in own or id(o) in undated)[0]
    text = json.dumps(data, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _without_times(
    o: Occurrence, data: dict[str, Any], is_undated: Callable[[Occurrence], bool]
) -> tuple[dict[str, Any], bool]:
    """An encoded occurrence without the times that do not count, and whether its own does not.

    That of a composite one comes from its parts.
    """
    left_out = is_undated(o)
    if o.parts:
        parts = []
        for (name, part), (_, encoded) in zip(o.parts.items(), data["parts"], strict=True):
            of_part = part if isinstance(part, tuple) else (part,)
            each = encoded if isinstance(part, tuple) else [encoded]
            found = [_without_times(*pair, is_undated) for pair in zip(of_part, each, strict=True)]
            left_out |= any(is_left_out for _, is_left_out in found)
            parts.append([name, [rest for rest, _ in found]])
        data = {**data, "parts": parts}
    if left_out:
        data = {key: value for key, value in data.items() if key not in _TIMES}
    return data, left_out


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


def row_of(firing: Named, t: Transaction) -> dict[str, Any]:
    """A firing as `t` records it; raises `RuleFailed` if its occurrence cannot be kept."""
    run, item = t.hierarchy.run, firing.item
    if isinstance(firing.occurrence, BadEvent):
        error, rule = firing.occurrence, item.rule.name
        raise RuleFailed(failed_in(rule, error), rule=rule) from error
    occurrence = dict(firing.occurrence)
    if item.part is not Part.RULE:
        occurrence["part"] = str(item.part)
    origin = t.origin()
    if origin is not None:
        occurrence[_ORIGIN] = origin
    return {
        "firing": firing.name,
        "run": run.name,
        "rule": item.rule.name,
        "occurrence": occurrence,
        "keep": run.is_batch or run.is_detached,
        "done": False,
    }


def line_up(firings: Iterable[Firing], line: str, *, always: bool = False) -> None:
    """Give firings that are due together their turns, unless all have the same priority.

    With `always` in any case, as others may be due together with them.

    What time completes is due together with all else that the same moment completes. A causally
    dependent rule has no turn, as it begins at its event.
    """
    found = [each for each in firings if each.triggered.rule.coupling is not Coupling.CAUSAL]
    differ = len({each.triggered.rule.priority for each in found}) > 1
    for each in found:
        moment = each.triggered.moment
        if moment or differ or always:
            each.row["occurrence"][_TURN] = [moment or line, each.triggered.rule.priority]


def in_turn(firings: Iterable[Firing]) -> list[Firing]:
    """Firings in the order in which they enter their lines: higher priorities first."""
    return sorted(firings, key=_rank_of)


def _rank_of(firing: Firing) -> tuple[bool, int]:
    turn = turn_of(firing.row)
    return (False, 0) if turn is None else turn.rank


def turn_of(row: Mapping[str, Any]) -> Turn | None:
    """Turn of a firing among those due together with it; None: it is due alone."""
    turn = row["occurrence"].get(_TURN)
    return None if turn is None else Turn(*turn)
