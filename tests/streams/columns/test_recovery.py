"""Rules in columns go on from the last part that has committed, whatever happens."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.store.system import kept_columns, stream_events
from activedb.streams.columns._rules import Detections
from tests.databases import PATIENCE_S, place
from tests.histories.processes import Server, Worker
from tests.ledger import event, read
from tests.streams.columns.killed_rules import SPECS, Alone, apply_all, batches
from tests.streams.columns.watch import Spec, open_watch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from activedb import Occurrence, Transaction
    from activedb.columns.events._events import ColumnEvents
    from tests.databases import Place

pytestmark = pytest.mark.long

PLACES = (("inside flush", 3), ("after commit", 4))
AB = adb.seq(adb.event("A"), adb.event("B"))


@pytest.fixture
def saved(postgres_url: str) -> Iterator[Place]:
    """Somewhere that can be opened again."""
    with place(postgres_url) as opened:
        yield opened


def uninterrupted() -> dict[str, Any]:
    """Return what all batches give event by event, without a crash."""
    with place(None) as where:
        watch = open_watch(where, SPECS, columns=False)
        apply_all(watch)
        return watch.everything()


@pytest.mark.crash
@pytest.mark.parametrize(("point", "count"), PLACES)
def test_rules_in_columns_killed_in_a_commit_go_on_from_the_last_part(
    database_url: str, tmp_path: Path, point: str, count: int
) -> None:
    task = {"point": point, "count": count, "url": database_url}
    with Worker("tests.streams.columns.killed_rules", task, tmp_path / "log") as worker:
        worker.wait_ready()
        worker.go()
        assert worker.process.wait(PATIENCE_S) == -signal.SIGKILL
    Server(database_url).wait_idle()
    watch = open_watch(Alone(database_url), SPECS, columns=True, batch_events_max=2)
    with watch.db:
        assert 0 < watch.stream.run.batches < len(batches())
        apply_all(watch)
        assert watch.everything() == uninterrupted()


def test_batches_of_rules_handed_over_again_change_nothing(where: Place) -> None:
    watch = open_watch(where, SPECS, columns=True)
    apply_all(watch)
    kept = read(watch.db, kept_columns)
    apply_all(watch)
    assert read(watch.db, kept_columns) == kept
    assert watch.everything() == uninterrupted()


@pytest.mark.parametrize("point", ["before flush", "inside flush", "after commit"])
def test_batch_that_is_cut_off_between_its_parts_goes_on_behind_the_last(
    where: Place, point: str
) -> None:
    watch = open_watch(where, SPECS, columns=True, batch_events_max=1)
    run = watch.stream.run
    reached = 0

    def interrupt(name: str) -> None:
        nonlocal reached
        reached += name == point
        if name == point and reached % 3 == 0:
            raise KeyboardInterrupt

    watch.db._store.trigger = interrupt
    for number, (events, second) in enumerate(batches()):
        for _ in range(20):
            try:
                watch.apply(number, events, second)
                break
            except KeyboardInterrupt:
                assert run.batches <= number + 1
    watch.db._store.trigger = lambda name: None
    assert watch.everything() == uninterrupted()
    assert reached > len(batches())


def numbered(*kinds: str, apart_s: float = 1.0) -> list[Occurrence]:
    """Events one after another."""
    return [
        event(kind, n * apart_s, k="u", j=0, x=0, y=0.0, s="u", n=n) for n, kind in enumerate(kinds)
    ]


def test_event_that_was_used_up_before_a_restart_is_not_used_again(saved: Place) -> None:
    specs = [Spec(AB.within(4).context("chronicle"))]
    # A1 B3 is made of A0 and B3; when A0 is forgotten, B6 must still not take what B3 has taken.
    events = numbered("A", "A", "A", "B", "B", "C", "B")
    watch = open_watch(saved, specs, columns=True)
    watch.feed(events[:4], 4.0)
    watch.feed(events[4:6], 6.0)
    assert watch.db.rules["R0"].partials == 1
    watch.db.close()
    watch = open_watch(saved, specs, columns=True)
    _ = watch.stream.run
    assert watch.db.rules["R0"].partials > 0
    watch.feed(events[6:], None)
    texts = [text.split(" {")[1].split("}")[0] for _, text in watch.everything()["log"]]
    assert sorted(texts) == ["'A': [0], 'B': [3]", "'A': [1], 'B': [4]", "'A': [2], 'B': [6]"]


@pytest.mark.parametrize("first", [True, False])
def test_rules_change_from_columns_to_event_by_event_and_back(saved: Place, first: bool) -> None:
    specs = [Spec(AB.within(9), raises_at=2), Spec(adb.event("C"))]
    events = numbered("A", "C", "B", "A", "B", "C", "A", "B", "B", "A", "B")
    columns = first
    for start in range(0, 9, 3):
        watch = open_watch(saved, specs, columns=columns)
        watch.feed(events[start : start + 3], start + 2)
        left = read(watch.db, stream_events) if columns else read(watch.db, kept_columns)
        assert start or not left
        watch.db.close()
        columns = not columns
    watch = open_watch(saved, specs, columns=columns)
    watch.feed(events[9:], None)
    found = watch.everything()
    with place(None) as other:
        rows = open_watch(other, specs, columns=False)
        for start in range(0, 9, 3):
            rows.feed(events[start : start + 3], start + 2)
        rows.feed(events[9:], None)
        assert found == rows.everything()


@pytest.mark.parametrize("columns", [True, False])
def test_rule_that_an_action_disables_hears_no_later_event(where: Place, columns: bool) -> None:
    watch = open_watch(where, [], columns=columns)
    heard: list[tuple[str, int]] = []

    def once(t: Transaction, o: Occurrence) -> None:
        heard.append(("once", o.params["n"]))
        watch.db.rules.disable("once")
        watch.db.rules.create(always, on=adb.event("B"), name="always")

    def always(t: Transaction, o: Occurrence) -> None:
        heard.append(("always", o.params["n"]))

    watch.db.rule(on=AB.within(9), name="once")(once)
    watch.feed(numbered("C", "A", "C", "B", "B", "A", "B"), 7.0)
    assert heard == [("once", 3), ("always", 4), ("always", 6)]


def test_events_that_fail_make_others_be_shown_again_a_few_times(
    where: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = open_watch(where, [Spec(adb.event("A"), raises_at=1)], columns=True)
    shown = 0
    feed = Detections.feed

    def counted(self: Detections, events: ColumnEvents, *without: Any) -> Any:
        nonlocal shown
        shown += len(events)
        return feed(self, events, *without)

    monkeypatch.setattr(Detections, "feed", counted)
    count = 1_000
    kinds = ("A" if n % 10 == 1 else "C" for n in range(count))
    watch.feed(numbered(*kinds, apart_s=0.05), 50.0)
    run = watch.stream.run
    assert run.totals() == {"events": count, "late": 0, "dead": count // 10}
    assert shown < 8 * count
