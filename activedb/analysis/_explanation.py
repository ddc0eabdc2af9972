"""Explanation of an event: the rules it triggers, in order, and the rules these trigger."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from activedb.analysis._analysis import Analysis
from activedb.analysis._effects import ChangeEffect, LockEffect, Outside, SignalEffect
from activedb.analysis._profile import EventRole, Profile, event_text
from activedb.analysis._triggering import TriggeringEdge
from activedb.errors import DefinitionError
from activedb.spelling import did_you_mean
from coupling import Coupling, OrderCycle, ordered_groups, priority_groups

__all__ = ["Explanation", "ExplanationStep", "OpenDecisions", "explain", "profile_named"]

_DEPTH_MAX = 64
_CHANGE = re.compile(r"(insert|update|delete)[ :](.+)")


@dataclass(frozen=True, slots=True)
class ExplanationStep:
    """A rule that an event may trigger.

    Attributes
    ----------
    rule : str
    coupling : Coupling
    priority : int or None
    turn : int
        Counted from 1. Among rules triggered together in one coupling, the rules of one turn run in
        parallel, after all rules of the turn before.
    reason : str
        Effect of the triggering rule; empty if the event itself triggers the rule.
    locks : tuple of LockEffect
        Locks that its condition and action may take, beside those of the rules that they trigger.
    then : tuple of ExplanationStep
        Steps that this rule may trigger in turn; also empty if they are left out.
    left_out : str
        Reason why `then` is left out: ``"shown above"``, at an earlier step; ``"too deep"``,
        nested below 64 rules. Empty if nothing is left out.
    """

    rule: str
    coupling: Coupling
    priority: int | None
    turn: int
    reason: str
    locks: tuple[LockEffect, ...]
    then: tuple[ExplanationStep, ...]
    left_out: str


@dataclass(frozen=True, slots=True)
class OpenDecisions:
    """Open decisions of a rule: possible matches that timestamps alone do not decide.

    Attributes
    ----------
    number : int
    oldest : str
        Id of the decision that is first in time.
    us : int
        Time of its matches, in microseconds since 1970.
    """

    number: int
    oldest: str
    us: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Rules that an event triggers, contributes to, or forbids.

    Attributes
    ----------
    event : str
    steps : tuple of ExplanationStep
        Immediate rules, then deferred ones, then rules with a top-level transaction.
    later : tuple of str
        Rules that the passing of time may trigger after the event.
    contributes, forbids : tuple of str
        Rules for which the event is another part of the pattern, or prevents the pattern.
    decisions : mapping of str to OpenDecisions
        Open decisions of these rules, for rules that have any.
    """

    event: str
    steps: tuple[ExplanationStep, ...]
    later: tuple[str, ...]
    contributes: tuple[str, ...]
    forbids: tuple[str, ...]
    decisions: Mapping[str, OpenDecisions]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "event": self.event,
            "triggers": [_step(step) for step in self.steps],
            "later": list(self.later),
            "contributes": list(self.contributes),
            "forbids": list(self.forbids),
            "decisions": {rule: asdict(left) for rule, left in self.decisions.items()},
        }


def explain(
    analysis: Analysis,
    event: str,
    *,
    columns: Mapping[str, Collection[str]] | None = None,
    decisions: Mapping[str, OpenDecisions] | None = None,
) -> Explanation:
    """Explain an event. Each rule is expanded once, so O(rules + edges).

    Parameters
    ----------
    analysis : Analysis
    event : str
        A signal's or stream event's name, ``"insert accounts"``, ``"update accounts"``,
        ``"update accounts.balance"``, ``"delete accounts"``, ``"late ward"`` for late events of
        the stream ward, ``"call pay"`` and ``"return pay"`` for a function (a colon may replace the
        space); a clock event as it is displayed, such as ``"EVERY 60s"``; ``"time"`` for the
        passing of time.
    columns : mapping of str to collection of str, optional
        Columns of each declared table.
    decisions : mapping of str to OpenDecisions, optional
        Open decisions of each rule that has any.

    Raises
    ------
    DefinitionError
        If no rule listens to such an event or raises it, or the table has no such column.
    """
    effect = _effect(analysis, event)
    if isinstance(effect, ChangeEffect) and effect.column is not None:
        known = None if columns is None else columns.get(effect.table)
        if known is not None and effect.column not in known:
            raise DefinitionError(
                f"table {effect.table} has no column {effect.column!r}; "
                f"{did_you_mean(effect.column, known)}"
            )
    by_name = {profile.name: profile for profile in analysis.rules}
    hearing: dict[EventRole, dict[str, None]] = {role: {} for role in EventRole}
    for profile in analysis.rules:
        for part in profile.listens:
            if part.hears(effect):
                hearing[part.role][profile.name] = None
    leaving: dict[str, list[TriggeringEdge]] = {}
    for edge in analysis.edges:
        if edge.triggers:
            leaving.setdefault(edge.source, []).append(edge)
    triggered = [(by_name[name], "") for name in hearing[EventRole.COMPLETES]]
    steps = _Unfolding(by_name, leaving).steps(triggered, depth=1)
    concerned = set(_named(steps)).union(*hearing.values())
    return Explanation(
        event=_shown(effect),
        steps=steps,
        later=tuple(hearing[EventRole.LATER]),
        contributes=tuple(hearing[EventRole.CONTRIBUTES]),
        forbids=tuple(hearing[EventRole.FORBIDS]),
        decisions={rule: left for rule, left in (decisions or {}).items() if rule in concerned},
    )


def profile_named(analysis: Analysis, name: str) -> Profile:
    """Return the profile of the rule with this name.

    Raises
    ------
    DefinitionError
        If there is no such rule; the message names the nearest.
    """
    for profile in analysis.rules:
        if profile.name == name:
            return profile
    known = [profile.name for profile in analysis.rules]
    raise DefinitionError(f"there is no rule {name!r}; {did_you_mean(name, known)}")


class _Unfolding:
    """Unfolding of an event into the rules that it triggers, those that these trigger, and so on.

    Each rule is unfolded once, at its first step.
    """

    def __init__(self, rules: Mapping[str, Profile], leaving: Mapping[str, list[TriggeringEdge]]):
        self._rules = rules
        self._leaving = leaving
        self._shown: set[str] = set()

    def steps(
        self, triggered: Sequence[tuple[Profile, str]], *, depth: int
    ) -> tuple[ExplanationStep, ...]:
        """Return the steps of rules that are triggered together, each with its reason."""
        steps = []
        # Immediate, deferred, then rules that start a top-level transaction.
        kinds = [(True, True), (True, False), (False, True), (False, False)]
        for is_child, at_event in kinds:
            members = [
                (profile, reason)
                for profile, reason in triggered
                if profile.coupling.is_child is is_child
                and profile.coupling.starts_at_event is at_event
            ]
            groups = _in_turn(members) if is_child else [members]  # only children are ordered
            for turn, group in enumerate(groups, start=1):
                steps += [self._step(profile, turn, reason, depth) for profile, reason in group]
        return tuple(steps)

    def _step(self, profile: Profile, turn: int, reason: str, depth: int) -> ExplanationStep:
        name = profile.name
        edges = self._leaving.get(name, ())
        next_ones = [(self._rules[edge.target], edge.reason) for edge in edges]
        left_out = ""
        if next_ones and (name in self._shown or depth == _DEPTH_MAX):
            left_out = "shown above" if name in self._shown else "too deep"
        if left_out != "too deep":
            self._shown.add(name)
        return ExplanationStep(
            name,
            profile.coupling,
            profile.priority,
            turn,
            reason,
            locks=profile.effects.locks,
            then=() if left_out else self.steps(next_ones, depth=depth + 1),
            left_out=left_out,
        )


def _in_turn(members: Sequence[tuple[Profile, str]]) -> list[list[tuple[Profile, str]]]:
    """Return groups of rules that run one after another.

    If `after` has a cycle, the groups are by priority alone.
    """
    try:
        groups = ordered_groups(
            members,
            name=lambda item: item[0].name,
            priority=lambda item: item[0].priority,
            after=lambda item: item[0].after,
        )
    except OrderCycle:
        return priority_groups(members, lambda item: item[0].priority)
    return [group.items for group in groups]


def _named(steps: Iterable[ExplanationStep]) -> Iterator[str]:
    """Yield the names of the rules in steps, at any depth."""
    for step in steps:
        yield step.rule
        yield from _named(step.then)


def _effect(analysis: Analysis, event: str) -> ChangeEffect | Outside | SignalEffect:
    keys = {part.key for profile in analysis.rules for part in profile.listens}
    for profile in analysis.rules:
        keys |= {effect.key for effect in profile.effects.changes + profile.effects.signals}
    if ("event", event) in keys:
        return SignalEffect(event)
    found = _CHANGE.fullmatch(event)
    if found is not None:
        kind, place = found.groups()
        table, _, column = place.rpartition(".")
        if (kind, place) in keys:
            return ChangeEffect(kind, place)
        if kind == "update" and (kind, table) in keys:
            return ChangeEffect(kind, table, column)
    for key in sorted(keys):
        if event_text(key) in (event, event.replace(":", " ", 1)):
            return Outside(key)
    known = [event_text(key) for key in keys]
    raise DefinitionError(
        f"no rule listens to an event {event!r} or raises it; "
        f"{did_you_mean(event.replace(':', ' ', 1) if found else event, known)}"
    )


def _shown(effect: ChangeEffect | Outside | SignalEffect) -> str:
    column = effect.column if isinstance(effect, ChangeEffect) else None
    return event_text(effect.key) + ("" if column is None else f".{column}")


def _step(step: ExplanationStep) -> dict[str, Any]:
    return {
        "rule": step.rule,
        "coupling": str(step.coupling),
        "priority": step.priority,
        "turn": step.turn,
        "reason": step.reason,
        "locks": [asdict(lock) for lock in step.locks],
        "then": [_step(each) for each in step.then],
        "left_out": step.left_out,
    }
