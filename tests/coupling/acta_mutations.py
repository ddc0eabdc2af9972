"""Small changes of a recorded history: what a recorder or a system that is wrong would make."""

from __future__ import annotations

import dataclasses
import random

from coupling.acta import (
    AbortEvent,
    BeginEvent,
    CommitEvent,
    DelegateEvent,
    Event,
    History,
    ObjectOperation,
    OperationKind,
    SpawnEvent,
    SpawnMode,
)

__all__ = ["KINDS", "mutated"]

KINDS = ("drop", "swap", "move", "repeat", "add", "change")


def mutated(history: History, chance: random.Random) -> tuple[str, History]:
    """A history that differs in one place, and what was done to it."""
    kind = chance.choice(KINDS)
    events = list(history.events)
    i, j = chance.randrange(len(events)), chance.randrange(len(events))
    if kind == "drop":
        del events[i]
    elif kind == "swap":
        events[i], events[j] = events[j], events[i]
    elif kind == "move":
        events.insert(j, events.pop(i))
    elif kind == "repeat":
        events.insert(j, events[i])
    elif kind == "add":
        events.insert(j, _new(history, chance))
    else:
        events[i] = _changed(events[i], history, chance)
    return kind, History(tuple(events))


def _anybody(history: History, chance: random.Random) -> int:
    return chance.choice(history.events).by


def _new(history: History, chance: random.Random) -> Event:
    by, other = _anybody(history, chance), _anybody(history, chance)
    number = (
        max((e.number for e in history.events if isinstance(e, ObjectOperation)), default=0) + 1
    )
    kind = chance.choice(list(OperationKind))
    made: list[Event] = [
        BeginEvent(by),
        CommitEvent(by),
        AbortEvent(by),
        DelegateEvent(by, other),
        ObjectOperation(by, number, kind, chance.choice([("a",), ("a", "1"), ("b", "1")])),
        SpawnEvent(by, number + 1_000, chance.choice(list(SpawnMode)), chance.choice([None, by])),
    ]
    return chance.choice(made)


def _changed(event: Event, history: History, chance: random.Random) -> Event:
    other = _anybody(history, chance)
    match event:
        case CommitEvent():
            return AbortEvent(event.by)
        case AbortEvent():
            return CommitEvent(event.by)
        case ObjectOperation(saw=saw):
            if saw is not None and chance.random() < 0.4:
                return dataclasses.replace(event, saw=chance.randrange(9))
            if chance.random() < 0.4:
                return dataclasses.replace(event, by=other)
            return dataclasses.replace(event, object=("a",), kind=OperationKind.WRITE, saw=None)
        case SpawnEvent():
            return chance.choice(
                [
                    dataclasses.replace(event, mode=chance.choice(list(SpawnMode))),
                    dataclasses.replace(event, parent=chance.choice([None, other])),
                    dataclasses.replace(event, by=other),
                    dataclasses.replace(event, priority=chance.randrange(4), cycle=None),
                ]
            )
        case DelegateEvent():
            return chance.choice(
                [DelegateEvent(event.by, other), DelegateEvent(event.by, event.to, ())]
            )
        case _:
            return dataclasses.replace(event, by=other)
