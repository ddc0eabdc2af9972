"""Rules from mappings, lists and YAML files: the same objects, or an error that names the rule."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, Table

import activedb as adb
from activedb.analysis import Profile, rule_as_dict
from activedb.errors import ActiveDBError, DefinitionError
from tests.drawing import Worlds
from tests.rules import actions
from tests.rules.listing import listed, stored

if TYPE_CHECKING:
    from pathlib import Path

    from activedb import Database
    from tests.ledger import Ledger

M = "tests.rules.actions"


@pytest.fixture(autouse=True)
def noted() -> list[str]:
    """Return what the rules of `actions` have noted in this test."""
    actions.noted.clear()
    return actions.noted


def test_rules_of_a_list_act_as_if_written_in_code(ledger: Ledger, noted: list[str]) -> None:
    db = ledger.db
    loaded = db.rules.load(
        [
            {
                "name": "grow",
                "on": {"event": "A"},
                "do": f"{M}:grow",
                "when": f"{M}:check",
                "params": {"by": 10, "limit": 3},
                "priority": 2,
                "on_abort": "rule",
            },
            {"name": "off", "on": {"event": "A"}, "do": f"{M}:note", "enabled": False},
            {
                "name": "balance",
                "on": {"updated": "accounts", "columns": ["balance"]},
                "do": f"{M}:note",
                "coupling": "deferred",
                "set_oriented": True,
            },
        ],
        modules=[actions],
    )
    assert [r.name for r in loaded] == ["grow", "off", "balance"]
    assert listed(db) == stored(db)
    assert listed(db) == {"grow": (1, True, 2), "off": (1, False, None), "balance": (1, True, None)}
    assert db.rules["grow"].on_abort == "rule"
    db.signal("A", n=1)
    db.signal("A", n=3)
    assert noted == ["11"]
    with db.transaction() as t:
        t.update(ledger.accounts, 1, balance=1)
        t.update(ledger.accounts, 2, balance=1)
    assert noted == ["11", "accounts"]


@pytest.mark.parametrize(
    ("data", "expression"),
    [
        ({"event": "A"}, adb.event("A")),
        ({"event": "A", "alias": "first"}, adb.event("A", alias="first")),
        ({"event": "A", "where": f"{M}:is_big"}, adb.event("A", where=actions.is_big)),
        (
            {
                "seq": [{"event": "A"}, {"not": {"event": "B"}}, {"event": "C"}],
                "same": ["n"],
                "within": 45,
            },
            adb.seq(adb.event("A"), ~adb.event("B"), adb.event("C")).same("n").within(45),
        ),
        ({"any_of": [{"event": "A"}, {"event": "B"}]}, adb.event("A") | adb.event("B")),
        ({"seq": [{"event": "A"}, {"event": "B"}]}, adb.seq(adb.event("A"), adb.event("B"))),
    ],
)
def test_event_of_data_is_the_expression_of_code(
    in_memory: Ledger, data: dict[str, Any], expression: adb.Expression
) -> None:
    (rule,) = in_memory.db.rules.load({"r": {"on": data, "do": f"{M}:note"}}, modules=[actions])
    assert rule.on == expression


A, B, C = adb.event("A"), adb.event("B"), adb.event("C")
A_, B_ = {"event": "A"}, {"event": "B"}


@pytest.mark.parametrize(
    ("yaml_text", "expression"),
    [
        (
            "{event: A, reading: tests.rules.actions:is_open}",
            adb.event("A", reading=actions.is_open),
        ),
        ("{late: tweets, alias: t}", adb.late("tweets", alias="t")),
        ("{every: 60, offset: 5, alias: tick}", adb.every(60, offset=5, alias="tick")),
        ("{at: 2026-01-01T00:00:00Z}", adb.at(datetime(2026, 1, 1, tzinfo=UTC))),
        ("{at: 1000.5}", adb.at(1000.5)),
        ("{cron: '*/5 * * * *', zone: Europe/Paris}", adb.cron("*/5 * * * *", "Europe/Paris")),
        ("{called: pay, alias: p}", adb.called("pay", alias="p")),
        ("{returned: Account.withdraw}", adb.returned("Account.withdraw")),
        ("{transaction: committing}", adb.committing()),
        ("{all_of: [{event: A}, {event: B}], same: [n], within: 5}", (A & B).same("n").within(5)),
        ("{any_of: [{seq: [{event: A}, {event: B}]}, {event: C}]}", adb.seq(A, B) | C),
        (
            "{some_of: [{event: A}, {event: B}, {event: C}], count: 2, context: recent}",
            adb.some_of(2, A, B, C).context("recent"),
        ),
        (
            "{seq: [{event: A}, {event: B}], where: tests.rules.actions:is_rising, gap: 3,"
            " select: next, skip: {to_first: B}, within: 9}",
            adb.seq(A, B)
            .where(actions.is_rising)
            .within(9)
            .gap(3)
            .selecting("next")
            .skipping("to_first", "B"),
        ),
        (
            "{seq: [{event: A}, {event: B}], reading: [tests.rules.actions:is_open],"
            " skip: past_last, context: chronicle}",
            adb.seq(A, B).reading(actions.is_open).context("chronicle").skipping("past_last"),
        ),
        (
            "{seq: [{event: A}, {many: {event: B}, min: 2, max: 4, greedy: false, alias: bs},"
            " {optional: {event: C}}]}",
            adb.seq(A, adb.many(B, 2, 4, greedy=False).named("bs"), adb.optional(C)),
        ),
        ("{after: {event: A}, delay: 7}", A.after(7)),
        ("{periodic: {event: A}, period: 2, until: {event: B}}", adb.periodic(A, 2, B)),
        (
            "{periodic: {event: A}, period: 2, until: {event: B}, collected: true, alias: t}",
            adb.periodic(A, 2, B, collected=True, alias="t"),
        ),
        ("{aperiodic: {event: A}, what: {event: B}, until: {event: C}}", adb.aperiodic(A, B, C)),
        (
            "{aperiodic: {event: A}, what: {event: B}, until: {event: C}, collected: true}",
            adb.aperiodic(A, B, C, collected=True),
        ),
        (
            "{timed_out: {seq: [{event: A}, {event: B}], within: 5}}",
            adb.seq(A, B).within(5).timed_out(),
        ),
        (
            "{query: Q1, pattern: {seq: [{event: A}, {event: B}]}, stream: ward}",
            adb.query("Q1", adb.seq(A, B), stream="ward"),
        ),
    ],
)
def test_event_of_yaml_is_the_expression_of_code(
    in_memory: Ledger, tmp_path: Path, yaml_text: str, expression: adb.Expression
) -> None:
    for name in ("tweets", "ward"):
        in_memory.db.stream(name, type="kind", timestamp="t", types={"A": (), "B": ()})
    path = tmp_path / "rules.yaml"
    path.write_text(f"r:\n  on: {yaml_text}\n  do: {M}:note\n")
    (rule,) = in_memory.db.rules.load_file(path, modules=[actions])
    assert rule.on == expression


def test_rule_of_data_says_what_its_detector_does(in_memory: Ledger) -> None:
    (rule,) = in_memory.db.rules.load(
        {
            "r": {
                "on": {"seq": [A_, B_]},
                "do": f"{M}:note",
                "partials_max": 7,
                "on_full": "refuse",
                "matches_max": 5,
                "on_many": "truncate",
                "on_uncertain": f"{M}:choose",
            }
        },
        modules=[actions],
    )
    assert (rule.rule.partials_max, rule.rule.on_full) == (7, "refuse")
    assert (rule.rule.matches_max, rule.rule.on_many) == (5, "truncate")
    assert rule.rule.on_uncertain is actions.choose


def test_table_events_of_data_are_the_expressions_of_code(ledger: Ledger) -> None:
    kinds = {
        "i": ({"inserted": "accounts"}, adb.inserted(ledger.accounts)),
        "u": ({"updated": "accounts"}, adb.updated(ledger.accounts)),
        "c": ({"updated": "facts", "columns": ["value"]}, adb.updated(ledger.facts, "value")),
        "d": ({"deleted": "accounts"}, adb.deleted(ledger.accounts)),
    }
    data = {name: {"on": on, "do": f"{M}:note"} for name, (on, _) in kinds.items()}
    for rule in ledger.db.rules.load(data, modules=[actions]):
        assert rule.on == kinds[rule.name][1]


def nested(kind: str, depth: int) -> Any:
    event: Any = {"event": "A"}
    for number in range(depth):
        other = {"event": f"B{number}"}
        event = {
            "any_of": {"any_of": [event, other]},
            "seq": {"seq": [event, other], "within": 5},
            "not": {"seq": [other, {"not": event}, {"event": f"C{number}"}]},
            "after": {"after": event, "delay": 1},
            "query": {"query": f"q{number}", "pattern": event},
            "inserted": {"inserted": event},
            "list": [event],
        }[kind]
    return event


@pytest.mark.parametrize("field", ["on", "writes", "reads", "do", "params", "priority"])
def test_data_nested_too_deeply_is_refused(in_memory: Ledger, field: str) -> None:
    kinds = ("any_of", "seq", "not", "after", "query", "inserted", "list")
    for kind, depth in product(kinds, (150, 300, 5_000)):
        given = nested(kind, depth)
        data = rule(**{field: [given] if field in ("writes", "reads") else given})
        if depth > 200:
            with pytest.raises(DefinitionError, match=r"rule bad: .*nested too deeply"):
                in_memory.db.rules.load(data, modules=[actions])
        else:
            with suppress(ActiveDBError):
                in_memory.db.rules.load(data, modules=[actions])


def test_data_that_contains_itself_or_one_thing_often_is_refused(in_memory: Ledger) -> None:
    itself: dict[str, Any] = {}
    itself["any_of"] = [itself, {"event": "A"}]
    often: Any = {"event": "A"}
    for _ in range(200):
        often = {"any_of": [often, often]}
    for event in (itself, often):
        with pytest.raises(DefinitionError, match=r"rule bad: .*nested too deeply"):
            in_memory.db.rules.load(rule(on=event), modules=[actions])


def test_rule_of_data_nested_deeply_runs(ledger: Ledger, noted: list[str]) -> None:
    ledger.db.rules.load({"r": {"on": nested("any_of", 90), "do": f"{M}:note"}}, modules=[actions])
    ledger.db.signal("A")
    assert noted == ["A"]


def test_rule_of_data_says_what_it_does_to_tables_of_other_schemas(ledger: Ledger) -> None:
    Table("items", ledger.db.metadata, Column("id", Integer, primary_key=True), schema="shop")
    effects = {"reads": ["shop.items", "accounts"], "writes": ["shop.items.id", "shop.items"]}
    (made,) = ledger.db.rules.load(
        {"r": {"on": {"event": "A"}, "do": f"{M}:note", **effects}}, modules=[actions]
    )
    declared: Any = made.rule.declared
    assert declared.reads == {("read", "shop.items", None), ("read", "accounts", None)}
    assert {(table, column) for _, table, column in declared.writes or ()} == {
        ("shop.items", None),
        ("shop.items", "id"),
    }


def test_rule_of_data_has_modes_order_and_what_it_says_of_itself(ledger: Ledger) -> None:
    first, second = ledger.db.rules.load(
        {
            "first": {"on": {"event": "A"}, "do": f"{M}:note"},
            "second": {
                "on": {"event": "A"},
                "do": f"{M}:note",
                "when": f"{M}:check",
                "condition_action": "deferred",
                "after": ["first"],
                "reads": ["accounts.balance", "facts"],
                "writes": [
                    "log",
                    {"inserted": "facts"},
                    {"updated": "facts", "columns": ["value"]},
                ],
                "raises": ["SIGNAL"],
            },
        },
        modules=[actions],
    )
    assert (first.condition_action, first.after) == ("immediate", ())
    assert (second.condition_action, second.after) == ("deferred", ("first",))
    told = rule_as_dict(Profile.of(second.rule))
    assert told["reads"] == ["accounts.balance", "facts"]
    assert told["writes"] == [
        "insert facts",
        "update facts.value",
        "delete log",
        "insert log",
        "update log",
    ]
    assert told["raises"] == ["SIGNAL"]
    assert (told["condition_action"], told["after"]) == ("deferred", ["first"])


def rule(**fields: Any) -> list[dict[str, Any]]:
    """A good rule, and one with these fields."""
    good = {"name": "good", "on": {"event": "A"}, "do": f"{M}:note"}
    return [good, {**good, "name": "bad", **fields}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "rules come as a list or a mapping"),
        ([3], "rule number 1 needs a name"),
        ([{"on": {"event": "A"}}], "rule number 1 needs a name"),
        ({"bad": 3}, "rule bad: fields"),
        ({"bad": {"name": "good"}}, "rule bad: it calls itself 'good'"),
        ({"bad": {"do": f"{M}:note"}}, "rule bad: the field 'on' is missing"),
        ({"bad": {"on": {"event": "A"}}}, "rule bad: the field 'do' is missing"),
        (rule(name="good"), "rule good: two rules have this name"),
        (rule(prioritty=3), "rule bad: there is no field 'prioritty'; did you mean 'priority'"),
        (rule(priority="3"), "rule bad: priority takes an integer, not '3'"),
        (rule(coupling="eventually"), "rule bad: coupling='eventually' is not one of 'immediate'"),
        (rule(coupling=["deferred"]), "rule bad: coupling="),
        (rule(on_abort="all"), "rule bad: on_abort='all'"),
        (rule(enabled="no"), "rule bad: enabled is true or false, not 'no'"),
        (rule(set_oriented=True, coupling="detached"), "rule bad: set_oriented=True goes together"),
        (rule(condition_action="later"), "rule bad: condition_action='later' is not one of"),
        (rule(condition_action="detached"), "rule bad: condition_action='detached' says when"),
        (rule(after="good"), "rule bad: after= takes a list"),
        (rule(after=["bad"]), "rule bad: after= makes rules wait for each other: bad after bad"),
        (rule(reads="accounts"), r"rule bad: reads= takes a list"),
        (rule(writes={"inserted": "accounts"}), "rule bad: writes= takes a list"),
        (rule(writes=[{"inserted": "acounts"}]), "rule bad: no table 'acounts'"),
        (rule(writes=[{"event": "A"}]), "rule bad: writes= takes tables"),
        *[
            (
                rule(**{field: [item]}),
                "rule bad: no table 'acounts' is declared; did you mean 'accounts'",
            )
            for field in ("reads", "writes")
            for item in ("acounts", "acounts.balance")
        ],
        (rule(reads=["accounts.balnce"]), "rule bad: table accounts has no column 'balnce'"),
        (rule(writes=[""]), "rule bad: writes= takes tables"),
        (rule(reads=[{"inserted": "log"}]), "rule bad: reads= takes tables"),
        (rule(raises=[3]), "rule bad: raises= takes names of signals"),
        (rule(on={"any_of": {"event": "A"}}), "rule bad: any_of takes a list"),
        (rule(on={"any_of": []}), "rule bad: any_of.. needs events"),
        (rule(on={"any_of": [{"not": {"event": "A"}}]}), "rule bad: any_of.. and . take events"),
        (rule(on={"all_of": [{"many": {"event": "A"}}]}), "rule bad: all_of.. and & take events"),
        (rule(on={"some_of": [{"event": "A"}]}), "rule bad: the field 'count' is missing"),
        (rule(on={"many": {"event": "A"}}), "rule bad: .*alone has no end"),
        (rule(on={"every": "hour"}), "rule bad: every.. takes seconds"),
        (rule(on={"cron": "* * *"}), "rule bad: '. . .' is not a cron expression"),
        (rule(on={"at": "noon"}), "rule bad: at.. takes a moment"),
        (rule(on={"transaction": "ended"}), "rule bad: transaction takes one of began"),
        (rule(on={"timed_out": {"event": "A"}}), "rule bad: timed_out takes a sequence"),
        (rule(on={"after": {"event": "A"}}), "rule bad: the field 'delay' is missing"),
        (rule(on={"seq": [{"event": "A"}], "skip": "far"}), "rule bad: 'far' is not a skip"),
        (
            rule(on={"seq": [{"event": "A"}], "skip": {"to_first": ["A"]}}),
            "rule bad: skip 'to_first' takes the name of a part",
        ),
        (rule(on={"seq": [{"event": "A"}], "context": "some"}), "rule bad: 'some' is not a cont"),
        (rule(partials_max=-1), "rule bad: partials_max takes"),
        (rule(on_uncertain="os:system"), "rule bad: functions of module 'os' are not allowed"),
        (rule(params={"by": 1}), "rule bad: neither the action nor the condition takes"),
        (rule(params=[1]), "rule bad: params takes a mapping"),
        (rule(params={"a b": 1}), "rule bad: a parameter is named like an argument"),
        (rule(do=f"{M}:grow"), "rule bad: the action grow.*cannot be called"),
        (rule(on="A"), "rule bad: an event is written like"),
        (rule(on={"evnt": "A"}), "rule bad: an event is one of"),
        (rule(on={"event": "A", "deleted": "accounts"}), "rule bad: .*is event and deleted"),
        (rule(on={"event": "A", "columns": ["x"]}), "rule bad: there is no field 'columns'"),
        (rule(on={"event": 3}), "rule bad: "),
        (rule(on={"not": {"event": "A"}}), "rule bad: "),
        (rule(on={"seq": {"event": "A"}}), "rule bad: seq takes a list"),
        (rule(on={"seq": []}), "rule bad: a sequence needs parts"),
        (rule(on={"seq": [{"event": "A"}], "within": "long"}), "rule bad: within"),
        (rule(on={"seq": [{"event": "A"}], "same": "n"}), "rule bad: same takes a list"),
        (rule(on={"inserted": "acounts"}), "rule bad: no table 'acounts' .*'accounts'"),
        (rule(on={"inserted": ["accounts"]}), "rule bad: no table"),
        (rule(on={"updated": "accounts", "columns": ["x"]}), "rule bad: table accounts has no"),
        (rule(do=3), "rule bad: a function is named as 'module:function', not 3"),
        (rule(do="print"), "rule bad: a function is named as 'module:function'"),
        (rule(do="os:system"), "rule bad: functions of module 'os' are not allowed here"),
        (rule(do="builtins:eval"), "rule bad: functions of module 'builtins' are not allowed"),
        (rule(do=f"{M}:getcwd"), "rule bad: module .* offers no function 'getcwd'"),
        (rule(do=f"{M}:here"), "rule bad: module .* offers no function 'here'"),
        (rule(do=f"{M}:_hidden"), "rule bad: module .* offers no function '_hidden'"),
        (rule(do=f"{M}:capital"), "rule bad: module .* offers no function 'capital'"),
        (rule(do=f"{M}:note.__globals__"), "rule bad: module .* offers no function"),
        (rule(when="no:thing"), "rule bad: functions of module 'no'"),
    ],
)
def test_data_without_meaning_is_refused_and_nothing_of_it_is_created(
    in_memory: Ledger, data: Any, message: str, noted: list[str]
) -> None:
    db = in_memory.db
    db.rule(on=adb.event("Z"), name="old")(lambda t, o: None)
    before = db.rules.list()
    with pytest.raises(ActiveDBError, match=message):
        db.rules.load(data, modules=[actions])
    with db.transaction():
        with pytest.raises(ActiveDBError, match=message):
            db.rules.load(data, modules=[actions])
        assert db.rules.list() == before
        db.signal("A")
    assert db.rules.list() == before
    assert stored(db) == {"old": (1, True, None)}
    assert noted == []


def test_load_with_a_name_that_is_taken_creates_nothing_in_an_open_transaction(
    db: Database,
) -> None:
    db.rule(on=adb.event("Z"), name="bad")(lambda t, o: None)
    before = db.rules.list()
    with db.transaction():
        with pytest.raises(DefinitionError, match="there is a rule named 'bad' already"):
            db.rules.load(rule(), modules=[actions])
        assert db.rules.list() == before
    assert db.rules.list() == before
    assert stored(db) == {"bad": (1, True, None)}


def test_load_of_a_rule_on_a_dropped_table_creates_nothing(ledger: Ledger) -> None:
    db = ledger.db
    with db.connection() as connection:
        connection.exec_driver_sql("DROP TABLE facts")
        connection.commit()
    with pytest.raises(DefinitionError, match="rule bad: the database has no table facts"):
        db.rules.load(rule(on={"inserted": "facts"}), modules=[actions])
    assert listed(db) == stored(db) == {}


def test_module_is_imported_only_when_it_is_allowed(
    in_memory: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = in_memory.db
    (tmp_path / "of_elsewhere.py").write_text("def act(t, o): pass\n")
    (tmp_path / "broken_elsewhere.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    data = {"r": {"on": {"event": "A"}, "do": "of_elsewhere:act"}}
    with pytest.raises(
        DefinitionError, match=r"'of_elsewhere' are not allowed here \(allowed: x\)"
    ):
        db.rules.load(data, allow=["x"])
    assert "of_elsewhere" not in sys.modules
    db.rules.load(data, allow=["of_elsewhere"])
    del sys.modules["of_elsewhere"]
    for name in ("broken_elsewhere", "missing_elsewhere"):
        with pytest.raises(DefinitionError, match=f"rule q: module '{name}' cannot be imported"):
            db.rules.load({"q": {"on": {"event": "A"}, "do": f"{name}:act"}}, allow=[name])
    with pytest.raises(DefinitionError, match="allow takes a list"):
        db.rules.load(data, allow="of_elsewhere")
    with pytest.raises(DefinitionError, match="modules takes a list"):
        db.rules.load(data, modules=actions)  # type: ignore[arg-type]  # misuse on purpose


YAML = """
# `on` is a name here, no boolean
overdraft:
  on: {updated: accounts, columns: [balance]}
  when: bank:check
  do: bank:grow
  params: {by: 5, limit: 0}
  coupling: deferred
  priority: -3
watch:
  on:
    seq:
      - {event: EXIT}
      - not: {event: SANITIZE}
      - {event: ENTER}
    same: [worker]
    within: 45
  do: bank:note
  enabled: false
"""


def test_rules_of_a_yaml_file_are_those_of_the_same_data(ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(YAML, encoding="utf-8")
    overdraft, watch = ledger.db.rules.load_file(path, modules={"bank": actions})
    assert overdraft.on == adb.updated(ledger.accounts, "balance")
    assert overdraft.rule.action is actions.grow
    assert overdraft.rule.when is actions.check
    assert dict(overdraft.rule.params) == {"by": 5, "limit": 0}
    assert (overdraft.coupling, overdraft.priority, overdraft.enabled) == ("deferred", -3, True)
    unsanitised = adb.seq(adb.event("EXIT"), ~adb.event("SANITIZE"), adb.event("ENTER"))
    assert watch.on == unsanitised.same("worker").within(45)
    assert not watch.enabled


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("a: [", "cannot be read"),
        ("!!python/object/apply:os.system [ls]", "cannot be read"),
        ("r: !!python/name:os.system", "cannot be read"),
        ("r: {on: {event: A}, do: 'm:f'}\nr: {on: {event: B}, do: 'm:f'}", "'r' occurs twice"),
        ("r: {on: {event: A}, on: {event: B}, do: 'm:f'}", "'on' occurs twice"),
        ("- {name: r, on: {event: A}, do: 'os:system'}", "rule r: functions of module 'os'"),
        ("", "rules come as a list"),
        ("just text", "rules come as a list"),
        ("[" * 5_000, "cannot be read"),
        ("a: \udcff", "cannot be read"),
        ("r:\n  do: 'm:f'\n  on: {{ event }}", "(?s)a key is text.*line 3"),
        ("? [a, b]\n: 3", "a key is text"),
        ("r: {do: 'm:f',\n on: {at: 2027-02-29T08:00:00Z}}", "(?s)day is out of range.*line 2"),
        ("r: {do: 'm:f', on: {event: X}, priority: !!int high}", "(?s)'high'.*line 1"),
        ("r: {at: !!timestamp noon}", "(?s)no value of its kind.*line 1"),
        ("r: {enabled: !!bool 2}", "(?s)no value of its kind.*line 1"),
        ("r: {do: 'm:f', on: &a {seq: [*a, {event: B}]}}", "(?s)recursive.*line 1"),
        ("r: {do: 'm:f', params: &a {x: *a}}", "recursive"),
        ('"a\\0": {do: "M:note", on: {event: A}}'.replace("M", M), "and no NUL"),
        ('"a\\ud800": {do: "M:note", on: {event: A}}'.replace("M", M), "and no NUL"),
    ],
)
def test_yaml_without_meaning_is_refused_and_nothing_of_it_is_created(
    in_memory: Ledger, tmp_path: Path, text: str | None, message: str
) -> None:
    db = in_memory.db
    path = tmp_path / "rules.yaml"
    if text is not None:
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(DefinitionError, match=message):
        db.rules.load_file(path, modules=[actions])
    assert listed(db) == stored(db) == {}


GOOD = """\
overdraft:
  on: {updated: accounts, columns: [balance], alias: change}
  when: bank:check
  do: bank:grow
  coupling: deferred
  priority: -3
  params: {by: 5, limit: 0}
unsanitised:
  on:
    seq:
      - {event: EXIT, alias: out}
      - not: {event: SANITIZE}
      - many: {event: ENTER}
        min: 1
        max: 3
    same: [worker]
    within: 45
    gap: 7.5
    select: any
    skip: {to_first: out}
    context: chronicle
  do: bank:note
  writes: [log, {inserted: accounts}]
  raises: [SIGNAL]
  enabled: false
morning:
  on: {any_of: [{cron: "0 8 * * *", zone: UTC}, {at: 2027-02-28T08:00:00Z}, {every: 60, offset: 3}]}
  do: bank:note
  on_abort: rule
late:
  on: {after: {all_of: [{event: A}, {event: B}], within: 5}, delay: 3}
  do: bank:note
  partials_max: 100
  on_full: refuse
ticks:
  on: {periodic: {event: A}, period: 5, until: {event: B}, alias: tick, collected: true}
  do: bank:note
asked:
  on: {query: q, pattern: {some_of: [{event: A}, {event: B}], count: 1}}
  do: bank:note
"""
ODD = (
    *("", "null", "~", "3", "-1", "1.5", "1e400", ".nan", ".inf", "true", "yes", "x", "''"),
    *("9" * 5_000, "0x1f", "1:30", "[1]", "[[A]]", "[]", "{}", "{a: 1}", "{{ x }}", "{[a]: 1}"),
    *("2027-02-29", "2027-02-29T08:00:00Z", "2027-01-01", "0000-01-01", "!!int high", "!!float x"),
    *("!!bool x", "!!timestamp x", "!!binary x", "!!binary aGVsbG8=", "!!set {a}", "!!omap [a]"),
    *("!!null x", "!!str 3", "!!seq {}", "!!map []", "!!python/name:os.system", "*a", "&a [*a]"),
    *(
        "&a {x: *a}",
        '"\\0"',
        '"\\ud800"',
        '"\\U0010ffff"',
        "<<: 3",
        "? [a]",
        "x" * 5_000,
        "a: b: c",
    ),
    *("---", "'", '"', "{", "]", "#", "|", "\t", "\n", "bank:", ":note", "os:system"),
)


def test_mutated_yaml_is_read_or_refused_by_a_definition_error(
    in_memory: Ledger, tmp_path: Path
) -> None:
    db, path = in_memory.db, tmp_path / "rules.yaml"
    path.write_text(GOOD, encoding="utf-8")
    assert len(db.rules.load_file(path, modules={"bank": actions})) == 6
    for rule in db.rules.list():
        db.rules.delete(rule.name)
    tokens = list(re.finditer(r"[\w.*-]+|[^\w\s]", GOOD))
    worlds = Worlds(300, "mutated yaml", read=10, refused=100)
    for random in worlds:
        text = GOOD
        chosen = random.sample(tokens, random.randint(1, 2))
        for token in sorted(chosen, key=lambda found: -found.start()):
            text = text[: token.start()] + random.choice(ODD) + text[token.end() :]
        path.write_text(text, encoding="utf-8")
        try:
            with db.transaction():
                db.rules.load_file(path, modules={"bank": actions})
                raise UndoneError
        except UndoneError:
            worlds.met["read"] += 1
        except DefinitionError:
            worlds.met["refused"] += 1


class UndoneError(Exception):
    """The rules were loaded."""
