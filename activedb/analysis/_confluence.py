"""Confluence: pairs of rules whose order is open and affects the outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from activedb.analysis._effects import ChangeEffect, ReadEffect
from activedb.analysis._profile import Profile, event_text
from activedb.analysis._triggering import TriggeringEdge
from coupling import Coupling

__all__ = ["Conflict", "Pair", "pairs_among"]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Reason why two rules do not commute, for one table or one event.

    Attributes
    ----------
    first, second : ChangeEffect, ReadEffect or TriggeringEdge
        Conflicting accesses to the same rows, one by each rule. If one rule triggers the other,
        both are the same edge.
    first_by, second_by : str
        Rule with the access: the rule of the pair, or one that runs inside of it.
    """

    first: ChangeEffect | ReadEffect | TriggeringEdge
    second: ChangeEffect | ReadEffect | TriggeringEdge
    first_by: str
    second_by: str

    def __str__(self) -> str:
        if isinstance(self.first, TriggeringEdge):
            edge = self.first
            return f"{edge.source} may trigger {edge.target}: {edge.reason}"
        assert not isinstance(self.second, TriggeringEdge)
        return f"{_told(self.first_by, self.first)}, {_told(self.second_by, self.second)}"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two rules that may run in either order, or in parallel, with different outcomes.

    Attributes
    ----------
    first, second : str
        Names, in the order of the rule set.
    together : str
        Reason why both may run at the same time.
    conflicts : tuple of Conflict
        At least one.
    """

    first: str
    second: str
    together: str
    conflicts: tuple[Conflict, ...]


def pairs_among(profiles: Sequence[Profile], edges: Sequence[TriggeringEdge]) -> tuple[Pair, ...]:
    """Return the pairs that do not commute, in the order of the rules.

    A pair of one coupling counts if neither a priority nor ``after=`` orders the two and they may
    run together: at one event that both listen to or, for modes that do not start at the event, at
    one commit point. A rule represents all rules that run inside of it: immediate rules that it may
    trigger, recursively, and deferred rules that run before it commits.

    Notes
    -----
    Let *s* be the number of effects of all rules, each with the rules inside of it: O(rules ·
    edges) to find them, then O(s + pairs that touch one table). (After Aiken, Hellerstein, Widom
    1995, section 6; stricter in that two inserts into one table do not commute, as keys may be
    equal or be generated.)
    """
    place = {profile.name: number for number, profile in enumerate(profiles)}
    spheres = spheres_of(profiles, edges)
    leaving: dict[str, list[TriggeringEdge]] = {}
    for edge in edges:
        leaving.setdefault(edge.source, []).append(edge)
    found: dict[tuple[str, str], tuple[str, dict[Conflict, None]]] = {}
    for together, mode, group in _groups(profiles):
        members = [spheres[profile.name] for profile in group]
        for a, b in _touching(members, leaving):
            if place[a.profile.name] > place[b.profile.name]:
                a, b = b, a
            pair = (a.profile.name, b.profile.name)
            if pair in found or _is_ordered(mode, a.profile, b.profile):
                continue
            conflicts = dict.fromkeys(_conflicts(a, b, leaving))
            if conflicts:
                found[pair] = (together, conflicts)
    return tuple(
        Pair(first, second, together, tuple(conflicts))
        for (first, second), (together, conflicts) in sorted(
            found.items(), key=lambda item: (place[item[0][0]], place[item[0][1]])
        )
    )


def _groups(profiles: Sequence[Profile]) -> Iterator[tuple[str, Coupling, list[Profile]]]:
    """Yield the groups of rules that may run together: reason, coupling, members.

    Rules are grouped by coupling, then by event or commit point. A rule whose action has another
    coupling is a member of that coupling's group, too.
    """
    for mode in Coupling:
        members = [p for p in profiles if mode in (p.coupling, p.acts_in)]
        if not mode.starts_at_event:
            yield f"{mode}, at one commit point", mode, members
            continue
        by_key: dict[tuple[str, str], list[Profile]] = {}
        for profile in members:
            for key in sorted(profile.completing):
                by_key.setdefault(key, []).append(profile)
        for key, triggered in sorted(by_key.items()):
            yield f"{mode}, at one event: {event_text(key)}", mode, triggered


def _is_ordered(mode: Coupling, a: Profile, b: Profile) -> bool:
    """Return whether one rule certainly runs after the other.

    Priorities order rules in top-level transactions, too, but with exceptions, for example after a
    crash (``docs/coupling.md``), so these rules count as unordered.
    """
    return mode.is_child and (a.priority != b.priority or a.name in b.after or b.name in a.after)


def _touching(
    members: list[RuleSphere], leaving: Mapping[str, list[TriggeringEdge]]
) -> Iterator[tuple[RuleSphere, RuleSphere]]:
    """Yield pairs where one rule writes a table that the other touches, or triggers the other."""
    writers: dict[str, list[int]] = {}
    readers: dict[str, list[int]] = {}
    number_of = {member.profile.name: number for number, member in enumerate(members)}
    pairs: set[tuple[int, int]] = set()
    for number, member in enumerate(members):
        for table in member.changes:
            writers.setdefault(table, []).append(number)
        for table in member.reads:
            readers.setdefault(table, []).append(number)
        for name in member.rules:
            for edge in leaving.get(name, ()):
                other = number_of.get(edge.target, number)
                pairs.add((min(number, other), max(number, other)))
    for table, writing in writers.items():
        touching = {*writing, *readers.get(table, ())}
        pairs.update((min(a, b), max(a, b)) for a in writing for b in touching)
    for a, b in sorted(pairs):
        if a != b:
            yield members[a], members[b]


def _conflicts(
    a: RuleSphere, b: RuleSphere, leaving: Mapping[str, list[TriggeringEdge]]
) -> Iterator[Conflict]:
    for table, changes in a.changes.items():
        for change, rule in changes.items():
            others: list[tuple[ChangeEffect | ReadEffect, str]] = [
                *b.changes.get(table, {}).items()
            ]
            others += b.reads.get(table, {}).items()
            for other, other_rule in others:
                if _clash(change, other):
                    yield Conflict(change, other, rule, other_rule)
    for table, changes in b.changes.items():
        for change, rule in changes.items():
            for read, other_rule in a.reads.get(table, {}).items():
                if _clash(change, read):
                    yield Conflict(read, change, other_rule, rule)
    for here, there in ((a, b), (b, a)):
        target = there.profile.name
        for name in here.rules:
            for edge in leaving.get(name, ()):
                if edge.target == target and name != target:
                    yield Conflict(edge, edge, name, target)


def _clash(change: ChangeEffect, other: ChangeEffect | ReadEffect) -> bool:
    """Return whether a write and another access to the same table fail to commute."""
    both_by_column = change.kind == "update" and (
        isinstance(other, ReadEffect) or other.kind == "update"
    )
    if both_by_column and change.column is not None and other.column is not None:
        return change.column == other.column
    return True


def _told(rule: str, effect: ChangeEffect | ReadEffect) -> str:
    return f"{rule} {effect}{f' ({effect.place})' if effect.place else ''}"


# -- effects of a rule together with the rules that run inside of it -------------------------------


@dataclass(frozen=True, slots=True)
class RuleSphere:
    """A rule and the effects of its transaction's sphere.

    Attributes
    ----------
    profile : Profile
    rules : tuple of str
        The rule and the rules that run inside of it, nearest first.
    changes : mapping of table to (mapping of ChangeEffect to rule)
        Rows written, each with the nearest rule that writes them.
    reads : mapping of table to (mapping of ReadEffect to rule)
        Tables read, including reads by predicates of the rules that listen to an event raised here.
    """

    profile: Profile
    rules: tuple[str, ...]
    changes: Mapping[str, Mapping[ChangeEffect, str]]
    reads: Mapping[str, Mapping[ReadEffect, str]]


def spheres_of(
    profiles: Sequence[Profile], edges: Sequence[TriggeringEdge]
) -> dict[str, RuleSphere]:
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
    raised: dict[str, list[ReadEffect]] = {name: [] for name in by_name}
    for edge in edges:
        raised[edge.source] += by_name[edge.target].watches
    return {profile.name: _sphere(profile, by_name, inner, raised) for profile in profiles}


def _sphere(
    root: Profile,
    by_name: Mapping[str, Profile],
    inner: Mapping[str, list[str]],
    raised: Mapping[str, list[ReadEffect]],
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
    changes: dict[str, dict[ChangeEffect, str]] = {}
    reads: dict[str, dict[ReadEffect, str]] = {}
    for name in rules:
        effects = by_name[name].effects
        for change in effects.changes:
            changes.setdefault(change.table, {}).setdefault(change, name)
        for read in (*effects.reads, *raised[name]):
            reads.setdefault(read.table, {}).setdefault(read, name)
    return RuleSphere(root, tuple(rules), changes, reads)
