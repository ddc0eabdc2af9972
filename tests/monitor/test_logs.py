"""Structured logs: which transaction and which rule a record belongs to."""

from __future__ import annotations

import io
import json
import logging
import logging.handlers
import os
import queue
import sys
from datetime import datetime
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

import activedb as adb
from activedb.monitor import JsonFormatter, TransactionFilter, json_handler, trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from activedb import Occurrence, Transaction

SECRET = "Jane Doe"
LOG = logging.getLogger("tests.users")


@pytest.fixture
def lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Yield a function that returns what has been logged so far, read as JSON."""
    stream = io.StringIO()
    handler = json_handler(stream)
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    LOG.removeHandler(handler)


def test_record_outside_of_transactions_has_no_transaction(lines: Any) -> None:
    LOG.info("hello %s", "world", extra={"order": 7, "none": None})
    (line,) = lines()
    assert datetime.fromisoformat(line.pop("time")).utcoffset() is not None
    assert line == {
        "level": "INFO",
        "logger": "tests.users",
        "message": "hello world",
        "thread": "MainThread",
        "order": 7,
    }


def test_record_inside_a_rule_has_transaction_and_rule(db: adb.Database, lines: Any) -> None:
    found = []

    @db.rule(on=adb.event("E"), coupling="deferred", name="careful")
    def rule(t: Transaction, o: Occurrence) -> None:
        with t.subtransaction() as s:
            LOG.info("here")
            found.append(s)

    with db.transaction() as top:
        db.signal("E")
        LOG.info("before")
    before, here = lines()
    (s,) = found
    assert (before["transaction"], before["top"]) == (top.id, top.id)
    assert "rule" not in before
    assert here["transaction"] == s.id
    assert here["top"] == top.id
    assert here["path"] == s.path
    assert (here["rule"], here["coupling"]) == ("careful", "deferred")


@pytest.mark.parametrize("coupling", ["detached", "sequential"])
def test_record_of_a_firing_has_its_mode_and_thread(
    db: adb.Database, lines: Any, coupling: str
) -> None:
    db.rule(on=adb.event("E"), coupling=coupling, name="rule")(lambda t, o: LOG.info("here"))
    db.signal("E")
    db.wait_idle()
    (line,) = lines()
    assert (line["rule"], line["coupling"]) == ("rule", coupling)
    assert line["top"] == line["transaction"]
    assert line["thread"] != "MainThread"


def test_record_has_the_ids_of_the_current_span(db: adb.Database, lines: Any) -> None:
    trace(db, TracerProvider())
    with db.transaction():
        LOG.info("here")
    LOG.info("outside")
    here, outside = lines()
    assert (len(here["trace_id"]), len(here["span_id"])) == (32, 16)
    assert "trace_id" not in outside


def test_exception_is_told_by_kinds_and_places_alone(lines: Any) -> None:
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise ValueError(SECRET) from error
    except ValueError:
        LOG.exception("it failed")
    (line,) = lines()
    assert [error["kind"] for error in line["error"]] == ["ValueError", "KeyError"]
    assert all("test_logs.py" in error["at"][-1] for error in line["error"])
    assert SECRET not in json.dumps(line)


def test_exception_is_told_with_its_text_if_asked() -> None:
    try:
        raise ValueError(SECRET)
    except ValueError as error:
        told = (type(error), error, error.__traceback__)
        record = LOG.makeRecord("l", logging.ERROR, "f", 1, "m", (), told)
    (error_told,) = json.loads(JsonFormatter(values=True).format(record))["error"]
    assert (error_told["kind"], error_told["text"]) == ("ValueError", SECRET)


def test_endless_chain_of_causes_is_cut() -> None:
    first = error = ValueError()
    for _ in range(50):
        error.__cause__ = error = ValueError()
    record = LOG.makeRecord("l", logging.ERROR, "f", 1, "m", (), (ValueError, first, None))
    assert len(json.loads(JsonFormatter().format(record))["error"]) == 10


def test_extra_value_that_is_no_json_is_shown(lines: Any) -> None:
    LOG.info("line one\nline two", extra={"what": {1, 2}, "message_": "\N{SNOWMAN}"})
    (line,) = lines()
    assert line["message"] == "line one\nline two"
    assert (line["what"], line["message_"]) == ("{1, 2}", "\N{SNOWMAN}")


def test_extra_of_the_application_is_not_overwritten(db: adb.Database, lines: Any) -> None:
    LOG.info("outside", extra={"path": "/orders", "rule": "of the house"})
    with db.transaction() as t:
        LOG.info("inside", extra={"path": "/orders"})
    outside, inside = lines()
    assert (outside["path"], outside["rule"]) == ("/orders", "of the house")
    assert (inside["path"], inside["transaction"]) == ("/orders", t.id)


def test_extra_that_json_cannot_hold_loses_no_record(lines: Any) -> None:
    inside_itself: list[Any] = []
    inside_itself.append(inside_itself)
    for value in (float("nan"), {(1, 2): 3}, inside_itself):
        LOG.info("odd", extra={"value": value, "order": 7})
    assert [line["value"] for line in lines()] == ["nan", "{(1, 2): 3}", "[[...]]"]
    assert [line["order"] for line in lines()] == [7, 7, 7]


def test_filter_at_a_queue_handler_sees_the_thread_that_logs(db: adb.Database) -> None:
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = logging.handlers.QueueHandler(records)
    handler.addFilter(TransactionFilter())
    LOG.addHandler(handler)
    try:
        with db.transaction() as t:
            LOG.warning("here")
    finally:
        LOG.removeHandler(handler)
    assert records.get_nowait().transaction == t.id  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text",
    [os.fsdecode(b"\xff"), "one\u2028two\u0085three", "tör"],
    ids=["surrogate", "separators", "umlaut"],
)
def test_any_text_is_one_line_that_can_be_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log"
    with path.open("w", encoding="utf-8") as stream:
        alone = logging.Logger("alone")  # reports of tests cannot hold such texts
        alone.addHandler(json_handler(stream))
        alone.warning("%s", text, extra={"more": text})
        alone.warning("%s", text, extra={"more": {1j: text}})
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["message"] for line in lines] == [text, text]


def test_no_extra_value_is_lost_and_the_stack_is_written(lines: Any) -> None:
    LOG.info("here", extra={"time": 1, "level": "mine", "logger": "x"}, stack_info=True)
    (line,) = lines()
    assert (line["extra_time"], line["extra_level"], line["extra_logger"]) == (1, "mine", "x")
    assert line["level"] == "INFO"
    assert "test_no_extra_value_is_lost" in line["stack"]


def test_record_is_written_while_opentelemetry_is_being_imported(
    lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", ModuleType("opentelemetry.trace"))
    LOG.info("here")
    (line,) = lines()
    assert "trace_id" not in line
