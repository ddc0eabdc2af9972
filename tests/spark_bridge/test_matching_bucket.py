from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from activedb.clock import moment_of
from activedb.columns import Arrival
from activedb.events import (
    Detector,
    Expression,
    Occurrence,
    all_of,
    any_of,
    event,
    many,
    part,
    query,
    seq,
)
from activedb.streams import KeyedRule
from activedb.streams._matched import keys_of
from spark_bridge._matching_bucket import Bucket, Passed

PATTERNS: list[Callable[[], Expression]] = [
    lambda: seq(event("A"), ~event("N"), event("B")).same("k").within(20),
    lambda: seq(event("A"), event("B")).same("k").within(9).context("chronicle"),
    lambda: all_of(event("A"), event("B"), event("C")).same("k").within(15).context("recent"),
    lambda: seq(event("A"), many(event("B"), 1, 3), event("C")).same("k").within(12),
    lambda: (
        seq(event("A"), event("B", alias="x"), event("B", alias="y"))
        .same("k")
        .within(15)
        .selecting("strict")
        .skipping("past_last")
    ),
    lambda: seq(event("A"), event("B")).same("k").within(20).where(part("B").n > part("A").n),
    lambda: (
        seq(seq(event("A"), event("B")).same("k").within(8), event("C")).same("k", "n").within(9)
    ),
]


def keyed(number: int, on: Expression) -> KeyedRule:
    types = frozenset(name for _, name in on.keys)
    return KeyedRule(f"r{number}", on, keys_of(on), types, f"event {number}", None)


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    """Events in order of arrival, at few times, so that ties are common."""
    found = []
    for position in range(draw(st.integers(0, 25))):
        o = Occurrence(
            draw(st.sampled_from("ABCN")),
            moment_of(draw(st.integers(0, 30)) * 1_000_000),
            {"k": draw(st.sampled_from([None, 1, 2, 3])), "n": draw(st.integers(0, 2))},
            id=draw(st.sampled_from([None, "x", "y"])),
        )
        found.append(Arrival(o, 0, position))
    return found


def shown(o: Occurrence) -> tuple[Any, ...]:
    parts = {
        name: [shown(each) for each in (value if isinstance(value, tuple) else (value,))]
        for name, value in o.parts.items()
    }
    return o.name, o.us, o.id, dict(o.params), parts


@given(arrivals(), st.sets(st.integers(0, 31), max_size=4), st.integers(1, 4))
def test_buckets_find_what_detectors_of_all_keys_find(
    events: list[Arrival], punctuations: set[int], buckets: int
) -> None:
    rules = [keyed(number, pattern()) for number, pattern in enumerate(PATTERNS)]
    expected: dict[int, dict[str, list[Any]]] = {}
    detectors = {rule.name: Detector(rule.on, name=rule.name) for rule in rules}
    for arrival in sorted(events, key=lambda a: a.order):
        for rule in rules:
            matches = detectors[rule.name].feed(arrival.occurrence)
            if matches:
                at = expected.setdefault(arrival.position, {})
                at[rule.name] = [shown(match) for match in matches]

    found: dict[int, dict[str, list[Any]]] = {}
    processed = 0
    states: list[str | None] = [None] * buckets
    # The events come in the order of time up to each punctuation, and in any order between two.
    for reached_s in [*sorted(punctuations), None]:
        begun_s = max((s for s in punctuations if reached_s is None or s < reached_s), default=0)
        for number in range(buckets):
            kept = states[number]
            bucket = Bucket(rules, None if kept is None else json.loads(kept))
            for arrival in events:
                s = arrival.occurrence.us // 1_000_000
                is_now = begun_s <= s and (reached_s is None or s < reached_s)
                if is_now and hash(arrival.occurrence.params["k"]) % buckets == number:
                    bucket.take(arrival, home=True)
            passed = bucket.advance(None if reached_s is None else reached_s * 1_000_000)
            passed = Passed.restore(json.loads(json.dumps(passed.record())))
            states[number] = json.dumps(bucket.state())
            processed += passed.processed
            for each in passed.completions:
                assert each.arrival.position not in found
                at = found[each.arrival.position] = {}
                for name, completed in each.found.items():
                    assert isinstance(completed, list)
                    at[name] = [shown(match) for match in completed]
    assert found == expected
    assert processed == len(events)


@settings(max_examples=20)
@given(arrivals())
def test_bucket_that_was_done_before_a_moment_tells_nothing_of_it_and_knows_it(
    events: list[Arrival],
) -> None:
    rule = keyed(0, PATTERNS[0]())
    whole, rest = Bucket([rule]), Bucket([rule])
    for arrival in events:
        whole.take(arrival, home=True)
        rest.take(arrival, home=True)
    after = [c for c in whole.advance(None).completions if c.arrival.occurrence.us >= 15_000_000]
    passed = rest.advance(None, done_us=15_000_000)
    assert [c.arrival for c in passed.completions] == [c.arrival for c in after]
    assert passed.processed == sum(a.occurrence.us >= 15_000_000 for a in events)


def test_bucket_whose_rule_raises_takes_the_event_back_from_its_other_rules() -> None:
    def raises(o: Occurrence) -> bool:
        return bool(1 / o.params["n"] > 0)

    rules = [
        keyed(0, seq(event("A"), event("B")).same("k")),
        keyed(1, seq(event("A", where=raises), event("B")).same("k")),
    ]
    bucket = Bucket(rules)
    for position, (kind, n) in enumerate([("A", 0), ("A", 1), ("B", 1)]):
        o = Occurrence(kind, moment_of(position), {"k": 1, "n": n})
        bucket.take(Arrival(o, 0, position), home=True)
    failed, made = bucket.advance(None).completions
    assert failed.found == {"r1": ("ZeroDivisionError", "division by zero")}
    assert {name: len(found) for name, found in made.found.items()} == {"r0": 1, "r1": 1}


def test_bucket_whose_rule_refuses_an_event_alone_keeps_it_for_its_other_rules() -> None:
    def raises(o: Occurrence) -> bool:
        return bool(1 / o.params["n"] > 0)

    on = seq(event("A"), event("B")).same("k")
    rules = [
        replace(keyed(0, on), matches_max=1),
        replace(keyed(1, seq(event("A", where=raises), event("B")).same("k")), fails_alone=True),
        keyed(2, on),
    ]
    bucket = Bucket(rules)
    for position, (kind, n) in enumerate([("A", 0), ("A", 1), ("B", 1)]):
        o = Occurrence(kind, moment_of(position), {"k": 1, "n": n})
        bucket.take(Arrival(o, 0, position), home=True)
    first, last = bucket.advance(None).completions
    assert first.found == {"r1": ("ZeroDivisionError", "division by zero")}
    assert last.found["r0"][0] == "MatchesExceeded"
    assert [len(last.found[name]) for name in ("r1", "r2")] == [1, 2]


def test_bucket_forgets_what_it_has_of_an_event_that_was_changed() -> None:
    on = seq(event("A"), event("B")).same("k")
    bucket = Bucket([keyed(0, on)])
    bucket.take(Arrival(Occurrence("A", moment_of(0), {"k": 1}), 0, 0), home=True)
    bucket.advance(1)
    changed = KeyedRule("r0", on, frozenset({"k"}), frozenset({"A", "B"}), "another", None)
    again = Bucket([changed], json.loads(json.dumps(bucket.state())))
    again.take(Arrival(Occurrence("B", moment_of(2), {"k": 1}), 0, 1), home=True)
    assert again.advance(None).completions == []


def test_bucket_keeps_what_it_has_of_a_rule_that_is_away() -> None:
    on = seq(event("A"), event("B")).same("k")
    rules = [keyed(0, on), keyed(1, on)]
    bucket = Bucket(rules)
    bucket.take(Arrival(Occurrence("A", moment_of(0), {"k": 1}), 0, 0), home=True)
    bucket.advance(1)
    for present in (rules[1:], rules):
        bucket = Bucket(present, json.loads(json.dumps(bucket.state())))
    bucket.take(Arrival(Occurrence("B", moment_of(2), {"k": 1}), 2, 0), home=True)
    (completion,) = bucket.advance(None).completions
    assert completion.found.keys() == {"r0", "r1"}


def test_rule_takes_no_event_of_a_batch_before_it_began() -> None:
    on = seq(event("A"), event("B")).same("k")
    bucket = Bucket([keyed(0, on)])
    bucket.take(Arrival(Occurrence("A", moment_of(1), {"k": 1}), 0, 0), home=True)
    bucket = Bucket([keyed(0, on), keyed(1, on)], bucket.state(), since={"r0": 0, "r1": 1})
    for position, us in enumerate((2, 3)):
        o = Occurrence("AB"[position], moment_of(us), {"k": 2 - position})
        bucket.take(Arrival(o, 1, position), home=True)
    (completion,) = bucket.advance(None).completions
    assert completion.found.keys() == {"r0"}


def test_bucket_that_slept_while_a_rule_was_another_begins_it_anew() -> None:
    rule = keyed(0, seq(event("A"), event("B")).same("k"))
    bucket = Bucket([rule])
    bucket.take(Arrival(Occurrence("A", moment_of(0), {"k": 1}), 0, 0), home=True)
    bucket.advance(1)
    bucket = Bucket([rule], bucket.state(), since={"r0": 5})  # another from batch 3 on, say
    bucket.take(Arrival(Occurrence("B", moment_of(2), {"k": 1}), 5, 0), home=True)
    assert bucket.advance(None).completions == []


def test_keys_are_what_all_events_of_a_match_have_in_common() -> None:
    a, b, c = event("A"), event("B"), event("C")
    assert keys_of(a) == frozenset()
    assert keys_of(seq(a, b)) == frozenset()
    assert keys_of(seq(a, ~c, b).same("k", "n")) == {"k", "n"}
    assert keys_of(seq(a, seq(b, c).same("k")).same("k", "n")) == {"k"}
    assert keys_of(seq(a, seq(b, c)).same("k")) == frozenset()
    assert keys_of(any_of(seq(a, b).same("k"), all_of(a, c).same("k", "n"))) == {"k"}
    assert keys_of(query("Q", seq(a, b).same("k"), {"x": part("A").n})) == frozenset()
