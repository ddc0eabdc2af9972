"""Results of the static analysis of a rule set."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from activedb.analysis._confluence import Pair, pairs_among
from activedb.analysis._listening import event_text
from activedb.analysis._profile import Profile
from activedb.analysis._termination import Cycle, cycles_among
from activedb.analysis._triggering import Edge, edges_between
from activedb.rules import Rule

__all__ = ["Analysis", "Verdict", "analyze"]


class Verdict(StrEnum):
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
    edges : tuple of Edge
        The triggering graph.
    cycles : tuple of Cycle
        Rules that may trigger each other without end.
    pairs : tuple of Pair
        Rules whose order is open and affects the outcome.
    """

    rules: tuple[Profile, ...]
    edges: tuple[Edge, ...]
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
    def terminates(self) -> Verdict:
        """Verdict on whether every cascade of rules terminates."""
        if any(cycle.is_certain for cycle in self.cycles):
            return Verdict.UNSURE
        return Verdict.UNKNOWN if self.cycles else Verdict.SURE

    @property
    def is_confluent(self) -> Verdict:
        """Verdict on whether the outcome is independent of the orders left open."""
        if self.pairs:
            return Verdict.UNSURE
        return Verdict.UNKNOWN if self.opaque else Verdict.SURE

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


def _edge(edge: Edge) -> dict[str, Any]:
    return {
        "source": edge.source,
        "target": edge.target,
        "triggers": edge.triggers,
        "triggers_later": edge.triggers_later,
        "reason": edge.reason,
    }


def _dotted(table: str, column: str | None) -> str:
    return table if column is None else f"{table}.{column}"
