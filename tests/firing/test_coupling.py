"""Immediate and deferred rules: when they run, in which order, what their failure takes along."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select
from sqlalchemy import update as sql_update

import activedb as adb
from activedb.errors import CycleLimitExceeded, RuleFailed
from tests.databases import PATIENCE_S, in_thread, until
from tests.ledger import open_ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger


def test_immediate_rule_runs_at_the_event_as_a_child(ledger: Ledger) -> None:
    order: list[str] = []

    @ledger.db.rule(on=adb.updated(ledger.accounts))
    def rule(t: Transaction, o: Occurrence) -> None:
        assert t.parent == top
        assert t.rule == "rule"
        order.append("rule")
        ledger.write(t, f"{o.old['balance']} to {o.new['balance']}")

    with ledger.db.transaction() as top:
        order.append("before")
        top.update(ledger.accounts, 1, balance=11)
        order.append("after")
        assert top.query(select(func.count()).select_from(ledger.log)) == [(1,)]
    assert order == ["before", "rule", "after"]
    assert ledger.lines() == ["10 to 11"]


def test_rule_sees_and_may_write_the_row_that_triggered_it(ledger: Ledger) -> None:
    @ledger.db.rule(
        on=adb.updated(ledger.accounts, "balance"),
        when=lambda t, o: t.get(ledger.accounts, o.new["id"]) == o.new and o.new["balance"] > 100,
    )
    def cap(t: Transaction, o: Occurrence) -> None:
        t.update(ledger.accounts, o.new["id"], balance=100)

    with ledger.db.transaction() as t:
        t.update(ledger.accounts, 1, balance=500)
        assert t.get(ledger.accounts, 1) == {"id": 1, "balance": 100}
        t.update(ledger.accounts, 2, balance=99)
    assert ledger.balances() == {1: 100, 2: 99}


def test_condition_that_is_false_runs_nothing_and_leaves_nothing(ledger: Ledger) -> None:
    @ledger.db.rule(on=adb.inserted(ledger.accounts), when=lambda t, o: o.new["id"] > 5)
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, str(o.new["id"]))

    with ledger.db.transaction() as t:
        t.insert(ledger.accounts, {"id": 5})
        t.insert(ledger.accounts, {"id": 6})
    assert ledger.lines() == ["6"]
    assert ledger.db.admin.counters()["rules_fired"] == 1


def test_rule_listens_to_its_kind_of_change_and_columns_only(ledger: Ledger) -> None:
    db, a = ledger.db, ledger.accounts
    seen: list[str] = []
    db.rule(on=adb.inserted(a), name="i")(lambda t, o: seen.append(f"insert {o.params['id']}"))
    db.rule(on=adb.updated(a), name="u")(lambda t, o: seen.append(f"update {o.params['id']}"))
    db.rule(on=adb.updated(a, "balance"), name="b")(
        lambda t, o: seen.append(f"balance {o.params['id']}")
    )
    db.rule(on=adb.deleted(a), name="d")(lambda t, o: seen.append(f"delete {o.params['id']}"))
    with db.transaction() as t:
        t.insert(a, {"id": 3, "balance": 1})
        t.update(a, 3, balance=1)
        t.update(a, 3, balance=2)
        t.delete(a, 3)
    assert sorted(seen) == ["balance 3", "delete 3", "insert 3", "update 3", "update 3"]


def test_execute_triggers_once_per_row(ledger: Ledger) -> None:
    @ledger.db.rule(on=adb.updated(ledger.accounts))
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"{o.new['id']}")

    with ledger.db.transaction() as t:
        t.execute(sql_update(ledger.accounts).values(balance=0))
    assert ledger.lines() == ["1", "2"]


def test_deferred_rule_runs_at_the_commit_point_once_per_event(ledger: Ledger) -> None:
    order: list[str] = []

    @ledger.db.rule(on=adb.updated(ledger.accounts), coupling="deferred")
    def rule(t: Transaction, o: Occurrence) -> None:
        assert t.parent == top
        order.append(f"rule {o.new['balance']}")
        current = t.get(ledger.accounts, 1)
        assert current is not None
        assert current["balance"] == 12

    with ledger.db.transaction() as top:
        top.update(ledger.accounts, 1, balance=11)
        top.update(ledger.accounts, 1, balance=12)
        order.append("end of block")
    assert order == ["end of block", "rule 11", "rule 12"]


def test_deferred_rule_does_not_run_when_the_transaction_aborts(ledger: Ledger) -> None:
    ran: list[int] = []
    ledger.db.rule(on=adb.updated(ledger.accounts), coupling="deferred", name="r")(
        lambda t, o: ran.append(1)
    )
    with ledger.db.transaction() as t:
        t.update(ledger.accounts, 1, balance=11)
        t.abort()
    assert ran == []


def test_deferred_by_deferred_runs_in_the_next_cycle_after_all_siblings(ledger: Ledger) -> None:
    order: list[str] = []

    def listen(name: str, on: str, raises: str | None, priority: int) -> None:
        @ledger.db.rule(on=adb.event(on), coupling="deferred", priority=priority, name=name)
        def rule(t: Transaction, o: Occurrence) -> None:
            order.append(name)
            if raises:
                ledger.db.signal(raises)

    listen("first", "E", "F", 9)
    listen("second", "E", "F", 1)
    listen("next cycle", "F", "G", 100)
    listen("third cycle", "G", None, 100)
    with ledger.db.transaction():
        ledger.db.signal("E")
        order.append("commit point")
    assert order == [
        "commit point",
        "first",
        "second",
        "next cycle",
        "next cycle",
        "third cycle",
        "third cycle",
    ]


def test_deferred_inside_an_immediate_rule_runs_at_that_rules_commit_point(ledger: Ledger) -> None:
    order: list[str] = []

    @ledger.db.rule(on=adb.event("E"))
    def immediate(t: Transaction, o: Occurrence) -> None:
        ledger.db.signal("F")
        order.append("immediate ends")

    @ledger.db.rule(on=adb.event("F"), coupling="deferred")
    def deferred(t: Transaction, o: Occurrence) -> None:
        assert t.parent is not None
        assert t.parent.rule == "immediate"
        order.append("deferred")

    with ledger.db.transaction():
        ledger.db.signal("E")
        order.append("after the event")
    assert order == ["immediate ends", "deferred", "after the event"]


def test_immediate_inside_a_deferred_rule_runs_at_once(ledger: Ledger) -> None:
    order: list[str] = []

    @ledger.db.rule(on=adb.event("E"), coupling="deferred", priority=1)
    def deferred(t: Transaction, o: Occurrence) -> None:
        ledger.db.signal("F")
        order.append("deferred goes on")

    ledger.db.rule(on=adb.event("F"), name="immediate")(lambda t, o: order.append("immediate"))
    ledger.db.rule(on=adb.event("E"), coupling="deferred", priority=-1, name="sibling")(
        lambda t, o: order.append("sibling")
    )
    with ledger.db.transaction():
        ledger.db.signal("E")
    assert order == ["immediate", "deferred goes on", "sibling"]


@pytest.mark.parametrize("coupling", ["immediate", "deferred"])
def test_priorities_order_rules_whatever_the_order_of_definition(
    ledger: Ledger, coupling: str
) -> None:
    order: list[object] = []
    for priority in (None, -3, 7, 0):
        ledger.db.rule(
            on=adb.event("E"), coupling=coupling, priority=priority, name=f"p{priority}"
        )(lambda t, o, p=priority: order.append(p))
    with ledger.db.transaction():
        ledger.db.signal("E")
    assert order == [7, 0, -3, None]


@pytest.mark.parametrize("coupling", ["immediate", "deferred"])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_rules_of_equal_priority_really_overlap(where: Place, coupling: str, count: int) -> None:
    ledger = open_ledger(where.open(threads=4))
    barriers = [threading.Barrier(count, timeout=PATIENCE_S) for _ in range(4)]

    def listen(number: int) -> None:
        @ledger.db.rule(on=adb.event("E"), coupling=coupling, priority=4, name=f"r{number}")
        def rule(t: Transaction, o: Occurrence) -> None:
            t.insert(ledger.accounts, {"id": 100 * o.params["turn"] + number})
            barriers[o.params["turn"]].wait()

    for number in range(count):
        listen(number)
    for turn in range(len(barriers)):
        with ledger.db.transaction():
            ledger.db.signal("E", turn=turn)
    assert len(ledger.balances()) == count * len(barriers)


def test_equal_rules_that_want_the_same_row_do_not_lose_an_update(ledger: Ledger) -> None:
    def listen(number: int) -> None:
        @ledger.db.rule(on=adb.event("E"), name=f"r{number}")
        def rule(t: Transaction, o: Occurrence) -> None:
            row = t.get(ledger.accounts, 1)
            assert row is not None
            t.update(ledger.accounts, 1, balance=row["balance"] + 1)

    for number in range(4):
        listen(number)
    for _ in range(5):
        ledger.db.run(lambda t: ledger.db.signal("E"))
    assert ledger.balances()[1] == 30


def test_failing_rule_takes_the_triggering_transaction_along(ledger: Ledger) -> None:
    @ledger.db.rule(on=adb.updated(ledger.accounts), on_abort="triggering")
    def refuse(t: Transaction, o: Occurrence) -> None:
        raise ValueError("never")

    def work(t: Transaction) -> None:
        t.insert(ledger.accounts, {"id": 3})
        t.update(ledger.accounts, 1, balance=0)

    with pytest.raises(RuleFailed, match="rule refuse failed: ValueError: never") as caught:
        ledger.db.run(work)
    assert caught.value.rule == "refuse"
    assert isinstance(caught.value.__cause__, ValueError)
    assert ledger.balances() == {1: 10, 2: 20}
    assert ledger.letters() == []


def test_failing_rule_takes_a_triggering_subtransaction_along_and_no_more(ledger: Ledger) -> None:
    @ledger.db.rule(on=adb.updated(ledger.accounts), on_abort="triggering")
    def refuse(t: Transaction, o: Occurrence) -> None:
        raise ValueError("never")

    with ledger.db.transaction() as t:
        t.insert(ledger.accounts, {"id": 3, "balance": 0})
        with pytest.raises(RuleFailed), t.subtransaction() as s:
            s.insert(ledger.accounts, {"id": 4, "balance": 0})
            s.update(ledger.accounts, 1, balance=0)
        assert s.state == "aborted"
    assert ledger.balances() == {1: 10, 2: 20, 3: 0}


def test_failure_that_the_triggering_code_swallows_aborts_it_all_the_same(ledger: Ledger) -> None:
    """on_abort="triggering" says that the triggering transaction aborts, not that it may."""

    @ledger.db.rule(on=adb.updated(ledger.accounts), on_abort="triggering")
    def refuse(t: Transaction, o: Occurrence) -> None:
        raise ValueError("never")

    with (
        pytest.raises(RuleFailed),
        ledger.db.transaction() as t,
        contextlib.suppress(RuleFailed),
    ):
        t.update(ledger.accounts, 1, balance=0)
    assert ledger.balances() == {1: 10, 2: 20}


@pytest.mark.parametrize("coupling", ["immediate", "deferred"])
def test_failing_rule_that_fails_alone_leaves_a_dead_letter(ledger: Ledger, coupling: str) -> None:
    @ledger.db.rule(on=adb.updated(ledger.accounts), coupling=coupling, on_abort="rule")
    def stumble(t: Transaction, o: Occurrence) -> None:
        t.insert(ledger.accounts, {"id": 3})
        raise ValueError("stumbled")

    with ledger.db.transaction() as t:
        t.update(ledger.accounts, 1, balance=0)
    assert ledger.balances() == {1: 0, 2: 20}
    (letter,) = ledger.letters()
    assert letter["source"] == "rule stumble"
    assert letter["kind"] == "rule"
    assert letter["error"] == "ValueError"
    assert "stumbled" in letter["reason"]
    assert letter["payload"]["new"] == {"id": 1, "balance": 0}
    assert ledger.db.admin.counters()["rules_failed"] == 1


def test_rule_that_aborts_itself_with_on_abort_rule_undoes_itself_only(ledger: Ledger) -> None:
    @ledger.db.rule(on=adb.updated(ledger.accounts), on_abort="rule")
    def rule(t: Transaction, o: Occurrence) -> None:
        t.insert(ledger.accounts, {"id": 3})
        t.abort("no need")

    with ledger.db.transaction() as t:
        t.update(ledger.accounts, 1, balance=0)
    assert ledger.balances() == {1: 0, 2: 20}
    assert [x["error"] for x in ledger.letters()] == ["TransactionAborted"]


def test_dead_letter_of_an_aborted_transaction_is_not_written(ledger: Ledger) -> None:
    ledger.db.rule(on=adb.event("E"), on_abort="rule", name="r")(lambda t, o: 1 / 0)
    with ledger.db.transaction() as t:
        ledger.db.signal("E")
        t.abort()
    assert ledger.letters() == []


def test_deep_rule_that_fails_alone_does_not_spoil_the_commit(ledger: Ledger) -> None:
    """The path of a transaction grows with its depth; a letter about it must still fit."""

    @ledger.db.rule(on=adb.event("DOWN"), on_abort="rule")
    def a_rule_with_a_rather_long_name_goes_down(t: Transaction, o: Occurrence) -> None:
        if o.params["depth"] == 0:
            raise ValueError("bottom")
        ledger.db.signal("DOWN", depth=o.params["depth"] - 1)

    with ledger.db.transaction() as t:
        t.update(ledger.accounts, 1, balance=0)
        ledger.db.signal("DOWN", depth=20)
    assert ledger.balances()[1] == 0
    assert len(ledger.letters()) == 1


def test_mutual_deferred_triggering_ends_in_an_error_that_names_the_rules(where: Place) -> None:
    ledger = open_ledger(where.open(cycles_max=10), {1: 10})
    ledger.db.rule(on=adb.event("PING"), coupling="deferred", name="to_pong")(
        lambda t, o: ledger.db.signal("PONG")
    )
    ledger.db.rule(on=adb.event("PONG"), coupling="deferred", name="to_ping")(
        lambda t, o: ledger.db.signal("PING")
    )

    def work(t: Transaction) -> None:
        t.update(ledger.accounts, 1, balance=0)
        ledger.db.signal("PING")

    with pytest.raises(CycleLimitExceeded, match=r"more than 10 deferred cycles.*to_p.ng"):
        ledger.db.run(work)
    assert ledger.balances() == {1: 10}


def test_deferred_cycles_up_to_the_bound_are_allowed(where: Place) -> None:
    ledger = open_ledger(where.open(cycles_max=5))
    ran: list[int] = []

    @ledger.db.rule(on=adb.event("E"), coupling="deferred")
    def again(t: Transaction, o: Occurrence) -> None:
        ran.append(o.params["left"])
        if o.params["left"]:
            ledger.db.signal("E", left=o.params["left"] - 1)

    ledger.db.signal("E", left=4)
    assert ran == [4, 3, 2, 1, 0]
    with pytest.raises(CycleLimitExceeded):
        ledger.db.signal("E", left=5)


@pytest.mark.parametrize("on_abort", ["triggering", "rule"])
def test_immediate_recursion_ends_in_an_error_with_the_chain_of_rules(
    where: Place, on_abort: str
) -> None:
    ledger = open_ledger(where.open(cascade_max=8), {1: 10})

    def listen(name: str, on: str, raises: str) -> None:
        ledger.db.rule(on=adb.event(on), on_abort=on_abort, name=name)(
            lambda t, o: ledger.db.signal(raises)
        )

    listen("ping", "E", "F")
    listen("pong", "F", "E")

    def recurse() -> None:
        with ledger.db.transaction() as t:
            t.update(ledger.accounts, 1, balance=0)
            ledger.db.signal("E")

    with pytest.raises(CycleLimitExceeded, match=r"ping \(5 times\) → pong \(4 times\)") as caught:
        in_thread(recurse).result(PATIENCE_S)
    assert len(str(caught.value)) < 500
    assert ledger.balances() == {1: 10}


def test_rule_that_reads_the_whole_table_sees_its_triggering_transactions_sphere(
    ledger: Ledger,
) -> None:
    total = select(func.sum(ledger.accounts.c.balance))

    @ledger.db.rule(on=adb.updated(ledger.accounts))
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"{t.query(total)[0][0]}")

    with ledger.db.transaction() as t:
        t.update(ledger.accounts, 1, balance=11)
        with t.subtransaction() as s:
            s.update(ledger.accounts, 2, balance=0)
        with t.subtransaction() as s:
            s.update(ledger.accounts, 2, balance=1000)
            s.abort()
    assert ledger.lines() == ["31", "11"]


def test_deferred_rule_of_a_subtransaction_runs_before_that_commits(ledger: Ledger) -> None:
    order: list[str] = []
    ledger.db.rule(on=adb.updated(ledger.accounts), coupling="deferred", name="r")(
        lambda t, o: order.append("rule")
    )
    with ledger.db.transaction() as t:
        with t.subtransaction() as s:
            s.update(ledger.accounts, 1, balance=0)
            order.append("end of s")
        order.append("after s")
    assert order == ["end of s", "rule", "after s"]


def test_rules_of_parallel_children_run_in_their_children(ledger: Ledger) -> None:
    both = threading.Barrier(2, timeout=PATIENCE_S)

    @ledger.db.rule(on=adb.updated(ledger.accounts))
    def rule(t: Transaction, o: Occurrence) -> None:
        both.wait()
        ledger.write(t, str(o.new["id"]))

    def child(s: Transaction, key: int) -> None:
        s.update(ledger.accounts, key, balance=0)

    with ledger.db.transaction() as t:
        t.spawn(child, 1)
        t.spawn(child, 2)
    assert sorted(ledger.lines()) == ["1", "2"]


OWN_FAILURES: dict[str, Callable[[Ledger], object]] = {
    "ValueError": lambda ledger: int("no number"),
    "RowNotFound": lambda ledger: ledger.db.run(lambda t: t.update(ledger.accounts, 99, balance=1)),
    "abort": lambda ledger: ledger.db.run(lambda t: t.abort("of its own")),
}


@pytest.mark.parametrize("coupling", ["immediate", "deferred"])
@pytest.mark.parametrize("own", OWN_FAILURES)
@pytest.mark.parametrize("on_abort", ["triggering", "rule"])
def test_rule_that_fails_by_itself_after_a_sibling_has_failed_is_named_too(
    ledger: Ledger, coupling: str, own: str, on_abort: str
) -> None:
    """Whichever of two parallel rules fails first, what is raised is the failure of a rule."""

    def fail_late(t: Transaction, o: Occurrence) -> None:
        triggering = t.parent
        assert triggering is not None
        until(lambda: triggering.is_rollback_only)
        OWN_FAILURES[own](ledger)

    def fail(t: Transaction, o: Occurrence) -> None:
        raise ZeroDivisionError

    changed = adb.updated(ledger.accounts)
    ledger.db.rule(on=changed, coupling=coupling, name="late", on_abort=on_abort)(fail_late)
    ledger.db.rule(on=changed, coupling=coupling, name="early")(fail)
    with pytest.raises(RuleFailed) as caught:
        ledger.db.run(lambda t: t.update(ledger.accounts, 1, balance=0))
    failed = {"late": own, "early": "ZeroDivisionError"}
    if on_abort == "rule":
        del failed["late"]
    assert caught.value.rule in failed
    cause = type(caught.value.__cause__).__name__
    assert cause == failed[caught.value.rule].replace("abort", "TransactionAborted")
    assert ledger.balances()[1] != 0
