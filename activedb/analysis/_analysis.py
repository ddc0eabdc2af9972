"""Results of the static analysis of a rule set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import networkx as nx

from activedb.analysis._confluence import Pair, pairs_among
from activedb.analysis._profile import EventRole, Listening, Profile, event_text
from activedb.analysis._triggering import TriggeringEdge, edges_between
from activedb.rules import Rule

__all__ = ["Analysis", "Cycle", "PropertyVerdict", "analyze"]


class PropertyVerdict(StrEnum):
    """Verdict on a property of the rule set.

    ``SURE``: the property holds. ``UNSURE``: there are findings; the property may still hold, as
    conditions are not evaluated. ``UNKNOWN``: there are no findings, but opaque rules may have
    further effects.
    """

    SURE = "sure"
    UNSURE = "unsure"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Analysis:
    """Result of `analyze`.

    Attributes
    ----------
    rules : tuple of Profile
        Profiles, in the order given.
    edges : tuple of TriggeringEdge
        The triggering graph.
    cycles : tuple of Cycle
        Rules that may trigger each other without end.
    pairs : tuple of Pair
        Rules whose order is open and affects the outcome.
    """

    rules: tuple[Profile, ...]
    edges: tuple[TriggeringEdge, ...]
    cycles: tuple[Cycle, ...]
    pairs: tuple[Pair, ...]

    @property
    def opaque(self) -> tuple[Profile, ...]:
        """Rules with effects that could not be determined."""
        return tuple(profile for profile in self.rules if profile.effects.is_opaque)

    @property
    def many_matches(self) -> tuple[Profile, ...]:
        """Rules for which one event may complete so many matches that the event is refused."""
        return tuple(profile for profile in self.rules if profile.many_matches is not None)

    @property
    def terminates(self) -> PropertyVerdict:
        """Verdict on whether every cascade of rules terminates."""
        if any(cycle.is_certain for cycle in self.cycles):
            return PropertyVerdict.UNSURE
        return PropertyVerdict.UNKNOWN if self.cycles else PropertyVerdict.SURE

    @property
    def is_confluent(self) -> PropertyVerdict:
        """Verdict on whether the outcome is independent of the orders left open."""
        if self.pairs:
            return PropertyVerdict.UNSURE
        return PropertyVerdict.UNKNOWN if self.opaque else PropertyVerdict.SURE

    @property
    def has_findings(self) -> bool:
        """True if there is a cycle, a pair, an opaque rule or a pattern with many matches."""
        return bool(self.cycles or self.pairs or self.opaque or self.many_matches)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "rules": [rule_as_dict(profile) for profile in self.rules],
            "edges": [_edge(edge) for edge in self.edges],
            "termination": {
                "verdict": str(self.terminates),
                "cycles": [
                    {
                        "rules": list(cycle.rules),
                        "edges": [_edge(edge) for edge in cycle.edges],
                        "certain": cycle.is_certain,
                        "bounded": cycle.is_bounded,
                        "bounds": list(cycle.bounds),
                        "restarts": list(cycle.restarts),
                        "delayed": list(cycle.delayed),
                    }
                    for cycle in self.cycles
                ],
            },
            "confluence": {
                "verdict": str(self.is_confluent),
                "pairs": [
                    {
                        "rules": [pair.first, pair.second],
                        "together": pair.together,
                        "reasons": [str(conflict) for conflict in pair.conflicts],
                    }
                    for pair in self.pairs
                ],
            },
            "opaque": [profile.name for profile in self.opaque],
            "many_matches": [
                {"rule": profile.name, "why": profile.many_matches} for profile in self.many_matches
            ],
        }


def analyze(rules: Iterable[Rule]) -> Analysis:
    """Analyze a rule set: triggering graph, termination, confluence, patterns with many matches.

    Parameters
    ----------
    rules : iterable of Rule
        Rules with distinct names, such as a catalog.

    Returns
    -------
    Analysis
        The same for the same rules and sources. The effects of a rule are those that its author
        declared (``reads=``, ``writes=``, ``raises=``), else those inferred from its source. No
        code of a rule is run.

    Notes
    -----
    O(sources) to read them, O(rules + edges) for graph and termination. For confluence, see
    `pairs_among`.
    (Aiken, Hellerstein, Widom 1995, *Static Analysis Techniques for Predicting the Behavior of
    Active Database Rules*.)
    """
    return of_profiles(Profile.of(rule) for rule in rules)


def of_profiles(profiles: Iterable[Profile]) -> Analysis:
    """Analyze rules whose profiles are known."""
    listed = tuple(profiles)
    edges = edges_between(listed)
    return Analysis(listed, edges, cycles_among(listed, edges), pairs_among(listed, edges))


def rule_as_dict(profile: Profile) -> dict[str, Any]:
    """Return a rule as a JSON-serialisable dict."""
    effects = profile.effects
    return {
        "name": profile.name,
        "event": profile.event,
        "listens": [{"event": each.event, "role": str(each.role)} for each in profile.listens],
        "coupling": str(profile.coupling),
        "priority": profile.priority,
        "condition_action": str(profile.condition_action),
        "after": list(profile.after),
        "reads": [_dotted(read.table, read.column) for read in effects.reads],
        "writes": [f"{c.kind} {_dotted(c.table, c.column)}" for c in effects.changes],
        "raises": [event_text(signal.key) for signal in effects.signals],
        "unresolved": [
            {"place": each.place, "why": each.why, "kinds": sorted(each.kinds)}
            for each in effects.unresolved
        ],
    }


def _edge(edge: TriggeringEdge) -> dict[str, Any]:
    return {
        "source": edge.source,
        "target": edge.target,
        "triggers": edge.triggers,
        "triggers_later": edge.triggers_later,
        "reason": edge.reason,
    }


def _dotted(table: str, column: str | None) -> str:
    return table if column is None else f"{table}.{column}"


# -- termination: rules that may trigger each other without end --------------------------------


_ANYTHING = 0  # node for the unknown effects of opaque rules; rules are strings


@dataclass(frozen=True, slots=True)
class Cycle:
    """Rules that may all trigger each other, directly or through one another.

    Attributes
    ----------
    rules : tuple of str
        In the order of the rule set.
    edges : tuple of TriggeringEdge
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
    edges: tuple[TriggeringEdge, ...]
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
            return f"nothing bounds it: time triggers {', '.join(self.delayed)} each time"
        return f"bounded by {' and '.join(self.bounds)}: a run that reaches it fails"


def cycles_among(profiles: Sequence[Profile], edges: Sequence[TriggeringEdge]) -> tuple[Cycle, ...]:
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
    inside: list[list[TriggeringEdge]] = [[] for _ in certain]
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
        (part.role is EventRole.COMPLETES or _is_later(part)) and not part.is_outside
        for part in profile.listens
    )


def _is_later(part: Listening) -> bool:
    return part.role is EventRole.LATER


def _cycle(
    names: set[str],
    edges: list[TriggeringEdge],
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
