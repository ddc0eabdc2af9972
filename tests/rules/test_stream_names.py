"""Rules on streams: which streams and events may be named when a rule is defined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import DefinitionError
from tests.databases import place
from tests.rules import actions

if TYPE_CHECKING:
    from collections.abc import Iterator

A, Z = adb.event("A"), adb.event("Z")
OTHER = adb.query("Other", Z)


@pytest.fixture
def db() -> Iterator[adb.Database]:
    with place(None) as where:
        opened = where.open()
        opened.stream("ward", type="kind", timestamp="t", types={"A": ("x",), "B": ()})
        yield opened


def nothing(t: Any, o: Any) -> None:
    pass


UNKNOWN = [
    adb.late("wart"),
    A | adb.late("wart"),
    adb.query("Q", A, stream="wart"),
    adb.seq(adb.query("Q", A, stream="wart"), adb.event("B")),
]


@pytest.mark.parametrize("on", UNKNOWN, ids=repr)
def test_stream_that_is_not_declared_is_refused(db: adb.Database, on: adb.Expression) -> None:
    with pytest.raises(DefinitionError, match="rule r: there is no stream 'wart'; did you mean"):
        db.rules.create(nothing, on=on, name="r")
    rule = db.rules.create(nothing, on=A, name="r")
    with pytest.raises(DefinitionError, match="there is no stream 'wart'"):
        db.rules.change("r", on=on)
    assert db.rules["r"] == rule


def test_stream_that_is_not_declared_is_refused_in_data(db: adb.Database) -> None:
    with pytest.raises(DefinitionError, match="rule r: there is no stream 'wart'"):
        db.rules.load(
            {"r": {"on": {"late": "wart"}, "do": "tests.rules.actions:note"}}, modules=[actions]
        )
    assert len(db.rules) == 0


def test_rule_in_code_may_come_before_its_stream(db: adb.Database) -> None:
    db.rule(on=adb.late("later"), name="r")(nothing)
    db.stream("later", type="kind", timestamp="t", types={"A": ()})
    db.rules.create(nothing, on=adb.late("later"), name="s")
    assert [rule.name for rule in db.rules] == ["r", "s"]


@pytest.mark.parametrize(
    "pattern",
    [Z, A | Z, adb.seq(A, adb.event("Z", alias="other")), adb.seq(A, ~Z, adb.event("B"))],
    ids=repr,
)
def test_query_names_no_events_that_its_stream_does_not_have(
    db: adb.Database, pattern: adb.Expression
) -> None:
    on = adb.query("Q", pattern, stream="ward")
    told = "rule r: query Q is on the stream ward, which has no events 'Z'; there are 'A', 'B'"
    with pytest.raises(DefinitionError) as refused:
        db.rules.create(nothing, on=on, name="r")
    assert str(refused.value) == told
    with pytest.raises(DefinitionError, match="no events 'Z'"):
        db.rule(on=on, name="r")(nothing)
    assert len(db.rules) == 0


def test_query_may_name_what_need_not_be_of_its_stream(db: adb.Database) -> None:
    """Parameters beyond those that must be there, moments, late events, and other queries."""
    pattern = adb.seq(A, adb.late("ward"), OTHER, adb.every(60)).where(adb.part("A").y > 1)
    rule = db.rules.create(nothing, on=adb.query("Q", pattern, stream="ward"), name="r")
    assert rule.enabled
