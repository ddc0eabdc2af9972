"""Triggering graph: an edge, with causes, for each rule that may trigger another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from activedb.analysis._effects import ChangeEffect, SignalEffect
from activedb.analysis._profile import EventRole, Listening, Profile

__all__ = ["TriggeringCause", "TriggeringEdge", "edges_between", "listeners"]


_NOTES = {
    EventRole.COMPLETES: "",
    EventRole.LATER: ", after which time completes the pattern",
    EventRole.CONTRIBUTES: ", another part of the pattern",
    EventRole.FORBIDS: ", which the pattern forbids",
}


@dataclass(frozen=True, slots=True)
class TriggeringCause:
    """One reason why a rule may trigger another.

    Attributes
    ----------
    effect : ChangeEffect or SignalEffect
        Effect of the first rule.
    role : EventRole
        Role of the event of this effect for the second rule.
    """

    effect: ChangeEffect | SignalEffect
    role: EventRole

    def __str__(self) -> str:
        place = f" ({self.effect.place})" if self.effect.place else ""
        return f"{self.effect}{place}{_NOTES[self.role]}"


@dataclass(frozen=True, slots=True)
class TriggeringEdge:
    """Edge of the triggering graph: ``source`` may raise an event that ``target`` listens to.

    Attributes
    ----------
    source, target : str
        Names of rules.
    causes : tuple of TriggeringCause
        At least one.
    """

    source: str
    target: str
    causes: tuple[TriggeringCause, ...]

    @property
    def triggers(self) -> bool:
        """True if the source alone can trigger the target at once."""
        return any(cause.role is EventRole.COMPLETES for cause in self.causes)

    @property
    def triggers_later(self) -> bool:
        """True if time can trigger the target after an event of the source."""
        return any(cause.role is EventRole.LATER for cause in self.causes)

    @property
    def reason(self) -> str:
        """Text of all causes, as a sentence without its subject."""
        return "; ".join(map(str, self.causes))


def listeners(
    profiles: Iterable[Profile],
) -> dict[tuple[str, str], list[tuple[Profile, Listening]]]:
    """Return the listeners of each event, in the order of the rules; O(rules and their parts)."""
    found: dict[tuple[str, str], list[tuple[Profile, Listening]]] = {}
    for profile in profiles:
        for part in profile.listens:
            found.setdefault(part.key, []).append((profile, part))
    return found


def edges_between(profiles: Sequence[Profile]) -> tuple[TriggeringEdge, ...]:
    """Return the edges, by source and target in the order of the rules.

    Effects are looked up by their event, so the time is O(rules + effects + causes found), plus
    listeners of the same event that filter by other columns.
    """
    by_key = listeners(profiles)
    place = {profile.name: number for number, profile in enumerate(profiles)}
    edges = []
    for source in profiles:
        causes: dict[str, dict[TriggeringCause, None]] = {}
        effects: list[ChangeEffect | SignalEffect] = [
            *source.effects.changes,
            *source.effects.signals,
        ]
        for effect in effects:
            for target, part in by_key.get(effect.key, ()):
                if part.hears(effect):
                    causes.setdefault(target.name, {})[TriggeringCause(effect, part.role)] = None
        for name in sorted(causes, key=place.__getitem__):
            edges.append(TriggeringEdge(source.name, name, tuple(causes[name])))
    return tuple(edges)
