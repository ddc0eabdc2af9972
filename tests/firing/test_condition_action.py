"""All 24 pairs of coupling modes: when condition and action run, where, and what is left.

Where they run is told by `coupling.plan`; what is left, by the tables here.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import ConditionWrites, Deadlock, DefinitionError, RuleFailed
from activedb.transactions import State
from coupling import ConditionAction, Coupling, Role, plan
from coupling.acta import audit
from tests.databases import PATIENCE_S, in_thread
from tests.ledger import open_ledger
from tests.nodes import node_of

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger

EC, CA = Coupling, ConditionAction
PAIRS = [pytest.param(ec, ca, id=f"{ec}-{ca}") for ec, ca in product(EC, CA)]
every_pair = pytest.mark.parametrize(("ec", "ca"), PAIRS)


class Oops(Exception):
    """Error that conditions and actions raise here."""


@dataclass
class Play:
    """One triggering transaction, and a rule that records when and where its parts run."""

    ledger: Ledger
    ec: Coupling
    ca: ConditionAction
    holds: bool = True
    condition_fails: bool = False
    action_fails: bool = False
    steps: list[str] = field(default_factory=list)
    where: dict[str, Transaction] = field(default_factory=dict)
    top: Transaction | None = None
    triggering_state: State | None = None  # when the condition was evaluated
    latch: threading.Lock = field(default_factory=threading.Lock)

    def note(self, step: str, t: Transaction | None = None) -> None:
        with self.latch:
            self.steps.append(step)
            if t is not None:
                self.where[step] = t

    def play(self, *, aborts: bool) -> None:
        """Raise the event in a transaction that commits or aborts; await what comes of it."""
        self.ledger.db.rule(
            on=adb.event("GO"),
            name="rule",
            when=self._condition,
            coupling=str(self.ec),
            condition_action=str(self.ca),
        )(self._action)
        try:
            with self.ledger.db.transaction() as top:
                self.top = top
                self.note("event")
                self.ledger.db.signal("GO")
                self.note("went on")
                self.ledger.write(top, "triggering")
                if aborts:
                    top.abort("as told")
                self.note("commit point")
        finally:
            self.note("aborted" if aborts else "ended")
            self.ledger.db.wait_idle()

    def _condition(self, t: Transaction, o: Occurrence) -> bool:
        assert self.top is not None
        self.triggering_state = self.top.state
        self.note("condition", t)
        if self.condition_fails:
            raise Oops
        return self.holds

    def _action(self, t: Transaction, o: Occurrence) -> None:
        self.note("action", t)
        self.ledger.write(t, "action")
        if self.action_fails:
            raise Oops

    @property
    def left(self) -> list[str]:
        """Return the log without the lines of the triggering transaction."""
        return [line for line in self.ledger.lines() if line != "triggering"]

    @property
    def due(self) -> list[str]:
        """Return the names of firings that are recorded and not done."""
        return [row["firing"] for row in self.ledger.pending() if not row["done"]]

    @property
    def letters(self) -> list[tuple[str, str]]:
        return [(letter["source"], letter["error"]) for letter in self.ledger.letters()]

    def is_before(self, first: str, second: str) -> bool:
        return self.steps.index(first) < self.steps.index(second)


def fires_at(ec: Coupling) -> bool:
    """Return whether the triggering transaction has to abort for the rule to take effect."""
    return ec is EC.EXCLUSIVE


@every_pair
def test_parts_run_when_their_modes_say_in_the_transactions_of_the_plan(
    where: Place, ec: Coupling, ca: ConditionAction
) -> None:
    ledger = open_ledger(where.open(recording="full"))
    play = Play(ledger, ec, ca)
    play.play(aborts=fires_at(ec))
    assert play.left == ["action"]
    assert play.letters == []
    assert play.steps.count("condition") == 1
    assert play.steps.count("action") == 1
    planned = plan(ec, ca)
    found = {planned.condition_in: play.where["condition"]}
    found.setdefault(planned.action_in, play.where["action"])
    assert found[planned.action_in] == play.where["action"]
    if Role.RULE not in found:
        parent = play.where["condition"].parent
        assert parent is not None
        found[Role.RULE] = parent
    assert play.top is not None
    found[Role.TRIGGERING] = play.top
    assert len({t.id for t in found.values()}) == len(found)
    assert found[Role.RULE].rule == "rule"
    for each in planned.transactions:
        expected = None if each.parent is None else found[each.parent]
        assert found[each.role].parent == expected, each
    assert play.due == []
    assert play.is_before("event", "condition")
    if ec is EC.IMMEDIATE:
        assert play.is_before("condition", "went on")
    elif ec is EC.DEFERRED:
        assert play.is_before("commit point", "condition")
        assert play.is_before("condition", "ended")
    elif ec is EC.SEQUENTIAL:
        assert play.triggering_state is State.COMMITTED
    elif ec is EC.EXCLUSIVE:
        assert play.triggering_state is State.ABORTED
    if ca is not CA.SEQUENTIAL:
        assert play.is_before("condition", "action")
    if ec.is_child and ca in (CA.IMMEDIATE, CA.SEQUENTIAL):
        assert play.is_before("action", "went on" if ec is EC.IMMEDIATE else "ended")
    if ec.is_child and ca is CA.DEFERRED:
        assert play.is_before("commit point", "action")
        assert play.is_before("action", "ended")
    assert audit(ledger.db.admin.history()) == []


@every_pair
def test_condition_that_is_false_leaves_nothing(
    ledger: Ledger, ec: Coupling, ca: ConditionAction
) -> None:
    play = Play(ledger, ec, ca, holds=False, action_fails=True)
    play.play(aborts=fires_at(ec))
    assert play.left == []
    assert play.letters == []
    assert play.steps.count("condition") == 1
    assert ca is CA.SEQUENTIAL or "action" not in play.steps
    assert ledger.lines() == ([] if fires_at(ec) else ["triggering"])
    assert play.due == []
    assert ledger.db.admin.counters().get("rules_fired", 0) == 0
    assert ledger.db.admin.counters().get("rules_failed", 0) == 0


@every_pair
def test_condition_that_raises_fails_the_rule(
    ledger: Ledger, ec: Coupling, ca: ConditionAction
) -> None:
    play = Play(ledger, ec, ca, condition_fails=True)
    if ec.is_child:
        with pytest.raises(RuleFailed, match="rule rule failed"):
            play.play(aborts=False)
        assert play.letters == []
        assert ledger.lines() == []
    else:
        play.play(aborts=fires_at(ec))
        assert play.letters == [("rule rule", "Oops")]
        assert ledger.lines() == ([] if fires_at(ec) else ["triggering"])
    assert ca is CA.SEQUENTIAL or "action" not in play.steps
    assert play.due == []


@every_pair
def test_action_that_raises_fails_with_what_it_is_part_of(
    ledger: Ledger, ec: Coupling, ca: ConditionAction
) -> None:
    play = Play(ledger, ec, ca, action_fails=True)
    if ec.is_child and ca is not CA.DETACHED:
        with pytest.raises(RuleFailed, match="rule rule failed") as failed:
            play.play(aborts=False)
        assert isinstance(failed.value.__cause__, Oops)
        assert play.letters == []
        assert ledger.lines() == []
    else:
        play.play(aborts=fires_at(ec))
        assert play.letters == [("rule rule", "Oops")]
        assert ledger.lines() == ([] if fires_at(ec) else ["triggering"])
    assert play.due == []


STAYS = {(ec, ca): ec is EC.DETACHED for ec, ca in product(EC, CA)}
"""Pairs of modes whose action takes effect even if the triggering transaction ends otherwise.

A detached rule does not depend on that end, nor does a detached action whose condition was true.
"""
STAYS[EC.IMMEDIATE, CA.DETACHED] = True


@every_pair
def test_rule_whose_triggering_transaction_ends_otherwise(
    ledger: Ledger, ec: Coupling, ca: ConditionAction
) -> None:
    play = Play(ledger, ec, ca)
    play.play(aborts=not fires_at(ec))
    assert play.left == (["action"] if STAYS[ec, ca] else [])
    assert play.letters == []
    assert play.due == []


@pytest.mark.parametrize("ca", [ca for ca in CA if ca is not CA.IMMEDIATE])
def test_rule_without_condition_has_no_mode_after_it(ledger: Ledger, ca: ConditionAction) -> None:
    with pytest.raises(DefinitionError, match=r"rule r: condition_action=.*give it one with when="):
        ledger.db.rule(on=adb.event("E"), name="r", condition_action=str(ca))(lambda t, o: None)
    assert len(ledger.db.rules) == 0


@pytest.mark.parametrize("set_oriented", [False, True])
def test_action_that_was_left_pending_runs_alone_after_a_restart(
    where: Place, set_oriented: bool
) -> None:
    asked, acted = list[int](), list[int]()

    def define(ledger: Ledger, *, works: bool) -> None:
        def when(t: Transaction, o: Occurrence) -> bool:
            asked.append(1)
            return True

        @ledger.db.rule(
            on=adb.updated(ledger.accounts),
            when=when,
            condition_action="detached",
            set_oriented=set_oriented,
        )
        def rule(t: Transaction, o: Any) -> None:
            if not works:
                raise Deadlock("as told")
            acted.append(len(o.rows) if set_oriented else o.new["balance"])

    if where.is_memory:
        pytest.skip("memory keeps nothing")
    first = open_ledger(where.open(retries_max=0), {1: 10, 2: 20})
    define(first, works=False)
    with first.db.transaction() as t:
        t.execute(first.accounts.update().values(balance=7))
    first.db.close()
    assert len(asked) == (1 if set_oriented else 2)
    second = open_ledger(where.open())
    define(second, works=True)
    assert second.db.recover() == len(asked)
    second.db.wait_idle()
    assert acted == ([2] if set_oriented else [7, 7])
    assert len(asked) == (1 if set_oriented else 2)
    assert second.pending() == []


def beside(ledger: Ledger, when: Any, act: Any, **options: Any) -> None:
    """A rule on GO whose condition and action start together."""
    ledger.db.rule(
        on=adb.event("GO"), name="rule", when=when, condition_action="sequential", **options
    )(act)


@pytest.mark.parametrize("count", [1, 5])
def test_conditions_and_actions_beside_each_other_need_one_thread_only(
    where: Place, count: int
) -> None:
    ledger = open_ledger(where.open(threads=1))
    for number in range(count):
        ledger.db.rule(
            on=adb.event("GO"),
            name=f"r{number}",
            when=lambda t, o, number=number: t.get(ledger.accounts, 1) is None and number % 2 == 0,
            condition_action="sequential",
        )(lambda t, o, number=number: ledger.write(t, f"{number}"))
    in_thread(ledger.db.signal, "GO").result(PATIENCE_S)
    assert sorted(ledger.lines()) == [f"{number}" for number in range(0, count, 2)]


def test_condition_and_action_beside_each_other_run_at_the_same_time(ledger: Ledger) -> None:
    meet = threading.Barrier(2, timeout=PATIENCE_S)

    def when(t: Transaction, o: Occurrence) -> bool:
        meet.wait()
        return True

    def act(t: Transaction, o: Occurrence) -> None:
        meet.wait()
        ledger.write(t, "acted")

    beside(ledger, when, act)
    ledger.db.signal("GO")
    assert ledger.lines() == ["acted"]


def test_action_beside_its_condition_is_seen_by_nobody_before_that_is_true(
    ledger: Ledger,
) -> None:
    has_acted = threading.Event()
    seen: list[int] = []

    def when(t: Transaction, o: Occurrence) -> bool:
        assert has_acted.wait(PATIENCE_S)
        assert t.parent is not None
        seen.append(len(node_of(t.parent).workspace.log))
        return bool(o.params["n"])

    def act(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"{o.params['n']}")
        has_acted.set()

    beside(ledger, when, act)
    for n in (0, 1):
        has_acted.clear()
        ledger.db.signal("GO", n=n)
    assert seen == [0, 0]
    assert ledger.lines() == ["1"]


def test_action_that_locks_what_the_condition_beside_it_needs_gives_way_and_runs_after_it(
    ledger: Ledger,
) -> None:
    """A deadlock in each first try: the action waits for the end of the condition."""
    has_locked = threading.Event()
    tries: list[str] = []

    def when(t: Transaction, o: Occurrence) -> bool:
        tries.append("condition")
        assert has_locked.wait(PATIENCE_S)
        return t.get(ledger.accounts, 1) == {"id": 1, "balance": 10}

    def act(t: Transaction, o: Occurrence) -> None:
        tries.append("action")
        t.update(ledger.accounts, 1, balance=0)
        has_locked.set()

    beside(ledger, when, act)
    ledger.db.signal("GO")
    assert sorted(tries) == ["action", "action", "condition"]
    assert ledger.balances() == {1: 0, 2: 20}


def test_error_of_the_condition_counts_more_than_that_of_the_action_beside_it(
    ledger: Ledger,
) -> None:
    has_failed = threading.Event()

    def when(t: Transaction, o: Occurrence) -> bool:
        assert has_failed.wait(PATIENCE_S)
        raise KeyError("condition")

    def act(t: Transaction, o: Occurrence) -> None:
        has_failed.set()
        raise ValueError("action")

    beside(ledger, when, act)
    with pytest.raises(RuleFailed) as failed:
        ledger.db.signal("GO")
    assert isinstance(failed.value.__cause__, KeyError)


def test_condition_beside_its_action_only_reads(ledger: Ledger) -> None:
    beside(ledger, lambda t, o: ledger.write(t, "no"), lambda t, o: ledger.write(t, "yes"))
    with pytest.raises(RuleFailed) as failed:
        ledger.db.signal("GO")
    assert isinstance(failed.value.__cause__, ConditionWrites)
    assert ledger.lines() == []


def test_deferred_action_of_a_deferred_rule_runs_in_the_next_cycle(ledger: Ledger) -> None:
    ran: list[str] = []
    for name, mode in (("first", "deferred"), ("second", "immediate")):
        ledger.db.rule(
            on=adb.event("GO"),
            name=name,
            when=lambda t, o: True,
            coupling="deferred",
            condition_action=mode,
            priority=9 if name == "first" else 1,
        )(lambda t, o, name=name: ran.append(name))
    ledger.db.signal("GO")
    assert ran == ["second", "first"]


def test_deferred_action_is_dropped_if_what_it_was_triggered_in_aborts(ledger: Ledger) -> None:
    ran: list[str] = []
    ledger.db.rule(
        on=adb.event("GO"), name="rule", when=lambda t, o: True, condition_action="deferred"
    )(lambda t, o: ran.append("rule"))

    @ledger.db.rule(on=adb.event("OUTER"), coupling="deferred", on_abort="rule")
    def outer(t: Transaction, o: Occurrence) -> None:
        ledger.db.signal("GO")
        if o.params["fails"]:
            raise Oops

    with ledger.db.transaction() as t:
        with t.subtransaction() as s:
            ledger.db.signal("GO")
            s.abort()
        ledger.db.signal("OUTER", fails=True)
    assert ran == []
    ledger.db.signal("OUTER", fails=False)
    assert ran == ["rule"]
