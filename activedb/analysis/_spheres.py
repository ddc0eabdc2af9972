"""Effects of a rule together with the rules that run inside of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from activedb.analysis._effects import Change, Read
from activedb.analysis._profile import Profile
from activedb.analysis._triggering import Edge

__all__ = ["RuleSphere", "spheres_of"]


@dataclass(frozen=True, slots=True)
class RuleSphere:
    """A rule and the effects of its transaction's sphere.

    Attributes
    ----------
    profile : Profile
    rules : tuple of str
        The rule and the rules that run inside of it, nearest first.
    changes : mapping of table to (mapping of Change to rule)
        Rows written, each with the nearest rule that writes them.
    reads : mapping of table to (mapping of Read to rule)
        Tables read, including reads by predicates of the rules that listen to an event raised here.
    """

    profile: Profile
    rules: tuple[str, ...]
    changes: Mapping[str, Mapping[Change, str]]
    reads: Mapping[str, Mapping[Read, str]]


def spheres_of(profiles: Sequence[Profile], edges: Sequence[Edge]) -> dict[str, RuleSphere]:
    """Return the sphere of each rule; O(rules · (edges + effects)).

    Immediate rules that a rule may trigger, recursively, run inside of it. Deferred ones also run
    before it commits, unless the rule is itself deferred: then they wait for the next cycle of the
    enclosing transaction, after all rules of the present cycle.
    """
    by_name = {profile.name: profile for profile in profiles}
    inner: dict[str, list[str]] = {name: [] for name in by_name}
    for edge in edges:
        if edge.triggers and by_name[edge.target].coupling.is_child:
            inner[edge.source].append(edge.target)
    raised: dict[str, list[Read]] = {name: [] for name in by_name}
    for edge in edges:
        raised[edge.source] += by_name[edge.target].watches
    return {profile.name: _sphere(profile, by_name, inner, raised) for profile in profiles}


def _sphere(
    root: Profile,
    by_name: Mapping[str, Profile],
    inner: Mapping[str, list[str]],
    raised: Mapping[str, list[Read]],
) -> RuleSphere:
    waits = root.coupling.is_child and not root.coupling.starts_at_event
    first = [
        name for name in inner[root.name] if not waits or by_name[name].coupling.starts_at_event
    ]
    rules = dict.fromkeys([root.name, *first])
    # The rule itself is followed again if it is reached again, as its rules do not wait then.
    followed = set(first)
    waiting = deque(first)
    while waiting:
        for name in inner[waiting.popleft()]:
            if name not in followed:
                followed.add(name)
                rules[name] = None
                waiting.append(name)
    changes: dict[str, dict[Change, str]] = {}
    reads: dict[str, dict[Read, str]] = {}
    for name in rules:
        effects = by_name[name].effects
        for change in effects.changes:
            changes.setdefault(change.table, {}).setdefault(change, name)
        for read in (*effects.reads, *raised[name]):
            reads.setdefault(read.table, {}).setdefault(read, name)
    return RuleSphere(root, tuple(rules), changes, reads)
