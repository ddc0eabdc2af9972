"""Names, rows and turns of firings."""

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
from activedb.transactions import Node, Run
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
"""Prefix of the names of runs that are replayed after a crash."""

_NAME_MAX = 400  # characters of the column
_ORIGIN = "origin"  # key of the later `Run.origin`, beside those of the encoded occurrence
_TURN = "turn"  # key of a line of firings and the priority in it, see `Turns`
_DIGEST_BYTES = 8
_TIMES = ("timestamp", "stamp")


class Named(NamedTuple):
    """Named firing of a rule that an event has triggered.

    Attributes
    ----------
    name : str
        Place and occurrence: a try that does the same at the same place gives the same name; a try
        that does something else gives another name.
    item : Triggered
    occurrence : dict, or BadEvent
        The encoded occurrence, or the reason why it cannot be encoded.
    """

    name: str
    item: Triggered
    occurrence: dict[str, Any] | BadEvent


def named(t: Node, items: list[Triggered], event: int, undated: Container[int]) -> Iterator[Named]:
    """Name the firings of the rules that the `event`-th event of `t` triggered.

    Parameters
    ----------
    undated : container of int
        Identities (`id`) of occurrences whose times come from the clock of this try. Names ignore
        these times, so that all tries give the same names.
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
    """Strip undated times from an encoded occurrence; return it, and whether its own was stripped.

    The time of a composite occurrence comes from its parts.
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
    """Return whether firings triggered by a run of this name commit without waiting for the disk.

    A stream's batch that is lost together with its firings starts them again. A durable batch has
    made its firings durable, too, because the server's log is written in order.
    """
    return run.startswith(STREAM_RUN)


def is_of_firing(run: str) -> bool:
    """Return whether a run of this name is a firing, not a batch or work of the application."""
    return "#" in run


def coupling_of(item: Triggered, of_action: Coupling) -> Coupling:
    """Return the coupling mode of a firing relative to its triggering transaction."""
    return of_action if item.part is Part.ACTION else item.rule.coupling


def run_of(row: Mapping[str, Any], item: Triggered, **how: Any) -> Run:
    """Return the `Run` shared by all tries at a recorded firing; `how` is passed to `Run`."""
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


def row_of(firing: Named, t: Node) -> dict[str, Any]:
    """Return the row of a firing of `t`; raise `RuleFailed` if its occurrence is unencodable."""
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
    """Give turns to firings that are due together, unless all have the same priority.

    With `always`, give turns in any case, because other firings may be due together with them.

    A firing that time completes is due together with all others completed at the same moment. A
    causally dependent rule has no turn, because it begins at its event.
    """
    found = [each for each in firings if each.triggered.rule.coupling is not Coupling.CAUSAL]
    differ = len({each.triggered.rule.priority for each in found}) > 1
    for each in found:
        moment = each.triggered.moment
        if moment or differ or always:
            each.row["occurrence"][_TURN] = [moment or line, each.triggered.rule.priority]


def in_turn(firings: Iterable[Firing]) -> list[Firing]:
    """Return firings in the order in which they enter their lines: higher priorities first."""
    return sorted(firings, key=_rank_of)


def _rank_of(firing: Firing) -> tuple[bool, int]:
    turn = turn_of(firing.row)
    return (False, 0) if turn is None else turn.rank


def turn_of(row: Mapping[str, Any]) -> Turn | None:
    """Return the turn of a firing in its line; None if it is due alone."""
    turn = row["occurrence"].get(_TURN)
    return None if turn is None else Turn(*turn)
