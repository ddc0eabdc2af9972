"""Rules that evaluate common subexpressions together do what they would do alone."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

import activedb as adb
from tests.databases import PATIENCE_S, in_thread
from tests.drawing import Worlds
from tests.ledger import at, declare, event, open_ledger

if TYPE_CHECKING:
    from activedb import Expression, Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))


def patterns() -> dict[str, Expression]:
    """Most of them with a pair of A and B as a part."""
    a, b, c, d = (adb.event(name) for name in "ABCD")
    pair = adb.seq(a, b).same("n").within(9)
    return {
        "then c": adb.seq(pair, c).within(30),
        "then d": adb.seq(pair, d).within(30),
        "and c": (pair & c).within(20),
        "not d": adb.seq(pair, ~d).within(6),
        "chronicle": adb.seq(pair, c).within(30).context("chronicle"),
        "alone": pair,
        "later": adb.seq(pair, d).within(30).after(3),
    }


def watch(ledger: Ledger) -> None:
    """Define rules that write down by what they are triggered."""
    for name, on in patterns().items():

        def note(t: Transaction, o: Occurrence, name: str = name) -> None:
            parts = " ".join(f"{c.name}{c.us // 1_000_000 % 1_000}" for c in o.constituents)
            ledger.write(t, f"{name}: {parts}")

        ledger.db.rule(on=on, name=name)(note)


def shared(db: adb.Database) -> int:
    """Return how many subexpressions are shared."""
    return db.rules._sharing.network.shared


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4 * SCALE))
def test_shared_rules_of_a_stream_fire_as_rules_that_share_nothing(where: Place, seed: int) -> None:
    worlds = Worlds(1, "sharing", where.is_memory, seed, **{"then c": 1, "alone": 1, "letters": 1})
    for number, world in enumerate(worlds):
        drawn_from = world.getrandbits(32)
        shared_or_not = [
            fired(where, seed, drawn_from, f"s{number}{shares}", shares) for shares in (True, False)
        ]
        assert shared_or_not[0] == shared_or_not[1]
        lines, letters = shared_or_not[0]
        worlds.met.update(line.split(":")[0] for line in lines)
        worlds.met["letters"] += letters


def fired(
    where: Place, seed: int, drawn_from: int, stream_name: str, shares: bool
) -> tuple[list[str], int]:
    """Return what rules that share, or not, do in a random stream, and the number of letters."""
    partials_max = (0, 1_000, 1_000_000, 12)[seed % 4]
    chosen = random.Random(drawn_from)
    ledger = open_ledger(where.open(partials_max=partials_max, batch_events_max=20))
    db = ledger.db
    before = len(ledger.lines())
    if not shares:
        db.rules._sharing = None  # type: ignore[assignment]
    watch(ledger)

    def fails(t: Transaction, o: Occurrence) -> None:
        if o.us % 7_000_000 == 0:
            raise ValueError("an event in seven fails")

    db.rule(on=adb.event("B") | adb.event("C"), name="fails")(fails)
    assert not shares or shared(db) > 0
    stream = declare(db, stream_name, D=())
    second = 0
    for _ in range(6):
        batch = []
        for _ in range(30):
            second += 1
            batch.append(event(chosen.choice("ABCD"), second, n=chosen.randrange(2)))
        chosen.shuffle(batch)
        stream.feed(batch, punctuation=at(second + 1))
        name = chosen.choice(list(patterns()))
        if db.rules[name].enabled:
            db.rules.disable(name)
        else:
            db.rules.enable(name)
    made = sorted(ledger.lines()[before:]), len(db.dead_letters.list(stream.name))
    db.rules.delete("fails")
    for name in patterns():
        db.rules.delete(name)
    return made


def test_ignored_and_aborted_events_are_not_seen_through_what_others_share(where: Place) -> None:
    ledger = open_ledger(where.open())
    db = ledger.db
    watch(ledger)
    assert shared(db) > 0
    with db.transaction():
        with db.rules.ignoring("then c"):
            db.signal("A", timestamp=1, n=1)
        db.signal("B", timestamp=2, n=1)
    with db.transaction() as t:
        db.signal("A", timestamp=3, n=1)
        t.abort()
    db.signal("B", timestamp=4, n=1)
    db.signal("C", timestamp=5, n=1)
    fired = [line for line in ledger.lines() if line.split(":")[0] in ("then c", "and c")]
    assert sorted(fired) == ["and c: A1 B2 C5", "and c: A1 B4 C5"]


def test_threads_that_feed_rules_which_share_lose_nothing(where: Place) -> None:
    ledger = open_ledger(where.open(retries_max=50))
    db = ledger.db
    a, b, c = (adb.event(name) for name in "ABC")
    pair = adb.seq(a, b).same("n").within(9)
    seen: list[tuple[str, int]] = []
    for number in range(6):

        def note(t: Transaction, o: Occurrence, name: str = f"r{number}") -> None:
            seen.append((name, o.params["n"]))

        db.rule(on=adb.seq(pair, c).same("n").within(9 + number), name=f"r{number}")(note)

    def work(thread: int) -> None:
        for number in range(15):
            n = 100 * thread + number
            for place, kind in enumerate("ABC"):
                db.signal(kind, timestamp=1 + place, n=n)

    for future in [in_thread(work, thread) for thread in range(4)]:
        future.result(PATIENCE_S)
    expected = [
        (f"r{r}", 100 * thread + n) for r in range(6) for thread in range(4) for n in range(15)
    ]
    assert sorted(seen) == sorted(expected)
