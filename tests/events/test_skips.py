"""Memory and work of a detector whose matches skip."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from activedb.events import Detector, Expression, Occurrence, all_of, event, many, seq
from tests.effort import calls_of

A, B, C = event("A"), event("B"), event("C")
SKIPS: tuple[tuple[str, ...], ...] = (("to_next",), ("past_last",), ("to_first", "B"))


def fed(detector: Detector, names: str, begin: int, times: int) -> int:
    """Feed the events of these names again and again; return how many matches there were."""
    made = 0
    for us in range(begin, begin + times * len(names)):
        made += len(detector.feed(Occurrence(names[us % len(names)], us)))
    return made


@pytest.mark.parametrize("skip", SKIPS)
@pytest.mark.parametrize("selection", ["any", "next"])
def test_skips_keep_nothing_that_can_begin_no_match(skip: tuple[str, ...], selection: str) -> None:
    detector = Detector(seq(A, B).skipping(*skip).selecting(selection))
    firsts = 0
    for us in range(200):
        detector.feed(Occurrence("AB"[us % 2], us))
        firsts = max(firsts, sum(o.name == "A" for o in kept(detector)))
    # In between to_first B there are events of A that no match has begun with.
    assert firsts == 1


@pytest.mark.parametrize("skip", SKIPS)
def test_partials_max_does_not_refuse_for_what_was_skipped(skip: tuple[str, ...]) -> None:
    detector = Detector(seq(A, B).skipping(*skip), partials_max=3, on_full="refuse")
    assert fed(detector, "AB", 0, 100) == 100


@pytest.mark.parametrize("skip", SKIPS)
def test_trimming_forgets_what_comes_before_all_that_can_begin_a_match(
    skip: tuple[str, ...],
) -> None:
    detector = Detector(
        seq(A, B, many(C, 0, 2), event("B", alias="last")).skipping(*skip),
        partials_max=20,
        on_full="refuse",
    )
    for us in range(400):
        detector.trim(us * 1_000_000)
        detector.feed(Occurrence("ABCB"[us % 4], us))
    assert detector.partials < 8


@pytest.mark.parametrize("skip", SKIPS)
@pytest.mark.parametrize("names", ["AB", "ABC"])
def test_the_work_for_an_event_does_not_grow_with_the_matches_that_skip(
    skip: tuple[str, ...], names: str
) -> None:
    detector = Detector(seq(*map(event, names)).skipping(*skip))
    fed(detector, names, 0, 20)
    early = calls_of(lambda: fed(detector, names, 20 * len(names), 20))
    fed(detector, names, 40 * len(names), 400)
    late = calls_of(lambda: fed(detector, names, 440 * len(names), 20))
    assert late <= 1.5 * early, (early, late)


def test_the_work_for_matches_of_one_event_that_skip_is_linear() -> None:
    def work(count: int) -> int:
        detector = Detector(seq(A, B).skipping("to_next"))
        fed(detector, "A", 0, count)
        return calls_of(lambda: detector.feed(Occurrence("B", count)))

    few, many_ = work(50), work(400)
    assert many_ <= 10 * few, (few, many_)


EXPRESSIONS: dict[str, Callable[[], Expression]] = {
    "pair": lambda: seq(A, B).skipping("past_last"),
    "three": lambda: seq(A, B, C).skipping("to_next"),
    "negated": lambda: seq(A, ~C, B).skipping("to_last", "B"),
    "kleene": lambda: seq(A, many(B, 1, 2), C).skipping("to_first", "B"),
    "kleene first": lambda: seq(many(A, 1, 2), B).skipping("past_last"),
    "optional first": lambda: seq(many(A, 0, 2), B, C).skipping("past_last"),
    "next": lambda: seq(A, B, C).selecting("next").skipping("past_last"),
    "strict": lambda: seq(A, B).selecting("strict").skipping("past_last"),
    "same event twice": lambda: seq(A, event("A", alias="again"), B).skipping("past_last"),
    "recent": lambda: seq(A, B, C).context("recent").skipping("past_last"),
    "continuous": lambda: seq(A, B, C).context("continuous").skipping("to_first", "B"),
    "cumulative": lambda: seq(A, B, C).context("cumulative").skipping("to_next"),
    "composite": lambda: seq(all_of(A, B), C).skipping("past_last"),
    "until the end": lambda: seq(A, ~C).within(4).skipping("past_last"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("seed", range(20))
def test_trimming_and_withdrawing_change_no_match_that_skips(name: str, seed: int) -> None:
    random_ = random.Random(f"{name}{seed}")
    expression = EXPRESSIONS[name]()
    trimmed, whole = Detector(expression), Detector(expression)
    fed_: list[Occurrence] = []
    mark = 0
    for number in range(40):
        if random_.random() < 0.4:
            mark = max(mark, number - random_.choice((1, 3)))
            trimmed.trim(mark * 1_000_000)
        if fed_ and random_.random() < 0.15:
            o = random_.choice(fed_[-3:])
            if o.us >= mark * 1_000_000:
                fed_.remove(o)
                trimmed.withdraw(o)
                whole.withdraw(o)
        # Some come late, but none before what was trimmed.
        at = max(mark, number - random_.choice((0, 0, 0, 2)))
        o = Occurrence(random_.choice("AABBC"), at, id=f"{number:03}")
        fed_.append(o)
        assert shown(trimmed.advance(number * 1_000_000)) == shown(
            whole.advance(number * 1_000_000)
        )
        assert shown(trimmed.feed(o)) == shown(whole.feed(o)), (seed, number)
        if random_.random() < 0.1:
            restored = Detector(expression)
            restored.restore(trimmed.state())
            assert restored.partials == trimmed.partials
        assert trimmed.partials == len(kept(trimmed))


def shown(found: list[Occurrence]) -> list[list[str | None]]:
    return [
        [o.id for part in m.parts.values() for o in (part if isinstance(part, tuple) else (part,))]
        for m in found
    ]


def kept(detector: Detector) -> list[Occurrence]:
    return [entry[3] for node in detector._nodes for entry in node.kept()]
