"""The lock table: example 5 and figure 4, disorder and punctuations, and random ones, naively."""

from __future__ import annotations

import itertools
import random

import pytest

from activedb.errors import AccessError
from activedb.scheduling import Access, At, SharedTable, STransaction
from activedb.scheduling.locking import (
    FIGURE_3_LWM,
    FIGURE_3_S2PL,
    AccessMode,
    Granularity,
    ObjectLock,
    TimestampLockTable,
    locks_of,
)
from tests.drawing import drawn
from tests.scheduling.comparison import SCALE
from tests.scheduling.locking.requests import Requests
from tests.scheduling.locking.ward import (
    ENTER_10,
    EXIT_2,
    EXIT_15,
    LATER_18,
    at,
    badges,
    later,
    paper_stream,
)

TABLE = (badges.name,)
READ, WRITE = ObjectLock(TABLE, AccessMode.READ), ObjectLock(TABLE, AccessMode.WRITE)


def test_example_5_low_water_marks_are_those_of_figure_4() -> None:
    requests = Requests(FIGURE_3_LWM)
    table = requests.table
    assert table.low_water_mark(TABLE) is None
    marks = []
    for transaction in [*paper_stream(), later()]:
        table.insert(transaction.at, locks_of(transaction, "table"))
        marks.append(table.low_water_mark(TABLE))
    assert marks == [None, ENTER_10, ENTER_10, ENTER_10]
    table.punctuate(at(20))

    assert not requests.ask(EXIT_15, [READ]), "15 is beyond the mark"
    assert requests.ask(EXIT_2, [READ]), "2 is before it, and before T2 has ended"
    assert requests.ask(ENTER_10, [READ, WRITE]), "10 is the mark"
    table.release(ENTER_10)
    requests.settle()
    assert table.low_water_mark(TABLE) == LATER_18
    assert EXIT_15 in requests.granted
    assert requests.ask(at(17), [READ]), "any read before 18 can be granted now"
    table.release(LATER_18)
    assert table.low_water_mark(TABLE) is None
    requests.end()


def test_write_is_granted_although_older_reads_have_not_ended() -> None:
    requests = Requests(FIGURE_3_LWM)
    for transaction in paper_stream():
        requests.table.insert(transaction.at, locks_of(transaction, "table"))
    requests.table.punctuate(at(20))
    assert requests.ask(ENTER_10, [WRITE])
    requests.end()


@pytest.mark.parametrize(
    "arrival", [*itertools.permutations([EXIT_2, ENTER_10, EXIT_15, LATER_18])]
)
def test_locks_may_arrive_in_any_order(arrival: tuple[At, ...]) -> None:
    requests = Requests(FIGURE_3_LWM)
    transactions = {t.at: t for t in [*paper_stream(), later()]}
    for place in arrival:
        requests.table.insert(place, locks_of(transactions[place], "table"))
        assert not requests.ask(place, locks_of(transactions[place], "table"))
    requests.table.punctuate(at(20))
    requests.settle()
    assert requests.granted == {EXIT_2, ENTER_10}
    requests.table.release(ENTER_10)
    requests.settle()
    assert requests.granted == {EXIT_2, ENTER_10, EXIT_15, LATER_18}
    requests.end()


def test_nothing_is_granted_before_the_punctuation_has_passed_it() -> None:
    requests = Requests(FIGURE_3_LWM)
    requests.table.insert(EXIT_15, [READ])
    assert not requests.ask(EXIT_15, [READ])
    requests.table.punctuate(at(12))
    requests.settle()
    assert requests.granted == set()
    requests.table.insert(at(13), [WRITE])  # it comes late, and in time
    requests.table.punctuate(at(16))
    requests.settle()
    assert requests.granted == set()
    assert requests.ask(at(13), [WRITE])
    requests.table.release(at(13))
    requests.settle()
    assert EXIT_15 in requests.granted
    requests.end()


def test_punctuation_never_goes_back() -> None:
    table = TimestampLockTable(FIGURE_3_LWM)
    table.punctuate(at(12))
    table.punctuate(at(3))
    with pytest.raises(AccessError, match="too late: the punctuation is at 12"):
        table.insert(at(5), [WRITE])


def test_locks_of_one_s_transaction_are_inserted_once() -> None:
    table = TimestampLockTable(FIGURE_3_LWM)
    table.insert(at(5), [WRITE])
    with pytest.raises(AccessError, match="has its locks already"):
        table.insert(at(5), [READ])
    assert len(table) == 1


def test_stopped_table_wakes_all_who_wait_and_grants_nothing_that_would() -> None:
    requests = Requests(FIGURE_3_LWM)
    requests.table.insert(at(5), [WRITE])
    requests.table.punctuate(at(9))
    assert not requests.ask(at(6), [READ])
    assert not requests.ask(at(9), [READ])
    requests.end()
    assert requests.stopped == {at(6), at(9)}
    assert not requests.ask(at(7), [READ])
    assert requests.stopped == {at(6), at(7), at(9)}


def test_table_keeps_nothing_of_what_has_ended() -> None:
    for figure in (FIGURE_3_S2PL, FIGURE_3_LWM):
        table = TimestampLockTable(figure)
        for second in range(100):
            table.insert(at(second), [ObjectLock(("p", second % 7), AccessMode.WRITE), READ, WRITE])
        for second in random.Random(3).sample(range(100), 100):
            table.release(at(second))
        assert len(table) == 0
        assert table._marks == {}


# -- random ones --------------------------------------------------------------------------------

tables = [SharedTable("p", key=int), SharedTable("q", key=int)]
Wanted = set[tuple[str, int | None, bool]]
"""Tables, keys (None: all of them), whether to write."""


def random_transaction(
    r: random.Random, place: At, granularity: Granularity
) -> tuple[STransaction, Wanted]:
    access, wanted = Access(), set()
    for _ in range(r.randint(1, 3)):
        table, key, writes = r.choice(tables), r.choice([0, 1, 2, None]), r.random() < 0.5
        is_row = key is not None and granularity == "row"
        wanted.add((table.name, key if is_row else None, writes))
        if writes:
            target = table.computed(int) if key is None else table[key]
            access.write(target, int, reads=())
        else:
            access.read(table.range() if key is None else table[key])
    return STransaction(place, "X", {}, tuple(access.operations)), wanted


def is_free(place: At, live: dict[At, Wanted], wanted: Wanted, *, reads_block: bool) -> bool:
    """Return whether no older lock conflicts: on the same row, or on all rows, and one writes."""
    return not any(
        other < place
        and table == table_
        and (key is None or key_ is None or key == key_)
        and (writes_ or (writes and reads_block))
        for other, theirs in live.items()
        for table_, key_, writes_ in theirs
        for table, key, writes in wanted
    )


@pytest.mark.long
@pytest.mark.parametrize("granularity", ["table", "row"])
@pytest.mark.parametrize("protocol", ["s2pl", "lwm"])
@pytest.mark.parametrize("seed", range(25 * SCALE))
def test_random_requests_are_granted_when_no_older_lock_is_in_the_way(
    seed: int, protocol: str, granularity: Granularity
) -> None:
    r = drawn("requests", seed)
    requests = Requests(FIGURE_3_S2PL if protocol == "s2pl" else FIGURE_3_LWM)
    arrivals = [at(second) for second in range(1, 13)]
    r.shuffle(arrivals)
    locks: dict[At, list[ObjectLock]] = {}
    live: dict[At, Wanted] = {}
    asked: set[At] = set()
    granted: set[At] = set()
    punctuation = at(0)
    while arrivals or live:
        what = r.choice(["insert", "ask", "punctuate", "release"])
        if what == "insert" and arrivals:
            place = arrivals.pop()
            transaction, wanted = random_transaction(r, place, granularity)
            locks[place], live[place] = list(locks_of(transaction, granularity)), wanted
            requests.table.insert(place, locks[place])
        elif what == "ask" and set(live) - asked:
            place = r.choice(sorted(set(live) - asked))
            asked.add(place)
            requests.ask(place, locks[place])
        elif what == "punctuate":
            punctuation = max(
                punctuation, at(r.randint(0, min((a.us for a in arrivals), default=13)))
            )
            requests.table.punctuate(punctuation)
        elif what == "release" and granted & set(live):
            place = r.choice(sorted(granted & set(live)))
            del live[place]
            requests.table.release(place)
        requests.settle()
        granted |= {
            place
            for place in asked & set(live)
            if place < punctuation
            and is_free(place, live, live[place], reads_block=protocol == "s2pl")
        }
        assert requests.granted == granted
    requests.end()
