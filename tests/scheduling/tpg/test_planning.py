"""The two phases of planning, on the paper's examples."""

from __future__ import annotations

import itertools

import pytest

from activedb.scheduling import SharedTable, STransaction
from activedb.scheduling._access import ShortFormBody
from activedb.scheduling.tpg._planning import KEYS_PER_RANGE_MAX, SOURCE, WRITE, Planner, refine
from tests.scheduling.tpg.ledger import (
    SECOND_US,
    deposit,
    edges,
    operations,
    read,
    s_transaction,
    streaming_ledger,
    transfer,
    write,
)
from tests.scheduling.tpg.simulation import planned

accounts = SharedTable("accounts", key=str, initial=0, history=60)
numbers = SharedTable("numbers", key=int, initial=0)


def test_figure_1_streaming_ledger_has_its_dependencies() -> None:
    graph = planned(*streaming_ledger(accounts))
    assert edges(graph) == {(1, 2), (2, 5), (3, 4)} | {(1, 3), (3, 5)}
    assert (graph.lds, graph.tds, graph.pds) == (2, 3, 2)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_figure_3_any_order_of_arrival_gives_the_same_graph(order: tuple[int, ...]) -> None:
    ledger = streaming_ledger(accounts)
    planner = Planner()
    for number in order:
        planner.add(ledger[number])
    assert planner.lds == 2, "LDs are known in the stream phase"
    graph = refine(planner)
    assert edges(graph) == {(1, 2), (2, 5), (3, 4), (1, 3), (3, 5)}
    lists = planner.tables[accounts].of
    o1, o2, o3, o4, o5 = operations(graph)
    # The virtual operations of O3 and O5 are in the lists of what these read.
    assert [vertex for _, vertex, _ in lists["A"]] == [o1, o2, o3, o5]
    assert [kind for _, _, kind in lists["A"]] == [WRITE, WRITE, SOURCE, WRITE]
    assert [vertex for _, vertex, _ in lists["B"]] == [o3, o4, o5]
    assert [kind for _, _, kind in lists["B"]] == [WRITE, WRITE, SOURCE]


def figure_4(*last: STransaction) -> list[STransaction]:
    """O1 and O2 write A, O3 and O4 write B, O5 writes C."""
    keys = ["A", "A", "B", "B", "C"]
    return [s_transaction(n, write(accounts[key])) for n, key in enumerate(keys)] + list(last)


def test_figure_4a_window_write_depends_on_the_last_of_both_lists() -> None:
    o6 = write(accounts["A"], accounts["C"].window(10))
    graph = planned(*figure_4(s_transaction(10, o6)))
    assert edges(graph) == {(1, 2), (3, 4)} | {(2, 6), (5, 6)}
    assert (graph.tds, graph.pds) == (3, 1)


def test_figure_4b_computed_key_depends_on_all_lists() -> None:
    o6 = write(accounts.computed(lambda: "B"), function=lambda value: value + 1)
    o7 = s_transaction(11, write(accounts["A"]))
    graph = planned(*figure_4(s_transaction(10, o6), o7))
    assert edges(graph) == {(1, 2), (3, 4)} | {(2, 6), (4, 6), (5, 6)} | {(6, 7)}


def test_window_far_in_the_past_waits_for_the_nearest_writer_only() -> None:
    writers = [s_transaction(n * SECOND_US, write(accounts["A"])) for n in range(4)]
    late = s_transaction(9 * SECOND_US, read(accounts["A"].window(60)))
    assert edges(planned(*writers, late)) == {(1, 2), (2, 3), (3, 4), (4, 5)}


def test_readers_do_not_hold_up_writers() -> None:
    a = accounts["A"]
    graph = planned(s_transaction(1, read(a)), deposit(2, a, 1), s_transaction(3, read(a)))
    assert edges(graph) == {(2, 3)}


def test_operations_of_one_s_transaction_do_not_depend_on_each_other() -> None:
    both = s_transaction(2, write(accounts["A"], accounts["B"]), write(accounts["B"]), read())
    graph = planned(
        deposit(1, accounts["B"], 1), both, transfer(3, accounts["A"], accounts["B"], 1)
    )
    assert edges(graph) == {(1, 2), (1, 3), (2, 5), (3, 6), (2, 6)}


def test_whole_table_accesses_have_edges_in_proportion_to_the_writers() -> None:
    many = 200
    writers = [s_transaction(n, write(accounts[str(n)])) for n in range(many)]
    readers = [s_transaction(many + n, read(accounts.range())) for n in range(many)]
    graph = planned(*writers, *readers)
    assert graph.tds + graph.pds == 2 * many
    assert edges(graph) == set(itertools.product(range(1, 201), range(201, 401)))


def test_range_depends_on_the_keys_that_are_in_it() -> None:
    writers = [s_transaction(n, write(numbers[n])) for n in range(10)]
    some = s_transaction(20, read(numbers.range(3, 5)))
    rest = s_transaction(21, read(numbers.range(8)))
    none = s_transaction(22, read(numbers.range(30, 40)))
    assert edges(planned(*writers, some, rest, none)) == {(4, 11), (5, 11), (9, 12), (10, 12)}


def test_range_of_many_keys_is_planned_as_the_whole_table() -> None:
    count = KEYS_PER_RANGE_MAX + 1
    writers = [s_transaction(n, write(numbers[n])) for n in range(count + 1)]
    graph = planned(*writers, s_transaction(500, read(numbers.range(0, count))))
    assert len(graph.vertices) == graph.operations + 1, "there is a virtual operation"
    assert (count + 1, count + 2) in edges(graph)


def test_range_of_keys_without_a_total_order_is_planned_as_the_whole_table() -> None:
    sets = SharedTable("sets", key=frozenset, initial=0)
    small, large = frozenset({1}), frozenset({1, 2})
    graph = planned(
        s_transaction(1, write(sets[frozenset({3})])),
        s_transaction(2, read(sets.range(small, large))),
    )
    assert edges(graph) == {(1, 2)}


def test_written_range_stands_for_any_key_of_the_table() -> None:
    body = ShortFormBody(lambda t, e: None, {}, (), (numbers.range(0, 2),))
    graph = planned(
        s_transaction(1, write(numbers[7])),
        s_transaction(2, body),
        s_transaction(3, read(numbers[7])),
    )
    assert edges(graph) == {(1, 2), (2, 3)}


def test_key_that_cannot_be_one_is_left_to_the_run() -> None:
    graph = planned(s_transaction(1, write(accounts[[]])), s_transaction(2, read(accounts[[]])))
    assert edges(graph) == set()


def test_leave_out_forgets_the_earliest_s_transactions() -> None:
    planner = Planner()
    for transaction in reversed(streaming_ledger(accounts)):
        planner.add(transaction)
    left = planner.leave_out(2)
    assert [node.transaction.at.us for node in left] == [1, 2]
    graph = refine(planner)
    assert (graph.operations, edges(graph), graph.lds) == (2, set(), 1)
