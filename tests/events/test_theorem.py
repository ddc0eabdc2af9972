"""The theorem: what is made of events with uncertain times, against every world that they allow.

Random events, random ways of telling a detector; expressions of every operator, each in every
context, and sequences with every selection and skip, too. A failure prints what was fed and a world
that shows it; the same happens again with the printed ``ACTIVEDB_TEST_SEED``.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from activedb.columns.events import EventColumns
from activedb.errors import BadEvent, PatternError, UncertainOrder
from activedb.events import (
    AccuracyInterval,
    Detector,
    Expression,
    LocalClock,
    Negation,
    Occurrence,
    all_of,
    aperiodic,
    detect,
    event,
    every,
    many,
    optional,
    periodic,
    precedes,
    query,
    seq,
    some_of,
)
from activedb.events import Sequence as Seq
from activedb.events._undecided import text_of
from activedb.events.detection._node import DetectorState
from activedb.events.terms import part
from tests import drawing

from .generation import CONTEXTS, EVERYTHING, random_expression
from .judging import END_US, Case, drawn, shown, some_worlds
from .measure_uncertain import EXPRESSIONS, measured
from .telling import ARRIVALS, Outcome, Telling, arrived, numbered, tell
from .worlds import SECOND_US, identity_of, number_of

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
SEED = os.environ["ACTIVEDB_TEST_SEED"]  # set by tests/conftest.py if it is not given
A, B, C, N = (event(name) for name in "ABCN")

OPERATORS: dict[str, Expression] = {
    "sequence": seq(A, B),
    "sequence of three": seq(A, B, C),
    "negation inside": seq(A, ~N, B),
    "negation at the start": seq(~N, A, B).within(4),
    "negation at the end": seq(A, ~N).within(3),
    "negation after two": seq(A, B, ~N).within(4),
    "window": seq(A, B).within(3),
    "gap": seq(A, B, C).gap(2),
    "gap and window": seq(A, B, C).gap(2).within(3),
    "same": seq(A, B).same("w"),
    "same with a negation": seq(A, ~N, B).same("w").within(4),
    "predicate": seq(A, B, C).where(part("A").x <= part("C").x),
    "function": seq(A, B).where(lambda parts: parts["A"].params["x"] <= parts["B"].params["x"]),
    "function of many": seq(A, many(B))
    .where(lambda parts: sum(b.params["x"] for b in parts["B"]) < 2)
    .within(4),
    "sum at the end": seq(A, many(B)).where(part("B").x.sum() >= 1).within(4),
    "negation before an optional end": seq(A, ~N, optional(B)).within(4),
    "all": all_of(A, B),
    "all in a window": all_of(A, B).within(3),
    "all the same": all_of(A, B).same("w"),
    "some": some_of(2, A, B, C),
    "many": seq(A, many(B), C).within(6),
    "many at the end": seq(A, many(B)).within(4),
    "two of many": seq(A, many(B, 2, 2)).within(6),
    "optional": seq(A, optional(B), C).within(5),
    "or": seq(A | C, B),
    "or in a conjunction": all_of(A | C, B).within(3),
    "or of composites": seq(A, B) | all_of(A, C),
    "sequence in a sequence": seq(seq(A, B), C),
    "sequence in a sequence, later": seq(C, seq(A, B)),
    "sequence in a conjunction": all_of(seq(A, B), C),
    "conjunction in a sequence": seq(all_of(A, B), C).within(5),
    "or of two ways": all_of(event("A", alias="a"), event("A", alias="b")).within(3) | C,
    "or of two kinds, alike": seq(A, B).within(2) | all_of(A, B),
    "or of two kinds": seq(A, B).within(2) | all_of(event("A", alias="a"), B),
    "or of a match and its event": some_of(1, seq(C, A), event("B", alias="b")) | B,
    "query": query("Q", seq(A, B)),
    "query in a sequence": seq(query("Q", seq(A, B)), C),
    "after": A.after(2) | B,
    "after in a sequence": seq(A.after(2), B),
    "aperiodic": aperiodic(A, B, C),
    "all aperiodic": aperiodic(A, B, C, collected=True).within(6),
    "timed out": seq(A, B).within(3).timed_out(),
    "timed out after two": seq(A, B, C).within(4).timed_out(),
    "timed out with a predicate": seq(A, B, C)
    .where(part("A").x <= part("B").x)
    .within(4)
    .timed_out(),
    "timed out after a negation": seq(~N, A, B, C).within(4).timed_out(),
    "timed out in a sequence": seq(seq(A, B).within(2).timed_out(), C),
    "negation at the end in a sequence": seq(seq(A, ~N).within(2), B),
    "negation at the end in another": seq(A, seq(B, ~N).within(2), ~event("N", alias="M")).within(
        5
    ),
    "two before a negation at the end in a sequence": seq(seq(A, B, ~N).within(2), C).within(5),
    "two before a negation at the end in another": seq(
        seq(A, B, ~N).within(2), ~event("C", alias="M")
    ).within(5),
    "after before a negation at the end": seq(A, B.after(2), ~N).within(5),
    "clock": seq(A, every(3, alias="T"), B),
    "periodic": periodic(A, 2, B),
    "all periodic": periodic(A, 2, B, collected=True),
}
# Of what is compared with many times there are many worlds of few events.
FEW = ("clock", "periodic", "all periodic")


def _variants() -> Iterator[tuple[str, str, Expression]]:
    for name, expression in OPERATORS.items():
        yield name, "as it is", expression
        for context in CONTEXTS:
            chosen = expression.context(context)
            if chosen != expression:
                yield name, context, chosen
        if isinstance(expression, Seq):
            for selection in ("next", "strict"):
                try:
                    selected = expression.selecting(selection)
                    selected.check()
                except PatternError:
                    continue
                yield name, selection, selected
            last = expression.names[-1]
            for skip in (("to_next",), ("past_last",), ("to_first", last), ("to_last", last)):
                yield name, " ".join(skip), expression.skipping(*skip)


VARIANTS: dict[str, dict[str, Expression]] = {}
for _operator, _name, _expression in _variants():
    VARIANTS.setdefault(_operator, {})[_name] = _expression


def random_events(
    expression: Expression, random: Random, *, widths: Sequence[int], few: bool = False
) -> list[Occurrence]:
    """Events that the expression listens to, in the order of their arrival.

    Mostly one for each part, in the order of the parts, so that something comes of them.
    """
    names = [name for _, name in sorted(expression.keys)]
    wanted = _skeleton(expression)
    more = random.choice([0, 1] if few else [0, 1, 1, 2, 3])
    drawn_names = [*wanted, *random.choices(names, k=more)][: 3 if few else 6]
    if random.random() < 0.3:
        random.shuffle(drawn_names)
    span = random.choice([3, 5, 8])
    lows = [random.randint(0, span) for _ in drawn_names]
    if random.random() < 0.7:
        lows = sorted(lows)
    clock = LocalClock("started at noon")
    has_clocks = random.random() < 0.25
    found = []
    for name, low in zip(drawn_names, lows, strict=True):
        high = low + random.choice(widths)
        ends_us = low * SECOND_US, high * SECOND_US
        reading_us = random.choice([*ends_us, sum(ends_us) // 2])
        more_of: dict[str, Any] = {}
        if has_clocks and random.random() < 0.6:
            local_us = reading_us + random.randint(0, 9)
            more_of = {"node": "n", "local_us": local_us, "local_clock": clock}
        stamp = AccuracyInterval(reading_us, *ends_us, **more_of)
        params = {"w": random.choice([0, 0, 1]), "x": random.randint(0, 1)}
        found.append(Occurrence(name, stamp, params))
    return arrived(found, random.choice(ARRIVALS), random)


def _skeleton(expression: Expression) -> list[str]:
    """The names of the events that its positive parts take, in their order."""
    if isinstance(expression, Negation):
        return []
    if not expression.children:
        return [name for kind, name in expression.keys if kind == "event"]
    return [name for child in expression.children for name in _skeleton(child)]


CASES = SCALE
"""Number of cases that a run draws for each variant of an operator."""


@cache
def cases_of(operator: str) -> list[Case]:
    """Return the cases of an operator: the worlds of each are found once, for all tests."""
    few = operator in FEW
    widths = (0, 0, 1, 2) if few else (0, 0, 1, 2, 3)
    found = []
    for name, expression in VARIANTS[operator].items():
        random = Random(f"{SEED} {operator} {name}")

        def events(expression: Expression = expression, random: Random = random) -> Any:
            return random_events(expression, random, widths=widths, few=few)

        found += [drawn(expression, events, random) for _ in range(CASES)]
    return found


def cases(operator: str, what: str) -> Iterator[tuple[Case, Random]]:
    """The cases, and what else is random in a test of them."""
    random = Random(f"{SEED} {operator} {what}")
    return ((case, random) for case in cases_of(operator))


def telling(random: Random) -> Telling:
    """A way of telling; mostly the plain one."""
    if random.random() < 0.5:
        return Telling()
    return Telling(
        withdrawn=random.choice([0, 0.3]),
        cut=random.choice([0, 0.3]),
        trimmed=random.choice([0, 0.5, 0.8]),
        is_sharing=random.random() < 0.3,
    )


def check(case: Case, *complaints: str | None) -> None:
    for complaint in complaints:
        if complaint is not None:
            pytest.fail(f"{case}: {complaint} (ACTIVEDB_TEST_SEED={SEED})", pytrace=False)


@pytest.mark.long
@pytest.mark.parametrize("operator", list(VARIANTS))
def test_certain_and_raise_make_what_every_world_makes(operator: str) -> None:
    for case, random in cases(operator, "certain"):
        way, seed = telling(random), random.random()
        certain = told(case, "certain", way, seed)
        raised = told(case, "raise", way, seed)
        check(
            case,
            case.uncertain(certain.made),
            case.missed(certain.made),
            case.untold(certain),
            differ("raise", raised.made, certain.made),
            differ("raise, left open", Counter(raised.candidates), Counter(certain.candidates)),
        )


@pytest.mark.long
@pytest.mark.parametrize("operator", list(VARIANTS))
def test_possible_makes_what_some_world_makes(operator: str) -> None:
    for case, random in cases(operator, "possible"):
        possible = told(case, "possible", telling(random), random.random())
        check(case, case.impossible(possible.made), case.missed(possible.made))


@pytest.mark.long
@pytest.mark.parametrize("operator", list(VARIANTS))
def test_what_was_forgotten_decides_nothing(operator: str) -> None:
    for name, expression in VARIANTS[operator].items():
        for number in range(5 * CASES):
            random = Random(f"{SEED} forgotten {operator} {name} {number}")
            events = random_events(expression, random, widths=(0, 0, 1, 2, 3), few=operator in FEW)
            case, seed = Case(expression, events, []), random.random()
            kept, forgot = (
                told(case, "certain", Telling(trimmed=trimmed), seed) for trimmed in (0, 0.8)
            )
            # Who forgets may know less, or tell more exactly: then the worlds are asked.
            if (forgot.made, forgot.candidates) != (kept.made, kept.candidates):
                case = Case(expression, events, some_worlds(expression, events, random))
                check(case, case.uncertain(forgot.made), case.untold(forgot))


def told(case: Case, policy: Any, way: Telling, seed: float) -> Outcome:
    return tell(case.expression, case.events, policy, END_US, way, Random(seed))


def differ(what: str, found: Counter[Any], expected: Counter[Any]) -> str | None:
    if found == expected:
        return None
    return f"{what}: {shown(found)}; expected {shown(expected)}"


@pytest.mark.long
@pytest.mark.parametrize("operator", list(VARIANTS))
def test_detect_makes_what_every_or_some_world_makes(operator: str) -> None:
    for case, _ in cases(operator, "detect"):
        certain, possible = (detected(case, policy) for policy in ("certain", "possible"))
        try:
            raised = detected(case, "raise")
        except UncertainOrder:
            raised = certain
        check(
            case,
            case.uncertain(certain, any_order=True),
            case.missed(certain),
            case.impossible(possible),
            differ("raise", raised, certain),
        )


DELAYS = {
    "one": A.after(2),
    "of a delay": A.after(1).after(2),
    "of either": (A | C).after(2),
    "of a query": query("Q", A).after(2),
    "or the other": A.after(1) | C.after(3),
    "chosen": (A.after(2) | C.after(2)).context("chronicle"),
}


@pytest.mark.parametrize("delay", list(DELAYS))
def test_what_each_event_makes_by_itself_is_never_in_doubt(delay: str) -> None:
    expression = DELAYS[delay]
    for number in range(4 * CASES):
        random = Random(f"{SEED} delays {delay} {number}")
        events = random_events(expression, random, widths=(0, 1, 2, 3))
        case, way, seed = Case(expression, events, []), telling(random), random.random()
        for policy in ("certain", "raise", "possible"):
            outcome = told(case, policy, way, seed)
            assert (outcome.made.total(), outcome.candidates) == (len(events), set()), case
            assert detected(case, policy) == outcome.made, case


def test_delays_of_events_in_one_moment_that_a_local_clock_orders_are_never_in_doubt() -> None:
    """No exact times show the order of the first two."""

    def occurrence(name: str, low: int, high: int, local_us: int | None) -> Occurrence:
        local: dict[str, Any] = {}
        if local_us is not None:
            local = {
                "node": "n",
                "local_us": local_us,
                "local_clock": LocalClock("started at noon"),
            }
        ends_us = (low * SECOND_US, high * SECOND_US)
        reading_us = min(max(ends_us[0], local_us or 0), ends_us[1])
        return Occurrence(name, AccuracyInterval(reading_us, *ends_us, **local), {})

    first, second = occurrence("C", 1, 3, 1_000_004), occurrence("A", 0, 1, 1_000_009)
    third, fourth = occurrence("A", 2, 3, 2_500_005), occurrence("C", 3, 6, None)
    detector = Detector((A | C).after(2), on_uncertain="certain")
    made = detector.feed(first, None, [fourth])
    made += detector.feed(second, None, [])
    made += detector.advance(2 * SECOND_US)
    detector.trim(2 * SECOND_US)
    made += detector.feed(third, None, [fourth])
    made += detector.advance(3 * SECOND_US)
    made += detector.feed(fourth, None, [])
    made += detector.advance(5 * SECOND_US)
    made += detector.advance(END_US)
    assert len(made) == 4
    assert not detector.undecided


@pytest.mark.long
@pytest.mark.parametrize("operator", [name for name in VARIANTS if "many" in name])
def test_elements_are_in_an_order_of_some_world(operator: str) -> None:
    until = (END_US - 1) / SECOND_US
    for case, _ in cases(operator, "elements"):
        if "cumulative" not in repr(case.expression).lower():  # one match of them, in any order
            made = detect(case.expression, case.events, on_uncertain="possible", until=until)
            check(case, case.disordered(made))


def test_elements_of_a_match_are_not_proved_by_those_of_another_order() -> None:
    def stamp(low: int, high: int, reading: int, local_us: int | None = None) -> AccuracyInterval:
        ends_us = (reading * SECOND_US, low * SECOND_US, high * SECOND_US)
        if local_us is None:
            return AccuracyInterval(*ends_us)
        clock = LocalClock("started at noon")
        return AccuracyInterval(*ends_us, node="n", local_us=local_us, local_clock=clock)

    a = Occurrence("A", stamp(1, 2, 1, 1_000_003), {"n": 0})
    b1 = Occurrence("B", stamp(2, 4, 4, 4_000_004), {"n": 1})
    b2 = Occurrence("B", stamp(1, 4, 4, 4_000_006), {"n": 2})  # after b1, by the local clock
    b3 = Occurrence("B", stamp(3, 4, 3), {"n": 3})
    pattern = seq(A, many(B, 2, 2)).within(6).skipping("to_next")
    made = detect(pattern, [a, b1, b2, b3], on_uncertain="possible")
    orders = [[o.params["n"] for o in match.parts["B"]] for match in made]
    # Before b2 and b3, in this order, b1 and b2 have made the match with this A.
    assert sorted(orders) == [[1, 2], [1, 3], [3, 1], [3, 2]]


def detected(case: Case, policy: Any) -> Counter[Any]:
    until = (END_US - 1) / SECOND_US  # inclusive
    found = detect(case.expression, case.events, on_uncertain=policy, until=until)
    return Counter(identity_of(match.parts or {match.name: match}) for match in found)


@pytest.mark.long
@pytest.mark.parametrize("operator", list(VARIANTS))
def test_events_with_one_world_make_what_that_makes(operator: str) -> None:
    for name, expression in VARIANTS[operator].items():
        # Completeness: nothing in the expression is compared with moments inside the intervals.
        random = Random(f"{SEED} one {operator} {name}")

        def events(expression: Expression = expression, random: Random = random) -> Any:
            return apart(random_events(expression, random, widths=(0,), few=True), random)

        for _ in range(SCALE):
            case = drawn(
                expression,
                events,
                random,
                says=lambda c: c.possible and not c.worlds[1:] and c.is_complete,
            )
            for policy in ("certain", "raise", "possible", "reading"):
                outcome = told(case, policy, telling(random), random.random())
                check(case, differ(policy, outcome.made, case.made[0]), left_open(outcome))


def left_open(outcome: Outcome) -> str | None:
    left = [identity_of(parts) for each in outcome.left for parts in each.candidates]
    return f"left open {shown(left)}" if outcome.left else None


def apart(events: list[Occurrence], random: Random) -> list[Occurrence]:
    """The events without local clocks, most with intervals that reach over no whole second."""
    found = []
    for o in events:
        low_us = high_us = o.low_us
        if random.random() < 0.7:
            low_us += 100_000
            high_us = low_us + random.choice([10_000, 50_000])
        stamp = AccuracyInterval(random.choice([low_us, high_us]), low_us, high_us)
        found.append(Occurrence(o.name, stamp, o.params))
    return arrived(found, random.choice(ARRIVALS), random)


@pytest.mark.parametrize("operator", ["same", "same with a negation", "all the same"])
def test_key_of_which_all_is_known_misses_nothing(operator: str) -> None:
    random = Random(f"{SEED} keys {operator}")
    for expression in VARIANTS[operator].values():

        def events(expression: Expression = expression) -> Any:
            known = apart(random_events(expression, random, widths=(0,), few=True), random)
            other = random_events(expression, random, widths=(1, 3), few=True)
            both = [with_key(o, key) for key, each in enumerate((known, other)) for o in each]
            return arrived(both, random.choice(ARRIVALS), random)

        for _ in range(SCALE):
            # The worlds of both keys are many: those of one are asked, as it is apart.
            fed: list[Occurrence] = []

            def of_one_key(fed: list[Occurrence] = fed, events: Any = events) -> Any:
                fed[:] = events()
                own = [o for o in fed if o.params["w"] == 0]
                return [numbered(o, n) for n, o in enumerate(own)]

            case = drawn(
                expression, of_one_key, random, says=lambda c: c.possible and not c.worlds[1:]
            )
            for policy in ("certain", "raise", "possible"):
                own = [number_of(o) for o in fed if o.params["w"] == 0]
                names = {n: place for place, n in enumerate(own)}
                outcome = tell(expression, fed, policy, END_US, telling(random), random)
                made = Counter(
                    {
                        renamed: count
                        for identity, count in outcome.made.items()
                        if (renamed := with_numbers(identity, names)) is not None
                    }
                )
                check(Case(expression, fed, []), differ(policy, made, case.made[0]))


def with_key(o: Occurrence, key: int) -> Occurrence:
    return Occurrence(o.name, o.timestamp, {**o.params, "w": key})


def with_numbers(identity: Any, names: dict[int, int]) -> Any:
    """The match with other numbers for its events; None if it is of others."""
    found = [(name, frozenset(names.get(n, -1) for n in bound)) for name, bound in identity]
    return None if any(-1 in bound for _, bound in found) else frozenset(found)


WIDE = Occurrence("other", AccuracyInterval(5 * SECOND_US, 0, 10 * SECOND_US))
"""No detector listens to it: it tells that timestamps are intervals, and how wide they may be."""


@pytest.mark.long
@pytest.mark.parametrize("operator", list(VARIANTS))
def test_events_that_are_withdrawn_are_as_if_never_fed(operator: str) -> None:
    for name, expression in VARIANTS[operator].items():
        for number in range(CASES):
            random = Random(f"{SEED} withdrawn {operator} {name} {number}")
            widths = random.choice([(0, 0, 1, 2, 3), (0, 0, 0, 2)])
            events = random_events(expression, random, widths=widths)
            events += [
                later(o, len(events), 20)
                for o in random_events(expression, random, widths=widths, few=True)
            ]
            withdrawn = {n for n in range(len(events)) if random.random() < 0.3}
            policy = random.choice(["certain", "possible"])
            with_them, without = (Detector(expression, on_uncertain=policy) for _ in range(2))
            for detector in (with_them, without):
                detector.advance(0)
                detector.feed(WIDE)
            fed: list[int] = []
            for n, o in enumerate(events):
                least_us = min(other.low_us for other in events[n:])
                for each in (with_them, without):
                    each.advance(least_us)
                # What is awaited is fed, or it would stay possible.
                waiting = [
                    other
                    for m, other in enumerate(events)
                    if m > n and m not in withdrawn and not precedes(o, other)
                ]
                found = identities(with_them.feed(o, None, waiting))
                if n in withdrawn:
                    fed.append(n)
                else:
                    expected = identities(without.feed(o, None, waiting))
                    if not fed:
                        check_same(expression, events, found, expected)
                if fed and random.random() < 0.5:
                    with_them.withdraw(events[fed.pop(random.randrange(len(fed)))])
            for n in fed:
                with_them.withdraw(events[n])
            left, expected_left = (open_of(each) for each in (with_them, without))
            check_same(expression, events, left, expected_left)
            made, expected = (identities(each.advance(END_US * 2)) for each in (with_them, without))
            check_same(expression, events, made, expected)


def later(o: Occurrence, number: int, seconds: int) -> Occurrence:
    """The event, so much later, with a number from `number`."""
    stamp = o.stamp
    assert stamp is not None
    us = seconds * SECOND_US
    moved = replace(
        stamp,
        reading_us=stamp.reading_us + us,
        lower_us=stamp.lower_us + us,
        upper_us=stamp.upper_us + us,
        local_us=None if stamp.local_us is None else stamp.local_us + us,
    )
    return numbered(Occurrence(o.name, moved, o.params), number_of(o) + number)


def identities(matches: Sequence[Occurrence]) -> Counter[Any]:
    return Counter(identity_of(match.parts or {match.name: match}) for match in matches)


def open_of(detector: Detector) -> Counter[Any]:
    """Return the open candidates, choice by choice."""
    return Counter(
        frozenset(identity_of(parts) for parts in each.candidates) for each in detector.undecided
    )


def check_same(
    expression: Expression,
    events: Sequence[Occurrence],
    found: Counter[Any],
    expected: Counter[Any],
) -> None:
    if found != expected:
        pytest.fail(
            f"{Case(expression, events, [])}: {found}; expected {expected} "
            f"(ACTIVEDB_TEST_SEED={SEED})",
            pytrace=False,
        )


IN_STATE = (
    *("is_inexact", "keeps_ends", "reach_us", "late_us", "latest_us", "told_us", "advanced_us"),
    *("gone", "follows", "needs"),
)
"""Fields of `DetectorState` that a detector's state holds unchanged."""
OTHERWISE_IN_STATE = ("arrivals", "awaited", "doubtful", "fresh", "timers")
NOT_IN_STATE = ("bound", "decided", "misses", "policy")
"""Given to a new detector, or of one step."""


def test_all_that_nodes_share_is_in_the_state_or_said_not_to_be() -> None:
    assert set(DetectorState.__slots__) == {*IN_STATE, *OTHERWISE_IN_STATE, *NOT_IN_STATE}


@pytest.mark.long
@pytest.mark.parametrize("operator", list(VARIANTS))
def test_restored_detector_knows_what_the_original_knew(operator: str) -> None:
    for case, random in cases(operator, "restored"):
        policy = random.choice(["certain", "possible"])
        original = Detector(case.expression, on_uncertain=policy)
        original.advance(0)
        for number, o in enumerate(case.events):
            least_us = min(other.low_us for other in case.events[number:])
            original.advance(least_us)
            if random.random() < 0.3:
                original.trim(least_us)
            waiting = [other for other in case.events[number + 1 :] if not precedes(o, other)]
            original.feed(o, None, waiting)
            restored = Detector(case.expression, on_uncertain=policy)
            restored.restore(json.loads(json.dumps(original.state())))
            assert known_of(restored) == known_of(original), f"{case} (ACTIVEDB_TEST_SEED={SEED})"


def known_of(detector: Detector) -> dict[str, Any]:
    """Knowledge that determines the next matches, in a form that can be compared."""
    shared = detector._shared
    return {name: getattr(shared, name) for name in IN_STATE} | {
        "awaited": list(map(text_of, shared.awaited)),
        "doubtful": sorted(shared.doubtful),
        "timers": shared.timers.in_order(),
        "open": {identity: len(each.entries) for identity, each in detector._choices.open.items()},
        "refuted": detector._choices._refuted & shared.doubtful.keys(),
        "decisions": sorted(detector._choices._decisions),
        "remembered": [(arrival, text_of(o)) for arrival, o in detector._choices._remembered],
        "dropped": detector.dropped,
        "kept": [[entry[2] for entry in node.kept()] for node in detector._nodes],
    }


class Oracle:
    """Oracle that knows one of the worlds of a case, and says what is made in it."""

    def __init__(self, case: Case, random: Random):
        self.times = random.choice(case.worlds)
        self.case = case
        self.made = case.made[case.worlds.index(self.times)]

    def __call__(self, open_choice: Any) -> list[Any]:
        """Return the candidates that are made, of an error or of an open choice."""
        # Of several that differ in the order within a part alone, the one that the world has.
        found = {identity_of(each): each for each in open_choice.candidates if self._in_order(each)}
        return [each for identity, each in found.items() if identity in self.made]

    def _in_order(self, candidate: Any) -> bool:
        """Return whether the elements of each part are in the order in which they happened."""
        for bound in candidate.values():
            if isinstance(bound, tuple) and all("n" in o.params for o in bound):
                places = [self._place(o) for o in bound]
                if any(precedes(b, a) for a, b in pairwise(bound)) or places != sorted(places):
                    return False
        return True

    def _place(self, o: Occurrence) -> int:
        return self.times[number_of(o)]

    def check(self, made: Counter[Any]) -> None:
        world = [us / SECOND_US for us in self.times]
        wrong = made - self.made
        if wrong:
            check(self.case, f"made {shown(wrong)}, told the truth of the world {world}")


@pytest.mark.parametrize("operator", list(VARIANTS))
def test_callback_that_knows_the_world_makes_what_that_makes(operator: str) -> None:
    for case, random in cases(operator, "callback"):
        if "cumulative" in repr(case.expression):
            continue  # a match there is merged of several candidates, which are no matches alone
        oracle = Oracle(case, random)
        outcome = told(case, oracle, telling(random), random.random())
        oracle.check(outcome.made)


SEQUENCES = [name for name, expression in OPERATORS.items() if isinstance(expression, Seq)]


@pytest.mark.long
@pytest.mark.parametrize("operator", SEQUENCES)
def test_choices_in_any_combination_make_what_every_world_makes(operator: str) -> None:
    random = Random(f"{SEED} combined {operator}")
    for _ in range(4 * SCALE):
        expression = combined(OPERATORS[operator], random)

        def events(expression: Expression = expression) -> Any:
            return random_events(expression, random, widths=(0, 0, 1, 2))

        # Of events that a clock orders within one microsecond less is claimed, and tried below.
        case = drawn(expression, events, random, says=lambda c: c.possible and not c.is_tied)
        way, seed = telling(random), random.random()
        certain, raised, possible = (
            told(case, policy, way, seed) for policy in ("certain", "raise", "possible")
        )
        check(
            case,
            case.uncertain(certain.made),
            case.untold(certain),
            differ("raise", raised.made, certain.made),
            case.impossible(possible.made),
            case.uncertain(detected(case, "certain"), any_order=True),
        )


def combined(expression: Expression, random: Random) -> Expression:
    """The sequence with a context, a selection and a skip at once, as far as they go together."""
    assert isinstance(expression, Seq)
    last = expression.names[-1]
    skips: list[tuple[str, ...]] = [("to_next",), ("past_last",), ("to_first", last)]
    chosen = expression.context(random.choice(CONTEXTS)).skipping(*random.choice(skips))
    try:
        selected = chosen.selecting(random.choice(["next", "strict"]))
        selected.check()
    except PatternError:
        return chosen
    return random.choice([chosen, selected])


@pytest.mark.long
@pytest.mark.parametrize("operator", list(VARIANTS))
def test_callback_that_chooses_nothing_makes_nothing_of_what_it_was_asked(operator: str) -> None:
    for case, random in cases(operator, "nothing"):
        asked: set[Any] = set()

        def choose(error: UncertainOrder, asked: set[Any] = asked) -> tuple[()]:
            asked.update(identity_of(parts) for parts in error.candidates)
            return ()

        made = told(case, choose, telling(random), random.random()).made
        both = [identity for identity in made if identity in asked]
        check(case, f"made {shown(both)}, which was not chosen" if both else None)


@pytest.mark.long
@pytest.mark.parametrize("operator", list(VARIANTS))
def test_choices_that_are_decided_later_make_what_the_world_makes(operator: str) -> None:
    for case, random in cases(operator, "resolve"):
        if "cumulative" in repr(case.expression):
            continue  # as above
        oracle = Oracle(case, random)
        outcome = tell(
            case.expression, case.events, "certain", END_US, Telling(), random, resolve=oracle
        )
        oracle.check(outcome.made)


def test_each_way_in_which_events_make_a_match_may_be_the_possible_one() -> None:
    """The same two events can be A and a, or a and A: only the first of these is made."""
    twice = all_of(A, event("A", alias="a")).within(2)
    expression = seq(twice, C).gap(2) | B
    spans = (("A", 0, 0), ("A", 2, 3), ("C", 4, 6))
    events = [
        numbered(Occurrence(name, AccuracyInterval(low, low, high)), n)
        for n, (name, *seconds) in enumerate(spans)
        for low, high in [[each * SECOND_US for each in seconds]]
    ]
    case = Case(expression, events, some_worlds(expression, events, Random(0)))
    assert case.possible.keys() == {
        frozenset((name, frozenset([n])) for n, name in enumerate("AaC"))
    }
    check(case, case.untold(told(case, "certain", Telling(), 0.0)))


PLAN = replace(EVERYTHING, timed=False)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_random_expressions_make_what_the_worlds_make(seed: int) -> None:
    random = Random(f"{SEED} random {seed}")
    for _ in range(3 * SCALE):
        expression = random_expression(random, PLAN)

        def events(expression: Expression = expression) -> Any:
            return random_events(expression, random, widths=(0, 0, 1, 2))

        try:
            case = drawn(
                expression, events, random, says=lambda c: c.possible and not c.is_tied, tries=20
            )
        except LookupError:
            continue  # hardly anything comes of such an expression
        way, seeded = telling(random), random.random()
        certain, raised, possible = (
            told(case, policy, way, seeded) for policy in ("certain", "raise", "possible")
        )
        check(
            case,
            case.uncertain(certain.made),
            case.missed(certain.made),
            case.untold(certain),
            differ("raise", raised.made, certain.made),
            case.impossible(possible.made),
            case.missed(possible.made),
        )


@pytest.mark.parametrize("last", [C, ~event("C", alias="M")], ids=["before", "without"])
def test_end_of_a_window_is_no_event_that_has_the_same_reading(last: Any) -> None:
    expression = seq(seq(A, B, ~N).within(2), last).within(5)
    worlds = drawing.Worlds(60 * SCALE, "same reading", last, possible=10 * SCALE)
    for random in worlds:
        low, width = random.randint(0, 2), random.randint(0, 2)
        reading = random.randint(low, low + width)
        ends = [(low, reading, low + width)]  # of A; then of B and C
        for middle in (reading + 2, reading + random.randint(2, 4)):
            around = random.randint(0, 1), random.randint(0, 1)
            ends.append((middle - around[0], middle, middle + around[1]))
        events = []
        for number, (name, (low, reading, high)) in enumerate(zip("ABC", ends, strict=True)):
            stamp = AccuracyInterval(reading * SECOND_US, low * SECOND_US, high * SECOND_US)
            events.append(Occurrence(name, stamp, {"w": 0, "x": 0, "n": number}))
        case = Case(expression, events, some_worlds(expression, events, random))
        worlds.met["possible"] += bool(case.possible)
        certain = told(case, "certain", telling(random), random.random())
        check(
            case,
            case.uncertain(certain.made),
            case.missed(certain.made),
            case.untold(certain),
        )


# -- two events that are ordered ---------------------------------------------------------------


def stamped(name: str, low: int, high: int, local: int, **params: Any) -> Occurrence:
    clock = LocalClock("started at noon")
    stamp = AccuracyInterval(
        low * SECOND_US,
        low * SECOND_US,
        high * SECOND_US,
        node="n",
        local_us=local,
        local_clock=clock,
    )
    return Occurrence(name, stamp, params)


@pytest.mark.parametrize("policy", ["certain", "raise", "possible"])
def test_events_that_one_precedes_the_other_are_a_sequence(policy: str) -> None:
    random = Random(f"{SEED} precedes {policy}")
    for _ in range(200 * SCALE):
        a, b = (
            stamped(name, low, low + random.choice([0, 0, 1, 3]), random.randint(0, 5), n=n)
            for n, name in enumerate("AB")
            for low in [random.randint(0, 2)]
        )
        detector = Detector(seq(A, B), on_uncertain=policy)
        found = detector.feed(a, None, [b])
        try:
            found += detector.feed(b)
        except UncertainOrder:
            assert policy == "raise"
        expected = precedes(a, b) and not precedes(b, a)
        assert not expected or len(found) == 1, (a, b)


@pytest.mark.parametrize("policy", ["certain", "raise", "possible"])
def test_local_clock_orders_events_of_one_moment(policy: str) -> None:
    locals_us = {"A": 1, "B": 5, "C": 9}

    def made(expression: Expression, names: str) -> int:
        events = [stamped(name, 1, 1, locals_us[name], n=n) for n, name in enumerate(names)]
        return tell(expression, events, policy, END_US).made.total()

    assert made(seq(A, B), "AB") == 1
    assert made(seq(B, A), "AB") == 0
    assert made(seq(seq(A, B), C), "ABC") == 1
    assert made(seq(A, ~B, C), "ABC") == 0
    assert made(seq(A, ~B, C), "AC") == 1
    assert made(seq(A, C).selecting("strict"), "AC") == 1
    assert made(seq(A | B, C).context("chronicle"), "ABC") == 1


def in_local_order(expression: Expression, random: Random) -> list[Occurrence]:
    """Events that it listens to, mostly of one of few moments, all ordered by a local clock."""
    others = sorted(name for kind, name in expression.keys if kind == "event")
    names = [*_skeleton(expression), *random.choices(others or ["A"], k=2)]
    lows = sorted(random.randint(0, 2) for _ in names)
    found = []
    for n, (name, low) in enumerate(zip(names, lows, strict=True)):
        params = {"w": random.choice([0, 0, 1]), "x": random.randint(0, 1)}
        found.append(stamped(name, low, low, 2 * n, n=n, **params))
    return found


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_made_against_the_order_of_a_local_clock_within_one_moment(seed: int) -> None:
    """Every match agrees with the local clock, whatever the expression."""
    random = Random(f"{SEED} in local order {seed}")
    for _ in range(40 * SCALE):
        plan = replace(EVERYTHING, contexts=("cumulative", *CONTEXTS))
        expression = random_expression(random, plan)
        events = in_local_order(expression, random)[:7]
        worlds = some_worlds(expression, events, random)
        case = Case(expression, events, worlds)
        way = telling(random)
        for policy in ("certain", "raise"):
            check(case, case.uncertain(told(case, policy, way, random.random()).made))


# -- columns ------------------------------------------------------------------------------------


def test_columns_refuse_intervals() -> None:
    exact = Occurrence("A", AccuracyInterval(1, 1, 1), {})
    wide = Occurrence("B", AccuracyInterval(2, 1, 3), {})
    assert len(EventColumns.of_occurrences([exact])) == 1
    with pytest.raises(BadEvent, match="no exact time"):
        EventColumns.of_occurrences([exact, wide])


# -- streams -------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_streams_of_three_producers_make_nothing_that_was_not(name: str) -> None:
    counts = measured(EXPRESSIONS[name], SCALE, f"{SEED} {name}")
    table = {way: str(count) for way, count in counts.items()}
    for way in ("certain", "raise", "detect certain"):
        assert counts[way].wrong == 0, f"{name}, wrong/made: {table} (ACTIVEDB_TEST_SEED={SEED})"
