"""What a rule does together with the rules that run inside of it."""

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
    """A rule and what its transaction's sphere does.

    Attributes
    ----------
    profile : Profile
    rules : tuple of str
        It and those that run inside of it, nearest first.
    changes : mapping of table to (mapping of Change to rule)
        What is written, and which of the rules does so; the nearest one.
    reads : mapping of table to (mapping of Read to rule)
        Also what is read when one of them raises an event: by predicates of those who listen.
    """

    profile: Profile
    rules: tuple[str, ...]
    changes: Mapping[str, Mapping[Change, str]]
    reads: Mapping[str, Mapping[Read, str]]


def spheres_of(profiles: Sequence[Profile], edges: Sequence[Edge]) -> dict[str, RuleSphere]:
    """Return the sphere of each rule; O(rules · (edges + effects)).

    Inside of a rule run the immediate ones it may trigger, and so on. The deferred ones run before
    it commits, too, unless it is itself deferred: then they wait for the next cycle of the
    transaction around it, after all of its own cycle.
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
    # The rule itself is followed once more if it is reached again: it does not wait then.
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
