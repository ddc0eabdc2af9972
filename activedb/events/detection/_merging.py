"""Merging of candidates that were chosen, in the context cumulative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from activedb.events.detection._choice import cumulated
from activedb.events.detection._combination import CombinationNode
from activedb.events.detection._entry import Entry, Possible
from activedb.events.detection._primitive import DisjunctionNode, QueryNode

if TYPE_CHECKING:
    from activedb.events.detection._node import DetectorNode

__all__ = ["merged_entry"]


def merged_entry(node: DetectorNode, arrivals: Sequence[int]) -> Entry | None:
    """Return the match that is merged of open matches of a node.

    None: they are not of one cumulative combination, of which the node passes on the matches.

    Parameters
    ----------
    node : DetectorNode
    arrivals : sequence of int
        Those of the open matches, which are of one equivalence key.
    """
    if isinstance(node, DisjunctionNode):
        found = (merged_entry(child, arrivals) for child in node.children)
        return next((entry for entry in found if entry is not None), None)
    if isinstance(node, QueryNode):
        inner = merged_entry(node.children[0], _followed(node, arrivals))
        return None if inner is None else node.output(inner)
    if not (isinstance(node, CombinationNode) and node.chooser.cumulates):
        return None
    for key in node.opened:
        group = node.groups.by_key.get(key)
        possible = () if group is None else group.possible
        chosen = [p for p in possible if p.entry is not None and p.entry[2] in arrivals]
        if len(chosen) == len(arrivals):
            whole = Possible(
                cumulated([each.candidate for each in chosen]),
                is_certain=True,
                is_closed=chosen[0].is_closed,
            )
            return node.occurrence_of(whole)
    return None


def _followed(node: QueryNode, arrivals: Sequence[int]) -> list[int]:
    """Return the arrivals of the matches that a query has passed on under other ones."""
    follows = node.shared.follows
    return [other for other, own in follows.items() if not set(own).isdisjoint(arrivals)]
