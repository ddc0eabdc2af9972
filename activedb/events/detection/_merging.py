"""Merging of candidates that were chosen: in the context cumulative they are made as one match."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from activedb.events.detection._combination import CombinationNode
from activedb.events.detection._entry import Entry, Possible, leaves, place_of
from activedb.events.detection._primitive import DisjunctionNode, QueryNode

if TYPE_CHECKING:
    from activedb.events.detection._node import DetectorNode

__all__ = ["Merged", "merged_matches"]

Merged = tuple[Entry, list[int]]
"""A match, and the arrivals of the open matches that it is merged of."""


def merged_matches(node: DetectorNode, arrivals: Collection[int]) -> list[Merged]:
    """Return the matches that are merged of several of these open matches of a node.

    Open matches that are merged with no other are not among them.
    """
    if isinstance(node, DisjunctionNode):
        return [each for child in node.children for each in merged_matches(child, arrivals)]
    if isinstance(node, QueryNode):
        own = {
            other: arrival
            for other, followers in node.shared.follows.items()
            for arrival in followers
            if arrival in arrivals
        }
        return [
            (node.output(inner), [own[other] for other in others])
            for inner, others in merged_matches(node.children[0], own)
        ]
    if not (isinstance(node, CombinationNode) and node.chooser.cumulates):
        return []
    found: list[Merged] = []
    for key in node.opened:
        group = node.groups.by_key.get(key)
        possible = () if group is None else group.possible
        chosen = [p for p in possible if p.entry is not None and p.entry[2] in arrivals]
        for together in _together(node, chosen) if len(chosen) > 1 else ():
            candidate = node.ledger.exclusion.merged(together)
            for stage, child in node.sources:
                bound = _with_merged(child, candidate[stage])
                candidate = (*candidate[:stage], bound, *candidate[stage + 1 :])
            whole = Possible(candidate, is_certain=True, is_closed=together[0].is_closed)
            merged = [each.entry[2] for each in together if each.entry is not None]
            found.append((node.occurrence_of(whole), merged))
    return found


def _together(node: CombinationNode, chosen: list[Possible]) -> Iterator[list[Possible]]:
    """Yield those matches that are one, also through others.

    They have an event in common, which each uses up, or one step certainly completes them.
    """
    events = [{leaf for entry in each.entries for leaf in leaves(entry[3])} for each in chosen]
    is_one_step = node.ledger.exclusion.is_one_step
    left = list(range(len(chosen)))
    while left:
        together = [left.pop(0)]
        for n in together:  # grows
            near = [
                m
                for m in left
                if not events[n].isdisjoint(events[m]) or is_one_step(chosen[n], chosen[m])
            ]
            together += near
            left = [m for m in left if m not in near]
        if len(together) > 1:
            yield [chosen[n] for n in together]


def _with_merged(child: DetectorNode, bound: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Return the constituents that a child has made, with those merged that it would merge."""
    merged = merged_matches(child, {entry[2] for entry in bound})
    parts = {arrival for _, arrivals in merged for arrival in arrivals}
    entries = [*(entry for entry, _ in merged), *(e for e in bound if e[2] not in parts)]
    return tuple(sorted(entries, key=place_of))
