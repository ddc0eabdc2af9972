"""Drawings: well-formed, complete, with nothing on top of anything else."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings

from activedb.batches import Grouping, Lineage, Mode, Program, Workflow, draw_svg, plan_compensation
from activedb.errors import NotRecorded
from tests.batches.figures import (
    chain,
    figure_1,
    figure_2,
    figure_3,
    figure_4,
    figure_5,
    run,
)
from tests.batches.generation import lineages

SVG = "{http://www.w3.org/2000/svg}"
Box = tuple[str, str, float, float, float]


def boxes(text: str) -> list[Box]:
    """Title, classes, left, top and width of each box."""
    found = []
    for group in ET.fromstring(text).iter(f"{SVG}g"):
        title, rect = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        assert title is not None
        assert rect is not None
        left, top, width = (float(rect.attrib[name]) for name in ("x", "y", "width"))
        found.append((title.text or "", rect.attrib["class"], left, top, width))
    return found


def check(lineage: Lineage, text: str) -> None:
    found = boxes(text)
    drawn = [title.split(":")[0] for title, kind, *_ in found if "transaction" in kind.split()]
    assert sorted(drawn) == sorted(each.id for each in lineage.transactions())
    assert len(found) == len(lineage)
    rows: dict[float, list[tuple[float, float]]] = {}
    for _, _, left, top, width in found:
        rows.setdefault(top, []).append((left, width))
    for row in rows.values():
        row.sort()
        assert all(a + w < b for (a, w), (b, _) in pairwise(row))
    size = ET.fromstring(text).attrib
    assert all(0 <= left <= float(size["width"]) - width for _, _, left, _, width in found)


@pytest.mark.parametrize("figure", [figure_1, figure_2, figure_3, figure_4, figure_5])
def test_svg_figure_has_each_transaction_and_batch_once(figure: object) -> None:
    assert callable(figure)
    check(figure(), draw_svg(figure()))


@settings(max_examples=20)
@given(lineages())
def test_svg_random_lineage_has_each_transaction_and_batch_once(lineage: Lineage) -> None:
    check(lineage, draw_svg(lineage))


def test_svg_rows_are_programs_from_top_to_bottom() -> None:
    tops = {title.split(":")[0]: top for title, _, _, top, _ in boxes(draw_svg(figure_3()))}
    names = ["a1", "T1,1", "a'1", "b11", "T2,11", "b'11", "c11", "T3,11", "c'11"]
    found = [tops[name] for name in names]
    assert found == sorted(found)
    assert len(set(found)) == len(found)
    assert tops["T2,11"] == tops["T2,23"]


def test_svg_shows_a_plan() -> None:
    lineage = figure_3()
    text = draw_svg(lineage, plan=plan_compensation(lineage, "a1", Mode.FULL))
    kinds = {title.split(":")[0]: kind.split() for title, kind, *_ in boxes(text)}
    assert "to-compensate" in kinds["T3,12"]
    assert "to-compensate" not in kinds["T3,13"]
    assert kinds["a1"][-1] == kinds["b'21"][-1] == "dropped"
    assert kinds["a2"][-1] == "partially-dropped"
    assert kinds["b'13"][-1] == "withdrawn"


def test_svg_part_is_what_comes_before_and_after() -> None:
    lineage = run(chain(p2=Grouping(parts=2)), 3)
    found = {title.split(":")[0] for title, *_ in boxes(draw_svg(lineage, "a2"))}
    assert found == lineage.descendants("a2")
    with pytest.raises(NotRecorded, match="'a9'"):
        draw_svg(lineage, "a9")


def test_svg_names_cannot_break_it() -> None:
    name = "<script>&\"'\x00\x1b]]>" + "x" * 60
    lineage = Lineage(Workflow([Program(name, "a")], sources="a"))
    lineage.arrive("a", id=f"b{name}")
    lineage.execute(name, [f"b{name}"], id=name)
    text = draw_svg(lineage)
    assert "<script" not in text
    assert any("\\x1b]]>" in title for title, *_ in boxes(text))
    assert ET.fromstring(text).tag == f"{SVG}svg"


def test_svg_empty_lineage_is_an_empty_drawing() -> None:
    assert boxes(draw_svg(Lineage(chain()))) == []


def test_svg_control_order_is_dashed() -> None:
    workflow = Workflow([Program("p", "a"), Program("q", "a", after="p")], sources="a")
    lineage = Lineage(workflow)
    lineage.arrive("a")
    lineage.execute("p", ["a#1"])
    lineage.execute("q", ["a#1"])
    paths = [p.attrib.get("class") for p in ET.fromstring(draw_svg(lineage)).iter(f"{SVG}path")]
    assert paths.count("control") == 1
