"""Witness of a database, without pytest's fixtures."""

from __future__ import annotations

import pytest

import activedb as adb
from activedb.errors import ConfigurationError, DefinitionError
from activedb.testing import POINTS, Crash, Witness, run_until_killed


def ring(t: adb.Transaction, o: adb.Occurrence) -> None: ...


@pytest.fixture
def bell(db: adb.Database) -> adb.Database:
    db.rule(on=adb.event("RING"))(ring)
    return db


def test_witness_sees_from_its_beginning_to_its_end(bell: adb.Database) -> None:
    bell.signal("RING", n=1)
    with Witness(bell) as witness:
        bell.signal("RING", n=2)
        (firing,) = witness.assert_fired(ring)
        assert firing.occurrence.params == {"n": 2}
        assert (firing.rule, firing.fate, firing.coupling) == ("ring", "committed", "immediate")
    bell.signal("RING", n=3)
    assert len(witness.fired("ring")) == 1
    assert bell._triggering.listeners.each.count(witness) == 0


def test_function_that_is_no_rules_action_or_of_several_is_refused(bell: adb.Database) -> None:
    witness = Witness(bell)
    with pytest.raises(DefinitionError, match="the action of no rule"):
        witness.assert_fired(print)
    bell.rule(on=adb.event("KNOCK"), name="knock")(ring)
    with pytest.raises(DefinitionError, match="ring and knock"):
        witness.assert_fired(ring)


def test_parts_of_a_match_are_looked_at_for_parameters(db: adb.Database) -> None:
    db.rule(on=adb.event("OPEN") & adb.event("SHUT"), name="both")(ring)
    witness = Witness(db)
    with db.transaction():
        db.signal("OPEN", door="front")
        db.signal("SHUT", door="back")
    assert len(witness.fired("both", {"door": "front"})) == 1
    assert len(witness.fired("both", {"door": "back"})) == 1
    assert witness.fired("both", {"door": "cellar"}) == []


def test_firing_counts_only_when_all_around_it_has_committed(bell: adb.Database) -> None:
    witness = Witness(bell)
    with pytest.raises(ZeroDivisionError), bell.transaction() as t:
        with t.subtransaction():
            bell.signal("RING")
        assert witness.fired("ring") == []
        _ = 1 / 0
    assert witness.fired("ring") == []
    with bell.transaction() as t, t.subtransaction():
        bell.signal("RING")
    assert len(witness.fired("ring")) == 1


@pytest.mark.parametrize("point", ["", "before", "before rule ", "BEFORE COMMIT", "after rule"])
def test_points_that_are_none_are_refused(point: str) -> None:
    with pytest.raises(ConfigurationError, match="there is no point"):
        Crash(point, 1, print)


def test_nth_counts_from_one() -> None:
    with pytest.raises(ConfigurationError, match="counts from 1"):
        Crash(POINTS[0], 0, print)
    with pytest.raises(ConfigurationError, match="there is no script"):
        run_until_killed("nowhere.py", at=POINTS[0])
