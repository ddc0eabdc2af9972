"""Rules on composite events raised by the application."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import activedb as adb
from activedb.errors import BadEvent, RuleFailed

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction
    from tests.ledger import Ledger

PATTERN = adb.seq(adb.event("A"), ~adb.event("B"), adb.event("C")).same("k").within(10)


def listen(ledger: Ledger, coupling: str = "immediate") -> None:
    """Write down each match."""

    @ledger.db.rule(on=PATTERN, coupling=coupling, name="match")
    def match(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"{o.parts['A'].params['v']}{o.parts['C'].params['v']}")
        assert o.timestamp == o.parts["C"].timestamp


@pytest.mark.parametrize("coupling", ["immediate", "deferred", "detached"])
def test_composite_rule_runs_when_its_event_is_complete(ledger: Ledger, coupling: str) -> None:
    listen(ledger, coupling)
    ledger.db.signal("A", timestamp=1, k=1, v="a")
    ledger.db.signal("A", timestamp=2, k=2, v="b")
    ledger.db.signal("B", timestamp=3, k=2)
    ledger.db.signal("C", timestamp=4, k=1, v="c")
    ledger.db.signal("C", timestamp=4, k=2, v="d")
    ledger.db.signal("C", timestamp=11.5, k=1, v="e")
    ledger.db.wait_idle()
    assert ledger.lines() == ["ac"]
    assert ledger.db.admin.counters()["matches"] == 1


def test_composite_event_of_an_aborted_transaction_never_happened(ledger: Ledger) -> None:
    listen(ledger)
    with ledger.db.transaction() as t:
        ledger.db.signal("A", timestamp=1, k=1, v="x")
        t.abort()
    ledger.db.signal("A", timestamp=2, k=1, v="a")
    with ledger.db.transaction() as t:
        ledger.db.signal("B", timestamp=3, k=1)
        t.abort()
    ledger.db.signal("C", timestamp=4, k=1, v="c")
    assert ledger.lines() == ["ac"]


def test_composite_event_of_an_aborted_subtransaction_never_happened(ledger: Ledger) -> None:
    listen(ledger)
    with ledger.db.transaction() as t:
        with t.subtransaction() as s:
            ledger.db.signal("A", timestamp=1, k=1, v="x")
            s.abort()
        with t.subtransaction() as s, s.subtransaction():
            ledger.db.signal("A", timestamp=1, k=1, v="a")
        with t.subtransaction() as s:
            with s.subtransaction():
                ledger.db.signal("A", timestamp=1, k=1, v="y")
            s.abort()
        ledger.db.signal("C", timestamp=2, k=1, v="c")
    assert ledger.lines() == ["ac"]


def test_composite_event_of_a_failing_rule_is_withdrawn_with_the_transaction(
    ledger: Ledger,
) -> None:
    listen(ledger)
    ledger.db.rule(on=adb.event("A", where=lambda o: o.params["v"] == "x"), name="refuse")(
        lambda t, o: 1 / 0
    )
    with pytest.raises(RuleFailed):
        ledger.db.signal("A", timestamp=1, k=1, v="x")
    ledger.db.signal("C", timestamp=2, k=1, v="c")
    assert ledger.lines() == []


def test_composite_over_data_changes_and_signals(ledger: Ledger) -> None:
    pattern = adb.seq(adb.updated(ledger.accounts, "balance", alias="u"), adb.event("E"))

    @ledger.db.rule(on=pattern)
    def both(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"{o.parts['u'].old['balance']} {o.parts['u'].new['balance']}")

    with ledger.db.transaction() as t:
        t.update(ledger.accounts, 1, balance=11)
    ledger.db.signal("E")
    assert ledger.lines() == ["10 11"]


def test_signal_with_a_parameter_missing_from_the_equivalence_is_refused(ledger: Ledger) -> None:
    listen(ledger)
    with pytest.raises(BadEvent, match="has no parameter 'k'"):
        ledger.db.signal("A", timestamp=1, v="x")
    ledger.db.signal("A", timestamp=1, k=1, v="a")
    ledger.db.signal("C", timestamp=2, k=1, v="c")
    assert ledger.lines() == ["ac"]


def test_signal_inside_a_transaction_belongs_to_it(ledger: Ledger) -> None:
    parents: list[object] = []
    ledger.db.rule(on=adb.event("E"), name="r")(lambda t, o: parents.append(t.parent))
    with ledger.db.transaction() as t:
        ledger.db.signal("E")
        with t.subtransaction() as s:
            ledger.db.signal("E")
    assert parents == [t, s]


def test_several_matches_of_one_event_each_run_in_a_child(ledger: Ledger) -> None:
    listen(ledger)
    for v in "abc":
        ledger.db.signal("A", timestamp=1, k=1, v=v)
    ledger.db.signal("C", timestamp=2, k=1, v="z")
    assert sorted(ledger.lines()) == ["az", "bz", "cz"]
