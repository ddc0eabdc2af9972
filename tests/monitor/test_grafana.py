"""The dashboard for Grafana asks for what there is."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from activedb.cli._main import app
from activedb.monitor import grafana_dashboard
from activedb.monitor._prometheus import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterator

BOARD: dict[str, Any] = json.loads(grafana_dashboard())
PANELS: list[dict[str, Any]] = BOARD["panels"]
QUERIES = [
    (panel["title"], target["expr"]) for panel in PANELS for target in panel.get("targets", ())
]
OF_TARGETS = {"job", "instance"}  # labels that Prometheus adds
NAMES = {
    name: family
    for family in FAMILIES.values()
    for name in (
        [f"{family.full_name}_{part}" for part in ("bucket", "sum", "count")]
        if family.kind == "histogram"
        else [family.full_name]
    )
}


def metrics_in(query: str) -> list[str]:
    return re.findall(r"activedb_\w+", query)


def labels_in(query: str) -> Iterator[str]:
    for inside in re.findall(r"\{([^}]*)\}", query):
        yield from re.findall(r"(\w+)\s*=", inside)
    for names in re.findall(r"by \(([^)]*)\)", query):
        yield from names.split(", ")


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_query_asks_for_metrics_and_labels_that_exist(title: str, query: str) -> None:
    names = metrics_in(query)
    assert names, title
    assert set(names) <= NAMES.keys()
    there = {label for name in names for label in NAMES[name].labels} | OF_TARGETS | {"le"}
    assert set(labels_in(query)) <= there
    assert query.count("(") == query.count(")")
    for name in names:
        is_rate = f"rate({name}{{" in query
        assert is_rate == (NAMES[name].kind != "gauge"), f"{title}: {name}"


def test_legends_show_labels_by_which_the_query_groups() -> None:
    for panel in PANELS:
        for target in panel.get("targets", ()):
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= set(labels_in(target["expr"])), panel["title"]


def test_variables_ask_for_a_metric_that_exists() -> None:
    for variable in BOARD["templating"]["list"][1:]:
        assert set(metrics_in(variable["query"]["query"])) <= NAMES.keys()


def test_each_metric_of_transactions_rules_and_streams_is_shown() -> None:
    asked = {name for _, query in QUERIES for name in metrics_in(query)}
    important = ("transaction", "commit", "rule", "stream", "dead", "firings", "deadlock")
    hidden = {
        family.name
        for name, family in NAMES.items()
        if family.name.startswith(important)
        and not name.endswith(("_sum", "_count"))
        and name not in asked
    }
    assert hidden == {"transactions_retried", "rules_fired", "rule_triggered"} | {
        name for name in hidden if name in ("rules_failed", "rules_quarantined")
    }


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    cells: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        mine = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not mine & cells, panel["title"]
        cells |= mine


def test_command_prints_the_dashboard() -> None:
    done = CliRunner().invoke(app, ["grafana"])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == BOARD
