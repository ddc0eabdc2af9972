"""Open choices against every world: what is offered, chosen together, and reported.

Whatever a choice offers is made in some world, and what is chosen of it together is made together
in some. What a world makes, and not every one, is offered. Random events and expressions, as for
the theorem (`test_theorem.py`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, combinations, pairwise
from random import Random
from typing import Any

import pytest

from activedb.errors import BadEvent
from activedb.events import (
    AccuracyInterval,
    Detector,
    Expression,
    LocalClock,
    Occurrence,
    Undecided,
    all_of,
    event,
    leaves,
    many,
    precedes,
    query,
    seq,
    walk,
)
from activedb.events._possibility import Possibility
from activedb.events.detection._traits import is_merging
from activedb.events.detection._traits import merges as merges_itself
from tests.drawing import SCALE
from tests.drawing import drawn as source

from .generation import CONTEXTS, EVERYTHING, random_expression
from .judging import CELLS_MAX, END_US, Case, drawn, shown, some_worlds
from .telling import Telling, tell
from .test_theorem import FEW, VARIANTS, check, random_events, telling
from .worlds import SECOND_US, Identity, identity_of, number_of

CHECKED = [name for name in VARIANTS if name not in FEW]
"""Operators of which a few events have few worlds: ticks of clocks are compared with many times."""
SUBSETS_MAX = 16
PLAN = replace(EVERYTHING, timed=False, contexts=("unrestricted", "cumulative", *CONTEXTS))


def cases(
    what: str, operator: str, of: Callable[[Expression], bool] = lambda expression: True
) -> Iterator[tuple[Case, Random]]:
    for name, expression in VARIANTS[operator].items():
        if not of(expression):
            continue
        random = source("offered", what, operator, name)
        for _ in range(SCALE):
            try:
                yield case_of(expression, random, tries=40), random
            except LookupError:
                continue  # nothing of it depends on an order


def case_of(expression: Expression, random: Random, tries: int) -> Case:
    """Events with few worlds, of which some make something and not all the same."""

    def events() -> Any:
        return random_events(expression, random, widths=(0, 1, 1, 2, 3))

    return drawn(
        expression,
        events,
        random,
        says=lambda c: not c.is_tied and c.possible != c.certain,
        tries=tries,
    )


def random_cases(what: str, seed: int) -> Iterator[tuple[Case, Random]]:
    random = source("offered", what, "random", seed)
    for _ in range(4 * SCALE):
        try:
            yield case_of(random_expression(random, PLAN), random, tries=20), random
        except LookupError:
            continue  # hardly anything comes of such an expression


def every_case(what: str, of: str | int) -> Iterator[tuple[Case, Random]]:
    return random_cases(what, of) if isinstance(of, int) else cases(what, of)


OF = pytest.mark.parametrize("of", [*CHECKED, *range(6)])


def merges(case: Case) -> bool:
    """Return whether a match may be merged from several candidates."""
    return is_merging(case.expression)


def is_offered_rightly(case: Case, candidate: Mapping[str, Any]) -> bool:
    """Return whether a world makes the candidate; a merged match is made of all that are in it."""
    identity = identity_of(candidate)
    if merges(case):
        return any(
            is_in(identity, made, case.expression)
            for possible in case.possible_when_told(identity)
            for made in possible
        )
    if case.impossible(Counter([identity])) is not None:
        return False
    return not has_elements(candidate) or case.disordered([Shown(candidate)]) is None  # type: ignore[list-item]


class Shown:
    """A candidate as a match."""

    def __init__(self, parts: Mapping[str, Any]):
        self.parts = parts


def has_elements(candidate: Mapping[str, Any]) -> bool:
    return any(isinstance(bound, tuple) for bound in candidate.values())


def is_in(candidate: Identity, match: Identity, expression: Expression) -> bool:
    """Return whether the match has the parts of the candidate: all, or some of merged ones."""
    merged = {name for each in walk(expression) if merges_itself(each) for name in each.names}

    def is_part(one: Any, other: Any) -> bool:
        if not isinstance(one, frozenset):
            return bool(one == other)
        return isinstance(other, frozenset) and is_inside(dict(one), dict(other))

    def is_inside(own: dict[str, Any], whole: dict[str, Any]) -> bool:
        return all(name in whole and has(whole[name], own[name], name) for name in own)

    def has(whole: Any, own: Any, name: str) -> bool:
        ours, theirs = ([e] if type(e) is int else list(e) for e in (own, whole))
        return (name in merged or len(ours) == len(theirs)) and all(
            any(is_part(one, other) for other in theirs) for one in ours
        )

    return is_inside(dict(candidate), dict(match))


# -- what is offered -------------------------------------------------------------------------------


@pytest.mark.long
@OF
def test_every_candidate_that_is_offered_is_made_in_some_world(of: str | int) -> None:
    for case, random in every_case("candidates", of):
        outcome = tell(case.expression, case.events, "certain", END_US, Telling(), random)
        for each in outcome.undecided:
            for candidate in each.candidates:
                if not is_offered_rightly(case, candidate):
                    check(case, f"offered {shown([identity_of(candidate)])}: in no world")


@pytest.mark.long
@OF
def test_nothing_that_is_not_offered_is_made_in_any_world(
    of: str | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for case, random in every_case("not offered", of):
        way, seed = telling(random), random.random()
        offered = tell(case.expression, case.events, "certain", END_US, way, Random(seed))
        with monkeypatch.context() as patch:
            patch.setattr(Possibility, "allow", lambda *_, **__: True)
            every = tell(case.expression, case.events, "certain", END_US, way, Random(seed))
        for identity in every.candidates - offered.candidates - set(offered.made):
            if merges(case):
                is_possible = any(is_in(identity, made, case.expression) for made in case.possible)
            else:
                is_possible = identity in case.possible
            if is_possible:
                check(case, f"{way}: not offered: {shown([identity])}, which a world makes")
        check(case, case.uncertain(offered.made), case.untold(offered))


# -- what is chosen --------------------------------------------------------------------------------


def told_all(case: Case) -> tuple[Detector, set[Identity]]:
    """Return a detector that was fed with all events and leaves something open, and what it made.

    A candidate may have become certain meanwhile: it was made, whatever is chosen of the others.
    """
    detector = Detector(case.expression)
    made = detector.advance(0)
    for number, o in enumerate(case.events):
        made += detector.advance(min(other.low_us for other in case.events[number:]))
        later = case.events[number + 1 :]
        made += detector.feed(o, None, [other for other in later if not precedes(o, other)])
    made += detector.advance(END_US)
    return detector, set(map(match_identity, made))


def subsets(count: int, random: Random) -> list[tuple[int, ...]]:
    every = chain.from_iterable(combinations(range(count), n) for n in range(1, min(count, 4) + 1))
    found = list(every) if count < 9 else [(n,) for n in range(count)]
    return random.sample(found, min(len(found), SUBSETS_MAX))


def makes(case: Case, matches: list[Any], without: Iterable[Identity] = ()) -> bool:
    """Return whether one world makes all these matches, their elements in order, and no other."""
    wanted, unwanted = {match_identity(each) for each in matches}, list(without)

    def lacks(made: Iterable[Identity]) -> bool:
        if not merges(case):
            return set(unwanted).isdisjoint(made)
        return not any(is_in(u, match, case.expression) for u in unwanted for match in made)

    return any(
        wanted <= set(made)
        and lacks(made)
        and (merges(case) or all(is_so(each, times) for each in matches))
        for times, made in zip(case.worlds, case.made, strict=True)
    )


def match_identity(match: Any) -> Identity:
    """Return the identity of a match; an event that is one is its only part."""
    return identity_of(match.parts or {match.name: match})


def is_so(match: Any, times: tuple[int, ...]) -> bool:
    """Return whether the elements of each part, also of inner matches, are in their order."""
    for bound in match.parts.values():
        if isinstance(bound, tuple):
            ends = [max(times[number_of(leaf)] for leaf in leaves(each)) for each in bound]
            if any(a > b for a, b in pairwise(ends)):
                return False
        inner = bound if isinstance(bound, tuple) else (bound,)
        if not all(is_so(each, times) for each in inner):
            return False
    return True


@pytest.mark.long
@OF
def test_candidates_that_may_be_chosen_together_are_made_in_one_world(of: str | int) -> None:
    for case, random in every_case("together", of):
        detector, already = told_all(case)
        state = json.loads(json.dumps(detector.state()))
        for choice in detector.undecided:
            for numbers in subsets(len(choice.candidates), random):
                one = Detector(case.expression)
                one.restore(state)
                chosen = [Shown(choice.candidates[n]) for n in numbers]
                others = {identity_of(each) for each in choice.candidates}
                others -= already | {identity_of(each.parts) for each in chosen}
                try:
                    found = one.resolve(choice.identity, numbers)
                except BadEvent:
                    if not merges(case) and makes(case, chosen, others):
                        check(case, f"refused {numbers} of {named(choice)}: a world makes them")
                    continue
                if not makes(case, found, others):
                    check(case, f"chose {numbers} of {named(choice)}: no world makes just them")


@pytest.mark.long
@pytest.mark.parametrize(
    "operator", [name for name in CHECKED if any(map(merges_itself, VARIANTS[name].values()))]
)
def test_candidates_of_which_a_world_makes_cumulative_matches_may_be_chosen(operator: str) -> None:
    for case, random in cases("cumulative", operator, merges_itself):
        detector, _ = told_all(case)
        if len(detector.undecided) != 1:
            continue  # what is chosen of one may exclude another
        (choice,) = detector.undecided
        state = json.loads(json.dumps(detector.state()))
        offered = [identity_of(each) for each in choice.candidates]
        made = random.choice([each for each in case.made if each])
        numbers = [
            n
            for n, each in enumerate(offered)
            if any(is_in(each, m, case.expression) for m in made)
        ]
        one = Detector(case.expression)
        one.restore(state)
        try:
            found = one.resolve(choice.identity, numbers)
        except BadEvent as error:
            check(case, f"{named(choice)}: {numbers}, as {shown(made)} is made: {error}")
        else:
            # Where it is uncertain whether one step makes two matches, they are not merged.
            if not makes(case, found, [e for n, e in enumerate(offered) if n not in numbers]):
                check(case, f"{named(choice)}: {numbers}: no world makes just these")


def named(choice: Any) -> str:
    return "; ".join(shown([identity_of(candidate)]) for candidate in choice.candidates)


@pytest.mark.long
def test_callback_that_chooses_all_makes_what_one_world_makes() -> None:
    """A callback that chooses candidates which exclude each other is refused."""
    for operator in CHECKED:
        for case, _ in cases("all", operator):
            detector = Detector(case.expression, on_uncertain=lambda error: error.candidates)
            detector.advance(0)
            for number, o in enumerate(case.events):
                later = case.events[number + 1 :]
                try:
                    made = detector.feed(o, None, [x for x in later if not precedes(o, x)])
                except BadEvent:
                    break
                if not makes(case, made):
                    check(case, f"made together: {shown(map(match_identity, made))}")


# -- two orders of one part, and one event twice ---------------------------------------------------


def at(name: str, low: float, high: float, **params: Any) -> Occurrence:
    low_us, high_us = round(low * SECOND_US), round(high * SECOND_US)
    return Occurrence(name, AccuracyInterval(high_us, low_us, high_us), params)


def test_event_that_would_have_to_precede_itself_is_not_offered() -> None:
    pattern = seq(many(event("C", alias="k"), 1, 3), all_of(event("A"), event("C")))
    detector = Detector(pattern.within(100))
    c, a = at("C", 1, 3), at("A", 2, 4)
    detector.feed(c, None, [a])
    assert detector.feed(a) == []
    assert detector.undecided == ()


def test_candidates_chosen_without_others_that_are_always_made_with_them_are_refused() -> None:
    detector = Detector(seq(event("A"), event("B"), event("C")))
    early, late = at("A", 0, 1), at("A", 2, 3)
    events = [early, at("C", 2, 3), late, at("B", 2, 4)]
    for number, o in enumerate(events):
        detector.feed(o, None, [x for x in events[number + 1 :] if not precedes(o, x)])
    (choice,) = detector.undecided
    assert [c["A"] for c in choice.candidates] == [early, late]
    state = detector.state()
    with pytest.raises(BadEvent, match="makes others of its candidates too: choose also 0, or"):
        detector.resolve(choice.identity, (1,))
    assert detector.state() == state
    assert len(detector.resolve(choice.identity, (0, 1))) == 2


def test_event_of_a_local_clock_bounds_what_is_offered_though_no_match_needs_it() -> None:
    """C at 6 s is before the last A by their clock, so that A is more than 3 s after the others."""
    clock = LocalClock("started at noon")

    def read(name: str, low: float, high: float, local_us: int) -> Occurrence:
        low_us, high_us = round(low * SECOND_US), round(high * SECOND_US)
        stamp = AccuracyInterval(
            high_us, low_us, high_us, node="n", local_us=local_us, local_clock=clock
        )
        return Occurrence(name, stamp)

    pairs = all_of(event("A", alias="a"), event("A", alias="b")).within(3) | event("C")
    events = [
        at("A", 2, 3),
        read("C", 6, 6, 6_000_000),
        read("A", 6, 7, 6_000_006),
        read("A", 10, 12, 9_000_008),
    ]
    for last in (events[1], at("C", 6, 6)):  # without a clock, the C says nothing
        detector = Detector(pairs)
        for o in (events[0], last, *events[2:]):
            detector.feed(o)
            detector.trim(o.low_us - 4 * SECOND_US)
            detector.restore(json.loads(json.dumps(detector.state())))
        offered = [c for each in detector.undecided for c in each.candidates]
        is_offered = any(c["a"].high_us == 3 * SECOND_US for c in offered)
        assert is_offered is (last is not events[1])


def two_orders() -> tuple[Detector, list[Occurrence], Undecided]:
    detector = Detector(seq(event("A"), many(event("C"), 2, 2), event("B")))
    events = [at("A", 0, 1), at("C", 2, 6, n=1), at("C", 3, 7, n=2), at("B", 20, 21)]
    for number, o in enumerate(events):
        detector.feed(o, None, [x for x in events[number + 1 :] if not precedes(o, x)])
    (choice,) = detector.undecided
    assert [[o.params["n"] for o in c["C"]] for c in choice.candidates] == [[1, 2], [2, 1]]
    return detector, events, choice


def test_two_orders_of_one_part_are_not_chosen_together() -> None:
    detector, _, choice = two_orders()
    before = detector.state()
    with pytest.raises(BadEvent, match="of matches that exclude each other only one"):
        detector.resolve(choice.identity, [0, 1])
    assert detector.state()["undecided"] == before["undecided"]
    with pytest.raises(BadEvent, match="exclude each other"):
        detector.check_chosen(choice.identity, [0, 1])
    detector.check_chosen(choice.identity, [0])
    (match,) = detector.resolve(choice.identity, [1])
    assert [o.params["n"] for o in match.parts["C"]] == [2, 1]
    assert detector.undecided == ()


def test_choice_is_kept_to_in_later_choices() -> None:
    detector, _, choice = two_orders()
    detector.resolve(choice.identity, [0])
    later = at("B", 30, 31)
    detector.feed(later)
    # The order of the two Cs is the chosen one by now; their match with the other B is open.
    offered = [[o.params["n"] for o in c["C"]] for u in detector.undecided for c in u.candidates]
    assert offered == [[1, 2]]


def test_two_orders_are_not_chosen_together_long_after_their_events_are_forgotten() -> None:
    for context in ("unrestricted", "recent"):
        pattern = seq(event("A"), many(event("C"), 2, 2), event("B")).within(30).context(context)
        detector = Detector(pattern)
        events = [at("A", 0, 1), at("C", 2, 6, n=1), at("C", 3, 7, n=2), at("B", 20, 21)]
        for number, o in enumerate(events):
            detector.feed(o, None, [x for x in events[number + 1 :] if not precedes(o, x)])
        detector.trim(10_000 * SECOND_US)
        (choice,) = detector.undecided
        with pytest.raises(BadEvent, match="exclude each other"):
            detector.resolve(choice.identity, range(len(choice.candidates)))


def test_candidates_of_the_context_cumulative_that_share_an_event_are_one_match() -> None:
    for pattern in (
        all_of(event("A"), event("C")).context("cumulative"),
        query("Q", all_of(event("A"), event("C")).context("cumulative")),
    ):
        detector = Detector(pattern)
        a, late, c = at("A", 0, 0, n=1), at("A", 1, 4, n=2), at("C", 2, 3)
        detector.feed(a)
        detector.feed(late, None, [c])
        detector.feed(c)
        (choice,) = detector.undecided
        assert len(choice.candidates) == 2  # each is in a match of some world
        with pytest.raises(BadEvent, match="no order"):
            # The first A is in every match.
            detector.resolve(choice.identity, [with_a(choice, 2)])
        (match,) = detector.resolve(choice.identity, [0, 1])
        inner = match.parts if "A" in match.parts else match.parts["Q"].parts
        assert [o.params["n"] for o in inner["A"]] == [1, 2]


def test_candidates_of_a_cumulative_query_in_another_are_merged_as_that_would_merge_them() -> None:
    """B merges what A's are before it to one Q, which is all that C follows."""
    expression = seq(query("Q", seq(event("A"), event("B"))), event("C"))
    for skipping in (False, True):
        cumulative = expression.context("cumulative")
        detector = Detector(cumulative.skipping("to_next") if skipping else cumulative)
        events = [at("A", 0, 0, n=0), at("A", 0, 2, n=1), at("B", 1, 3, n=2), at("C", 3, 3)]
        for number, o in enumerate(events):
            later = events[number + 1 :]
            assert detector.feed(o, None, [x for x in later if not precedes(o, x)]) == []
        (choice,) = detector.undecided
        assert [
            [o.params["n"] for o in q.parts["A"]] for c in choice.candidates for q in c["Q"]
        ] == [[0], [1]]
        state = detector.state()
        with pytest.raises(BadEvent, match="no order"):
            detector.resolve(choice.identity, [1])  # the first A is in every match
        assert detector.state() == state
        (match,) = detector.resolve(choice.identity, [0, 1])
        (inner,) = match.parts["Q"]
        assert [o.params["n"] for o in inner.parts["A"]] == [0, 1]


A, B, C, N = map(event, "ABCN")
AT_ONCE = seq(B, ~N).within(2).context("cumulative")
"""Merges the B's of one moment."""


@pytest.mark.parametrize(
    "pattern",
    {
        "strict": seq(A, AT_ONCE).selecting("strict"),
        "strict, by time": seq(A, AT_ONCE, ~N).within(5).selecting("strict").skipping("to_next"),
        "strict, by an event": seq(A, seq(B, C).context("cumulative")).selecting("strict"),
        "negated": seq(A, ~event("B", alias="M"), seq(B, C).context("cumulative")),
        "predicate": seq(A, AT_ONCE).where(lambda m: len(m["B"]) == 2),
        "predicate of all": all_of(A, AT_ONCE).where(lambda m: len(m["B"]) == 2),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_only_merged_candidates_fulfil_may_be_chosen(pattern: tuple[str, Any]) -> None:
    """Neither B is between A and the match of both."""
    detector = Detector(pattern[1].context("cumulative"))
    events = [at("A", 0, 1, n=0), at("B", 2, 3, n=1), at("B", 3, 3, n=2), at("C", 3, 4, n=3)]
    for o in events:
        assert detector.feed(o) == []
    assert detector.advance(END_US) == []
    (choice,) = detector.undecided
    assert [[o.params["n"] for o in c["B"]] for c in choice.candidates] == [[1], [2]]
    (match,) = detector.resolve(choice.identity, [0, 1])
    assert [o.params["n"] for o in match.parts["B"]] == [1, 2]


@pytest.mark.parametrize("context", ["cumulative", "unrestricted"])
@pytest.mark.parametrize("w", [1, 2])
def test_later_of_two_constituents_gives_the_parameter_not_that_with_the_later_reading(
    w: int, context: str
) -> None:
    expression = all_of(seq(many(C, 2, 2)).context(context), event("D")).same("w")
    detector = Detector(expression.context(context))
    for o in (at("D", 1, 1, w=w), at("C", 3, 4, w=1), at("C", 3, 5, w=2)):
        assert detector.feed(o) == []
    assert detector.advance(END_US) == []
    (choice,) = detector.undecided
    (candidate,) = choice.candidates
    assert set(candidate) == {"C", "D"}


@pytest.mark.parametrize("join", [all_of, seq])
@pytest.mark.parametrize("last", [1, 2])
@pytest.mark.parametrize("is_query", [True, False])
def test_predicate_that_sees_the_order_of_merged_events_is_not_judged_by_their_readings(
    is_query: bool, last: int, join: Callable[..., Any]
) -> None:
    both = seq(A, B).context("cumulative")
    if is_query:
        wanted = join(query("Q", both), C).where(
            lambda m: m["Q"].parts["A"][-1].params["n"] == last
        )
    else:
        wanted = join(both, C).where(lambda m: m["A"][-1].params["n"] == last)
    detector = Detector(wanted)
    events = [at("A", 0, 2, n=1), at("A", 0, 2, n=2), at("B", 3, 3), at("C", 4, 4)]
    assert [match for o in events for match in detector.feed(o)] == []
    (choice,) = detector.undecided
    assert len(choice.candidates) == 1


def with_a(choice: Undecided, number: int) -> int:
    return next(
        n for n, c in enumerate(choice.candidates) if [o.params["n"] for o in c["A"]] == [number]
    )


# -- events of one true time -----------------------------------------------------------------------


@pytest.mark.long
@OF
def test_events_of_one_true_time_are_taken_in_the_order_in_which_they_were_fed(
    of: str | int,
) -> None:
    """Ids in another order, and intervals that only touch, make no difference."""
    random = source("ids", of)
    expressions = (
        [random_expression(random, PLAN)] if isinstance(of, int) else VARIANTS[of].values()
    )
    for expression in expressions:
        events = [
            Occurrence(o.name, o.timestamp, o.params, id=f"e{random.randrange(9)}")
            for o in random_events(expression, random, widths=(0, 0, 1, 2))
        ]
        worlds = some_worlds(expression, events, random)
        case = Case(expression, events, worlds)
        if worlds and len(worlds) <= CELLS_MAX and not case.is_tied:
            outcome = tell(expression, events, "certain", END_US, telling(random), random)
            check(case, case.uncertain(outcome.made))


@pytest.mark.parametrize("b_read", [0, 1])
@pytest.mark.parametrize("a_read", [4, 5])
def test_match_that_ends_after_the_window_by_its_reading_alone_is_told(
    b_read: int, a_read: int
) -> None:
    quiet = seq(event("A"), ~event("A", alias="again")).within(2)
    expression = seq(event("B"), event("C"), quiet, ~event("A", alias="later")).within(5)
    times = [("B", b_read, 0, 1), ("C", 3, 3, 3), ("A", a_read, 4, 5)]
    detector = Detector(expression)
    for name, read, low, high in times:
        stamp = AccuracyInterval(read * SECOND_US, low * SECOND_US, high * SECOND_US)
        assert detector.feed(Occurrence(name, stamp)) == []
    assert detector.advance(END_US) == []
    (undecided,) = detector.undecided  # made if B was at 1 and A at 4
    assert len(undecided.candidates) == 1
