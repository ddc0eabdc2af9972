"""Rules that keep failing alone are put away, and nothing that triggers them is lost."""

from __future__ import annotations

import logging
import threading
from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.clock import SimulatedClock
from activedb.errors import DefinitionError, FiringsLeft, RuleFailed, SerializationConflict
from tests.databases import PATIENCE_S, Place, until
from tests.drawing import drawn
from tests.ledger import EPOCH, Ledger, open_ledger

if TYPE_CHECKING:
    from activedb import Database, Occurrence, Transaction

ALONE = ["immediate", "deferred", "detached", "sequential", "causal"]


class Flaky:
    """A rule that fails on demand."""

    def __init__(self, ledger: Ledger, coupling: str, on_abort: str = "rule"):
        self.ledger = ledger
        self.tries = 0

        @ledger.db.rule(on=adb.event("E"), coupling=coupling, on_abort=on_abort, name="flaky")
        def flaky(t: Transaction, o: Occurrence) -> None:
            self.tries += 1
            if o.params["broken"]:
                raise ValueError("it is broken")
            ledger.write(t, f"flaky {o.params['n']}")

    def trigger(self, n: int, *, broken: bool) -> None:
        """Trigger it in a transaction, and wait until it has run."""
        with self.ledger.db.transaction():
            self.ledger.db.signal("E", n=n, broken=broken)
        self.ledger.db.wait_idle()

    @property
    def reason(self) -> str | None:
        """Return why it is in quarantine."""
        return self.ledger.db.rules["flaky"].quarantine


@pytest.fixture
def quick(where: Place) -> Ledger:
    """Return a ledger where three failures are enough."""
    return open_ledger(where.open(quarantine_after=3))


def signalled(
    db: Database,
    n: int,
    left: list[list[bool]],
    t: Transaction,
    *,
    commits: bool,
) -> None:
    """Signal what one try of a transaction does, the first one of the tries that are left."""
    for each, broken in enumerate(left.pop(0)):
        with t.subtransaction():
            db.signal("E", n=10 * n + each, broken=broken)
    if left:
        raise SerializationConflict("so it is tried again")
    if not commits:
        raise KeyError("and so it is not")


@pytest.mark.parametrize("coupling", ["immediate", "deferred"])
@pytest.mark.parametrize("seed", range(3))
def test_only_what_has_committed_counts(quick: Ledger, coupling: str, seed: int) -> None:
    random = drawn("quarantine", coupling, seed)
    flaky, db = Flaky(quick, coupling), quick.db
    in_a_row = 0
    for n in count():  # until three failures in a row have been drawn
        tries, commits = random.randint(1, 3), random.random() < 0.6
        outcomes = [[random.random() < 0.7 for _ in range(random.randint(1, 2))] for _ in range(3)]
        work = partial(signalled, db, n, outcomes[:tries], commits=commits)
        with nullcontext() if commits else pytest.raises(KeyError):
            db.run(work)
        for broken in outcomes[tries - 1] if commits else ():
            in_a_row = in_a_row + 1 if broken else 0
            if in_a_row == 3:
                until(lambda: flaky.reason is not None)
                return
        db.wait_idle()
        assert flaky.reason is None, n


@pytest.mark.parametrize("coupling", ALONE)
def test_rule_that_fails_too_often_in_a_row_is_not_run_any_more(
    quick: Ledger, coupling: str, caplog: pytest.LogCaptureFixture
) -> None:
    flaky = Flaky(quick, coupling)
    for n in range(2):
        flaky.trigger(n, broken=True)
    assert flaky.reason is None
    flaky.trigger(2, broken=False)  # so it starts again
    with caplog.at_level(logging.WARNING):
        for n in range(3, 6):
            assert flaky.reason is None
            flaky.trigger(n, broken=True)
    assert flaky.reason is not None
    assert "failed 3 times in a row" in flaky.reason
    assert "ValueError: it is broken" in flaky.reason
    assert any("rule flaky is in quarantine" in record.message for record in caplog.records)
    assert quick.db.admin.counters()["rules_quarantined"] == 1
    tries = 11 if coupling == "causal" else 6  # a failure before the commit does not count
    assert flaky.tries == tries
    flaky.trigger(6, broken=False)
    assert flaky.tries == tries
    letter = next(x for x in quick.letters() if x["error"] == "RuleInQuarantine")
    assert letter["payload"]["params"] == {"n": 6, "broken": False}
    assert f"rule flaky is in quarantine {flaky.reason}" in letter["reason"]
    assert "db.rules.enable('flaky')" in letter["reason"]
    assert len(quick.letters()) == 6
    assert quick.pending() == []


@pytest.mark.parametrize("coupling", ALONE)
def test_rule_that_is_enabled_runs_again_and_its_letters_are_retried(
    quick: Ledger, coupling: str
) -> None:
    flaky = Flaky(quick, coupling)
    for n in range(4):
        flaky.trigger(n, broken=n < 3)
    version = quick.db.rules["flaky"].version
    assert quick.db.rules.enable("flaky").version == version + 1
    assert flaky.reason is None
    flaky.trigger(4, broken=False)
    assert quick.lines() == ["flaky 4"]
    outcomes = sorted(each.outcome for each in quick.db.dead_letters.retry_all("rule flaky"))
    assert outcomes == ["done", "failed", "failed", "failed"]
    assert quick.lines() == ["flaky 4", "flaky 3"]
    # It starts from nothing again.
    for n in range(2):
        flaky.trigger(n, broken=True)
    assert flaky.reason is None


def test_exclusive_rule_that_fails_too_often_is_put_away(quick: Ledger) -> None:
    flaky = Flaky(quick, "exclusive")
    for n in range(4):
        with quick.db.transaction() as t:
            quick.db.signal("E", n=n, broken=n < 3)
            t.abort()
        quick.db.wait_idle()
    assert flaky.tries == 3
    assert flaky.reason is not None
    assert len(quick.letters()) == 4


@pytest.mark.parametrize("coupling", ["immediate", "deferred"])
def test_rule_that_takes_its_triggering_transaction_along_is_never_put_away(
    quick: Ledger, coupling: str
) -> None:
    flaky = Flaky(quick, coupling, on_abort="triggering")
    for n in range(5):
        with pytest.raises(RuleFailed):
            flaky.trigger(n, broken=True)
    assert flaky.reason is None
    assert flaky.tries == 5
    quick.db.rules.quarantine("flaky", "because I say so")
    with pytest.raises(RuleFailed, match="it is broken"):
        flaky.trigger(5, broken=True)


def test_rule_is_never_put_away_if_the_setting_says_so(where: Place) -> None:
    ledger = open_ledger(where.open(quarantine_after=0))
    flaky = Flaky(ledger, "detached")
    for n in range(12):
        flaky.trigger(n, broken=True)
    assert (flaky.reason, flaky.tries) == (None, 12)


def test_rule_in_quarantine_does_not_take_its_triggering_transaction_along(quick: Ledger) -> None:
    Flaky(quick, "immediate")
    quick.db.rules.quarantine("flaky", "since today")
    with quick.db.transaction() as t:
        quick.db.signal("E", n=1, broken=False)
        quick.write(t, "triggering")
    assert quick.lines() == ["triggering"]
    assert len(quick.letters()) == 1


def test_deadlocks_and_lock_timeouts_are_no_failures(where: Place) -> None:
    clock = SimulatedClock(EPOCH)  # so it is not tried again before it is told to
    settings: dict[str, Any] = {
        "quarantine_after": 1,
        "lock_timeout_ms": 20,
        "retries_max": 0,
        "clock": clock,
    }
    ledger = open_ledger(where.open(**settings), {1: 1})

    @ledger.db.rule(on=adb.event("E"), coupling="detached", name="flaky")
    def flaky(t: Transaction, o: Occurrence) -> None:
        t.update(ledger.accounts, 1, balance=2)

    with ledger.db.transaction() as t:
        t.update(ledger.accounts, 1, balance=3)
        ledger.db.signal("E")
        until(lambda: ledger.db._launcher.running == 0)  # as join() refuses to wait for it
        with pytest.raises(FiringsLeft, match="flaky"):
            ledger.db.wait_idle()
    assert ledger.db.recover() == 1
    ledger.db.wait_idle()
    assert ledger.balances() == {1: 2}
    assert ledger.db.rules["flaky"].quarantine is None
    assert ledger.letters() == []


def test_quarantine_is_undone_with_the_transaction_that_orders_it(quick: Ledger) -> None:
    flaky = Flaky(quick, "immediate")
    with quick.db.transaction() as t:
        quick.db.rules.quarantine("flaky", "since today")
        quick.db.signal("E", n=1, broken=False)
        t.abort()
    assert flaky.reason is None
    with quick.db.transaction():
        quick.db.rules.quarantine("flaky", "since today")
        quick.db.rules.enable("flaky")
        quick.db.signal("E", n=2, broken=False)
    assert flaky.reason is None
    assert quick.lines() == ["flaky 2"]


def test_disabled_rule_in_quarantine_stays_in_it_until_it_is_enabled(quick: Ledger) -> None:
    flaky = Flaky(quick, "immediate")
    quick.db.rules.quarantine("flaky", "since today")
    quick.db.rules.disable("flaky")
    assert flaky.reason == "since today"
    quick.db.rules.change("flaky", priority=3)
    assert flaky.reason == "since today"
    quick.db.rules.enable("flaky")
    assert flaky.reason is None


def test_quarantine_ends_with_another_definition(quick: Ledger) -> None:
    flaky = Flaky(quick, "immediate")
    quick.db.rules.quarantine("flaky", "since today")
    entry = quick.db.rules.change("flaky", action=lambda t, o: quick.write(t, "fixed"))
    assert entry.quarantine is None
    flaky.trigger(1, broken=True)
    assert quick.lines() == ["fixed"]


def test_rule_that_is_in_quarantine_already_keeps_its_first_reason(quick: Ledger) -> None:
    flaky = Flaky(quick, "immediate")
    first = quick.db.rules.quarantine("flaky", "since today")
    assert quick.db.rules.quarantine("flaky", "since tomorrow") == first
    assert flaky.reason == "since today"
    with pytest.raises(DefinitionError, match="did you mean"):
        quick.db.rules.quarantine("flakey", "since today")


def test_rule_that_is_deleted_while_it_fails_is_forgotten(quick: Ledger) -> None:
    go = threading.Event()

    @quick.db.rule(on=adb.event("E"), coupling="detached", name="flaky")
    def flaky(t: Transaction, o: Occurrence) -> None:
        assert go.wait(PATIENCE_S)
        raise ValueError("it is broken")

    for _ in range(3):
        quick.db.signal("E")
    with quick.db.transaction():
        quick.db.rules.delete("flaky")
        go.set()
        until(lambda: len(quick.letters()) == 3)
    quick.db.wait_idle()
    assert "flaky" not in quick.db.rules
    assert "rules_quarantined" not in quick.db.admin.counters()


def test_rule_whose_row_the_failing_transaction_has_changed_is_put_away_after_it(
    quick: Ledger,
) -> None:
    flaky = Flaky(quick, "immediate")
    with quick.db.transaction():
        quick.db.rules.change("flaky", priority=1)
        for n in range(3):
            quick.db.signal("E", n=n, broken=True)
    quick.db.wait_idle()
    assert flaky.reason is not None
    assert quick.db.rules["flaky"].priority == 1


def test_other_processes_know_after_a_refresh_or_a_restart(where: Place) -> None:
    if where.is_memory:
        pytest.skip("memory belongs to one process")

    def opened() -> Flaky:
        return Flaky(open_ledger(where.open(quarantine_after=3)), "detached")

    one, other = opened(), opened()
    for n in range(3):
        one.trigger(n, broken=True)
    assert other.reason is None
    other.ledger.db.rules.refresh()
    assert other.reason == one.reason
    later = opened()
    assert later.reason == one.reason is not None
    for flaky in (other, later):
        flaky.trigger(7, broken=False)
        assert flaky.tries == 0
    later.ledger.db.rules.enable("flaky")
    assert opened().reason is None
    one.ledger.db.rules.refresh()
    one.trigger(8, broken=False)
    assert one.ledger.lines() == ["flaky 8"]


@pytest.mark.parametrize("text", ["NUL \0", "half a pair \ud800", "x" * 5_000])
def test_reason_is_kept_whatever_the_error_says(quick: Ledger, text: str) -> None:
    @quick.db.rule(on=adb.event("E"), coupling="detached", name="flaky")
    def flaky(t: Transaction, o: Occurrence) -> Any:
        raise ValueError(text)

    for _ in range(3):
        quick.db.signal("E")
    quick.db.wait_idle()
    assert quick.db.rules["flaky"].quarantine is not None
