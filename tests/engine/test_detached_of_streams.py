"""Detached rules of a stream's events: once, however the batches are done again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import activedb as adb
from activedb.errors import SerializationConflict
from activedb.store import Journal
from tests.databases import until
from tests.engine.ledger import declare, event, open_ledger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from activedb import Occurrence, Transaction
    from tests.databases import Place
    from tests.engine.ledger import Ledger

LINES = ["detached 1", "detached 2", "detached 3"]


class Crash(BaseException):
    """Ends a run at once, as far as the database can tell."""


def define(ledger: Ledger, *, crashes: bool) -> None:
    @ledger.db.rule(on=adb.event("A"), coupling="detached")
    def detached(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"detached {o.params['n']}")

    @ledger.db.rule(on=adb.event("A"))
    def stop(t: Transaction, o: Occurrence) -> None:
        if crashes and o.params["n"] == 3:
            until(lambda: ledger.db.row_counts()["log"] == 3)
            raise Crash


@pytest.mark.parametrize("events_max", [1, 2, 3, 100])
def test_firing_of_a_batch_that_is_parted_differently_after_a_crash_is_not_repeated(
    where: Place, events_max: int
) -> None:
    if where.is_memory:
        pytest.skip("memory keeps nothing")
    before = open_ledger(where.open(batch_events_max=3))
    define(before, crashes=True)
    with pytest.raises(Crash):
        before.db.feed(declare(before.db), [event("A", n, n=n) for n in (1, 2, 3)])
    assert sorted(before.lines()) == LINES
    before.db.close()
    after = open_ledger(where.open(batch_events_max=events_max))
    define(after, crashes=False)
    after.db.stream_run(declare(after.db)).finish()
    assert sorted(after.lines()) == LINES
    assert after.letters() == []
    assert after.pending() == []


def test_streams_fed_from_python_do_not_disturb_each_other(ledger: Ledger) -> None:
    define(ledger, crashes=False)
    for name in ("one", "two"):
        ledger.db.feed(declare(ledger.db, name), [event("A", n, n=n) for n in (1, 2)])
    assert sorted(ledger.lines()) == ["detached 1", "detached 1", "detached 2", "detached 2"]
    assert ledger.pending() == []


def test_firing_whose_recording_fails_once_is_recorded_at_the_next_try(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(ledger, crashes=False)
    record, failures = Journal.record, iter([True])

    def sometimes(journal: Journal, firings: Iterable[Mapping[str, Any]]) -> set[str]:
        if next(failures, False):
            raise SerializationConflict("once")
        return record(journal, firings)

    monkeypatch.setattr(Journal, "record", sometimes)
    ledger.db.run(lambda t: ledger.db.signal("A", n=1))
    ledger.db.join()
    assert ledger.lines() == ["detached 1"]
