"""State of detectors is counted for each rule, bounded, and expires."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import ConfigurationError, DefinitionError, MatchesExceeded, PartialsExceeded
from tests.ledger import at, declare, event, open_ledger

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger

PAIR = adb.seq(adb.event("A"), adb.event("B")).within(1_000)


def pairs(ledger: Ledger, **options: Any) -> None:
    """Write down pairs."""

    @ledger.db.rule(on=PAIR, name="pair", **options)
    def pair(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "".join(str(c.params["n"]) for c in o.constituents))


def kept(ledger: Ledger) -> tuple[int, int]:
    """Partials and dropped of the rule."""
    entry = ledger.db.rules["pair"]
    return entry.partials, entry.dropped


def test_partials_are_counted_for_each_rule_and_together(ledger: Ledger) -> None:
    pairs(ledger)
    ledger.db.rule(on=adb.event("A"), name="plain")(lambda t, o: None)
    ledger.db.rule(on=PAIR.context("recent"), name="recent")(lambda t, o: None)
    for n in range(3):
        ledger.db.signal("A", timestamp=n, n=n)
    assert kept(ledger) == (3, 0)
    assert (ledger.db.rules["plain"].partials, ledger.db.rules["plain"].dropped) == (0, 0)
    counters = ledger.db.admin.counters()
    assert counters["partials"] == 3 + ledger.db.rules["recent"].partials
    assert counters["partials_dropped"] == 0


def test_full_detector_forgets_the_oldest(ledger: Ledger) -> None:
    pairs(ledger, partials_max=2)
    for n in range(1, 6):
        ledger.db.signal("A", timestamp=n, n=n)
    assert kept(ledger) == (2, 3)
    assert ledger.db.admin.counters()["partials_dropped"] == 3
    ledger.db.signal("B", timestamp=9, n=9)
    assert ledger.lines() == ["49", "59"]


def test_full_detector_that_refuses_fails_the_transaction_and_keeps_what_it_had(
    ledger: Ledger,
) -> None:
    pairs(ledger, partials_max=2, on_full="refuse")
    for n in (1, 2):
        ledger.db.signal("A", timestamp=n, n=n)
    with pytest.raises(PartialsExceeded, match="pair"), ledger.db.transaction() as t:
        ledger.write(t, "undone")
        ledger.db.signal("A", timestamp=3, n=3)
    ledger.db.signal("B", timestamp=9, n=9)
    assert ledger.lines() == ["19", "29"]
    assert kept(ledger) == (2, 0)


def test_full_detector_that_refuses_makes_dead_letters_of_a_streams_events(
    ledger: Ledger,
) -> None:
    pairs(ledger, partials_max=2, on_full="refuse")
    stream = declare(ledger.db)
    stream.feed([event("A", n, n=n) for n in (1, 2, 3)] + [event("B", 9, n=9)])
    assert ledger.lines() == ["19", "29"]
    (letter,) = ledger.letters()
    assert letter["error"] == "PartialsExceeded"
    assert letter["payload"]["params"] == {"n": 3}


def test_setting_bounds_rules_that_do_not_say_it(where: Place) -> None:
    ledger = open_ledger(where.open(partials_max=4))
    pairs(ledger)
    ledger.db.rule(on=PAIR, name="own", partials_max=6)(lambda t, o: None)
    for n in range(1, 10):
        ledger.db.signal("A", timestamp=n, n=n)
    assert kept(ledger) == (4, 5)
    assert ledger.db.rules["own"].partials == 6


def test_bound_can_be_changed_and_begins_anew(ledger: Ledger) -> None:
    pairs(ledger)
    ledger.db.signal("A", timestamp=1, n=1)
    entry = ledger.db.rules.change("pair", partials_max=1, on_full="refuse")
    assert (entry.version, entry.partials) == (2, 0)
    assert ledger.db.rules.change("pair", partials_max=1).version == 2
    ledger.db.signal("A", timestamp=2, n=2)
    with pytest.raises(PartialsExceeded):
        ledger.db.signal("A", timestamp=3, n=3)


def test_event_that_completes_too_many_matches_is_refused(ledger: Ledger) -> None:
    pairs(ledger, matches_max=2)
    for n in (1, 2, 3):
        ledger.db.signal("A", timestamp=n, n=n)
    with pytest.raises(MatchesExceeded, match="pair"):
        ledger.db.signal("B", timestamp=9, n=9)
    assert ledger.lines() == []
    assert ledger.db.rules["pair"].truncated == 0
    ledger.db.rules.change("pair", matches_max=None)
    for n in (4, 5, 6):
        ledger.db.signal("A", timestamp=10 + n, n=n)
    ledger.db.signal("B", timestamp=19, n=9)
    assert ledger.lines() == ["49", "59", "69"]


def test_event_that_completes_too_many_matches_makes_the_most_preferred_ones(
    ledger: Ledger,
) -> None:
    pairs(ledger, matches_max=2, on_many="truncate")
    for n in (1, 2, 3):
        ledger.db.signal("A", timestamp=n, n=n)
    ledger.db.signal("B", timestamp=9, n=9)
    assert len(ledger.lines()) == 2
    assert set(ledger.lines()) < {"19", "29", "39"}
    assert ledger.db.rules["pair"].truncated == 1


def test_more_matches_than_the_default_are_made_if_the_rule_asks_for_them(where: Place) -> None:
    ledger = open_ledger(where.open(partials_max=0))
    found: list[int] = []
    many = adb.seq(*map(adb.event, "ABCD")).within(1_000)
    ledger.db.rule(on=many, set_oriented=True, name="many", matches_max=None)(
        lambda t, o: found.append(len(o.occurrences))
    )
    for n in range(3 * 22):
        ledger.db.signal("ABC"[n // 22], timestamp=n)
    ledger.db.signal("D", timestamp=99)
    assert sum(found) == 22**3 > adb.events.MATCHES_MAX


def test_punctuation_lets_partial_matches_expire(ledger: Ledger) -> None:
    pairs(ledger)
    stream = declare(ledger.db)
    stream.feed([event("A", n, n=n) for n in (1, 5, 600)], punctuation=at(700))
    assert kept(ledger) == (3, 0)
    stream.feed([], punctuation=at(1_006))
    assert kept(ledger) == (1, 0)
    stream.feed([event("B", 1_500, n=9)])
    assert ledger.lines() == ["6009"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"partials_max": 0}, "at least 1"),
        ({"partials_max": True}, "at least 1"),
        ({"partials_max": "many"}, "at least 1"),
        ({"on_full": "explode"}, "'drop_oldest', 'refuse'"),
        ({"matches_max": 0}, "at least 1"),
        ({"matches_max": True}, "at least 1"),
        ({"on_many": "explode"}, "'refuse', 'truncate'"),
        ({"on_uncertain": "guess"}, "'possible'"),
        ({"on_uncertain": 7}, "or a function"),
    ],
)
def test_bound_without_meaning_is_refused(
    ledger: Ledger, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(DefinitionError, match=says):
        ledger.db.rule(on=PAIR, name="pair", **options)(lambda t, o: None)
    assert "pair" not in ledger.db.rules


def test_setting_without_meaning_is_refused(where: Place) -> None:
    with pytest.raises(ConfigurationError, match="partials_max"):
        where.open(partials_max=-1)


def test_uncertain_order_is_decided_as_the_rule_says(ledger: Ledger) -> None:
    now = 1_000_000_000

    def stamp(us: int) -> Any:
        return adb.events.AccuracyInterval(us, us - 500, us + 500)

    for policy in ("raise", "certain", "possible"):
        ledger.db.rule(on=PAIR, name=policy, on_uncertain=policy, on_abort="rule")(
            lambda t, o, name=policy: ledger.write(t, name)
        )
    ledger.db.rules.disable("raise")
    ledger.db.signal("A", timestamp=stamp(now), n=1)
    ledger.db.signal("B", timestamp=stamp(now + 100), n=2)
    assert ledger.lines() == ["possible"]
    ledger.db.rules.enable("raise")
    ledger.db.signal("A", timestamp=stamp(now + 10_000), n=3)
    ledger.db.signal("B", timestamp=stamp(now + 10_100), n=4)
    assert sorted(ledger.lines()) == ["certain", "possible", "possible", "possible"]
    (letter,) = ledger.letters()
    assert (letter["source"], letter["error"]) == ("rule raise", "UncertainOrder")
    assert {decision.rule for decision in ledger.db.decisions} == {"certain", "raise"}
