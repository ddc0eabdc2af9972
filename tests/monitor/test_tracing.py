"""Traces: a span for each transaction, nested and linked as the transactions are."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import INVALID_SPAN, StatusCode, get_current_span

import activedb as adb
from activedb.errors import (
    ConfigurationError,
    Deadlock,
    RuleFailed,
    SerializationConflict,
    TransactionCancelled,
    WrongThread,
)
from activedb.monitor import trace
from activedb.transactions import Run
from tests.databases import PATIENCE_S, in_thread, place, until
from tests.firing.working import working
from tests.ledger import declare, event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from activedb import Occurrence, Transaction

SECRET = "number 4711 of Jane Doe"
TOP_LEVEL = ("detached", "causal", "sequential", "exclusive")

Tree: TypeAlias = tuple[bool, list["Tree"]]
"""Flag whether a subtransaction aborts, and its children."""

trees: st.SearchStrategy[Tree] = st.recursive(
    st.tuples(st.booleans(), st.just([])),
    lambda inner: st.tuples(st.booleans(), st.lists(inner, max_size=3)),
    max_leaves=8,
)


class Spans:
    """A tracer provider, and the spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the spans with a name, in the order in which they began."""
        return sorted(
            (span for span in self.all if span.name == name), key=lambda span: span.start_time or 0
        )

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


def number(span: ReadableSpan) -> int:
    """Return the number by which a parent or a link refers to a span."""
    assert span.context is not None
    return int(span.context.span_id)


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def attribute(span: ReadableSpan, name: str) -> object:
    assert span.attributes is not None
    return span.attributes.get(f"activedb.{name}")


# -- nesting -------------------------------------------------------------------------------


def test_spans_are_nested_as_the_transactions_are(db: adb.Database, spans: Spans) -> None:
    @db.rule(on=adb.event("E"))
    def now(t: Transaction, o: Occurrence) -> None:
        with t.subtransaction():
            pass

    @db.rule(on=adb.event("E"), coupling="deferred")
    def later(t: Transaction, o: Occurrence) -> None:
        pass

    trace(db, spans.provider)
    with spans.provider.get_tracer("users").start_as_current_span("mine"), db.transaction():
        db.signal("E")
    top, mine = spans.one("transaction"), spans.one("mine")
    assert parent(top) == number(mine)
    assert parent(spans.one("rule now")) == parent(spans.one("rule later")) == number(top)
    assert parent(spans.one("subtransaction")) == number(spans.one("rule now"))
    assert [attribute(spans.one(f"rule {name}"), "coupling") for name in ("now", "later")] == [
        "immediate",
        "deferred",
    ]
    assert attribute(spans.one("rule now"), "rule") == "now"
    assert attribute(top, "rule") is None
    assert {attribute(span, "outcome") for span in spans.all if span is not mine} <= {
        "committed",
        None,
    }
    assert top.status.status_code is StatusCode.UNSET


@settings(max_examples=30)
@given(trees)
def test_spans_of_any_hierarchy_are_the_tree_of_it(tree: Tree) -> None:
    spans = Spans()
    expected: list[tuple[str, str]] = []

    def run(t: Transaction, tree: Tree) -> None:
        aborts, children = tree
        for child in children:
            with t.subtransaction() as s:
                run(s, child)
        expected.append((t.path, "aborted" if aborts else "committed"))
        if aborts:
            t.abort()

    with adb.connect("memory://") as db:
        trace(db, spans.provider)
        with db.transaction() as t:
            run(t, tree)
    by_number = {number(span): span for span in spans.all}

    def path(span: ReadableSpan) -> str:
        above = parent(span)
        label = str(attribute(span, "label"))
        return label if above is None else f"{path(by_number[above])}/{label}"

    assert [(path(span), attribute(span, "outcome")) for span in spans.all] == expected


def test_parallel_hierarchies_have_a_trace_each(db: adb.Database, spans: Spans) -> None:
    trace(db, spans.provider)
    all_there = threading.Barrier(2)

    def child(s: Transaction) -> None:
        all_there.wait(PATIENCE_S)

    def work() -> None:
        with db.transaction() as t:
            one, other = t.spawn(child), t.spawn(child)
            one.result()
            other.result()

    for _ in range(3):
        in_thread(work).result(PATIENCE_S)
    tops = spans.named("transaction")
    assert len(tops) == 3
    for top in tops:
        children = [span for span in spans.named("subtransaction") if parent(span) == number(top)]
        assert sorted(str(attribute(span, "label")) for span in children) == ["1", "2"]
        assert {span.context.trace_id for span in (top, *children) if span.context} == {
            top.context.trace_id if top.context else None
        }


def test_what_a_rule_calls_is_under_the_span_of_the_rule(db: adb.Database, spans: Spans) -> None:
    trace(db, spans.provider)
    tracer = spans.provider.get_tracer("users")

    @db.rule(on=adb.event("E"), coupling="detached")
    def rule(t: Transaction, o: Occurrence) -> None:
        with tracer.start_as_current_span("call"):
            pass

    db.signal("E")
    db.wait_idle()
    assert parent(spans.one("call")) == number(spans.one("rule rule"))
    assert get_current_span() is INVALID_SPAN


def test_span_that_was_current_is_so_again_after_an_abort(db: adb.Database, spans: Spans) -> None:
    trace(db, spans.provider)
    with spans.provider.get_tracer("users").start_as_current_span("mine") as mine:
        with pytest.raises(ValueError, match="no"), db.transaction() as t, t.subtransaction():
            raise ValueError("no")
        assert get_current_span() is mine


def test_span_of_a_block_that_ends_on_another_thread_ends_there(
    db: adb.Database, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    tracing = trace(db, spans.provider)

    def block() -> Iterator[None]:
        with db.transaction():
            yield

    def begin() -> Iterator[None]:
        blocks = block()
        next(blocks)
        return blocks

    blocks = in_thread(begin).result(PATIENCE_S)
    with pytest.raises(WrongThread):
        next(blocks)
    (span,) = spans.all
    assert attribute(span, "outcome") == "aborted"
    assert get_current_span() is INVALID_SPAN
    assert not caplog.records
    assert not tracing._tokens


def test_batch_of_a_stream_is_a_span(db: adb.Database, spans: Spans) -> None:
    stream = declare(db)

    @db.rule(on=adb.event("A"))
    def rule(t: Transaction, o: Occurrence) -> None:
        pass

    trace(db, spans.provider)
    stream.feed([event("A", 1)])
    found = spans.one("rule rule")
    above = {number(span): span for span in spans.all}
    while (up := parent(found)) is not None:
        found = above[up]
    assert found.name == "batch"


def test_callers_transaction_is_a_span_around_its_blocks(db: adb.Database, spans: Spans) -> None:
    trace(db, spans.provider)
    with db.connection() as connection:
        for _ in range(2):
            with db.transaction(connection=connection):
                pass
        assert len(spans.named("subtransaction")) == 2
        connection.commit()
    until(lambda: spans.named("transaction"))  # what became of it is asked on another thread
    top = spans.one("transaction")
    assert {parent(span) for span in spans.named("subtransaction")} == {number(top)}


def test_transaction_that_nobody_enters_leaves_nothing(spans: Spans) -> None:
    with adb.connect("memory://") as db:
        tracing = trace(db, spans.provider)
        db.transaction()
        assert spans.all == []
        assert (tracing._open, tracing._tokens) == ({}, {})


# -- links ---------------------------------------------------------------------------------


@pytest.mark.parametrize("coupling", TOP_LEVEL)
def test_rule_of_its_own_links_to_what_triggered_it(
    db: adb.Database, spans: Spans, coupling: str
) -> None:
    tracing = trace(db, spans.provider)
    has_run = threading.Event()

    @db.rule(on=adb.event("E"), coupling=coupling)
    def rule(t: Transaction, o: Occurrence) -> None:
        has_run.set()

    with db.transaction() as t, t.subtransaction():
        db.signal("E")
        if coupling == "exclusive":
            t.abort()
    db.wait_idle()
    assert has_run.is_set()
    triggering, of_rule = spans.one("subtransaction"), spans.one("rule rule")
    assert linked(of_rule) == [number(triggering)]
    assert of_rule.parent is None
    assert attribute(of_rule, "coupling") == coupling
    assert [e.attributes for e in triggering.events] == [
        {"activedb.firing": attribute(of_rule, "label"), "activedb.coupling": coupling}
    ]
    assert (tracing._open, tracing._tokens) == ({}, {})


def test_detached_action_links_to_its_condition(db: adb.Database, spans: Spans) -> None:
    trace(db, spans.provider)

    @db.rule(on=adb.event("E"), when=lambda t, o: True, condition_action="detached")
    def rule(t: Transaction, o: Occurrence) -> None:
        pass

    db.signal("E")
    db.wait_idle()
    condition, action = spans.named("rule rule")
    assert [attribute(span, "coupling") for span in (condition, action)] == [
        "immediate",
        "detached",
    ]
    assert linked(action) == [number(condition)]


@pytest.mark.parametrize("coupling", ["detached", "sequential", "exclusive"])
def test_link_reaches_whoever_runs_the_firing(postgres_url: str, coupling: str) -> None:
    here, there = Spans(), Spans()
    with place(postgres_url) as where:
        clerk, worker = where.open(firings="queue"), where.open()
        for db in (clerk, worker):
            db.rule(on=adb.event("E"), coupling=coupling, name="rule")(lambda t, o: None)
        trace(clerk, here.provider)
        trace(worker, there.provider)
        with clerk.transaction() as t:
            clerk.signal("E")
            if coupling == "exclusive":
                t.abort()
        assert there.all == []
        with working(worker):
            until(lambda: there.named("rule rule"))
    of_rule = there.one("rule rule")
    assert linked(of_rule) == [number(here.one("transaction"))]
    assert attribute(of_rule, "coupling") == coupling
    assert here.named("rule rule") == []


@pytest.mark.crash
def test_link_outlives_the_process_that_triggered_the_rule(database_url: str) -> None:
    program = subprocess.run(
        [sys.executable, "-m", "tests.monitor.trace_program", database_url],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert program.returncode == -signal.SIGKILL, program.stderr
    spans = Spans()
    with adb.connect(database_url) as db:
        db.rule(on=adb.event("E"), coupling="detached", name="rule")(lambda t, o: None)
        trace(db, spans.provider)
        assert db.recover() == 1
        db.wait_idle()
    (link,) = spans.one("rule rule").links
    assert [str(link.context.trace_id), str(link.context.span_id)] == program.stdout.split()


def test_letter_that_is_retried_is_under_the_span_of_who_asks(
    db: adb.Database, spans: Spans
) -> None:
    errors = [ValueError("no")]

    @db.rule(on=adb.event("E"), coupling="detached")
    def rule(t: Transaction, o: Occurrence) -> None:
        if errors:
            raise errors.pop()

    db.signal("E")
    db.wait_idle()
    (letter,) = db.dead_letters.list()
    trace(db, spans.provider)
    with spans.provider.get_tracer("users").start_as_current_span("mine"):
        assert db.dead_letters.retry(letter.source, letter.identity).outcome == "done"
    assert parent(spans.one("rule rule")) == number(spans.one("mine"))


def test_firing_recorded_by_who_traces_nothing_has_no_link(postgres_url: str) -> None:
    spans = Spans()
    with place(postgres_url) as where:
        clerk, worker = where.open(firings="queue"), where.open()
        for db in (clerk, worker):
            db.rule(on=adb.event("E"), coupling="detached", name="rule")(lambda t, o: None)
        trace(worker, spans.provider)
        clerk.signal("E")
        with working(worker):
            until(lambda: spans.named("rule rule"))
    assert linked(spans.one("rule rule")) == []


@pytest.mark.parametrize("origin", ["", "nonsense", "00-0-0-00", "\N{SNOWMAN}" * 999])
def test_origin_that_is_no_traceparent_is_no_link(
    db: adb.Database, spans: Spans, origin: str
) -> None:
    trace(db, spans.provider)
    db._forest.run(lambda t: None, Run(rule="rule", coupling="detached", origin=origin))
    assert linked(spans.one("rule rule")) == []


# -- outcomes ------------------------------------------------------------------------------


def test_abort_is_an_error_that_tells_kinds_and_no_values(db: adb.Database, spans: Spans) -> None:
    @db.rule(on=adb.event("E"), name="rule")
    def rule(t: Transaction, o: Occurrence) -> None:
        raise ValueError(SECRET)

    trace(db, spans.provider)
    with pytest.raises(RuleFailed):
        db.signal("E", who=SECRET)
    of_rule, top = spans.one("rule rule"), spans.one("transaction")
    assert of_rule.status.status_code is top.status.status_code is StatusCode.ERROR
    assert of_rule.status.description == "ValueError"
    assert top.status.description == "RuleFailed from ValueError"
    assert attribute(top, "outcome") == "aborted"
    assert top.attributes is not None
    assert top.attributes["error.type"] == "RuleFailed"
    assert not any(SECRET in span.to_json() for span in spans.all)


def test_committed_work_leaves_no_value_in_its_spans(db: adb.Database, spans: Spans) -> None:
    for coupling in ("immediate", "detached"):
        db.rule(on=adb.event("E"), coupling=coupling, name=coupling)(lambda t, o: None)
    trace(db, spans.provider)
    db.signal("E", who=SECRET)
    db.wait_idle()
    assert len(spans.all) == 3
    assert not any(SECRET in span.to_json() for span in spans.all)


def test_open_subtransaction_that_goes_with_its_superior_is_aborted(
    db: adb.Database, spans: Spans
) -> None:
    trace(db, spans.provider)
    with db.transaction() as t:
        t.subtransaction()
        t.abort("enough")
    assert spans.one("subtransaction").status.description == "TransactionAborted"
    assert spans.one("transaction").status.description == "TransactionAborted"


def test_each_try_is_a_span_with_its_number(db: adb.Database, spans: Spans) -> None:
    trace(db, spans.provider)
    tries = []

    def work(t: Transaction) -> None:
        tries.append(t)
        if len(tries) < 3:
            raise SerializationConflict("as the server would say")

    db.run(work)
    found = spans.named("transaction")
    assert [attribute(span, "retries") for span in found] == [0, 1, 2]
    assert [attribute(span, "outcome") for span in found] == ["aborted", "aborted", "committed"]
    assert len({attribute(span, "label") for span in found}) == 1


def test_each_try_of_a_child_is_a_span_with_its_number(db: adb.Database, spans: Spans) -> None:
    trace(db, spans.provider)
    tries = []

    def child(s: Transaction) -> None:
        tries.append(s)
        if len(tries) == 1:
            raise Deadlock("as the lock manager would say")

    with db.transaction() as t:
        t.spawn(child).result()
    found = spans.named("subtransaction")
    assert [attribute(span, "retries") for span in found] == [0, 1]


# -- the rest ------------------------------------------------------------------------------


def test_stopped_tracing_ends_what_lives_and_begins_no_more(db: adb.Database, spans: Spans) -> None:
    tracing = trace(db, spans.provider)
    with db.transaction() as t:
        tracing.stop()
        with t.subtransaction():
            pass
    db.run(lambda t: None)
    assert [span.name for span in spans.all] == ["subtransaction", "transaction"]


def test_two_providers_both_get_their_spans(db: adb.Database) -> None:
    both = Spans(), Spans()
    for spans in both:
        trace(db, spans.provider)
    db.run(lambda t: None)
    assert [len(spans.all) for spans in both] == [1, 1]


class _Broken(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("broken")


def test_processor_that_raises_hurts_no_transaction(
    db: adb.Database, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(_Broken())
    trace(db, provider)
    trace(db, spans.provider)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            db.run(lambda t: None)
    assert db.admin.counters()["transactions_committed"] == 3
    assert len(spans.all) == 3
    assert [r.name for r in caplog.records] == ["activedb.transactions._observers"]


def test_cancelled_transaction_says_so(db: adb.Database, spans: Spans) -> None:
    trace(db, spans.provider)
    with pytest.raises(TransactionCancelled), db.transaction() as t:
        t.cancel(SECRET)
        t.subtransaction()
    assert spans.one("transaction").status.description == "TransactionCancelled"


def test_trace_without_its_library_says_what_to_install(
    db: adb.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=r"opentelemetry.*pip install '\.\[otel\]'"):
        trace(db)
    assert db._forest.observer is None
