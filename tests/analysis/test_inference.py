"""Inference of effects from the source of a rule, case by case."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, func, insert, select, text, update

from activedb.analysis import Profile, analyze
from activedb.events import event
from activedb.rules import Rule
from tests.analysis.sources import (
    BY_NAME,
    FIND,
    RAISE,
    Person,
    Tables,
    accounts,
    elsewhere,
    log,
    stamped,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import activedb as adb

TABLES = Tables(accounts, log)


def profile(action: Callable[..., Any], when: Any = None, **options: Any) -> Profile:
    """The profile of a rule with this action."""
    rule = Rule.define(
        action,
        on=event("E"),
        when=when,
        coupling="immediate",
        priority=None,
        on_abort="rule",
        name="rule",
        **options,
    )
    return Profile.of(rule)


def effects(action: Callable[..., Any], when: Any = None, **options: Any) -> list[str]:
    """Return the possible effects of the rule as text; fail if any of them is unresolved."""
    found = profile(action, when, **options).effects
    assert not found.unresolved, [str(each) for each in found.unresolved]
    return [str(each) for each in (*found.reads, *found.changes, *found.signals)]


def put_line(t: Any, table: Any = log, **values: Any) -> None:
    t.insert(table, values)


def put_twice(t: Any, again: bool = True) -> None:
    put_line(t)
    if again:
        put_twice(t, again=False)


def table_named(name: str) -> Any:
    return BY_NAME[name]


class Keeper:
    def __init__(self, t: Any):
        self.t = t

    def insert(self) -> None:
        self.t.insert(log, {})


def get(t: Any, o: Any) -> None:
    t.get(accounts, o.params["id"])


def get_many(t: Any, o: Any) -> None:
    t.get_many(accounts, [1, 2])


def insert_row(t: Any, o: Any) -> None:
    t.insert(log, {"line": "x"})


def update_columns(t: Any, o: Any) -> None:
    t.update(accounts, 1, balance=2, owner="x")


def update_spread(t: Any, o: Any) -> None:
    t.update(accounts, 1, **o.params)


def update_spread_written_down(t: Any, o: Any) -> None:
    t.update(accounts, 1, **{"balance": 1})  # noqa: PIE804


def update_with_onupdate(t: Any, o: Any) -> None:
    t.update(stamped, 1, value=2)


def update_and_look(t: Any, o: Any) -> Any:
    row = t.update(accounts, 1, balance=2)
    return row["owner"]


def delete_row(t: Any, o: Any) -> None:
    t.delete(accounts, 1)


def of_mapped_class(t: Any, o: Any) -> None:
    t.query(select(Person.name).where(Person.id == o.params["id"]))
    t.update(Person, 1, name="x")


def query_columns(t: Any, o: Any) -> None:
    t.query(select(accounts.c.id, accounts.c["owner"]).where(accounts.c.balance > o.params["x"]))


def query_table(t: Any, o: Any) -> None:
    t.query(select(func.count()).select_from(accounts.join(log, accounts.c.id == log.c.id)))


def query_step_by_step(t: Any, o: Any) -> None:
    wanted = select(accounts.c.id)
    if o.params["x"]:
        wanted = wanted.where(accounts.c.owner == "x")
    t.query(wanted.order_by(accounts.c.balance))


def query_text(t: Any, o: Any) -> None:
    t.query(text("WITH w AS (SELECT * FROM Log) SELECT * FROM w, accounts WHERE id = :n"))


def query_prepared(t: Any, o: Any) -> None:
    t.query(FIND)


def execute_update(t: Any, o: Any) -> None:
    t.execute(update(accounts).where(accounts.c.id == 1).values(balance=accounts.c.balance + 1))


def execute_prepared(t: Any, o: Any) -> None:
    t.execute(RAISE)


def execute_insert_delete(t: Any, o: Any) -> None:
    t.execute(insert(log).from_select(["line"], select(accounts.c.owner)))
    t.execute(delete(accounts))


def execute_with_parameters(t: Any, o: Any) -> None:
    t.execute(update(accounts), {"balance": 1})


def through_helper(t: Any, o: Any) -> None:
    put_line(t, line="x")


def through_helper_with_table(t: Any, o: Any) -> None:
    put_line(t, table=accounts)


def through_recursion(t: Any, o: Any) -> None:
    put_twice(t)


def through_lookup(t: Any, o: Any) -> None:
    t.insert(table_named("log"), {})
    t.delete(TABLES.first, 1)


def in_a_loop(t: Any, o: Any) -> None:
    for table in (accounts, log):
        t.delete(table, 1)


def by_turns(t: Any, o: Any) -> None:
    table = accounts
    for _ in range(3):
        t.delete(table, 1)
        table = log


def in_children(t: Any, o: Any) -> None:
    with t.subtransaction(timeout=1) as s:
        s.insert(log, {})
    t.spawn(lambda s, n: s.delete(accounts, n), 1)
    t.with_timeout(5).spawn(put_line)
    t.join()


def in_inner_function(t: Any, o: Any) -> None:
    def put(table: Any) -> None:
        t.insert(table, {})

    put(log)
    sorted(o.params, key=lambda name: t.get(accounts, name)["id"])


def by_bound_method(t: Any, o: Any) -> None:
    add = t.insert
    add(log, {})


def by_partial(t: Any, o: Any) -> None:
    add = functools.partial(t.insert, log)
    add({"line": "x"})
    functools.partial(functools.partial(t.get, accounts), 1)()


def by_slice(t: Any, o: Any) -> None:
    [t][:][0].insert(log, {})
    for table in [accounts, log][1:]:  # which of them is not told
        t.delete(table, 1)


def by_name_written_down(t: Any, o: Any) -> None:
    getattr(t, "insert")(log, {})  # noqa: B009


def at_definition(t: Any, o: Any) -> None:
    def inner(
        x: Any = t.insert(log, {}),  # noqa: B008
        *,
        y: Any = t.delete(log, 1),  # noqa: B008
    ) -> t.delete(accounts, 1):  # type: ignore[valid-type]
        """Do nothing."""

    lambda z=t.get(accounts, 1): z  # noqa: B008


def with_names_of_their_own(t: Any, o: Any) -> None:
    [put_line for put_line in o.params["x"]]  # noqa: C416
    put_line(t)


def quiet(t: Any, o: Any) -> Any:
    if t.timestamp > 1:
        t.abort(f"{t.path}")
    values: dict[str, Any] = {}
    values.update(x=1)
    return max(o.params["x"], len(values))


READS = "reads accounts"


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (get, [READS]),
        (get_many, [READS]),
        (insert_row, ["inserts into log"]),
        (update_columns, ["updates accounts.balance", "updates accounts.owner"]),
        (update_spread, ["updates accounts"]),
        (update_spread_written_down, ["updates accounts.balance"]),
        (update_with_onupdate, ["updates stamped.changed", "updates stamped.value"]),
        (update_and_look, [READS, "updates accounts.balance"]),
        (delete_row, ["deletes from accounts"]),
        (of_mapped_class, ["reads people.id", "reads people.name", "updates people.name"]),
        (query_columns, [f"{READS}.balance", f"{READS}.id", f"{READS}.owner"]),
        (query_table, [READS, f"{READS}.id", "reads log", "reads log.id"]),
        (query_step_by_step, [f"{READS}.balance", f"{READS}.id", f"{READS}.owner"]),
        (query_text, [READS, "reads log", "reads w"]),
        (query_prepared, [READS, f"{READS}.balance"]),
        (execute_update, [f"{READS}.balance", f"{READS}.id", "updates accounts.balance"]),
        (execute_prepared, [f"{READS}.balance", "updates accounts"]),
        (
            execute_insert_delete,
            [f"{READS}.owner", "deletes from accounts", "inserts into log"],
        ),
        (execute_with_parameters, ["updates accounts"]),
        (through_helper, ["inserts into log"]),
        (through_helper_with_table, ["inserts into accounts"]),
        (through_recursion, ["inserts into log"]),
        (through_lookup, ["deletes from accounts", "inserts into log"]),
        (in_a_loop, ["deletes from accounts", "deletes from log"]),
        (by_turns, ["deletes from accounts", "deletes from log"]),
        (in_children, ["deletes from accounts", "inserts into log"]),
        (in_inner_function, [READS, "inserts into log"]),
        (by_bound_method, ["inserts into log"]),
        (by_partial, [READS, "inserts into log"]),
        (by_slice, ["deletes from accounts", "deletes from log", "inserts into log"]),
        (by_name_written_down, ["inserts into log"]),
        (
            at_definition,
            [READS, "deletes from accounts", "deletes from log", "inserts into log"],
        ),
        (with_names_of_their_own, ["inserts into log"]),
        (quiet, []),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_source_of_an_action_tells_its_effects(
    action: Callable[..., Any], expected: list[str]
) -> None:
    assert effects(action) == expected


def test_condition_and_action_are_taken_together() -> None:
    assert effects(insert_row, when=lambda t, o: t.get(accounts, 1)) == [READS, "inserts into log"]


def test_two_lambdas_on_one_line_are_told_apart() -> None:
    first, second = (lambda t, o: t.get(accounts, 1)), (lambda t, o: t.get(log, 1))
    assert effects(first) == [READS]
    assert effects(second) == ["reads log"]


def test_closure_default_parameter_and_partial_are_looked_through() -> None:
    table = accounts

    def action(t: Any, o: Any, other: Any = log, *, third: Any) -> None:
        for each in (table, other, third):
            t.delete(each, 1)

    def bound(name: str, t: Any, o: Any) -> None:
        t.insert(BY_NAME[name], {})

    expected = ["deletes from accounts", "deletes from log", "deletes from people"]
    assert effects(action, params={"third": Person}) == expected
    assert effects(functools.partial(bound, "log")) == ["inserts into log"]


def test_method_and_callable_object_are_followed() -> None:
    class Keeper:
        def __init__(self, table: Any):
            self.table = table

        def note(self, t: Any, o: Any) -> None:
            t.insert(self.table, {})

        def __call__(self, t: Any, o: Any) -> None:
            self.note(t, o)

    assert effects(Keeper(log).note) == ["inserts into log"]
    assert effects(Keeper(accounts)) == ["inserts into accounts"]


def test_signals_and_other_transactions_of_the_database_are_found(db: adb.Database) -> None:
    prepared = functools.partial(db.signal, "D")

    def action(t: Any, o: Any) -> None:
        db.signal("A" if o.params["x"] else "B", n=1)
        functools.partial(db.signal, "C")()
        prepared()
        db.run(lambda s: s.insert(log, {}))
        with db.transaction() as s:
            s.delete(accounts, 1)

    signals = ["raises A", "raises B", "raises C", "raises D"]
    assert effects(action) == ["deletes from accounts", "inserts into log", *signals]


def from_parameter(t: Any, o: Any) -> None:
    t.insert(o.params["table"], {})


def into_other_module(t: Any, o: Any) -> None:
    elsewhere(t)


def kept_for_later(t: Any, o: Any) -> None:
    o.params["keep"].append(t)


def returned_in_helper(t: Any, o: Any) -> None:
    vars(o)["t"] = t


def unknown_statement(t: Any, o: Any) -> None:
    t.query(o.params["statement"])
    t.execute(o.params["statement"])


def unknown_text(t: Any, o: Any) -> None:
    t.query(text("SELECT 1 FROM " + o.params["table"]))


def into_global(t: Any, o: Any) -> None:
    global KEPT
    KEPT = t  # type: ignore[name-defined]


def into_object(t: Any, o: Any) -> None:
    Keeper(t).insert()


def by_name(t: Any, o: Any) -> None:
    getattr(t, o.params["what"])(log, {})


def evaluated(t: Any, o: Any) -> None:
    eval("t.insert(log, {})")


def inner_parts(t: Any, o: Any) -> None:
    t.forest.run(None)


def captured(t: Any, o: Any) -> None:
    match t:
        case taken:
            taken.insert(log, {})


ALL = ["raises", "reads", "writes"]


@pytest.mark.parametrize(
    ("action", "line", "kinds", "why"),
    [
        (from_parameter, 1, ["reads", "writes"], "insert() of a table that cannot be told"),
        (into_other_module, 1, ALL, "elsewhere(), which is not followed"),
        (kept_for_later, 1, ALL, "the transaction goes"),
        (returned_in_helper, 1, ALL, "the transaction goes"),
        (unknown_statement, 1, ["reads"], "query() of a statement that cannot be told"),
        (unknown_text, 1, ["reads"], "text() that is not known before it runs"),
        (into_global, 2, ALL, "the transaction goes"),
        (into_object, 1, ALL, "into Keeper(), which is not followed"),
        (by_name, 1, ALL, "the transaction goes into getattr()"),
        (captured, 1, ALL, "the transaction goes"),
        (evaluated, 1, ALL, "eval() may do anything"),
        (print, None, ALL, "no source in Python"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_source_that_does_not_tell_makes_the_rule_opaque_and_says_where(
    action: Callable[..., Any], line: int | None, kinds: list[str], why: str
) -> None:
    first = profile(action).effects.unresolved[0]
    assert why in first.why
    assert sorted(first.kinds) == kinds
    if line is not None:
        place = action.__code__.co_firstlineno + line
        assert first.place == f"test_inference.py:{place}"


def test_inner_part_of_a_transaction_makes_the_rule_opaque() -> None:
    assert profile(inner_parts).effects.is_opaque


def test_function_without_a_source_is_opaque() -> None:
    names: dict[str, Any] = {"log": log}
    exec("def made(t, o): t.insert(log, {})", names)
    (unresolved,) = profile(names["made"]).effects.unresolved
    assert "the source of made cannot be found" in unresolved.why


def test_nothing_of_a_rule_is_run() -> None:
    ran = []

    class Loud:
        @property
        def table(self) -> Any:
            ran.append("property")
            return log

        def __getattr__(self, name: str) -> Any:
            ran.append(name)
            return log

    loud = Loud()

    def action(t: Any, o: Any) -> None:
        ran.append("action")
        t.insert(loud.table, {})
        t.insert(loud.other, {})

    assert profile(action).effects.is_opaque
    assert ran == []


def test_declared_effects_take_the_place_of_what_is_inferred() -> None:
    found = profile(
        from_parameter,
        reads=[Person.name, accounts.c.balance, "log"],
        writes=["accounts.balance", log],
        raises=["ALERT"],
    ).effects
    assert not found.is_opaque
    assert [str(each) for each in (*found.reads, *found.changes, *found.signals)] == [
        "reads accounts.balance",
        "reads log",
        "reads people.name",
        "updates accounts.balance",
        "deletes from log",
        "inserts into log",
        "updates log",
        "raises ALERT",
    ]


def test_declaring_the_writes_alone_leaves_the_reads_open() -> None:
    found = profile(from_parameter, writes=[]).effects
    assert [sorted(each.kinds) for each in found.unresolved] == [["reads"]]
    assert not found.may_raise_anything


def test_database_analyzes_its_enabled_rules(db: adb.Database) -> None:
    db.rule(on=event("A"), name="first", raises=["B"])(quiet)
    db.rule(on=event("B"), name="second")(quiet)
    analysis = db.rules.analyze()
    assert [(edge.source, edge.target) for edge in analysis.edges] == [("first", "second")]
    assert analysis == analyze([each.rule for each in db.rules])
    db.rules.disable("second")
    assert [each.name for each in db.rules.analyze().rules] == ["first"]
