"""Log records with the transaction and the rule in which they were logged."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

from activedb.transactions import TransactionNode, current_transaction

__all__ = ["JsonFormatter", "TransactionFilter", "json_handler"]

_KEPT = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_CAUSES_MAX = 10


class TransactionFilter(logging.Filter):
    """Filter that adds the thread's current transaction to each record; it lets every record pass.

    Add it to a handler, not to a logger, so that it sees the records of all loggers. With a
    ``QueueHandler``, add it to that handler, as the listener at the other end runs on another
    thread. A ``QueueHandler`` appends an exception's traceback and text to the message.

    Attributes of a record (each None if it does not apply; values given by ``extra=`` are kept):

    ================== ==========================================================================
    ``transaction``    id of the innermost transaction
    ``top``            id of the top-level transaction around it
    ``path``           its place in the hierarchy, the same whenever the work is tried again
    ``rule``           name of the rule that runs in it, or in the nearest superior
    ``coupling``       the mode in which that rule was triggered
    ``trace_id``       trace id of OpenTelemetry's current span, in hexadecimal digits
    ``span_id``        span id of that span, in hexadecimal digits
    ================== ==========================================================================
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attributes and return True; O(depth of the transaction)."""
        t = current_transaction()
        of_rule = None if t is None else _in_rule(t)
        trace_id, span_id = _of_span()
        found = {
            "transaction": None if t is None else t.id,
            "top": None if t is None else t.hierarchy.top_id,
            "path": None if t is None else t.path,
            "rule": None if of_rule is None else of_rule.rule,
            "coupling": None if of_rule is None else of_rule.coupling,
            "trace_id": trace_id,
            "span_id": span_id,
        }
        for name, value in found.items():
            if getattr(record, name, None) is None:
                setattr(record, name, value)
        return True


class JsonFormatter(logging.Formatter):
    """Formatter that writes one JSON object per record, on one line.

    An object has ``time`` (UTC, ISO 8601), ``level``, ``logger``, ``message``, ``thread``, the
    attributes that `TransactionFilter` has added and that are not None, and those of ``extra=``; a
    value of ``extra=`` with the name of another field has the prefix ``extra_``. For an exception
    ``error`` lists kinds and places, from the raised exception to its first cause; with
    ``stack_info=True`` there is a ``stack``.

    Parameters
    ----------
    values : bool
        Write the texts of exceptions, too. They may quote rows and keys, so by default they are
        left out. A message is always written as it is, with the text that a ``QueueHandler`` has
        appended.
    """

    def __init__(self, *, values: bool = False):
        super().__init__()
        self._values = values

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its terminator."""
        when = datetime.fromtimestamp(record.created, UTC)
        found: dict[str, Any] = {
            "time": when.isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "thread": record.threadName,
        }
        for name, value in vars(record).items():
            if name not in _KEPT and value is not None:
                found[f"extra_{name}" if name in found else name] = value
        if record.exc_info and record.exc_info[1] is not None:
            found["error"] = list(self._told(record.exc_info[1]))
        if record.stack_info:
            found["stack"] = record.stack_info
        return _as_json(found)

    def _told(self, error: BaseException) -> Iterator[dict[str, Any]]:
        one: BaseException | None = error
        for _ in range(_CAUSES_MAX):
            if one is None:
                return
            frames = traceback.extract_tb(one.__traceback__)
            told: dict[str, Any] = {"kind": type(one).__name__}
            if self._values:
                told["text"] = str(one)
            told["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
            yield told
            one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def json_handler(stream: TextIO | None = None, *, values: bool = False) -> logging.Handler:
    """Return a handler that writes JSON: ``logging.getLogger().addHandler(json_handler())``.

    Parameters
    ----------
    stream : file, optional
        Standard error by default.
    values : bool
        See `JsonFormatter`.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.addFilter(TransactionFilter())
    handler.setFormatter(JsonFormatter(values=values))
    return handler


def _as_json(found: dict[str, Any]) -> str:
    """Return JSON for any ``extra=`` values; a value that JSON cannot hold appears as its repr.

    The JSON is ASCII: lone surrogates can be written, and no character is taken for a line's end.
    """
    try:
        return json.dumps(found, allow_nan=False, default=repr)
    except (TypeError, ValueError, RecursionError):  # a key, a number, or a cyclic value
        texts = {name: _held(value) for name, value in found.items()}
        return json.dumps(texts)


def _held(value: Any) -> Any:
    """Return the value if JSON can represent all of it, else its repr."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return repr(value)
    return value


def _in_rule(t: TransactionNode) -> TransactionNode | None:
    """Return the nearest of `t` and its superiors in which a rule runs."""
    node: TransactionNode | None = t
    while node is not None and node.rule is None:
        node = node.parent
    return node


def _of_span() -> tuple[str | None, str | None]:
    """Return the ids of trace and span, if the program uses OpenTelemetry."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None or not hasattr(trace, "format_span_id"):  # absent, or being imported
        return None, None
    found = trace.get_current_span().get_span_context()
    if not found.is_valid:
        return None, None
    return trace.format_trace_id(found.trace_id), trace.format_span_id(found.span_id)
