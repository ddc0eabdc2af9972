"""Termination: rules that may trigger each other without end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx

from activedb.analysis._listening import Listening, Role
from activedb.analysis._profile import Profile
from activedb.analysis._triggering import Edge

__all__ = ["Cycle", "cycles_among"]

_ANYTHING = 0  # node for the unknown effects of opaque rules; rules are strings


@dataclass(frozen=True, slots=True)
class Cycle:
    """Rules that may all trigger each other, directly or through one another.

    Attributes
    ----------
    rules : tuple of str
        In the order of the rule set.
    edges : tuple of Edge
        Edges among the rules that trigger, at once or with time.
    is_certain : bool
        True if known effects close the cycle. If false, unknown effects of an opaque rule could
        close it.
    bounds : tuple of str
        Settings that end every run through the cycle with `CycleLimitExceeded`: ``"cascade_max"``
        where rules nest, ``"cycles_max"`` where deferred rules trigger deferred ones.
    restarts : tuple of str
        Rules that start a top-level transaction. Runs through them never end, as bounds count
        within one top-level transaction.
    delayed : tuple of str
        Rules that time triggers after events of the others. Runs through them never end either.
    """

    rules: tuple[str, ...]
    edges: tuple[Edge, ...]
    is_certain: bool
    bounds: tuple[str, ...]
    restarts: tuple[str, ...]
    delayed: tuple[str, ...] = ()

    @property
    def is_bounded(self) -> bool:
        """True if a setting ends every run through the cycle."""
        return not self.restarts and not self.delayed

    @property
    def ending(self) -> str:
        """Sentence that says which bound ends a run through the cycle, if any."""
        if self.restarts:
            rules = ", ".join(self.restarts)
            return f"nothing bounds it: {rules} begins a top-level transaction each time"
        if self.delayed:
            return f"nothing bounds it: time triggers {', '.join(self.delayed)} anew each time"
        return f"bounded by {' and '.join(self.bounds)}: a run that reaches it fails"


def cycles_among(profiles: Sequence[Profile], edges: Sequence[Edge]) -> tuple[Cycle, ...]:
    """Return the cycles: strongly connected components of the triggering graph.

    Certain cycles come first, each group in the order of the rules. O(rules + edges).

    Notes
    -----
    Only events that complete a rule's expression count, at once or with time: a rule fires as often
    as they occur. (Aiken, Hellerstein, Widom 1995, section 5.) Opaque rules get edges, through one
    node, to all rules except those that wait for clocks or late events alone.
    """
    by_name = {profile.name: profile for profile in profiles}
    place = {name: number for number, name in enumerate(by_name)}
    graph = nx.DiGraph()
    graph.add_nodes_from(by_name)
    triggering = [edge for edge in edges if edge.triggers or edge.triggers_later]
    graph.add_edges_from((edge.source, edge.target) for edge in triggering)
    certain = _components(graph)
    opaque = [p.name for p in profiles if p.effects.may_raise_anything]
    maybe: list[set[str]] = []
    if opaque:
        graph.add_edges_from((name, _ANYTHING) for name in opaque)
        graph.add_edges_from((_ANYTHING, p.name) for p in profiles if _can_be_raised(p))
        maybe = [found for found in _components(graph) if found not in certain]
    number_of = {name: number for number, found in enumerate(certain) for name in found}
    inside: list[list[Edge]] = [[] for _ in certain]
    for edge in triggering:
        number = number_of.get(edge.source)
        if number is not None and number == number_of.get(edge.target):
            inside[number].append(edge)
    cycles = [
        _cycle(found, within, by_name, place, is_certain=True)
        for found, within in zip(certain, inside, strict=True)
    ]
    for found in maybe:
        within = [e for e in triggering if e.source in found and e.target in found]
        cycles.append(_cycle(found, within, by_name, place, is_certain=False))
    return tuple(sorted(cycles, key=lambda c: (not c.is_certain, place[c.rules[0]])))


def _components(graph: nx.DiGraph) -> list[set[str]]:
    found = []
    for component in nx.strongly_connected_components(graph):
        names = component - {_ANYTHING}
        alone = len(component) == 1
        if names and not (alone and not graph.has_edge(*names, *names)):
            found.append(names)
    return found


def _can_be_raised(profile: Profile) -> bool:
    return any(
        (part.role is Role.COMPLETES or _is_later(part)) and not part.is_outside
        for part in profile.listens
    )


def _is_later(part: Listening) -> bool:
    return part.role is Role.LATER


def _cycle(
    names: set[str],
    edges: list[Edge],
    by_name: dict[str, Profile],
    place: dict[str, int],
    *,
    is_certain: bool,
) -> Cycle:
    rules = tuple(sorted(names, key=place.__getitem__))
    modes = {name: by_name[name].acts_in for name in rules}
    restarts = tuple(name for name in rules if not modes[name].is_child)
    nesting = any(mode.is_child and mode.starts_at_event for mode in modes.values())
    deferred = nx.DiGraph()
    deferred.add_nodes_from(n for n in rules if modes[n].is_child and not modes[n].starts_at_event)
    deferred.add_edges_from(
        (e.source, e.target)
        for e in edges
        if e.triggers and e.source in deferred and e.target in deferred
    )
    in_cycles = bool(_components(deferred)) or (not is_certain and len(deferred) > 0)
    bounds = ["cascade_max"] if nesting else []
    bounds += ["cycles_max"] if in_cycles else []
    late = {edge.target for edge in edges if edge.triggers_later}
    if not is_certain:
        late |= {name for name in rules if any(_is_later(p) for p in by_name[name].listens)}
    delayed = tuple(name for name in rules if name in late)
    return Cycle(rules, tuple(edges), is_certain, tuple(bounds), restarts, delayed)
