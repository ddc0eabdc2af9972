"""Rules that a causal rule triggers beside its triggering transaction, before it is recorded."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import RuleFailed, SerializationConflict
from tests.databases import PATIENCE_S, Place, until
from tests.drawing import drawn
from tests.firing.working import cut, working
from tests.ledger import Ledger, open_ledger

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction

KINDS = ["once", "retried", "firing"]


@dataclass(frozen=True)
class Try:
    """One try at the triggering work.

    Attributes
    ----------
    events : tuple of int, or None
        What the causal rule signals; None if this try does not trigger it.
    rule : str
        How its early try ends: "returns", "raises" or "conflicts".
    is_undone : bool
        True if the causal rule is triggered in a subtransaction that aborts.
    is_quick : bool
        True if the detached rules have run before the triggering transaction ends.
    own : int or None
        What the work itself signals, to trigger an exclusive rule.
    """

    events: tuple[int, ...] | None
    rule: str = "returns"
    is_undone: bool = False
    is_quick: bool = True
    own: int | None = None

    @property
    def triggers(self) -> bool:
        """True if the causal rule is due should the try commit."""
        return self.events is not None and not self.is_undone


class Undone(Exception):
    """Aborts a subtransaction."""


@dataclass
class Work:
    """Work that triggers a causal rule, which triggers detached and exclusive ones.

    Attributes
    ----------
    kind : str
        What triggers the causal rule: "once", a transaction; "retried", work that `run` repeats;
        "firing", a detached rule.
    outcome : str
        How the last try ends: "commits" or "fails".
    """

    ledger: Ledger
    kind: str
    tries: list[Try]
    outcome: str
    begun: int = 0
    has_run: list[threading.Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        db, ledger = self.ledger.db, self.ledger

        @db.rule(on=adb.event("GO"), coupling="causal")
        def rule(t: Transaction, o: Occurrence) -> None:
            now = self.tries[self.begun - 1]
            for n in now.events or ():
                db.signal("TRY", n=n)
            ledger.write(t, "rule")
            is_early = not self.has_run[-1].is_set()
            self.has_run[-1].set()
            if now.rule == "raises":
                raise ValueError("no")
            if now.rule == "conflicts" and is_early:
                raise SerializationConflict("in the way of the rule")

        @db.rule(on=adb.event("TRY"), coupling="detached")
        def beside(t: Transaction, o: Occurrence) -> None:
            ledger.write(t, f"beside {o.params['n']}")

        @db.rule(on=adb.event("TRY"), coupling="exclusive")
        def instead(t: Transaction, o: Occurrence) -> None:
            ledger.write(t, f"instead of {o.params['n']}")

        @db.rule(on=adb.event("OWN"), coupling="exclusive")
        def instead_of_work(t: Transaction, o: Occurrence) -> None:
            ledger.write(t, f"instead of work {o.params['n']}")

        if self.kind == "firing":
            db.rule(on=adb.event("START"), coupling="detached", name="work")(
                lambda t, o: self.once(t)
            )

    def once(self, t: Transaction) -> None:
        """Make one try."""
        now = self.tries[self.begun]
        self.begun += 1
        self.has_run.append(threading.Event())
        if now.own is not None:
            self.ledger.db.signal("OWN", n=now.own)
        if now.events is not None:
            with suppress(Undone), t.subtransaction():
                self.ledger.db.signal("GO")
                assert self.has_run[-1].wait(PATIENCE_S)
                if now.is_quick:
                    until(lambda: self.expected_beside() <= set(self.ledger.lines()))
                if now.is_undone:
                    raise Undone
        if self.begun < len(self.tries):
            raise SerializationConflict("in the way")
        if self.outcome == "fails":
            raise ValueError("never")
        self.ledger.write(t, "work")

    def run(self) -> None:
        """Make all tries, and wait for what they have triggered."""
        db = self.ledger.db
        try:
            if self.kind == "firing":
                db.signal("START")
            elif self.kind == "retried":
                db.run(self.once)
            else:
                with db.transaction() as t:
                    self.once(t)
        except (ValueError, RuleFailed):
            assert self.outcome == "fails"
        db.wait_idle()

    def triggered(self, before: int) -> set[int]:
        """Return numbers of what the causal rule has signalled in the first tries, in any order."""
        return {n for each in self.tries[:before] for n in each.events or ()}

    def expected_beside(self) -> set[str]:
        return {f"beside {n}" for n in self.triggered(self.begun)}

    def check(self) -> None:
        """Look at what is left."""
        last = self.tries[-1]
        commits = self.outcome == "commits"
        is_due = commits and last.triggers
        acts = is_due and last.rule != "raises"
        events = self.triggered(len(self.tries))
        expected = [f"beside {n}" for n in events]
        expected += ["work"] * commits
        if not commits:
            own = {each.own for each in self.tries} - {None}
            expected += [f"instead of work {n}" for n in own]
        expected += ["rule"] if acts else [f"instead of {n}" for n in events]
        assert sorted(self.ledger.lines()) == sorted(expected)
        of_rule = is_due and last.rule == "raises"
        of_work = self.kind == "firing" and not commits
        assert len(self.ledger.letters()) == of_rule + of_work
        assert [
            (r["firing"], r["run"], r["done"], r["intent"]) for r in self.ledger.pending()
        ] == []
        assert self.ledger.db.recover() == 0


def played(where: Place, kind: str, tries: list[Try], outcome: str) -> None:
    """Play one work and check it."""
    db = where.open(threads=8, retries_max=10, retry_pause_ms=0)
    work = Work(open_ledger(db), kind, tries, outcome)
    work.run()
    work.check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_quick", [True, False])
def test_detached_rule_leaves_no_row_when_the_trigger_of_its_trigger_fails(
    where: Place, kind: str, is_quick: bool
) -> None:
    played(where, kind, [Try((1,), is_quick=is_quick)], "fails")


@pytest.mark.parametrize("kind", KINDS)
def test_detached_rule_of_a_causal_one_that_is_tried_again_runs_once(
    where: Place, kind: str
) -> None:
    played(where, kind, [Try((1, 2), "conflicts")], "commits")


@pytest.mark.parametrize("kind", ["retried", "firing"])
@pytest.mark.parametrize("outcome", ["commits", "fails"])
def test_exclusive_rule_waits_until_no_try_can_succeed(
    where: Place, kind: str, outcome: str
) -> None:
    played(where, kind, [Try((1,)), Try((1,))], outcome)


@pytest.mark.parametrize("kind", ["retried", "firing"])
def test_exclusive_rule_runs_if_the_last_try_does_not_trigger_its_trigger(
    where: Place, kind: str
) -> None:
    played(where, kind, [Try((1, 2)), Try(None)], "commits")


@pytest.mark.parametrize(
    "tries",
    [[Try((1,)), Try((1,))], [Try((1, 2), "conflicts")], [Try((1, 2), "conflicts"), Try((2, 1))]],
)
def test_detached_rule_that_a_worker_runs_meanwhile_runs_once(
    there: Place, tries: list[Try]
) -> None:
    settings: dict[str, Any] = {"retries_max": 10, "retry_pause_ms": 0, "firings": "queue"}
    here, worker = (there.open(threads=8, **settings) for _ in range(2))
    work = Work(open_ledger(here), "retried", tries, "commits")
    Work(open_ledger(worker), "retried", tries, "commits")
    with working(worker, poll_s=0.1):
        work.run()
        until(lambda: work.ledger.pending() == [])
    work.check()


@pytest.mark.parametrize("kind", ["retried", "firing"])
@pytest.mark.parametrize("outcome", ["commits", "fails"])
def test_exclusive_rule_is_decided_by_a_last_try_that_triggers_nothing(
    where: Place, kind: str, outcome: str
) -> None:
    played(where, kind, [Try(None, own=1), Try(None)], outcome)


@pytest.mark.parametrize("number", range(12))
def test_rules_of_early_tries_end_as_the_work_does(where: Place, number: int) -> None:
    chance = drawn("early tries", number)
    kind = chance.choice(KINDS)
    tries = [
        Try(
            chance.choice([None, *(tuple(chance.sample(range(3), n)) for n in (0, 1, 2, 3))]),
            chance.choice(["returns", "returns", "raises", "conflicts"]),
            is_undone=chance.random() < 0.2,
            is_quick=chance.random() < 0.5,
            own=chance.choice([None, None, 1, 2]),
        )
        for _ in range(1 if kind == "once" else chance.randint(1, 4))
    ]
    outcome = chance.choice(["commits", "fails"])
    print(kind, outcome, *tries, sep="\n")
    played(where, kind, tries, outcome)


@pytest.mark.parametrize("firings", ["here", "queue"])
def test_detached_rule_runs_once_though_its_process_has_lost_its_lease(
    there: Place, firings: str
) -> None:
    db, other = there.open(threads=8, retry_pause_ms=0, firings=firings), there.open()
    ledger, tries = open_ledger(db), iter([1, 2])

    @db.rule(on=adb.event("GO"), coupling="causal")
    def causal(t: Transaction, o: Occurrence) -> None:
        db.signal("TRY")

    @db.rule(on=adb.event("TRY"), coupling="detached")
    def beside(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "beside")

    def work(t: Transaction) -> None:
        db.signal("GO")
        until(lambda: ledger.lines() == ["beside"])
        if next(tries) == 1:
            cut(db, "lease")
            other.recover()  # which takes this process for dead
            raise SerializationConflict("in the way")

    db.run(work)
    db.wait_idle()
    assert ledger.lines() == ["beside"]
    assert ledger.pending() == []
