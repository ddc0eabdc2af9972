"""Roles of events, compared with detectors over random expressions and streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from activedb.analysis._profile import TIME, EventRole, listening_of
from activedb.events import Detector, Occurrence, Periodic, TimedOut
from tests.drawing import Worlds
from tests.events.generation import CONTEXTS, Plan, random_expression

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from random import Random

    from activedb.events import Expression

CASES = 400
EVERYTHING = Plan(
    ending=True,
    nested=True,
    timed=True,
    conjunctions=True,
    contexts=("unrestricted", *CONTEXTS),
    selections=("any", "next", "strict"),
    skips=("none", "to_next", "past_last"),
)
UNRESTRICTED = Plan(ending=True, nested=True, timed=True, conjunctions=True)


@dataclass(frozen=True)
class Made:
    """A match, and the key of the event whose feed made it; that of time if none did."""

    by: tuple[str, str]
    parts: tuple[object, ...]


def case(draw: Random, plan: Plan) -> tuple[Expression, list[Occurrence]]:
    """An expression, and a stream in time order."""
    expression = random_expression(draw, plan)
    at = 0
    events = []
    for n in range(draw.randrange(2, 14)):
        at += draw.choice([0, 1, 1, 2])
        params = {"w": draw.randrange(2), "x": draw.randrange(3), "n": n}
        events.append(Occurrence(draw.choice("ABC"), at, params))
    return expression, events


def made_of(expression: Expression, events: Sequence[Occurrence]) -> list[Made]:
    """Return what a detector makes of a stream that is followed by silence."""
    detector = Detector(expression)
    made: list[Made] = []

    def told(by: tuple[str, str], matches: Sequence[Occurrence]) -> None:
        for match in matches:
            # By its events alone: if they fulfil two parts of any_of, or one part in two ways, only
            # the first is made.
            events = [leaf for part in match.parts.values() for leaf in _leaves(part)]
            made.append(Made(by, (match.us, *sorted(events or _leaves(match)))))

    for o in events:
        told(TIME, detector.advance(o.us))
        told(o.key, detector.feed(o))
    told(TIME, detector.advance(events[-1].us + 20_000_000 if events else 0))
    return made


def _leaves(part: Occurrence | tuple[Occurrence, ...]) -> tuple[Any, ...]:
    """The primitive events, also of a query's output."""
    found: list[Any] = []
    for o in part if isinstance(part, tuple) else (part,):
        if o.parts:
            found += [leaf for inner in o.parts.values() for leaf in _leaves(inner)]
        else:
            found.append((o.name, o.us, o.params.get("n")))
    return tuple(found)


def test_match_is_made_only_by_what_completes_its_expression(scale: int) -> None:
    worlds = Worlds(CASES * scale, "completes", by_time=100)
    for draw in worlds:
        expression, events = case(draw, EVERYTHING)
        completing = {p.key for p in listening_of(expression) if p.role is EventRole.COMPLETES}
        for made in made_of(expression, events):
            assert made.by in completing, (expression, events)
            worlds.met["by_time"] += made.by == TIME


def test_events_that_only_help_never_prevent_and_the_other_way_round(scale: int) -> None:
    worlds = Worlds(CASES * scale, "helps", helped=50, prevented=1)
    for draw in worlds:
        expression, events = case(draw, UNRESTRICTED)
        told = expression, events
        # What a time-out has as its parts, and which end closes a period, is no yes or no.
        if any(isinstance(each, Periodic | TimedOut) for each in _walk(expression)):
            continue
        everything = {made.parts for made in made_of(expression, events)}
        for name in "ABC":
            roles = {p.role for p in listening_of(expression) if p.key == ("event", name)}
            without = [o for o in events if o.name != name]
            # The clock begins with the first event and ends after the last: these must stay.
            if name in (events[0].name, events[-1].name):
                continue
            left = {made.parts for made in made_of(expression, without)}
            if EventRole.FORBIDS not in roles:
                assert left <= everything, told
                worlds.met["helped"] += left < everything
            if roles == {EventRole.FORBIDS}:
                assert left >= everything, told
                worlds.met["prevented"] += left > everything
            if not roles:
                assert left == everything, told


def _walk(expression: Expression) -> Iterator[Expression]:
    yield expression
    for child in expression.children:
        yield from _walk(child)
