"""Versioned tables: what is seen from a place in the order, and what may be forgotten."""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activedb.errors import DefinitionError
from activedb.scheduling import (
    REMOVED,
    Access,
    At,
    Program,
    ProgramRun,
    Ref,
    SerialOrder,
    SharedState,
    SharedTable,
)
from tests.scheduling.events import event
from tests.scheduling.reference import Reference


def at(us: int, id: str = "", arrival: int = 0) -> At:
    return At(us, id, arrival)


def written(table: SharedTable, *versions: tuple[Hashable, int, Any]) -> SharedState:
    state = SharedState([table])
    for key, us, value in versions:
        state.write([(table, key, value)], at(us, "", 1))
    return state


# -- what is seen --------------------------------------------------------------------------------


def test_read_gives_the_last_value_before_a_place() -> None:
    table = SharedTable("t", initial=0)
    state = written(table, ("a", 20, 2), ("a", 10, 1), ("a", 40, REMOVED), ("a", 50, 5))
    seen = [state.value(table["a"], at(us)) for us in (10, 11, 20, 21, 40, 41, 50, 51)]
    assert seen == [0, 1, 1, 2, 2, 0, 0, 5]
    assert state.value(table["b"], at(100)) == 0


def test_read_at_one_time_sees_those_with_smaller_ids_and_earlier_arrivals() -> None:
    table = SharedTable("t", initial=0)
    state = SharedState([table])
    for value, place in enumerate([at(5, "", 9), at(5, "a", 4), at(5, "a", 7), at(5, "b", 1)], 1):
        state.write([(table, 1, value)], place)
    places = [at(5, "", 9), at(5, "a", 1), at(5, "a", 5), at(5, "b", 0), at(5, "b", 2)]
    assert [state.value(table[1], place) for place in places] == [0, 1, 2, 3, 4]


def test_window_has_the_values_since_its_start_and_before_the_place() -> None:
    table = SharedTable("t", history=1, initial=0)
    state = written(table, (1, 10, "a"), (1, 12, "b"), (1, 14, REMOVED), (1, 16, "c"))
    window = table[1].window(4e-6)
    seen = {us: state.value(window, at(us)) for us in (10, 11, 14, 15, 16, 17, 20, 21)}
    assert seen == {
        10: [],
        11: ["a"],
        14: ["a", "b"],
        15: ["b"],
        16: ["b"],
        17: ["c"],
        20: ["c"],
        21: [],
    }
    assert state.value(table[2].window(1), at(20)) == []


def test_range_has_keys_with_a_value_in_their_order() -> None:
    table = SharedTable("t", initial=0)
    state = written(table, (5, 1, "e"), (1, 2, "a"), (3, 3, "c"), (3, 9, REMOVED), (4, 9, "d"))
    assert list(state.value(table.range(), at(4)).items()) == [(1, "a"), (3, "c"), (5, "e")]
    assert state.value(table.range(), at(10)) == {1: "a", 4: "d", 5: "e"}
    assert state.value(table.range(2, 5), at(10)) == {4: "d"}
    assert state.value(table.range(high=2), at(2)) == {}


def test_range_compares_only_keys_that_are_there() -> None:
    table = SharedTable("t")
    state = written(table, (1, 1, "a"), ("text", 9, "b"))
    assert state.value(table.range(0, 5), at(5)) == {1: "a"}
    with pytest.raises(TypeError):
        state.value(table.range(0, 5), at(10))


def test_computed_key_is_computed_of_what_was_there_at_the_place() -> None:
    table = SharedTable("t", initial=0)
    state = written(table, (0, 1, 7), (7, 2, "seven"), (0, 5, 8), (8, 6, "eight"))
    ref = table.computed(operator.add, 0, reads=(table[0],))
    assert state.value(ref, at(4)) == "seven"
    assert state.value(ref, at(9)) == "eight"


def test_write_at_a_place_taken_replaces_and_take_back_removes() -> None:
    table = SharedTable("t", initial=0)
    state = SharedState([table])
    writes: list[tuple[SharedTable, Hashable, Any]] = [(table, 1, "first"), (table, 2, "other")]
    state.write(writes, at(1))
    state.write([(table, 1, "second")], at(1))
    assert state.of(table).all() == {1: ((at(1), "second"),), 2: ((at(1), "other"),)}
    state.take_back(writes, at(2))
    assert len(state.of(table)) == 2
    state.take_back(writes, at(1))
    assert state.of(table).all() == {}
    assert state.of(table).newest() == {}


def test_state_of_other_tables_is_refused() -> None:
    table = SharedTable("t")
    state = SharedState([table])
    with pytest.raises(DefinitionError, match="is not in this state"):
        state.of(SharedTable("t"))
    with pytest.raises(DefinitionError, match="two shared tables are called t"):
        SharedState([table, SharedTable("t")])
    assert [versions.table for versions in state] == [table]


# -- what is forgotten ---------------------------------------------------------------------------

KEYS = range(3)
steps = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(KEYS), st.integers(0, 9), st.integers(0, 99)),
    st.tuples(st.just("write"), st.sampled_from(KEYS), st.integers(0, 9), st.just(REMOVED)),
    st.tuples(st.just("back"), st.sampled_from(KEYS), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("trim"), st.just(0), st.integers(0, 12), st.just(0)),
)


@given(st.lists(steps, max_size=40), st.sampled_from([0, 1, 5, 100]))
def test_trim_never_changes_what_a_later_place_sees(
    script: list[tuple[str, int, int, Any]], history_us: int
) -> None:
    table = SharedTable("t", initial=-1, history=history_us / 1e6)
    state, reference = SharedState([table]), Reference([table])
    mark_us = 0
    for n, (what, key, offset_us, value) in enumerate(script):
        place = at(mark_us + offset_us, "", n)
        if what == "write":
            state.write([(table, key, value)], place)
            reference.versions["t"].append((key, place, value))
        elif what == "trim":
            mark_us += offset_us
            state.trim(at(mark_us))
            assert_bounded(state, table, mark_us)
        else:  # take back one that was written after the mark
            taken = [v for v in reference.versions["t"] if v[0] == key and v[1] >= at(mark_us)]
            for version in taken[:1]:
                state.take_back([(table, key, 0)], version[1])
                reference.versions["t"].remove(version)
        for us in range(mark_us, mark_us + 14, 3):
            for ref in looks(table, history_us):
                assert state.value(ref, at(us)) == reference.read(ref, at(us)), (ref, us)
    assert state.of(table).newest() == reference.newest(table)


def looks(table: SharedTable, history_us: int) -> list[Ref]:
    refs = [table.range(), table.range(1), table.range(high=2)]
    for key in KEYS:
        refs.append(table[key])
        if history_us:
            refs += [table[key].window(history_us / 1e6), table[key].window(1e-6)]
    return refs


def assert_bounded(state: SharedState, table: SharedTable, mark_us: int) -> None:
    """Check that only versions are kept that some place from the mark on can see."""
    for versions in state.of(table).all().values():
        old = [v for v in versions if v[0].us < mark_us]
        within = [v for v in old if v[0].us >= mark_us - table.history_us]
        assert len(old) <= len(within) + 1
        assert versions[0][1] is not REMOVED or len(versions) > 1 or not old


def test_memory_over_many_punctuations_is_bounded_by_keys_and_history() -> None:
    plain = SharedTable("plain", key=int, initial=0)
    recent = SharedTable("recent", key=int, initial=0, history=20e-6)
    program = Program("p", [plain, recent])

    @program.on("ADD")
    def add(e: Any, access: Access) -> None:
        access.write(plain[e["n"] % 7], operator.add, e["n"])
        access.write(recent[e["n"] % 7], lambda total, n: REMOVED if n % 5 == 0 else n, e["n"])

    run = ProgramRun(program, SerialOrder())
    most = 0
    for n in range(0, 2000, 20):
        run.feed([event("ADD", n + k, n=n + k) for k in range(20)], n + 20)
        most = max(most, len(run.state.of(recent)))
        assert len(run.state.of(plain)) == 7
    assert most <= 20 + 7


def test_trim_of_removed_values_leaves_nothing() -> None:
    table = SharedTable("t", initial=0)
    state = written(table, *((key, key + 1, REMOVED) for key in range(50)))
    state.trim(at(100))
    assert len(state.of(table)) == 0
    state.write([(table, 1, REMOVED)], at(120))
    state.trim(at(110))
    assert len(state.of(table)) == 1
    state.trim(at(130))
    assert len(state.of(table)) == 0
