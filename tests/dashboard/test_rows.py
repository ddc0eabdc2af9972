"""Rows and graphs that are made from a snapshot."""

from __future__ import annotations

import ast
import inspect
import re
from typing import TYPE_CHECKING, Any

import pytest

from activedb.dashboard import _elements, _live, _tables
from activedb.dashboard._elements import NODES_MAX, graph_options, graph_said
from activedb.dashboard._poller import PollResult
from activedb.dashboard._tables import packed
from activedb.dashboard.pages import _locks, _overview, _rules, _streams, _transactions
from activedb.dashboard.pages._overview import _attention

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

PAGES = (_locks, _overview, _rules, _streams, _transactions)


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
        "waits_since_s": None,
        "causes": [],
    } | more


def snapshot(
    *nodes: dict[str, Any], edges: list[dict[str, Any]] | None = None, **more: Any
) -> PollResult:
    state = {
        "process": {"now_s": 100.0},
        "rules": [],
        "deadlocks": [],
        "streams": [],
        "counters": {},
        "forest": {"total": len(nodes), "shown": list(nodes)},
        "locks": {"total": 0, "shown": [], "queue": [], "edges": edges or []},
    } | more
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


@pytest.mark.parametrize(
    ("began_s", "since_s", "is_listed"),
    [(0.0, 99.0, False), (0.0, 90.0, True), (90.0, 99.0, False), (0.0, None, False)],
)
def test_long_wait_needs_attention_and_a_short_wait_of_an_old_transaction_does_not(
    began_s: float, since_s: float | None, is_listed: bool
) -> None:
    waiter = node(1, began_s=began_s, waits_for=[2], waits_since_s=since_s)
    rows = _attention(snapshot(waiter, node(2)))
    assert [row["key"] for row in rows] == ["transaction 1 transfer waits for 2"] * is_listed


def test_letters_that_there_are_need_attention_and_the_totals_of_the_ledger_do_not() -> None:
    stream = {"name": "gate", "dead": 7, "late": 0, "undecided": 0}
    assert _attention(snapshot(streams=[stream])) == []
    shown = snapshot(streams=[stream], letters={"event": 1, "rule": 3})
    found = [row["key"] for row in _attention(shown)]
    assert found == ["1 dead letter of events", "3 dead letters of rules"]


def test_older_process_that_does_not_report_the_wait_is_judged_by_the_age() -> None:
    waiter = node(1, began_s=0.0, waits_for=[2])
    del waiter["waits_since_s"]
    assert len(_attention(snapshot(waiter, node(2)))) == 1


@pytest.mark.parametrize("link", ["transaction_link", "deadlock_link"])
def test_link_is_made_of_a_number_only(link: str) -> None:
    made = getattr(_tables, link)
    with pytest.raises(ValueError, match="invalid literal"):
        made('7" onclick="hacked()')
    assert made(7).endswith("/7")


@pytest.mark.parametrize("module", [_live, _elements, *PAGES], ids=lambda module: module.__name__)
def test_addresses_with_numbers_are_made_in_one_place(module: ModuleType) -> None:
    assert re.findall(r'f"/(?:transactions|deadlocks)/', inspect.getsource(module)) == []


@pytest.mark.parametrize("module", PAGES, ids=lambda module: module.__name__)
def test_functions_for_all_viewers_belong_to_a_module(module: ModuleType) -> None:
    """`PollResult.once` finds the result of another page only by the same function."""
    for made in _shared(ast.parse(inspect.getsource(module))):
        of = made.value if isinstance(made, ast.Subscript) else made
        name = of.value if isinstance(of, ast.Attribute) else of
        assert isinstance(name, ast.Name), ast.unparse(made)
        assert hasattr(module, name.id), ast.unparse(made)


def _shared(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the functions of a snapshot whose results all viewers share."""
    places = {"once": 0, "figures": 1, "table": 2}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            alone = any(each.arg == "shared" for each in node.keywords)
            if node.func.attr in places and not alone:
                yield node.args[places[node.func.attr]]


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


@pytest.mark.parametrize("candidates", [1, 3, 500])
def test_decisions_are_shown_whole_and_the_others_are_counted(candidates: int) -> None:
    found = [
        {"id": str(n), "rule": "r", "us": n, "texts": ["c"] * candidates, "why": []}
        for n in range(300)
    ]
    rows, shown = _tables.decisions(found)
    assert len(rows) == shown * candidates
    assert shown == max(1, min(300, _tables.DECISIONS_SHOWN // candidates))
