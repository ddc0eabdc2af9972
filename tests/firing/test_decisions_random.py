"""Decisions resolved as one world has it: the rule has then fired for exactly its matches."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import activedb as adb
from activedb.clock import moment_of
from activedb.events import AccuracyInterval, Detector, Occurrence
from tests.drawing import Worlds

if TYPE_CHECKING:
    from activedb import Stream
    from tests.ledger import Ledger

NODES = {"P": "A", "Q": "B", "R": "B", "S": "C"}
START_US = 1_700_000_000_000_000
CONTEXTS = ("chronicle", "recent", "continuous")  # the candidates of cumulative are elements


def pattern(chance: Random, world: int) -> adb.Expression:
    """A pattern of two or three parts."""
    names = chance.choice(["AB", "AB", "ABC"])
    parts = [adb.event(f"{name}{world}", alias=name) for name in names]
    made = chance.choice([adb.seq, adb.all_of])(*parts)
    return made.context(chance.choice(CONTEXTS)) if chance.random() < 0.8 else made


def happened(chance: Random, world: int) -> list[tuple[Occurrence, int]]:
    """Events with their true times: all different, and within the intervals."""
    found = []
    true_us = START_US
    last = dict.fromkeys(NODES, START_US)  # what a producer sends is in order
    for number in range(chance.randint(3, 6)):
        node = chance.choice([*NODES])
        true_us += chance.randint(1, 8)
        low_us = max(true_us - chance.choice([0, 0, 3, 9]), last[node])
        high_us = true_us + chance.choice([0, 0, 3, 9])
        last[node] = low_us
        stamp = AccuracyInterval(low_us, low_us, high_us, node=node)
        found.append((Occurrence(f"{NODES[node]}{world}", stamp, {"n": number}), true_us))
    return found


def numbers_of(parts: Any) -> tuple[Any, ...]:
    """Identify a match by the numbers of its events, part by part."""
    return tuple(sorted((name, _numbers(found)) for name, found in parts.items()))


def _numbers(found: Any) -> Any:
    if isinstance(found, tuple):
        return tuple(sorted(o.params["n"] for o in found))
    return found.params["n"]


def made_in(expression: adb.Expression, events: list[tuple[Occurrence, int]]) -> list[Any]:
    """Return the matches of the pattern if the events happened at these times."""
    detector = Detector(expression)
    found = []
    for o, us in events:
        found += detector.feed(Occurrence(o.name, moment_of(us), o.params))
    return sorted(numbers_of(match.parts) for match in found)


def resolve_all(ledger: Ledger, expected: list[Any], rule: str) -> tuple[int, int]:
    """Resolve each open decision as the world has it; return their number, and the most at once."""
    count = most = 0
    while decisions := [d for d in ledger.db.decisions.list(open=True) if d.rule == rule]:
        decision = decisions[0]
        chosen = [
            number
            for number, candidate in enumerate(decision.candidates)
            if numbers_of(candidate) in expected
        ]
        ledger.db.decisions.resolve(decision.id, chosen)
        left = [d for d in ledger.db.decisions.list(open=True) if d.rule == rule]
        count += 1
        most = max(most, len(decisions) - len(left))
    return count, most


def test_decisions_resolved_as_a_world_has_it_make_its_matches(ledger: Ledger) -> None:
    worlds = Worlds(30, "decisions", several=1)
    for number, chance in enumerate(worlds):
        expression, events = pattern(chance, number), happened(chance, number)
        made: list[Any] = []
        name = f"world{number}"
        stream: Stream = ledger.db.stream(
            name,
            types={f"{each}{number}": ("n",) for each in "ABC"},
            membership="atomic",
            silent_after=3_600.0,
        )
        for node, type_ in NODES.items():
            stream.producers.register(node, [f"{type_}{number}"])

        def keep(t: adb.Transaction, o: Occurrence, made: list[Any] = made) -> None:
            made.append(numbers_of(o.parts))

        ledger.db.rules.create(keep, on=expression, name=name)
        for o, _ in sorted(events, key=lambda each: each[0].high_us):
            stream.feed([o])
        end_us = START_US + 10_000
        for node in NODES:
            stream.producers.heartbeat(AccuracyInterval(end_us, end_us, end_us, node=node))
        expected = made_in(expression, events)
        context = f"{expression}; {events}"
        count, most = resolve_all(ledger, expected, name)
        worlds.met["resolved"] += count > 0
        worlds.met["several"] += most > 2  # one choice has settled two others
        assert sorted(made) == expected, context
        ledger.db.rules.delete(name)
