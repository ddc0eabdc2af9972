"""Scheduling units: groups of operations, cycles, strata."""

from __future__ import annotations

from activedb.scheduling import SharedTable
from activedb.scheduling.tpg._groups import group, rank_operations
from tests.scheduling.tpg.ledger import operations, read, s_transaction, streaming_ledger, write
from tests.scheduling.tpg.simulation import planned

accounts = SharedTable("accounts", key=str, initial=0)


def test_figure_6a_single_operations_have_the_strata_of_their_longest_paths() -> None:
    graph = planned(*streaming_ledger(accounts))
    rank_operations(graph)
    assert [vertex.rank for vertex in operations(graph)] == [0, 1, 1, 2, 2]


def test_figure_6b_groups_that_depend_on_each_other_are_merged() -> None:
    # O1 on A, O3 on B, O5 on A: the groups of A and of B depend on each other.
    graph = planned(*streaming_ledger(accounts))
    groups, cyclic = group(graph)
    assert cyclic
    assert [one.vertices for one in groups] == [operations(graph)]
    assert groups[0].blocked == 0


def test_groups_are_the_operations_that_write_one_key() -> None:
    a, b, c = accounts["A"], accounts["B"], accounts["C"]
    graph = planned(
        *(s_transaction(n, write(a), write(b)) for n in range(3)),
        s_transaction(5, write(c, a, b), read(a)),
        s_transaction(6, write(c)),
    )
    groups, cyclic = group(graph)
    o = operations(graph)
    assert not cyclic
    of_a, of_b, of_c = groups
    assert of_a.vertices == [o[0], o[2], o[4], o[7]]
    assert of_b.vertices == [o[1], o[3], o[5]]
    assert of_c.vertices == [o[6], o[8]]
    assert [one.rank for one in groups] == [0, 0, 1]
    assert [one.blocked for one in groups] == [0, 0, 2]
    assert of_c.open == 2


def test_only_what_is_in_a_cycle_is_merged() -> None:
    keys = [accounts[key] for key in "ABCD"]
    a, b, c, d = keys
    graph = planned(
        *(s_transaction(n, write(key)) for n, key in enumerate(keys)),
        s_transaction(5, write(a, b)),
        s_transaction(6, write(b, a)),
        s_transaction(7, write(c, b)),
        s_transaction(8, write(d, c)),
    )
    groups, cyclic = group(graph)
    assert cyclic
    numbers = {v: n for n, v in enumerate(operations(graph), 1)}
    assert [[numbers[v] for v in one.vertices] for one in groups] == [[1, 2, 5, 6], [3, 7], [4, 8]]
    assert [one.rank for one in groups] == [0, 1, 2]


def test_virtual_operations_can_be_part_of_a_cycle() -> None:
    anything = SharedTable("anything")
    a, b = anything["A"], anything["B"]
    graph = planned(
        s_transaction(1, write(a)),
        s_transaction(2, write(b)),
        s_transaction(3, write(a, anything.range())),
        s_transaction(4, write(b, a)),
    )
    groups, cyclic = group(graph)
    assert cyclic
    (merged,) = groups
    assert len(merged.vertices) == 5
    assert merged.open == 4
