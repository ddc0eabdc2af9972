"""Metrics: what Prometheus reads is what has happened."""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as read_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as read_text
from sqlalchemy import Column, Integer, Table, text

import activedb as adb
from activedb.errors import ConfigurationError, RuleFailed, SerializationConflict
from activedb.monitor import Exposition, collector
from activedb.monitor._prometheus import FAMILIES
from tests.databases import PATIENCE_S, Place, in_thread, lock_waits, until
from tests.ledger import at, declare, event
from tests.monitor.scraping import Scrape, scrape

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction

THREADS, EACH = 3, 8
CHILDREN = ("immediate", "deferred")
TOP_LEVEL = ("detached", "sequential", "causal")


class Tally:
    """Tally of what the functions of rules have done, counted by themselves."""

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self.found: Counter[tuple[str, str]] = Counter()

    def add(self, rule: str, outcome: str) -> None:
        with self._latch:
            self.found[rule, outcome] += 1

    def define(self, db: adb.Database, coupling: str) -> None:
        """Define a rule on E whose parameter chooses its outcome."""

        def when(t: Transaction, o: Occurrence) -> bool:
            if o.params["is_true"]:
                return True
            self.add(coupling, "condition_false")
            return False

        @db.rule(on=adb.event("E"), coupling=coupling, name=coupling, when=when, on_abort="rule")
        def rule(t: Transaction, o: Occurrence) -> None:
            if o.params["fails"]:
                self.add(coupling, "failed")
                raise ValueError("as asked")
            self.add(coupling, "fired")


def test_counters_over_threads_are_those_of_a_naive_count(where: Place) -> None:
    db = where.open(quarantine_after=0)
    tally = Tally()
    found = collector(db)
    for coupling in (*CHILDREN, *TOP_LEVEL):
        tally.define(db, coupling)

    def work(number: int) -> None:
        for n in range(EACH):
            with db.transaction() as t:
                db.signal("E", is_true=n % 4 != 0, fails=n % 4 == number)
                if n % 8 == 7:
                    t.abort()

    for end in [in_thread(work, number) for number in range(THREADS)]:
        end.result(PATIENCE_S)
    db.wait_idle()
    told = scrape(found)
    counters = db.admin.counters()
    for coupling in CHILDREN:  # each of them runs once, whoever aborts afterwards
        for outcome in ("fired", "failed", "condition_false"):
            count = told("rule_firings_total", rule=coupling, outcome=outcome)
            assert count == tally.found[coupling, outcome], (coupling, outcome)
    for outcome in ("fired", "condition_false"):
        count = told.sum("rule_firings_total", outcome=outcome)
        assert count == sum(n for (_, of), n in tally.found.items() if of == outcome)
    assert told("rules_fired_total") == told.sum("rule_firings_total", outcome="fired")
    assert told("rule_triggered_total", rule="immediate") == THREADS * EACH
    for outcome in ("committed", "aborted"):
        count = counters[f"transactions_{outcome}"]
        assert told("transactions_total", outcome=outcome) == count
        assert told("transaction_duration_seconds_count", outcome=outcome) == count
    assert told("commit_duration_seconds_count") == counters["transactions_committed"]
    assert told("transactions_live", kind="top-level") == 0
    assert told("dead_letters", kind="rule") == counters["rules_failed"]
    assert told("store_reachable") == 1


@pytest.mark.long
@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.sampled_from([*CHILDREN, "detached"]), st.booleans(), st.booleans()),
        max_size=12,
    ),
    st.integers(min_value=0, max_value=3),
)
def test_counters_of_any_rules_sum_up_to_a_naive_count(
    program: list[tuple[str, bool, bool]], rules_max: int
) -> None:
    tally = Tally()
    with adb.connect("memory://", quarantine_after=0) as db:
        found = collector(db, rules_max=rules_max)
        for coupling in (*CHILDREN, "detached"):
            tally.define(db, coupling)
        for coupling, is_true, fails in program:
            others = [name for name in (*CHILDREN, "detached") if name != coupling]
            with db.transaction(), db.rules.ignoring(*others):
                db.signal("E", is_true=is_true, fails=fails)
        db.wait_idle()
        told = scrape(found)
    for outcome in ("fired", "condition_false", "failed"):
        count = sum(n for (_, of), n in tally.found.items() if of == outcome)
        assert told.sum("rule_firings_total", outcome=outcome) == count
    assert told.sum("rule_firings_total") == told.sum("rule_triggered_total") == len(program)
    assert told("dead_letters", kind="rule") == told.sum("rule_firings_total", outcome="failed")
    labels = {dict(of)["rule"] for name, of in told.values if name.endswith("rule_triggered_total")}
    assert len(labels) <= rules_max + 1
    assert len(labels - {"(other)"}) <= rules_max


def test_histogram_buckets_rise_to_the_count(db: adb.Database) -> None:
    found = collector(db)
    for _ in range(5):
        db.run(lambda t: None)
    told = scrape(found)
    buckets = sorted(
        (float(dict(of)["le"]), value)
        for (name, of), value in told.values.items()
        if name == "activedb_transaction_duration_seconds_bucket" and ("outcome", "committed") in of
    )
    counts = [count for _, count in buckets]
    assert counts == sorted(counts)
    assert (buckets[-1][0], counts[-1]) == (float("inf"), 5)
    assert told("transaction_duration_seconds_sum", outcome="committed") > 0


def test_callers_own_transaction_is_counted_and_not_timed(db: adb.Database) -> None:
    found = collector(db)
    with db.connection() as connection:
        with db.transaction(connection=connection):
            pass
        connection.commit()
    until(lambda: db.admin.counters().get("transactions_committed"))  # asked on another thread
    told = scrape(found)
    assert told("transactions_total", outcome="committed") == 1
    assert told.sum("transaction_duration_seconds_count") == 0


def test_rule_that_is_tried_again_counts_each_run(db: adb.Database) -> None:
    found = collector(db)
    tries = []

    @db.rule(on=adb.event("E"))
    def rule(t: Transaction, o: Occurrence) -> None:
        tries.append(t.id)
        if len(tries) == 1:
            raise SerializationConflict("as the server would say")

    db.signal("E")
    told = scrape(found)
    assert told("rule_firings_total", rule="rule", outcome="aborted") == 1
    assert told("rule_firings_total", rule="rule", outcome="fired") == 1
    assert told("retries_total", cause="serialization_conflict") == 1
    assert told("transactions_total", outcome="aborted") == 1


def test_rule_in_quarantine_is_counted_as_such(db: adb.Database) -> None:
    found = collector(db)

    @db.rule(on=adb.event("E"), on_abort="rule")
    def rule(t: Transaction, o: Occurrence) -> None:
        raise ValueError("no")

    for _ in range(10):
        db.signal("E")
    db.wait_idle()
    db.signal("E")
    told = scrape(found)
    assert told("rule_firings_total", rule="rule", outcome="failed") == 10
    assert told("rule_firings_total", rule="rule", outcome="quarantined") == 1
    assert told("rules_quarantined_total") == 1


def test_rule_that_takes_the_transaction_along_is_counted_as_failed(db: adb.Database) -> None:
    found = collector(db)

    @db.rule(on=adb.event("E"))
    def rule(t: Transaction, o: Occurrence) -> None:
        raise ValueError("no")

    with pytest.raises(RuleFailed):
        db.signal("E")
    told = scrape(found)
    assert told("rule_firings_total", rule="rule", outcome="failed") == 1
    assert told("subtransactions_total", outcome="aborted") == 1


def test_condition_and_detached_action_are_a_run_each(db: adb.Database) -> None:
    found = collector(db)
    acted = threading.Event()

    @db.rule(on=adb.event("E"), when=lambda t, o: True, condition_action="detached")
    def rule(t: Transaction, o: Occurrence) -> None:
        acted.set()

    db.signal("E")
    db.wait_idle()
    told = scrape(found)
    assert acted.is_set()
    assert told("rule_firings_total", rule="rule", outcome="action_later") == 1
    assert told("rule_firings_total", rule="rule", outcome="fired") == 1


def test_gauges_tell_who_lives_and_who_waits(db: adb.Database) -> None:
    table = Table("t", db.metadata, Column("id", Integer, primary_key=True))
    db.create_all()
    found = collector(db)
    before = lock_waits(db)
    with db.transaction() as t, t.subtransaction() as s:
        s.insert(table, {"id": 1})
        other = in_thread(db.run, lambda u: u.get(table, 1))
        until(lambda: lock_waits(db) > before)
        told = scrape(found)
        assert told("transactions_live", kind="top-level") == 2
        assert told("transactions_live", kind="sub") == 1
        assert told("lock_requests_waiting") == 1
    other.result(PATIENCE_S)
    told = scrape(found)
    assert told("lock_requests_waiting") == 0
    assert told.sum("transactions_live") == 0
    assert told("lock_waits_total") >= 1


def test_pending_firings_are_those_in_the_database(postgres_url: str) -> None:
    from tests.databases import place

    with place(postgres_url) as there:
        db = there.open(firings="queue")
        found = collector(db)
        Tally().define(db, "detached")
        db.signal("E", is_true=True, fails=False)
        assert scrape(found)("firings_pending") == 1


def test_stream_events_come_from_the_ledger(where: Place) -> None:
    db = where.open()
    found = collector(db)
    stream = declare(db)
    stream.feed([event("A", n) for n in range(5)])
    stream.feed([event("A", 1), event("A", 9), event("A", 12)], at(10))
    told = scrape(found)
    assert told("stream_events_total", stream=stream.name, outcome="processed") == 6
    assert told("stream_events_total", stream=stream.name, outcome="late") == 1
    assert told("events_waiting", stream=stream.name) == 1


def test_closed_database_tells_what_it_has_counted(where: Place) -> None:
    db = where.open()
    found = collector(db)
    db.run(lambda t: None)
    db.close()
    told = scrape(found)
    assert told("store_reachable") == 0
    assert told("transactions_total", outcome="committed") == 1
    assert "activedb_dead_letters" not in told.names


def test_scrape_does_not_queue_for_a_store_that_does_not_answer() -> None:
    with adb.connect("memory://") as db:
        found = collector(db)
        with db.connection() as connection:
            connection.execute(text("SELECT 1"))  # keeps all others from the store
            stuck = in_thread(scrape, found)
            until(found._asking.locked)
            told = in_thread(scrape, found).result(PATIENCE_S)
            assert told("store_reachable") == 0
            assert not stuck.done()
        assert stuck.result(PATIENCE_S)("store_reachable") == 1


def test_scrapes_beside_transactions_never_go_back(where: Place) -> None:
    db = where.open()
    found = collector(db)
    is_over = threading.Event()

    def work() -> None:
        for _ in range(40):
            db.run(lambda t: None)
        is_over.set()

    end = in_thread(work)
    counts = [0.0]
    while not is_over.is_set():
        counts.append(scrape(found)("transactions_total", outcome="committed"))
    end.result(PATIENCE_S)
    assert counts == sorted(counts)
    assert scrape(found)("transactions_total", outcome="committed") == 40


def test_counter_without_a_name_of_its_own_is_told_too(db: adb.Database) -> None:
    db._forest.counters.add("something_new", 3)
    assert scrape(collector(db))("something_new_total") == 3


def test_rules_beyond_the_bound_are_told_together(db: adb.Database) -> None:
    found = collector(db, rules_max=2)
    for n in range(4):
        db.rule(on=adb.event(f"E{n}"), name=f"rule {n}")(lambda t, o: None)
    for n in (2, 0, 1, 3, 3):
        db.signal(f"E{n}")
        told = scrape(found)  # who has a label keeps it
    assert told("rule_triggered_total", rule="rule 2") == 1
    assert told("rule_triggered_total", rule="rule 0") == 1
    assert told("rule_triggered_total", rule="(other)") == 3
    assert told("rule_duration_seconds_count", rule="(other)") == 3


def test_registry_refuses_a_second_database(db: adb.Database) -> None:
    registry = CollectorRegistry()
    registry.register(collector(db))
    with adb.connect("memory://") as other, pytest.raises(ValueError, match="Duplicated"):
        registry.register(collector(other))


def test_exposition_speaks_both_formats(db: adb.Database) -> None:
    exposition = Exposition(db)
    db.run(lambda t: None)
    content, content_type = exposition.text()
    assert content_type.startswith("text/plain")
    names = {family.name for family in read_text(content.decode())}
    content, content_type = exposition.text("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    families = read_openmetrics(content.decode())  # type: ignore[no-untyped-call]
    assert {family.name for family in families} == names
    assert names == {f"activedb_{name}" for name in FAMILIES}


def test_monitor_serves_the_metrics(where: Place, tmp_path: Path) -> None:
    db = where.open(monitor="on", folder=tmp_path)
    assert db._monitoring is not None
    db.run(lambda t: None)
    with urlopen(f"{db._monitoring.server.url}/metrics", timeout=PATIENCE_S) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        told = Scrape(answer.read().decode())
    assert told("transactions_total", outcome="committed") >= 1


def test_names_follow_the_conventions_of_prometheus() -> None:
    for family in FAMILIES.values():
        assert family.full_name.endswith("_total") == (family.kind == "counter")
        assert family.full_name.endswith("_seconds") == (family.kind == "histogram")
        assert family.help.endswith(".") or family.name == "rule_firings"


def test_document_has_every_metric_as_it_is() -> None:
    document = Path(__file__).parents[2] / "docs" / "metrics.md"
    rows = re.findall(
        r"^\| `(activedb_\w+)` \| (\w+) \| (.*?) \|", document.read_text("utf-8"), re.M
    )
    assert [(name, kind, re.findall(r"\w+", labels)) for name, kind, labels in rows] == [
        (family.full_name, family.kind, list(family.labels)) for family in FAMILIES.values()
    ]


@pytest.mark.parametrize("rules_max", [-1, True, "many"])
def test_collector_given_no_number_of_rules_refuses_it(db: adb.Database, rules_max: object) -> None:
    with pytest.raises(ConfigurationError, match="rules_max"):
        collector(db, rules_max=rules_max)  # type: ignore[arg-type]


def test_collector_without_its_library_says_what_to_install(
    db: adb.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("prometheus_client")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[otel\]'"):
        collector(db)
    with pytest.raises(ConfigurationError, match="prometheus-client"):
        Exposition(db)
