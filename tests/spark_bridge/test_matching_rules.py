"""Rules that can be matched elsewhere, and what the process does with their reported matches."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import activedb as adb
from activedb.clock import moment_of
from activedb.columns import Arrival
from activedb.errors import CheckpointMismatch, ConfigurationError
from activedb.events import Expression, Occurrence
from activedb.streams import AtomicBatch, Completion, Matched, Stream
from tests.drawing import Worlds

pytest.importorskip("pyspark", reason="no Spark: make test-all installs it")

from spark_bridge import _session
from spark_bridge._matching_bucket import Bucket, Passed
from spark_bridge._matching_operator import left_of
from spark_bridge._matching_plan import (
    MatchingPlan,
    MatchingState,
    begin,
    check_switch,
    plan_of,
    write,
)

A, B, C = (adb.event(kind) for kind in "ABC")


@pytest.fixture
def db() -> Any:
    with adb.connect("memory://") as opened:
        yield opened


def letters(db: adb.Database, **options: Any) -> Stream:
    types = {"A": ("k",), "B": ("k",), "C": ()}
    return db.stream("letters", type="kind", timestamp="at", types=types, **options)


def rule(db: adb.Database, name: str, on: Expression, **options: Any) -> list[int]:
    seen: list[int] = []

    @db.rule(on=on, name=name, **options)
    def note(t: adb.Transaction, o: adb.Occurrence) -> None:
        seen.append(o.us)

    return seen


def batch(number: int, matched: Matched | None, *rows: tuple[str, int], us: int) -> AtomicBatch:
    table = pa.table(
        {
            "event_type": pa.array([kind for kind, _ in rows], pa.string()),
            "event_time_us": pa.array([at for _, at in rows], pa.int64()),
            "event_id": pa.array([None] * len(rows), pa.string()),
            "p_k": pa.array([1] * len(rows), pa.int64()),
            "raw": pa.array([None] * len(rows), pa.string()),
        }
    )
    return AtomicBatch("letters", "query", number, table, us, matched)


def completion(us: int, *rules: str, place: tuple[int, int] = (0, 0)) -> Completion:
    first, last = (Occurrence(kind, moment_of(at), {"k": 1}) for kind, at in (("A", 1), ("B", us)))
    made = {
        name: [Occurrence(name, moment_of(us), {"k": 1}, parts={"A": first, "B": last})]
        for name in rules
    }
    return Completion(Arrival(last, *place), made)


REASONS: dict[str, tuple[Callable[[], Expression], dict[str, Any], str]] = {
    "no key": (lambda: adb.seq(A, B).within(1), {}, "no parameter is the same"),
    "of time": (lambda: adb.seq(A, ~B).same("k").within(1), {}, "time alone"),
    "bounded": (lambda: adb.seq(A, B).same("k"), {"partials_max": 5}, "partials_max"),
    "reading": (
        lambda: adb.seq(A, B).same("k").reading(lambda t, parts: True),
        {},
        "read the store",
    ),
    "late too": (
        lambda: adb.any_of(adb.seq(A, B).same("k"), adb.late("letters")),
        {},
        "late events",
    ),
    "of others": (lambda: adb.seq(A, adb.event("X")).same("k"), {}, "more than the events"),
}


def test_rules_that_cannot_be_matched_elsewhere_stay_here_with_a_reason(db: adb.Database) -> None:
    stream = letters(db)
    rule(db, "keyed", adb.seq(A, B).same("k").within(1))
    rule(db, "plain", C)
    for name, (on, options, _) in REASONS.items():
        rule(db, name, on(), **options)
    found = stream.run.matchable()
    assert [each.name for each in found.rules] == ["keyed"]
    assert found.here.keys() == REASONS.keys()
    for name, (_, _, why) in REASONS.items():
        assert why in found.here[name]
    assert found.needs({"keyed"}) == {"A", "B", "C"}


def test_stream_whose_order_may_be_uncertain_stays_here(db: adb.Database) -> None:
    stream = letters(db, accuracy="make_dt_interval(0, 0, 0, 1)")
    rule(db, "keyed", adb.seq(A, B).same("k"))
    found = stream.run.matchable()
    assert (found.rules, "intervals" in found.here["keyed"]) == ((), True)


def test_matches_from_elsewhere_trigger_their_rules_in_event_time_order_once(
    db: adb.Database,
) -> None:
    stream = letters(db)
    keyed, plain = rule(db, "keyed", adb.seq(A, B).same("k")), rule(db, "plain", C)
    run = stream.run
    plan = run.matchable()
    matched = Matched(
        {each.name: each.event for each in plan.rules},
        plan.needs({"keyed"}),
        [completion(9, "keyed", place=(0, 1)), completion(5, "keyed", place=(0, 0))],
        processed=3,
        positions=[7],
    )
    # The punctuation of a batch that is matched elsewhere counts the rows before it: 6 waits.
    run.apply(batch(0, replace(matched, completions=[], processed=0), ("C", 6), us=4))
    second = batch(1, replace(matched, positions=[]), us=10)
    run.apply(second)
    run.apply(second)
    assert (keyed, plain) == ([5, 9], [6])
    assert run.totals() == {"events": 4, "late": 0, "dead": 0}
    left = Matched(
        matched.rules, matched.passed, [completion(20, "keyed")], 2, newest_us=30, batch_id=1
    )
    run.finish(left)
    assert keyed == [5, 9, 20]
    assert (run.totals()["events"], run.punctuation_us) == (6, 31)
    run.apply(batch(2, matched, us=12))  # all of which the end has done
    assert keyed == [5, 9, 20]


def test_event_that_a_detector_elsewhere_refused_becomes_a_letter(db: adb.Database) -> None:
    stream = letters(db)
    keyed = rule(db, "keyed", adb.seq(A, B).same("k"))
    run = stream.run
    rules = {each.name: each.event for each in run.matchable().rules}
    refused = Completion(completion(5).arrival, {"keyed": ("ZeroDivisionError", "by zero")})
    run.apply(batch(0, Matched(rules, frozenset(), [refused], 1), us=10))
    (letter,) = db.dead_letters.list()
    assert (letter.identity, letter.error) == ("0.0", "ZeroDivisionError")
    assert letter.reason == "ZeroDivisionError: by zero"
    assert letter.payload["type"] == "B"
    assert (keyed, run.totals()) == ([], {"events": 1, "late": 0, "dead": 1})


@pytest.mark.parametrize(
    ("error", "on_abort", "reason"),
    [
        ("MatchesExceeded", "triggering", "too many"),
        ("BadEvent", "triggering", "too many"),
        ("ValueError", "rule", "ValueError: too many"),
    ],
)
def test_event_that_one_rule_elsewhere_refused_alone_triggers_the_others(
    db: adb.Database, error: str, on_abort: str, reason: str
) -> None:
    stream = letters(db)
    refusing = rule(db, "refusing", adb.seq(A, B).same("k"), on_abort=on_abort)
    keyed = rule(db, "keyed", adb.seq(A, B).same("k"))
    run = stream.run
    rules = {each.name: each.event for each in run.matchable().rules}
    made = completion(5, "keyed")
    refused = Completion(made.arrival, {"refusing": (error, "too many"), **made.found})
    run.apply(batch(0, Matched(rules, frozenset(), [refused], 1), us=10))
    (letter,) = db.dead_letters.list()
    assert (letter.error, letter.reason) == (error, reason)
    assert (refusing, keyed, run.totals()["dead"]) == ([], [5], 0)


def test_events_matched_in_a_bucket_give_what_one_process_gives_whatever_refuses_them() -> None:
    worlds = Worlds(30, "refused in a bucket", alone=5, for_all=5, fired=5)
    for random in worlds:
        specs = [
            (
                random.choice(PATTERNS),
                random.choice([1, 2, 10]),
                random.choice(["triggering", "rule"]),
            )
            for _ in range(3)
        ]
        events = [
            adb.occurrence(random.choice("AAB"), timestamp=us / 1e6, k=1, n=random.randrange(4))
            for us in range(1, random.randint(5, 12))
        ]
        with adb.connect("memory://") as db:
            seen = watched(db, specs)
            run = db.stream("letters", types={"A": ("k",), "B": ("k",)}).run
            matchable = run.matchable()
            run.feed(events, 100)
            expected = (sorted(seen), told(db))
        bucket = Bucket(matchable.rules)
        for position, o in enumerate(events):
            bucket.take(Arrival(o, 0, position), home=True)
        passed = Passed.restore(json.loads(json.dumps(bucket.advance(100).record())))
        with adb.connect("memory://") as db:
            seen = watched(db, specs)
            rules = {each.name: each.event for each in matchable.rules}
            matched = Matched(rules, frozenset(), passed.completions, passed.processed)
            letters(db).run.apply(batch(0, matched, us=100))
            assert (sorted(seen), told(db)) == expected
        alone = ["/" in identity for identity, _ in expected[1]]
        worlds.met["alone"] += any(alone)
        worlds.met["for_all"] += not all(alone)
        worlds.met["fired"] += any(alone) and bool(seen)


def _divides(o: Occurrence) -> bool:
    return bool(6 % o.params["n"] == 0)


PATTERNS: list[Expression] = [
    adb.seq(A, B).same("k"),
    adb.seq(A, B).same("k").context("chronicle"),
    adb.seq(A, adb.event("B", where=_divides)).same("k"),
    adb.seq(adb.event("A", where=_divides), B).same("k").context("recent"),
]
Watched = tuple[Expression, int, str]
"""A rule: its pattern, how many matches an event completes at most, and `on_abort`."""


def watched(db: adb.Database, rules: list[Watched]) -> list[tuple[str, int, int]]:
    """Define the rules; return the list of what they will do."""
    seen: list[tuple[str, int, int]] = []
    for number, (on, matches_max, on_abort) in enumerate(rules):

        def act(t: adb.Transaction, o: Occurrence, number: int = number) -> None:
            seen.append((f"r{number}", o.us, o.parts["A"].us))

        db.rule(on=on, name=f"r{number}", matches_max=matches_max, on_abort=on_abort)(act)
    return seen


def told(db: adb.Database) -> list[tuple[str, str]]:
    """Return the letters, without the texts: rules that share a pattern have its name there."""
    return sorted((letter.identity, letter.error) for letter in db.dead_letters.list())


def test_row_from_the_future_as_of_its_planning_is_refused_by_its_position(
    db: adb.Database,
) -> None:
    run = letters(db).run
    rule(db, "keyed", adb.seq(A, B).same("k"))
    matched = Matched({}, frozenset("ABC"), positions=[40, 41], from_future=frozenset({41}))
    run.apply(batch(0, matched, ("C", 11), ("C", 12), us=10))
    run.apply(batch(1, replace(matched, positions=[]), us=20))
    (letter,) = db.dead_letters.list()
    assert (letter.identity, letter.error) == ("0.41", "BadEvent")
    assert "future_max_s" in letter.reason
    assert run.totals() == {"events": 1, "late": 0, "dead": 1}


def test_rule_that_is_new_or_another_while_others_match_ends_the_feed(db: adb.Database) -> None:
    stream = letters(db)
    rule(db, "keyed", adb.seq(A, B).same("k"))
    run = stream.run
    plan = run.matchable()
    matched = Matched({each.name: each.event for each in plan.rules}, plan.needs({"keyed"}))
    run.apply(batch(0, matched, us=1))
    rule(db, "new", adb.seq(B, A).same("k"))
    with pytest.raises(
        ConfigurationError, match=r"listens to A, B while .* start the feed .* again"
    ):
        run.apply(batch(1, matched, us=2))
    with pytest.raises(ConfigurationError, match="the event of rule keyed was changed"):
        changed = Matched({"keyed": "another", "new": matched.rules["keyed"]}, matched.passed)
        run.apply(batch(1, changed, us=2))


def test_plan_deals_rows_out_by_few_parameters_and_leaves_what_it_cannot(
    db: adb.Database, tmp_path: Path
) -> None:
    stream = letters(db)
    rule(db, "one", adb.seq(A, B).same("k"))
    rule(db, "two", adb.seq(A, C).same("n"))
    rule(db, "three", adb.seq(B, C).same("k", "n"))
    rule(db, "four", adb.seq(B, A).same("list"))
    lock = threading.Lock()  # which cannot be pickled
    rule(db, "five", adb.seq(A, B).same("k").where(lambda parts: lock is not None))
    matchable = stream.run.matchable()
    state = begin(tmp_path, matchable, partitions=2, keys=["k", "n"])
    plan, here = plan_of("letters", matchable, state, batch_id=0)
    assert [(key, [r.name for r in rules]) for key, rules in plan.groups] == [
        ("k", ["one", "three"]),
        ("n", ["two"]),
    ]
    assert here.keys() == {"four", "five"}
    assert plan.passed == {"A", "B"}
    before = replace(state, by_rule={"three": "n", "gone": "k"})
    again, _ = plan_of("letters", matchable, before, batch_id=0)
    assert [(key, [r.name for r in rules]) for key, rules in again.groups] == [
        ("n", ["two", "three"]),
        ("k", ["one"]),
    ]
    assert again.rules_of("other") == ()
    assert begin(tmp_path, matchable, partitions=9) == state  # as it began


def test_rules_that_come_and_go_leave_what_others_keep_on_executors(
    db: adb.Database, tmp_path: Path
) -> None:
    stream = letters(db)
    buckets: dict[tuple[str, str], str] = {}  # as Spark keeps them: by group, here with one bucket

    def feed(batch_id: int, *rows: tuple[str, int]) -> tuple[MatchingPlan, list[tuple[str, int]]]:
        """One feed of one batch, of which the punctuation passes all rows but the last."""
        matchable = stream.run.matchable()
        state = begin(tmp_path, matchable, partitions=1, keys=["item", "user"])
        plan, _ = plan_of("letters", matchable, state, batch_id=batch_id)
        write(tmp_path, state.remembering(plan))
        found = []
        for group, rules in plan.groups:
            kept = buckets.get((group, "0"))
            bucket = Bucket(rules, None if kept is None else json.loads(kept), since=plan.since)
            for position, (kind, us) in enumerate(rows):
                o = Occurrence(kind, moment_of(us), {"user": 1, "item": 1})
                bucket.take(Arrival(o, batch_id, position), home=True)
            passed = bucket.advance(rows[-1][1])
            for each in passed.completions:
                found += [(name, each.arrival.occurrence.us) for name in each.found]
            buckets[group, "0"] = json.dumps(bucket.state())
        return plan, sorted(found)

    rule(db, "by user", adb.seq(A, B).same("user"))
    feed(0, ("A", 1), ("A", 2))
    rule(db, "by item", adb.seq(A, B).same("item"))
    rule(db, "also by user", adb.seq(A, ~C, B).same("user"))
    plan, found = feed(1, ("B", 3), ("A", 4))
    assert {(key, each.name) for key, rules in plan.groups for each in rules} == {
        ("user", "by user"),
        ("user", "also by user"),
        ("item", "by item"),
    }
    assert found == [("by user", 3)]  # the others have not been there for any A
    assert plan.since == {"by user": 0, "by item": 1, "also by user": 1}
    db.rules.delete("by user")
    plan, found = feed(2, ("B", 5), ("A", 6))
    assert found == [("also by user", 5), ("by item", 5)]
    rule(db, "by user", adb.seq(A, B).same("user"))
    plan, _ = feed(3, ("B", 7))
    assert plan.since == {"by user": 0, "by item": 1, "also by user": 1}
    left = left_of(plan, 4, ((group, kept) for (group, _), kept in buckets.items()))
    completions = [c for text in left for c in Passed.restore(json.loads(text)).completions]
    assert sorted(name for c in completions for name in c.found) == sorted(plan.since)
    db.rules.delete("by item")
    rule(db, "by item", adb.seq(B, A).same("item"))
    plan, _ = feed(4, ("A", 8))
    assert plan.since == {"by user": 0, "by item": 4, "also by user": 1}


def test_rule_that_gets_another_key_begins_anew(db: adb.Database) -> None:
    stream = letters(db)
    rule(db, "both", adb.seq(A, B).same("item", "user"))
    matchable = stream.run.matchable()
    state = MatchingState(8, ("item", "user"))
    for keys, batch_id, key, since in (
        (("item", "user"), 2, "item", 2),
        (("item", "user"), 3, "item", 2),
        (("user",), 4, "user", 4),  # a list now, say
        (("item", "user"), 5, "user", 4),
    ):
        state = replace(state, keys=keys)
        plan, _ = plan_of("letters", matchable, state, batch_id=batch_id)
        assert ([name for name, _ in plan.groups], plan.since) == ([key], {"both": since})
        state = state.remembering(plan)


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]", "spark://host:7077"])
def test_session_listens_beyond_this_machine_only_for_a_cluster(
    tmp_path: Path, master: str
) -> None:
    conf = _session._conf(tmp_path, {"spark.master": master, "spark.executor.memory": "4g"})
    assert (conf.get("spark.master"), conf.get("spark.executor.memory")) == (master, "4g")
    assert (conf.get("spark.driver.host") == "127.0.0.1") == master.startswith("local")


def test_switch_is_the_one_with_which_the_checkpoint_began(
    db: adb.Database, tmp_path: Path
) -> None:
    matchable = letters(db).run.matchable()
    check_switch(tmp_path, "letters", is_elsewhere=True, has_begun=False)
    check_switch(tmp_path, "letters", is_elsewhere=False, has_begun=True)
    begin(tmp_path, matchable, partitions=1, keys=["k"])
    check_switch(tmp_path, "letters", is_elsewhere=False, has_begun=False)  # which forgets that
    with pytest.raises(ConfigurationError, match="began with the setting scale_out off"):
        check_switch(tmp_path, "letters", is_elsewhere=True, has_begun=True)
    begin(tmp_path, matchable, partitions=1, keys=["k"])
    check_switch(tmp_path, "letters", is_elsewhere=True, has_begun=True)
    with pytest.raises(ConfigurationError, match="began with the setting scale_out on"):
        check_switch(tmp_path, "letters", is_elsewhere=False, has_begun=True)


@pytest.mark.parametrize("came_as_row", [False, True])
def test_event_that_waits_over_a_change_of_what_passes_is_processed_once(
    db: adb.Database, came_as_row: bool
) -> None:
    stream = letters(db)
    keyed = rule(db, "keyed", adb.seq(A, B).same("k"))
    run = stream.run
    rules = {each.name: each.event for each in run.matchable().rules}
    passed, rows = (frozenset("B"), [("B", 9)]) if came_as_row else (frozenset(), [])
    run.apply(batch(0, Matched(rules, passed, positions=[0] * len(rows)), *rows, us=5))
    other = frozenset("B") - passed
    found = [completion(9, "keyed", place=(0, 0))]
    processed = int(not came_as_row)
    run.apply(batch(1, Matched(rules, other, found, processed, positions=[]), us=20))
    assert keyed == [9]
    assert run.totals()["events"] == 1


@pytest.mark.parametrize("behind", [None, 0])
def test_end_moves_no_time_on_while_it_is_not_known_what_waits_elsewhere(
    db: adb.Database, behind: int | None
) -> None:
    stream = letters(db)
    keyed, plain = rule(db, "keyed", adb.seq(A, B).same("k")), rule(db, "plain", C)
    run = stream.run
    rules = {each.name: each.event for each in run.matchable().rules}
    here = {"source": {"kind": "Files"}, "punctuation_us": 5, "elsewhere": True}
    for number, us in ((0, 3), (1, 5)):
        matched = Matched(rules, frozenset("C"), positions=[0])
        run.apply(replace(batch(number, matched, ("C", 50 + number), us=us), position=here))
    # Spark has counted batch 0 only, and has worked out from there what is left.
    found = [completion(9, "keyed", place=(0, 1))]
    stale = Matched(rules, frozenset("C"), found, 1, newest_us=9, batch_id=0)
    run.finish(None if behind is None else stale)
    assert (keyed, plain, run.punctuation_us) == ([], [], 5)
    run.apply(batch(2, Matched(rules, frozenset("C"), found, 1, positions=[]), us=60))
    assert (keyed, plain) == ([9], [50, 51])


def test_batch_that_is_half_done_elsewhere_lets_nobody_feed_the_stream_from_python() -> None:
    with adb.connect("memory://", batch_events_max=1) as db:
        stream = letters(db)
        keyed, plain = rule(db, "keyed", adb.seq(A, B).same("k")), rule(db, "plain", C)
        run = stream.run
        rules = {each.name: each.event for each in run.matchable().rules}
        here = {"source": {"kind": "Files"}, "punctuation_us": 60, "elsewhere": True}
        waiting = Matched(rules, frozenset("C"), positions=[0, 1])
        run.apply(replace(batch(0, waiting, ("C", 50), ("C", 51), us=5), position=here))
        matched = Matched(rules, frozenset("C"), positions=[0, 1])
        rows = [("C", 65), ("D", 66)]  # D is no event: of it there is a letter
        torn = replace(batch(1, matched, *rows, us=60), position=here)

        def interrupt(events: int) -> None:
            raise KeyboardInterrupt

        run.on_progress = interrupt
        with pytest.raises(KeyboardInterrupt):
            run.apply(torn)
        run.on_progress = lambda events: None
        with pytest.raises(CheckpointMismatch, match="batch 1 is half done"):
            stream.feed([Occurrence("C", 0.00007, {"k": 1})])
        run.apply(torn)
        assert (keyed, plain, run.totals()["dead"], run.waiting) == ([], [50, 51], 1, 1)
        stream.feed([Occurrence("C", 0.00007, {"k": 1})])


def test_end_that_was_cut_off_says_how_far_it_came() -> None:
    with adb.connect("memory://", batch_events_max=1) as db:
        stream = letters(db)
        keyed = rule(db, "keyed", adb.seq(A, B).same("k"))
        run = stream.run
        rules = {each.name: each.event for each in run.matchable().rules}
        run.apply(batch(0, Matched(rules, frozenset(), positions=[]), us=5))
        found = [completion(9, "keyed"), completion(20, "keyed", place=(0, 1))]
        left = Matched(rules, frozenset(), found, 2, newest_us=30, batch_id=0)

        def interrupt(events: int) -> None:
            raise KeyboardInterrupt

        run.on_progress = interrupt
        with pytest.raises(KeyboardInterrupt):
            run.finish(left)
        assert run.matchable().punctuation_us == run.punctuation_us == 20
        run.on_progress = lambda events: None
        run.finish(left)
        assert keyed == [9, 20]
