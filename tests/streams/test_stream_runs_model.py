"""Any split into batches, in any order, gives what a replay in event-time order gives."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import activedb as adb
from tests.databases import place
from tests.ledger import at, declare, event, open_ledger

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
QUICK = settings(
    max_examples=40 * SCALE,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SLOW = settings(QUICK, max_examples=12 * SCALE)
WINDOW_S = 6

EVENTS = st.lists(
    st.tuples(
        st.sampled_from("AABCX"), st.integers(0, 20), st.integers(1, 2), st.sampled_from("pq")
    ),
    max_size=24,
)
Plan = list[tuple[list[int], int]]


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[Occurrence], Plan, int, bool]:
    """Events, batches of them with a punctuation each, the size of parts, and a restart."""
    drawn = draw(EVENTS)
    events = [
        event(kind, second, f"{tie}{number:02}", k=k, n=number)
        for number, (kind, second, k, tie) in enumerate(drawn)
    ]
    order = draw(st.permutations(range(len(events))))
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), max_size=4)))
    bounds = [0, *cuts, len(events)]
    plan = [(list(order[low:high]), draw(st.integers(-1, 21))) for low, high in pairwise(bounds)]
    return events, plan, draw(st.sampled_from([1, 2, 5, 2_000])), draw(st.booleans())


def on_time(events: list[Occurrence], plan: Plan) -> tuple[list[Occurrence], int]:
    """Events that are not late, in event-time order, and how many are."""
    punctuation, admitted, late = at(-100), [], 0
    for numbers, second in plan:
        for number in numbers:
            if events[number].timestamp < punctuation:  # type: ignore[operator]  # all are datetimes
                late += 1
            else:
                admitted.append(events[number])
        punctuation = max(punctuation, at(second))
    return sorted(admitted, key=lambda o: (o.us, o.id or "")), late


def replay(events: list[Occurrence]) -> tuple[dict[int, int], list[str], int]:
    """Return what the rules below leave behind, computed in plain Python."""
    balances, matches, dead = {1: 0, 2: 0}, [], 0
    past: list[Occurrence] = []
    for o in events:
        k, n = o.params["k"], o.params["n"]
        if o.name == "X":
            dead += 1
            continue
        if o.name == "A":
            balances[k] = balances[k] * 3 + n
        if o.name == "C":
            for a in past:
                if a.name != "A" or a.params["k"] != k:
                    continue
                if not a.us < o.us <= a.us + WINDOW_S * 1_000_000:
                    continue
                if any(b.name == "B" and b.params["k"] == k and a.us < b.us < o.us for b in past):
                    continue
                matches.append(f"{a.params['n']}-{n}")
                balances[k] += 1_000
        past.append(o)
    return balances, matches, dead


def check(url: str | None, drawn: tuple[list[Occurrence], Plan, int, bool]) -> None:
    events, plan, batch_events_max, restart = drawn
    with place(url) as where:

        def open_() -> Any:
            ledger = open_ledger(where.open(batch_events_max=batch_events_max))

            @ledger.db.rule(on=adb.event("A"))
            def book(t: Transaction, o: Occurrence) -> None:
                k = o.params["k"]
                row = t.get(ledger.accounts, k)
                if row is None:
                    t.insert(ledger.accounts, {"id": k, "balance": o.params["n"]})
                else:
                    t.update(ledger.accounts, k, balance=row["balance"] * 3 + o.params["n"])

            pattern = adb.seq(adb.event("A"), ~adb.event("B"), adb.event("C"))

            @ledger.db.rule(on=pattern.same("k").within(WINDOW_S))
            def match(t: Transaction, o: Occurrence) -> None:
                ledger.write(t, f"{o.parts['A'].params['n']}-{o.parts['C'].params['n']}")
                row = t.get(ledger.accounts, o.params["k"], for_update=True)
                assert row is not None
                t.update(ledger.accounts, o.params["k"], balance=row["balance"] + 1_000)

            @ledger.db.rule(on=adb.event("X"))
            def fail(t: Transaction, o: Occurrence) -> None:
                ledger.write(t, "never")
                raise ValueError("X")

            return ledger, declare(ledger.db, X=())

        ledger, stream = open_()
        for numbers, second in plan:
            stream.feed([events[n] for n in numbers], punctuation=at(second))
            if restart and url is not None:
                ledger.db.close()
                ledger, stream = open_()
        run = stream.run
        run.finish()
        expected, late = on_time(events, plan)
        balances, matches, dead = replay(expected)
        assert {1: 0, 2: 0} | ledger.balances() == balances
        assert sorted(ledger.lines()) == sorted(matches)
        assert run.totals() == {"events": len(expected), "late": late, "dead": dead}
        assert len(ledger.late()) == late
        assert len(ledger.letters()) == dead


@pytest.mark.long
@given(plans())
@QUICK
def test_random_batches_on_memory_agree_with_a_replay(
    drawn: tuple[list[Occurrence], Plan, int, bool],
) -> None:
    check(None, drawn)


@pytest.mark.long
@given(plans())
@SLOW
def test_random_batches_on_postgres_agree_with_a_replay(
    postgres_url: str, drawn: tuple[list[Occurrence], Plan, int, bool]
) -> None:
    check(postgres_url, drawn)
