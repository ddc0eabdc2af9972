"""Firings of work that is tried again: told apart by their place and their occurrence."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import SerializationConflict
from tests.databases import PATIENCE_S, in_thread
from tests.drawing import drawn
from tests.histories.processes import Server, Worker
from tests.ledger import at, declare, event, open_ledger

if TYPE_CHECKING:
    from pathlib import Path

    from activedb import Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger


def log_changes(ledger: Ledger, coupling: str = "detached") -> None:
    """Define a rule that writes down each change of a balance."""

    @ledger.db.rule(on=adb.updated(ledger.accounts), coupling=coupling, name="log")
    def log(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"{o.old['id']}: {o.old['balance']} to {o.new['balance']}")


def test_committed_change_of_a_later_try_has_its_detached_firing(ledger: Ledger) -> None:
    log_changes(ledger)
    values = iter([100, 200])

    def work(t: Transaction) -> None:
        value = next(values)
        t.update(ledger.accounts, 1, balance=value)
        if value == 100:
            raise SerializationConflict("as told")

    ledger.db.run(work)
    ledger.db.wait_idle()
    assert ledger.balances()[1] == 200
    assert sorted(ledger.lines()) == ["1: 10 to 100", "1: 10 to 200"]


@pytest.mark.parametrize("explicit", [False, True])
def test_times_tell_tries_apart_only_if_somebody_has_said_them(
    ledger: Ledger, explicit: bool
) -> None:
    ledger.db.rule(on=adb.seq(adb.event("A"), adb.event("B")), coupling="detached", name="pair")(
        lambda t, o: ledger.write(t, "pair")
    )
    tries: list[int] = []

    def work(t: Transaction) -> None:
        tries.append(1)
        for name, second in (("A", 1), ("B", 2)):
            when = {"timestamp": float(second + 10 * len(tries))} if explicit else {}
            ledger.db.signal(name, **when)
        if len(tries) == 1:
            raise SerializationConflict("as told")

    ledger.db.run(work)
    ledger.db.wait_idle()
    assert ledger.lines() == ["pair"] * (2 if explicit else 1)


@pytest.mark.parametrize("fails", [False, True])
def test_exclusive_rule_runs_for_each_occurrence_of_any_try_if_the_work_fails(
    ledger: Ledger, fails: bool
) -> None:
    log_changes(ledger, "exclusive")
    values = [100, 200, 200]
    tries: list[int] = []

    def work(t: Transaction) -> None:
        t.update(ledger.accounts, 1, balance=values[len(tries)])
        tries.append(1)
        if fails or len(tries) < len(values):
            raise SerializationConflict("as told")

    ledger.db.settings.__dict__["retries_max"] = len(values) - 1
    if fails:
        with pytest.raises(SerializationConflict):
            ledger.db.run(work)
    else:
        ledger.db.run(work)
    ledger.db.wait_idle()
    assert len(tries) == len(values)
    assert sorted(ledger.lines()) == (["1: 10 to 100", "1: 10 to 200"] if fails else [])
    assert ledger.pending() == []


@pytest.mark.parametrize("values", [(100, 200), (100, 100)])
def test_part_of_a_stream_that_is_done_again_fires_for_what_it_does_then(
    ledger: Ledger, values: tuple[int, int]
) -> None:
    log_changes(ledger)
    given = iter(values)

    @ledger.db.rule(on=adb.event("A"))
    def set_balance(t: Transaction, o: Occurrence) -> None:
        t.update(ledger.accounts, 1, balance=next(given))

    @ledger.db.rule(on=adb.event("B"))
    def stop(t: Transaction, o: Occurrence) -> None:
        if failures:
            failures.pop()
            raise SerializationConflict("as told")

    failures = [1]
    declare(ledger.db).feed([event("A", 1), event("B", 2)])
    ledger.db.wait_idle()
    assert ledger.balances()[1] == values[1]
    assert sorted(ledger.lines()) == [f"1: 10 to {value}" for value in sorted(set(values))]
    assert ledger.pending() == []


def fail_commits(db: adb.Database, errors: list[Exception]) -> None:
    """Let the next commits fail with these errors, the last one first."""

    def trigger(point: str) -> None:
        if point == "before commit" and errors:
            raise errors.pop()

    db._store.trigger = trigger


def test_part_that_is_tried_again_finds_what_has_expired_at_its_end(ledger: Ledger) -> None:
    @ledger.db.rule(on=adb.seq(adb.event("A"), adb.event("B")).within(10), name="pair")
    def pair(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "pair")

    stream = declare(ledger.db)
    errors: list[Exception] = []
    fail_commits(ledger.db, errors)
    stream.feed([event("A", 1)], punctuation=at(2))
    errors.append(SerializationConflict("as told"))
    stream.feed([event("B", 5)], punctuation=at(100))
    assert not errors
    assert ledger.lines() == ["pair"]


def test_part_that_is_tried_again_does_not_bring_back_what_has_expired_before(
    ledger: Ledger,
) -> None:
    kept: list[int] = []

    @ledger.db.rule(on=adb.seq(adb.event("A"), adb.event("B")).within(6).context("chronicle"))
    def pair(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "pair")

    @ledger.db.rule(on=adb.event("A"))
    def look(t: Transaction, o: Occurrence) -> None:
        kept.append(ledger.db.rules["pair"].partials)

    stream = declare(ledger.db)
    errors: list[Exception] = []
    fail_commits(ledger.db, errors)
    stream.feed([event("A", 1)], punctuation=at(2))
    stream.feed([], punctuation=at(20))
    assert ledger.db.rules["pair"].partials == 0
    errors.append(SerializationConflict("as told"))
    stream.feed([event("A", 20)], punctuation=at(21))
    assert kept == [1, 1, 1]


def test_part_that_failed_for_good_has_let_nothing_expire(ledger: Ledger) -> None:
    @ledger.db.rule(on=adb.seq(adb.event("A"), adb.event("B")).within(10), name="pair")
    def pair(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "pair")

    stream = declare(ledger.db)
    errors: list[Exception] = []
    fail_commits(ledger.db, errors)
    stream.feed([event("A", 1)], punctuation=at(2))
    errors.append(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        stream.feed([], punctuation=at(100))
    stream.feed([event("B", 5)], punctuation=at(6))
    assert ledger.lines() == ["pair"]


Rules = list[tuple[Any, dict[str, Any]]]


def random_rules(random: Random) -> Rules:
    """Patterns of events A, B, C, each with options of its rule."""
    found: Rules = []
    for _ in range(3):
        names = random.choices("ABC", k=random.choice([2, 3]))
        parts: list[Any] = [adb.event(n, alias=f"p{i}") for i, n in enumerate(names)]
        if random.random() < 0.3:
            parts.insert(random.randint(1, len(parts)), ~adb.event(random.choice("ABC")))
        pattern = adb.seq(*parts)
        if random.random() < 0.5:
            pattern = pattern.same("k")
        if random.random() < 0.3:
            pattern = pattern.context(random.choice(["recent", "chronicle", "continuous"]))
        elif random.random() < 0.2:
            pattern = pattern.skipping("past_last")
        options: dict[str, Any] = {}
        if random.random() < 0.5:
            options["partials_max"] = random.randint(2, 4)
            options["on_full"] = random.choice(["drop_oldest", "refuse"])
        found.append((pattern.within(random.randint(2, 12)), options))
    return found


Feed = tuple[list[tuple[str, int, int]], int, int]
"""Events (name, second, key), the punctuation behind them, and how often the part fails."""


def outcome_of_tries(
    place: Place, rules: Rules, feeds: list[Feed], *, is_tried_again: bool
) -> tuple[Any, ...]:
    """Return what rules write, refuse and keep, whether or not parts of a stream are retried."""
    ledger = open_ledger(place.open())
    for number, (pattern, options) in enumerate(rules):
        # One after another: the order of rules that run beside each other is open.
        @ledger.db.rule(on=pattern, name=f"rule{number}", priority=number, **options)
        def rule(t: Transaction, o: Occurrence) -> None:
            ledger.write(t, f"{o.name} {[(c.name, c.us) for c in o.constituents]}")

    stream = declare(ledger.db)
    errors: list[Exception] = []
    fail_commits(ledger.db, errors)
    for events, second, failures in feeds:
        if is_tried_again:
            errors += [SerializationConflict("as told") for _ in range(failures)]
        fed = [event(kind, s, k=k) for kind, s, k in events]
        stream.feed(fed, punctuation=at(second))
        assert not errors
    letters = [(letter["source"], letter["identity"]) for letter in ledger.letters()]
    kept = [(entry.name, entry.partials, entry.dropped) for entry in ledger.db.rules]
    return ledger.lines(), letters, kept


@pytest.mark.long
@pytest.mark.parametrize("number", range(6))
def test_part_of_random_events_that_is_tried_again_does_what_one_try_does(
    where: Place, number: int
) -> None:
    random = drawn("parts tried again", number)
    rules = random_rules(random)
    feeds: list[Feed] = []
    now = 0
    for _ in range(random.randint(4, 8)):
        seconds = sorted(now + random.randint(0, 5) for _ in range(random.randint(0, 5)))
        events = [(random.choice("ABC"), second, random.randint(1, 2)) for second in seconds]
        now = max([now, *seconds]) + random.choice([0, 1, 1, 3, 20])
        feeds.append((events, now, random.randint(0, 2)))
    outcomes = []
    for is_tried_again in (False, True):
        with where.another() as place:
            outcomes.append(outcome_of_tries(place, rules, feeds, is_tried_again=is_tried_again))
    assert outcomes[0] == outcomes[1], (rules, feeds)


@pytest.mark.long
@pytest.mark.parametrize("number", range(5))
def test_every_committed_change_of_random_tries_has_its_detached_firing_once(
    ledger: Ledger, number: int
) -> None:
    chance = drawn("changes of random tries", number)
    log_changes(ledger)
    fresh = iter(range(1_000, 9_999))
    committed: list[str] = []

    def work(t: Transaction) -> list[str]:
        made = []
        for key in chance.sample((1, 2), chance.randint(1, 2)):
            s = t.subtransaction() if chance.random() < 0.5 else None
            try:
                if s is not None:
                    s.__enter__()
                inside = t if s is None else s
                row = inside.get(ledger.accounts, key)
                assert row is not None
                value = chance.choice([7, next(fresh)])
                if row["balance"] != value:
                    inside.update(ledger.accounts, key, balance=value)
                    made.append(f"{key}: {row['balance']} to {value}")
            finally:
                if s is not None:
                    s.__exit__(None, None, None)
            if chance.random() < 0.4:
                raise SerializationConflict("as told")
        return made

    for _ in range(15):
        try:
            committed += ledger.db.run(work)
        except SerializationConflict:
            continue
    ledger.db.wait_idle()
    counts = Counter(ledger.lines())
    missing = Counter(committed) - counts
    assert not missing
    unique = [line for line in counts if not line.endswith(" 7")]  # values that no other try has
    assert {counts[line] for line in unique} <= {1}
    assert ledger.pending() == []
    assert ledger.letters() == []


def test_occurrence_of_two_tries_fires_once_though_one_try_triggers_another_rule_too(
    ledger: Ledger,
) -> None:
    db = ledger.db
    for name, pattern in {
        "pair": adb.seq(adb.event("X"), adb.event("Y")),
        "y": adb.event("Y"),
    }.items():
        db.rule(on=pattern, coupling="detached", name=name)(
            lambda t, o, name=name: ledger.write(t, name)
        )
    tries: list[int] = []

    def work(t: Transaction) -> None:
        tries.append(1)
        db.signal("Y", n=1)
        if len(tries) == 1:
            in_thread(db.signal, "X").result(PATIENCE_S)
            raise SerializationConflict("as told")

    db.run(work)
    db.wait_idle()
    assert sorted(ledger.lines()) == ["pair", "y"]


Step = tuple[str, int] | list[tuple[str, int]]
"""Event and its parameter; or those of a subtransaction."""


def random_try(chance: Random) -> list[Step]:
    """Few events, so that tries have some of them in common, and raise some of them twice."""

    def some(most: int) -> list[tuple[str, int]]:
        return [
            (chance.choice("XYZ"), chance.randint(1, 2)) for _ in range(chance.randint(0, most))
        ]

    return [some(3) if chance.random() < 0.3 else step for step in some(6)]


@pytest.mark.long
@pytest.mark.parametrize("coupling", ["detached", "exclusive"])
@pytest.mark.parametrize("number", range(8))
def test_occurrences_of_random_tries_that_trigger_different_rules_fire_once_each(
    ledger: Ledger, coupling: str, number: int
) -> None:
    chance, db = drawn("tries of different events", number), ledger.db
    heard = {"one": "X", "two": "XY", "three": "YZ", "four": "XYZ"}
    for name, events in heard.items():
        db.rule(on=adb.any_of(*(adb.event(each) for each in events)), coupling=coupling, name=name)(
            lambda t, o, name=name: ledger.write(t, f"{name} {o.name} {o.params['n']}")
        )
    works = [[random_try(chance) for _ in range(chance.randint(2, 4))] for _ in range(5)]
    expected: Counter[str] = Counter()
    db.settings.__dict__["retries_max"] = max(map(len, works)) - 1
    for tries in works:
        left = list(tries)

        def work(t: Transaction, left: list[list[Step]] = left) -> None:
            for step in left.pop(0):
                if isinstance(step, list):
                    with t.subtransaction():
                        for name, n in step:
                            db.signal(name, n=n)
                else:
                    db.signal(step[0], n=step[1])
            if left or coupling == "exclusive":
                raise (SerializationConflict("as told") if left else ZeroDivisionError)

        if coupling == "exclusive":
            with pytest.raises(ZeroDivisionError):
                db.run(work)
        else:
            db.run(work)
        expected += fired(tries, heard)
    db.wait_idle()
    assert Counter(ledger.lines()) == expected, works
    assert ledger.pending() == []


def fired(tries: list[list[Step]], heard: dict[str, str]) -> Counter[str]:
    """Count the firings of a work: those of an occurrence at a place are as many as in one try."""
    most: Counter[tuple[int, str]] = Counter()
    for steps in tries:
        raised: Counter[tuple[int, str]] = Counter()
        child = 0
        for step in steps:
            child += isinstance(step, list)
            for event_name, n in step if isinstance(step, list) else [step]:
                place = child if isinstance(step, list) else 0
                for rule, events in heard.items():
                    raised[place, f"{rule} {event_name} {n}"] += event_name in events
        most |= raised
    total: Counter[str] = Counter()
    for (_, line), count in most.items():
        total[line] += count
    return total


@pytest.mark.crash
@pytest.mark.parametrize("point", ["before flush", "before commit", "after commit"])
@pytest.mark.parametrize("commit", [1, 2, 3, 4])
def test_committed_changes_have_their_firings_once_though_the_process_is_killed(
    database_url: str, tmp_path: Path, point: str, commit: int
) -> None:
    task = {"url": database_url, "point": point, "commit": commit}
    with Worker("tests.firing.test_tries", task, tmp_path / "log") as worker:
        worker.wait_ready()
        worker.go()
        assert worker.process.wait(PATIENCE_S) in (-signal.SIGKILL, 0)
    Server(database_url).wait_idle()
    with adb.connect(database_url) as db:
        ledger = open_ledger(db)
        log_changes(ledger)
        db.recover()
        db.wait_idle()
        counts = Counter(ledger.lines())
        value = ledger.balances()[1]
        while value != 10:  # back over the committed changes
            line = next(each for each in counts if each.endswith(f" to {value}"))
            assert counts[line] == 1
            value = int(line.split()[1])
        assert set(counts.values()) <= {1}
        assert ledger.pending() == []
        assert ledger.letters() == []


def main(given: dict[str, Any]) -> None:
    """Change a balance in tries whose values differ; be killed at a point of some commit."""
    left, fresh = [given["commit"]], iter(range(100, 999))
    tries: list[int] = []

    def trigger(point: str) -> None:
        if point == given["point"]:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def work(t: Transaction) -> None:
        t.update(ledger.accounts, 1, balance=next(fresh))
        tries.append(1)
        if len(tries) % 2:
            raise SerializationConflict("as told")

    with adb.connect(given["url"]) as db:
        ledger = open_ledger(db, {1: 10})
        log_changes(ledger)
        print("ready", flush=True)
        sys.stdin.readline()
        db._store.trigger = trigger
        for _ in range(3):
            db.run(work)
        db.wait_idle()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
