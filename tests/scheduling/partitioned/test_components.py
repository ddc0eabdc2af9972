"""S-transactions are joined as the definition says, pair by pair."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from activedb.scheduling import At, Operation, Ref, SharedTable, STransaction
from activedb.scheduling._access import ShortFormBody
from activedb.scheduling._operations import Read, Write
from activedb.scheduling._tables import Computed, Range
from activedb.scheduling.partitioned._scheduler import components, packed, size_of

numbers = SharedTable("numbers", key=int, history=10)
names = SharedTable("names")


def s_transaction(us: int, *operations: Operation) -> STransaction:
    return STransaction(At(us, "", us), "example", {}, operations)


def write(target: Ref, *sources: Ref) -> Write:
    return Write(target, sources, max, ())


def read(*sources: Ref) -> Read:
    return Read(sources, None, ())


def places(*operations: Operation) -> list[list[int]]:
    """The components of s-transactions of one operation each, by their places."""
    found = components([s_transaction(us, each) for us, each in enumerate(operations)])
    return [[t.at.us for t in component] for component in found]


def computed(*reads: Ref) -> Ref:
    return numbers.computed(max, reads=reads)


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([write(numbers[1]), write(numbers[2])], [[0], [1]]),
        ([write(numbers[1]), write(numbers[1])], [[0, 1]]),
        ([write(numbers[1]), write(names[1])], [[0], [1]]),
        ([write(numbers[1]), read(numbers[1])], [[0, 1]]),
        ([read(numbers[1].window(5)), write(numbers[1])], [[0, 1]]),
        ([read(numbers[1]), read(numbers[1])], [[0], [1]]),
        ([write(numbers[1], names[7]), write(numbers[2], names[7])], [[0], [1]]),
        ([write(numbers[1]), write(numbers[2]), write(names[1], numbers[2])], [[0], [1, 2]]),
        (
            [write(computed()), write(numbers[2]), read(numbers[3]), read(names[3])],
            [[0, 1, 2], [3]],
        ),
        ([read(computed()), write(numbers[2]), read(numbers[3])], [[0, 1], [2]]),
        ([read(computed()), read(numbers[2])], [[0], [1]]),
        ([read(computed(names[1])), write(names[1])], [[0, 1]]),
        ([read(numbers.range(2, 5)), write(numbers[1]), write(numbers[2])], [[0, 2], [1]]),
        ([read(numbers.range(2, 5)), write(numbers[5]), write(numbers[4])], [[0, 2], [1]]),
        ([read(numbers.range()), write(numbers[5]), write(numbers[4])], [[0, 1, 2]]),
        ([read(names.range(2, 5)), write(names[5]), read(names[4])], [[0, 1], [2]]),
        ([read(numbers.range(None, "x")), write(numbers[5])], [[0, 1]]),
    ],
)
def test_components_join_who_shares_what_is_written(
    operations: list[Operation], expected: list[list[int]]
) -> None:
    assert places(*operations) == expected


def test_component_of_a_key_that_cannot_be_one_is_alone() -> None:
    assert places(write(names[[]]), write(names[[]])) == [[0], [1]]


# -- against the definition ----------------------------------------------------------------------

keys = st.integers(0, 8)
bounds = st.one_of(st.none(), keys)


@st.composite
def refs(draw: Any) -> Ref:
    kind = draw(st.sampled_from(["key"] * 8 + ["range", "computed"]))
    table: SharedTable = draw(st.sampled_from([numbers, names]))
    if kind == "key":
        return table[draw(keys)]
    if kind == "range":
        return table.range(draw(bounds), draw(bounds))
    return computed(*draw(st.lists(st.builds(names.__getitem__, keys), max_size=1)))


bodies = st.builds(
    lambda reads, writes: ShortFormBody(print, {}, tuple(reads), tuple(writes)),
    st.lists(refs(), max_size=2),
    st.lists(refs(), max_size=2),
)


@given(st.lists(st.lists(bodies, min_size=1, max_size=2), max_size=12), st.integers(1, 4))
def test_components_are_those_of_the_graph_of_conflicts(
    operations: list[list[Operation]], tasks: int
) -> None:
    transactions = [s_transaction(us, *each) for us, each in enumerate(operations)]
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(transactions)))
    for one, other in combinations(range(len(transactions)), 2):
        if _conflict(transactions[one], transactions[other]):
            graph.add_edge(one, other)
    expected = sorted(sorted(each) for each in networkx.connected_components(graph))
    found = components(transactions)
    assert [[t.at.us for t in each] for each in found] == expected
    lists = packed(found, tasks)
    assert sorted(t.at.us for each in lists for t in each) == list(range(len(transactions)))
    assert all(each for each in lists)
    assert all([t.at for t in each] == sorted(t.at for t in each) for each in lists)
    assert [size_of(each) for each in lists] == sorted(map(size_of, lists), reverse=True)
    assert len(lists) == min(tasks, len(found))


def _conflict(one: STransaction, other: STransaction) -> bool:
    """Return whether one may write what the other may access."""
    return any(
        _meet(target, ref)
        for writer, who in ((one, other), (other, one))
        for target in writer.writes()
        for ref in (*who.reads(), *who.writes())
    )


def _meet(target: Ref, ref: Ref) -> bool:
    if target.table is not ref.table:
        return False
    if target.is_whole or isinstance(ref.key, Computed):
        return True
    if isinstance(ref.key, Range):
        if ref.table is names:  # its keys have no order
            return True
        low, high = ref.key.low, ref.key.high
        return (low is None or low <= target.key) and (high is None or target.key < high)
    return bool(target.key == ref.key)
