"""Rules that trigger rules: depth-first and breadth-first, and the chain in the error."""

from __future__ import annotations

import os
import random
import threading
from typing import TYPE_CHECKING, NamedTuple

import pytest

import activedb as adb
from activedb.errors import CycleLimitExceeded, RuleFailed
from lockmgr import LockManager, LockTable
from tests.databases import place
from tests.ledger import open_ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger


class Tree:
    """Rules that note themselves, and raise what others listen to."""

    def __init__(self, ledger: Ledger):
        self.ledger = ledger
        self.ran: list[str] = []
        self.parents: dict[str, Transaction | None] = {}
        self._latch = threading.Lock()

    def rule(self, name: str, on: str, *raises: str, **options: object) -> None:
        def act(t: Transaction, o: Occurrence) -> None:
            with self._latch:
                self.ran.append(name)
                self.parents[name] = t.parent
            for each in raises:
                self.ledger.db.signal(each)
            with self._latch:
                self.ran.append(f"{name} ends")

        self.ledger.db.rule(on=adb.event(on), name=name, **options)(act)  # type: ignore[arg-type]

    def __call__(self, signal: str) -> Transaction:
        with self.ledger.db.transaction() as top:
            self.ledger.db.signal(signal)
        return top

    @property
    def begun(self) -> list[str]:
        return [name for name in self.ran if not name.endswith(" ends")]


def three_levels(tree: Tree) -> None:
    tree.rule("a", "E", "A", priority=2)
    tree.rule("b", "E", "B", priority=1)
    tree.rule("low a", "A", priority=1)
    tree.rule("high a", "A", "AA", priority=5)
    tree.rule("of b", "B", priority=3)
    tree.rule("deep", "AA")


def test_depth_first_runs_what_a_rule_triggers_inside_it(where: Place) -> None:
    tree = Tree(open_ledger(where.open()))
    three_levels(tree)
    top = tree("E")
    assert tree.begun == ["a", "high a", "deep", "low a", "b", "of b"]
    assert tree.ran[-1] == "b ends"
    assert [name for name, parent in tree.parents.items() if parent == top] == ["a", "b"]


def test_breadth_first_runs_level_after_level_as_children_of_the_same_parent(
    where: Place,
) -> None:
    tree = Tree(open_ledger(where.open(cascade_order="breadth_first")))
    three_levels(tree)
    top = tree("E")
    # Priorities count inside a level, whoever has triggered the rule.
    assert tree.begun == ["a", "b", "high a", "of b", "low a", "deep"]
    assert tree.ran[:4] == ["a", "a ends", "b", "b ends"]
    assert set(tree.parents.values()) == {top}


def test_breadth_first_below_a_users_subtransaction_stays_there(where: Place) -> None:
    tree = Tree(open_ledger(where.open(cascade_order="breadth_first")))
    tree.rule("a", "E", "A")
    tree.rule("b", "A")
    with tree.ledger.db.transaction() as t:
        with t.subtransaction() as s:
            tree.ledger.db.signal("E")
            assert tree.begun == ["a", "b"]
        assert set(tree.parents.values()) == {s}


def test_breadth_first_event_in_a_subtransaction_of_a_rule_comes_up_with_its_commit(
    where: Place,
) -> None:
    tree = Tree(open_ledger(where.open(cascade_order="breadth_first")))
    tree.rule("kept", "KEPT")
    tree.rule("dropped", "DROPPED")

    @tree.ledger.db.rule(on=adb.event("E"))
    def outer(t: Transaction, o: Occurrence) -> None:
        with t.subtransaction():
            tree.ledger.db.signal("KEPT")
        with t.subtransaction() as s:
            tree.ledger.db.signal("DROPPED")
            s.abort()
        assert tree.begun == []

    top = tree("E")
    assert tree.begun == ["kept"]
    assert tree.parents == {"kept": top}


def test_breadth_first_rule_that_aborts_takes_along_what_it_has_triggered(where: Place) -> None:
    ledger = open_ledger(where.open(cascade_order="breadth_first"))
    tree = Tree(ledger)
    tree.rule("next", "A")

    @ledger.db.rule(on=adb.event("E"), on_abort="rule")
    def fails(t: Transaction, o: Occurrence) -> None:
        ledger.db.signal("A")
        raise ValueError("no")

    tree("E")
    assert tree.begun == []
    assert [letter["source"] for letter in ledger.letters()] == ["rule fails"]


def test_breadth_first_failure_at_the_second_level_aborts_the_triggering_transaction(
    where: Place,
) -> None:
    ledger = open_ledger(where.open(cascade_order="breadth_first"), {1: 10})

    @ledger.db.rule(on=adb.event("E"))
    def first(t: Transaction, o: Occurrence) -> None:
        t.update(ledger.accounts, 1, balance=11)
        ledger.db.signal("A")

    @ledger.db.rule(on=adb.event("A"))
    def second(t: Transaction, o: Occurrence) -> None:
        assert t.get(ledger.accounts, 1) == {"id": 1, "balance": 11}
        raise ValueError("no")

    with pytest.raises(RuleFailed, match="rule second failed"):
        ledger.db.signal("E")
    assert ledger.balances() == {1: 10}


def test_breadth_first_immediate_rules_of_a_deferred_rule_follow_their_cycle(
    where: Place,
) -> None:
    tree = Tree(open_ledger(where.open(cascade_order="breadth_first")))
    tree.rule("first", "E", "NOW", "LATER", coupling="deferred", priority=2)
    tree.rule("second", "E", coupling="deferred", priority=1)
    tree.rule("now", "NOW", "LATER")
    tree.rule("later", "LATER", coupling="deferred")
    top = tree("E")
    # `now` is immediate, so what it defers waits for its own commit point.
    assert tree.begun == ["first", "second", "now", "later", "later"]
    assert tree.parents["now"] == top


def test_breadth_first_inside_a_detached_rule_begins_anew(where: Place) -> None:
    tree = Tree(open_ledger(where.open(cascade_order="breadth_first")))
    tree.rule("detached", "E", "A", coupling="detached")
    tree.rule("a", "A", "B")
    tree.rule("b", "B")
    tree("E")
    tree.ledger.db.wait_idle()
    # A top-level transaction has no level to wait for.
    assert tree.ran == ["detached", "a", "a ends", "b", "b ends", "detached ends"]
    assert tree.parents["a"] == tree.parents["b"]


def test_breadth_first_levels_are_bounded_with_the_chain_of_rules(where: Place) -> None:
    ledger = open_ledger(where.open(cascade_order="breadth_first", cascade_max=6), {1: 10})
    tree = Tree(ledger)
    tree.rule("ping", "E", "F")
    tree.rule("pong", "F", "E")

    def work(t: Transaction) -> None:
        t.update(ledger.accounts, 1, balance=0)
        ledger.db.signal("E")

    chain = r"ping \(4 times\) → pong \(3 times\)"
    with pytest.raises(CycleLimitExceeded, match=f"7 deep: {chain}; give one of them"):
        ledger.db.run(work)
    assert len(tree.begun) == 6
    assert ledger.balances() == {1: 10}


def test_chain_that_is_long_is_shown_with_its_first_and_last_rules(where: Place) -> None:
    ledger = open_ledger(where.open(cascade_max=30))
    tree = Tree(ledger)
    for number in range(40):
        tree.rule(f"r{number}", f"E{number}", f"E{number + 1}")
    shown = "r0 → r1 → r2 → r3 → r4 → … 21 more … → r26 → r27 → r28 → r29 → r30;"
    with pytest.raises(CycleLimitExceeded, match=f"31 deep: {shown}"):
        ledger.db.signal("E0")


@pytest.mark.long
def test_rule_that_triggers_itself_for_ever_comes_to_the_bound_before_python_s_own(
    where: Place,
) -> None:
    ledger = open_ledger(where.open(), {1: 10})

    @ledger.db.rule(on=adb.updated(ledger.accounts, "balance"))
    def again(t: Transaction, o: adb.Occurrence) -> None:
        assert o.new is not None
        t.update(ledger.accounts, 1, balance=o.new["balance"] + 1)

    with pytest.raises(CycleLimitExceeded, match=r"33 deep: again \(33 times\);"):
        ledger.db.run(lambda t: t.update(ledger.accounts, 1, balance=0))
    assert ledger.balances() == {1: 10}


def test_chain_over_deferred_cycles_tells_who_triggered_whom(where: Place) -> None:
    ledger = open_ledger(where.open(cycles_max=3))
    tree = Tree(ledger)
    tree.rule("start", "E", "PING")
    tree.rule("to_pong", "PING", "PONG", coupling="deferred")
    tree.rule("by the way", "PING", coupling="deferred")
    tree.rule("relay", "PONG", "AGAIN")
    tree.rule("to_ping", "AGAIN", "PING", coupling="deferred")
    tree.rule("plain", "E", "PONG2")

    def work(t: Transaction) -> None:
        ledger.db.signal("PING")

    # `relay` is immediate: what it defers belongs to its own commit point, one level deeper.
    with pytest.raises(CycleLimitExceeded) as caught:
        ledger.db.run(work)
    text = str(caught.value)
    assert "33 deep: to_pong (16 times) → relay (16 times) → to_ping (16 times); give" in text


def test_chain_of_deferred_rules_alone_runs_through_the_cycles(where: Place) -> None:
    ledger = open_ledger(where.open(cycles_max=4))
    tree = Tree(ledger)
    tree.rule("start", "E", "PING")
    tree.rule("to_pong", "PING", "PONG", coupling="deferred")
    tree.rule("to_ping", "PONG", "PING", coupling="deferred")
    tree.rule("bystander", "PONG", coupling="deferred")
    expected = (
        r"more than 4 deferred cycles; still deferred: to_pong, triggered by way of "
        r"to_pong \(3 times\) → to_ping \(2 times\)\."
    )
    with pytest.raises(CycleLimitExceeded, match=expected):
        ledger.db.signal("PING")
    with pytest.raises(
        CycleLimitExceeded, match=r"by way of start → to_pong \(3 times\) → to_ping"
    ):
        ledger.db.signal("E")


def test_what_a_deferred_rule_defers_is_dropped_if_it_aborts(where: Place) -> None:
    ledger = open_ledger(where.open())
    tree = Tree(ledger)
    tree.rule("next", "NEXT", coupling="deferred")

    @ledger.db.rule(on=adb.event("E"), coupling="deferred", on_abort="rule")
    def fails(t: Transaction, o: Occurrence) -> None:
        ledger.db.signal("NEXT")
        raise ValueError("no")

    tree("E")
    assert tree.begun == []
    tree("NEXT")
    assert tree.begun == ["next"]


class Spec(NamedTuple):
    """A rule of a random program; events are numbers, and a rule raises higher ones only."""

    name: str
    on: int
    priority: int
    raises: tuple[int, ...]
    fails: bool


def random_rules(draw: random.Random) -> list[Spec]:
    found = []
    for number in range(draw.randint(3, 9)):
        on = draw.randint(0, 3)
        raises = tuple(sorted(draw.randint(on + 1, 4) for _ in range(draw.randint(0, 2))))
        found.append(Spec(f"r{number}", on, number, raises, draw.random() < 0.2))
    draw.shuffle(found)
    return found


def listening(rules: list[Spec], raised: int) -> list[Spec]:
    return sorted((rule for rule in rules if rule.on == raised), key=lambda rule: -rule.priority)


def depth_first(rules: list[Spec], raised: int) -> list[str]:
    ran: list[str] = []
    for rule in listening(rules, raised):
        ran.append(rule.name)
        for each in rule.raises:
            ran += depth_first(rules, each)
    return ran


def breadth_first(rules: list[Spec], raised: int) -> list[str]:
    ran: list[str] = []
    level = listening(rules, raised)
    while level:
        ran += [rule.name for rule in level]
        triggered = [
            other
            for rule in level
            if not rule.fails
            for each in rule.raises
            for other in listening(rules, each)
        ]
        level = sorted(triggered, key=lambda rule: -rule.priority)
    return ran


def define(db: adb.Database, rule: Spec, ran: list[str]) -> None:
    def act(t: Transaction, o: Occurrence) -> None:
        ran.append(rule.name)
        for each in rule.raises:
            db.signal(f"E{each}")
        if rule.fails:
            raise ValueError("as drawn")

    db.rule(on=adb.event(f"E{rule.on}"), name=rule.name, priority=rule.priority, on_abort="rule")(
        act
    )


@pytest.mark.long
@pytest.mark.parametrize("order", ["depth_first", "breadth_first"])
def test_order_of_random_rules_is_that_of_the_definition(order: str, scale: int) -> None:
    naive = {"depth_first": depth_first, "breadth_first": breadth_first}[order]
    for number in range(25 * scale):
        seed = f"{os.environ['ACTIVEDB_TEST_SEED']}/{order}/{number}"
        rules = random_rules(random.Random(seed))
        ran: list[str] = []
        with place(None) as where:
            db = where.open(cascade_order=order, quarantine_after=0)
            for rule in rules:
                define(db, rule, ran)
            db.signal("E0")
        assert ran == naive(rules, 0), seed


def deep(call: Callable[[], object], frames: int) -> object:
    """Make a call with `frames` frames of the caller's own on the stack."""
    return call() if frames == 0 else deep(call, frames - 1)


def unverified(db: adb.Database) -> adb.Database:
    """Return `db` with a lock table that does not check itself at each step.

    Each such check takes time in proportion to the depth.
    """
    db._forest.locks = LockManager(LockTable())
    return db


@pytest.mark.long
@pytest.mark.parametrize("frames", [0, 400, 800])
@pytest.mark.parametrize("coupling", ["immediate", "deferred"])
@pytest.mark.parametrize("bound", [2, 56, 200])
def test_cascade_reaches_its_bound_whatever_the_stack(
    where: Place, bound: int, coupling: str, frames: int
) -> None:
    ledger = open_ledger(unverified(where.open(cascade_max=bound)), {1: 10})
    last = [0]

    def raise_next(n: int) -> None:
        if n < last[0]:
            ledger.db.signal(f"E{(n + 1) % 2}", n=n + 1)

    def go_on(t: Transaction, o: Occurrence) -> None:
        if coupling == "deferred":  # in the cycle of this rule, one level deeper
            ledger.db.signal("DEFERRED", n=o.params["n"])
        else:
            raise_next(o.params["n"])
        t.update(ledger.accounts, 1, balance=o.params["n"])

    ledger.db.rule(on=adb.event("E0"), name="even")(go_on)
    ledger.db.rule(on=adb.event("E1"), name="odd")(go_on)
    ledger.db.rule(on=adb.event("DEFERRED"), coupling="deferred", name="between")(
        lambda t, o: raise_next(o.params["n"])
    )

    def begin() -> None:
        ledger.db.run(lambda t: ledger.db.signal("E1", n=1))

    most = bound if coupling == "immediate" else bound // 2
    for last[0] in (most - 1, most):
        deep(begin, frames)
    assert ledger.balances() == {1: 1 if coupling == "immediate" else most}
    last[0] = most + 1
    with pytest.raises(CycleLimitExceeded, match=f"{bound + 1} deep: ") as caught:
        deep(begin, frames)
    text = str(caught.value)
    assert [text.count(name) for name in ("even", "odd")] == [1, 1]
    assert len(text) < 300
    assert ledger.balances() == {1: 1 if coupling == "immediate" else most}


@pytest.mark.parametrize("depth", [3, 150])
def test_failure_deep_in_a_cascade_names_each_rule_once(where: Place, depth: int) -> None:
    ledger = open_ledger(unverified(where.open(cascade_max=200)))

    def go_on(t: Transaction, o: Occurrence) -> None:
        if o.params["n"] == depth:
            raise ValueError("the last one")
        ledger.db.signal("E" if o.params["n"] % 2 else "F", n=o.params["n"] + 1)

    for name, on in (("ping", "F"), ("pong", "E")):
        ledger.db.rule(on=adb.event(on), name=name)(go_on)
    with pytest.raises(RuleFailed) as caught:
        ledger.db.signal("F", n=1)
    text = str(caught.value)
    assert text.endswith("failed: ValueError: the last one")
    assert [text.count(name) for name in ("ping", "pong")] == [1, 1]
    assert f"({depth // 2} times)" in text or depth == 3
