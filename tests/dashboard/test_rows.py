"""Rows and graphs that are made from a snapshot."""

from __future__ import annotations

from typing import Any

from activedb.dashboard import _tables
from activedb.dashboard._elements import NODES_MAX, graph_options, graph_said
from activedb.dashboard._poller import PollResult
from activedb.dashboard._tables import packed


def node(id: int, parent: int | None = None, top: int | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": id,
        "parent": parent,
        "top": top or id,
        "label": "0" * 32,
        "called": "transfer",
        "path": "",
        "rule": None,
        "coupling": None,
        "state": "active",
        "began_s": 1.0,
        "thread": "t",
        "waits_for": [],
        "causes": [],
    } | more


def snapshot(*nodes: dict[str, Any], edges: list[dict[str, Any]] | None = None) -> PollResult:
    state = {
        "forest": {"total": len(nodes), "shown": list(nodes)},
        "locks": {"total": 0, "shown": [], "queue": [], "edges": edges or []},
    }
    return PollResult(1, state, "", [], [], 0, 0.0)


def test_forest_has_children_below_their_parents_indented() -> None:
    rows = _tables.forest(snapshot(node(1), node(4), node(2, 1, 1), node(3, 2, 1), node(5, 4, 4)))
    assert [row["transaction"] for row in rows] == [
        [1, "transfer"],
        [2, "transfer", 1],
        [3, "transfer", 2],
        [4, "transfer"],
        [5, "transfer", 1],
    ]


def test_forest_with_a_parent_that_is_not_shown_keeps_the_child() -> None:
    assert [row["key"] for row in _tables.forest(snapshot(node(2, 1, 1)))] == ["2"]


def test_waiting_hierarchies_are_shown_whole_with_what_they_wait_for() -> None:
    edges = [{"waiter": 2, "blocker": 4, "kind": "held", "resource": "accounts/7"}]
    shown = snapshot(node(1), node(2, 1, 1, waits_for=[4]), node(4), edges=edges)
    rows = _tables.waiting_only(shown)
    assert [(row["key"], row["state"], row["waits"]) for row in rows] == [
        ("1", "active", ""),
        ("2", "waiting", "4: accounts/7"),
    ]


def test_process_of_the_server_has_no_page() -> None:
    assert _tables.transaction_name(-3) == "server process 3"


def test_name_of_a_run_that_nobody_has_named_is_left_out() -> None:
    assert _tables.label({"label": "0" * 32, "called": ""}) == ""
    assert _tables.label({"label": "1.overdraft", "called": ""}) == "1.overdraft"


def test_row_is_sent_as_its_cells_in_the_order_of_the_columns() -> None:
    (row,) = _tables.forest(snapshot(node(1, began_s=1.234_567)))
    assert packed(row, _tables.FOREST) == [
        "1", "", [1, "transfer"], "active", "", "top-level", "", 1.235, "t"
    ]  # fmt: skip


def test_graph_is_bounded_and_leaves_out_edges_to_what_is_not_drawn() -> None:
    edges = [{"waiter": n, "blocker": n + 1, "resource": "r"} for n in range(100)]
    (series,) = graph_options(dict.fromkeys(range(101), ""), edges)["series"]
    assert len(series["data"]) == NODES_MAX
    assert len(series["links"]) == NODES_MAX - 1
    assert graph_said(edges, 100).endswith("and 92 more waits")


def test_graph_of_a_single_transaction_is_drawn_in_the_middle() -> None:
    (series,) = graph_options({7: ""}, [])["series"]
    assert (series["data"][0]["x"], series["data"][0]["y"]) == (0.0, 0.0)
