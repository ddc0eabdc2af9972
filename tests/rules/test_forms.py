"""Forms of rules: with parameters, without a condition, for sets of occurrences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, insert, update

import activedb as adb
from activedb.errors import DefinitionError, RuleFailed, RuleSignatureError
from coupling.acta import SpawnEvent, audit
from tests.ledger import open_ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger


def test_parameters_are_given_to_whom_takes_them(ledger: Ledger) -> None:
    ran: list[Any] = []

    def above(t: Transaction, o: Occurrence, *, limit: int) -> bool:
        return bool(o.params["n"] > limit)

    @ledger.db.rule(on=adb.event("A"), when=above, params={"limit": 3, "mark": "!"})
    def rule(t: Transaction, o: Occurrence, mark: str) -> None:
        ran.append((o.params["n"], mark))

    ledger.db.signal("A", n=3)
    ledger.db.signal("A", n=4)
    assert ran == [(4, "!")]
    ledger.db.rules.change("rule", params={"limit": 0, "mark": "?"})
    ledger.db.signal("A", n=1)
    assert ran == [(4, "!"), (1, "?")]


def test_parameters_go_to_functions_that_take_any(ledger: Ledger) -> None:
    ran: list[Any] = []
    ledger.db.rule(on=adb.event("A"), name="r", params={"a": 1, "b": 2})(
        lambda t, o, **params: ran.append(params)
    )
    ledger.db.signal("A")
    assert ran == [{"a": 1, "b": 2}]


@pytest.mark.parametrize(
    ("action", "params", "message"),
    [
        (lambda t, o: None, {"limit": 1}, "neither the action nor the condition takes .*'limit'"),
        (
            lambda t, o, *, limit: None,
            None,
            r"rule r: the action .* cannot be called with \(t, o\)",
        ),
        (lambda t, o, *, limit: None, {"limt": 1}, "rule r: the action"),
        (lambda t, o, *, a, b: None, {"a": 1}, r"cannot be called with \(t, o, a=…\)"),
        (lambda t, o: None, {"t": 1}, "rule r: the action"),
        (lambda t, o, **more: None, {1: 1}, "rule r: a parameter is named like an argument"),
        (lambda t, o, **more: None, 7, "rule r: params takes a mapping"),
    ],
)
def test_parameters_that_nobody_takes_are_refused(
    in_memory: Ledger, action: Callable[..., Any], params: Any, message: str
) -> None:
    with pytest.raises(DefinitionError, match=message):
        in_memory.db.rule(on=adb.event("A"), name="r", params=params)(action)
    assert in_memory.db.rules.list() == []


def test_condition_that_lacks_a_parameter_is_refused(in_memory: Ledger) -> None:
    with pytest.raises(RuleSignatureError, match=r"the condition \(when=\)"):
        in_memory.db.rule(
            on=adb.event("A"), name="r", when=lambda t, o, *, limit: True, params={"mark": 1}
        )(lambda t, o, mark: None)


def test_set_oriented_rule_fires_once_for_all_rows_of_a_statement(ledger: Ledger) -> None:
    db = ledger.db
    fired: list[list[tuple[int, int]]] = []

    @db.rule(on=adb.updated(ledger.accounts), coupling="deferred", set_oriented=True)
    def rule(t: Transaction, o: Any) -> None:
        fired.append([(p.old["balance"], p.new["balance"]) for p in o.occurrences])
        assert [row["id"] for row in o.rows] == [p.new["id"] for p in o.occurrences]
        ledger.write(t, "ran")

    with db.transaction() as t:
        assert t.execute(update(ledger.accounts).values(balance=ledger.accounts.c.balance + 1)) == 2
        assert fired == []
    assert fired == [[(10, 11), (20, 21)]]
    assert ledger.lines() == ["ran"]
    with db.transaction() as t:
        t.update(ledger.accounts, 1, balance=0)
    assert fired[1:] == [[(11, 0)]]


def test_set_oriented_condition_is_asked_once_about_the_set(ledger: Ledger) -> None:
    db = ledger.db
    asked: list[int] = []
    ran: list[int] = []

    def three(t: Transaction, o: Any) -> bool:
        asked.append(len(o.rows))
        return len(o.rows) == 3

    db.rule(on=adb.event("A"), when=three, coupling="deferred", set_oriented=True, name="r")(
        lambda t, o: ran.append(sum(row["n"] for row in o.rows))
    )
    for count in (2, 3):
        with db.transaction():
            for n in range(count):
                db.signal("A", n=n)
    assert asked == [2, 3]
    assert ran == [3]


def test_set_of_a_cycle_is_fired_cycle_by_cycle(ledger: Ledger) -> None:
    db = ledger.db
    sizes: list[int] = []

    @db.rule(on=adb.event("A"), coupling="deferred", set_oriented=True)
    def rule(t: Transaction, o: Any) -> None:
        sizes.append(len(o.occurrences))
        if len(sizes) < 3:
            for _ in o.occurrences:
                db.signal("A")
                db.signal("A")

    with db.transaction():
        db.signal("A")
    assert sizes == [1, 2, 4]


def test_set_oriented_rule_that_fails_alone_keeps_its_set_in_one_letter(ledger: Ledger) -> None:
    db = ledger.db

    @db.rule(
        on=adb.updated(ledger.accounts), coupling="deferred", set_oriented=True, on_abort="rule"
    )
    def rule(t: Transaction, o: Occurrence) -> None:
        raise ValueError("no")

    with db.transaction() as t:
        t.update(ledger.accounts, 1, balance=1)
        t.update(ledger.accounts, 2, balance=2)
    (letter,) = ledger.letters()
    parts = dict(letter["payload"]["parts"])
    assert [parts[n]["new"]["balance"] for n in ("0", "1")] == [1, 2]


def test_set_oriented_immediate_rule_fires_once_for_each_statement(ledger: Ledger) -> None:
    db, a = ledger.db, ledger.accounts
    fired: list[tuple[str, list[int]]] = []

    @db.rule(on=adb.updated(a, "balance"), set_oriented=True, priority=9)
    def together(t: Transaction, o: Any) -> None:
        fired.append(("set", [row["balance"] for row in o.rows]))
        ledger.write(t, f"{sum(row['balance'] for row in o.rows)}")

    @db.rule(on=adb.updated(a))
    def each(t: Transaction, o: Occurrence) -> None:
        fired.append(("row", [o.new["balance"]]))

    with db.transaction() as t:
        t.execute(update(a).values(balance=a.c.balance + 1))
        # The rules of each row see what they saw before there were sets; the set follows.
        assert fired == [("row", [11]), ("row", [21]), ("set", [11, 21])]
        fired.clear()
        t.update(a, 1, balance=0)
        assert fired == [("row", [0]), ("set", [0])]
        fired.clear()
        t.execute(update(a).where(a.c.id == 77).values(balance=5))
        t.execute(update(a).values(balance=a.c.balance))
        assert fired == [("row", [0]), ("row", [21])]
    assert ledger.lines() == ["32", "0"]


@pytest.mark.parametrize("order", ["depth_first", "breadth_first"])
@pytest.mark.parametrize("change", ["insert", "update", "delete", "signal", "rule"])
def test_set_oriented_immediate_rule_follows_those_that_fire_row_by_row(
    where: Place, change: str, order: str
) -> None:
    ledger = open_ledger(where.open(recording="full", cascade_order=order), {1: 10})
    db, a = ledger.db, ledger.accounts
    on = adb.event("E") | adb.inserted(a) | adb.updated(a) | adb.deleted(a)
    db.rule(on=on, set_oriented=True, priority=9, name="set 9")(lambda t, o: ledger.write(t, "9"))
    db.rule(on=on, set_oriented=True, name="set")(lambda t, o: ledger.write(t, "any"))
    for priority in (None, 3):
        name = f"row {priority}"
        db.rule(on=on, priority=priority, name=name)(lambda t, o: ledger.write(t, t.rule))
    db.rule(on=adb.event("R"), name="raises")(lambda t, o: db.signal("E"))
    changes: dict[str, Callable[[Transaction], object]] = {
        "insert": lambda t: t.insert(a, {"id": 2, "balance": 0}),
        "update": lambda t: t.update(a, 1, balance=0),
        "delete": lambda t: t.delete(a, 1),
        "signal": lambda t: db.signal("E"),
        "rule": lambda t: db.signal("R"),
    }
    db.run(changes[change])
    assert ledger.lines() == ["row 3", "row None", "9", "any"]
    history = db.admin.history()
    assert audit(history) == []
    groups = [e.group for e in history.events if isinstance(e, SpawnEvent)][-4:]
    assert groups[0] == groups[1] != groups[2] == groups[3]  # priorities order each group


@pytest.mark.parametrize("order", ["depth_first", "breadth_first"])
def test_set_of_a_level_is_one_in_breadth_first_order(where: Place, order: str) -> None:
    ledger = open_ledger(where.open(cascade_order=order))
    db, sets = ledger.db, list[list[int]]()
    db.rule(on=adb.event("E"), set_oriented=True, name="set")(
        lambda t, o: sets.append([row["n"] for row in o.rows])
    )

    @db.rule(on=adb.event("R"))
    def twice(t: Transaction, o: Any) -> None:
        db.signal("E", n=1)
        db.signal("E", n=2)

    db.signal("R")
    assert sets == ([[1], [2]] if order == "depth_first" else [[1, 2]])


def test_set_oriented_immediate_rule_sees_inserts_and_deletes_of_a_statement(
    ledger: Ledger,
) -> None:
    db, a = ledger.db, ledger.accounts
    fired: list[list[int]] = []
    db.rule(on=adb.inserted(a) | adb.deleted(a), set_oriented=True, name="r")(
        lambda t, o: fired.append(sorted(row["id"] for row in o.rows))
    )
    with db.transaction() as t:
        t.execute(insert(a), [{"id": n, "balance": n} for n in (3, 4, 5)])
        t.execute(delete(a).where(a.c.id > 1))
        db.rules.disable("r")
        t.execute(insert(a), [{"id": 9, "balance": 0}])
    assert fired == [[3, 4, 5], [2, 3, 4, 5]]


def test_set_oriented_immediate_rule_that_fails_undoes_with_the_statement(ledger: Ledger) -> None:
    db, a = ledger.db, ledger.accounts

    @db.rule(on=adb.updated(a), set_oriented=True)
    def rule(t: Transaction, o: Any) -> None:
        raise ValueError(f"{len(o.rows)} rows")

    with pytest.raises(RuleFailed, match="2 rows"), db.transaction() as t:
        t.execute(update(a).values(balance=0))
    assert ledger.balances() == {1: 10, 2: 20}


@pytest.mark.parametrize("coupling", ["sequential", "detached", "causal", "exclusive"])
def test_set_oriented_rule_in_a_mode_without_sets_is_refused(
    in_memory: Ledger, coupling: str
) -> None:
    with pytest.raises(DefinitionError, match="set_oriented=True goes together with coupling="):
        in_memory.db.rule(on=adb.event("A"), name="r", coupling=coupling, set_oriented=True)(
            lambda t, o: None
        )
    with pytest.raises(DefinitionError, match="set_oriented is True or False"):
        in_memory.db.rule(on=adb.event("A"), name="r", set_oriented=1)(  # type: ignore[arg-type]
            lambda t, o: None
        )
