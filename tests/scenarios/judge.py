"""Judge of whether the outcome is as if the transactions had run one after the other.

A naive model replays the committed top-level transactions in every order, until it finds one in
which each step has the same outcome and the committed rows are the same. Inside a hierarchy the
steps keep the order in which they ended.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.scenarios.operations import Operation, foresee
from tests.transactions.model import Model, Node

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Event:
    """Event: the transaction concerned, what it did, and the outcome.

    `what` is ``begin``, ``commit``, ``abort`` or an operation.
    """

    name: str
    what: str | Operation
    outcome: str = ""


def serial_order(
    events: list[Event],
    before: Mapping[Any, Any],
    after: Mapping[Any, Any],
    columns: Mapping[str, list[str]],
) -> tuple[str, ...] | None:
    """Return an order of the committed top-level transactions that explains `after`, or None.

    Parameters
    ----------
    events : list of Event
        In the order in which they ended.
    before, after : mapping of (table, key) to row
        Committed rows.
    columns : mapping of table to its columns

    O(n! · events) for n transactions.
    """
    committed = [e.name for e in events if e.what == "commit" and "." not in e.name]
    for order in itertools.permutations(sorted(committed)):
        model = Model(dict(before))
        explained = all(_explains(model, events, top, columns) for top in order)
        if explained and model.committed == dict(after):
            return order
    return None


def _explains(
    model: Model, events: list[Event], top: str, columns: Mapping[str, list[str]]
) -> bool:
    nodes: dict[str, Node] = {}
    for event in events:
        name, what = event.name, event.what
        if name.split(".")[0] != top:
            continue
        if what == "begin":
            nodes[name] = model.begin(nodes.get(name.rpartition(".")[0]))
        elif what == "commit":
            model.commit(nodes[name])
        elif what == "abort":
            if nodes[name].state == "active":  # else it went down with a superior
                model.abort(nodes[name])
        else:
            assert isinstance(what, Operation)
            foreseen = foresee(what, model, nodes[name], columns[what.table], event.outcome)
            if what.is_judged and foreseen != event.outcome:
                return False
    return True
