"""Routes: the answer for each path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import parse_qs, unquote

from activedb.errors import (
    BadEvent,
    ConfigurationError,
    DecisionClosed,
    DefinitionError,
    RuleFailed,
)
from activedb.monitor._source import ReadOnly, Source

__all__ = ["HttpResponse", "Metrics", "RequestRefused", "answer"]

_DIGITS_MAX = 18

Metrics: TypeAlias = Callable[[str], tuple[bytes, str]]
"""Callable that returns, for an ``Accept`` header, the text for Prometheus and its content type."""


class RequestRefused(Exception):
    """A request that is refused; `message` says what is wrong and what to do."""

    def __init__(self, status: HTTPStatus, message: str, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers or {}


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Response: a mapping is sent as JSON, a text unchanged with its content type."""

    content: Mapping[str, Any] | tuple[bytes, str]
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


def answer(
    source: Source,
    path: str,
    query_string: str,
    *,
    is_post: bool,
    accept: str = "",
    metrics: Metrics | None = None,
) -> HttpResponse:
    """Answer a request that has passed the access checks.

    Parameters
    ----------
    path, query_string : str
        As received, so that a name in the path may contain a quoted slash.
    accept : str
        The ``Accept`` header.
    metrics : callable, optional
        Returns the response of ``/metrics``.

    Raises
    ------
    RequestRefused
        If there is no such path, a parameter is meaningless, or the request cannot be served.
    """
    try:
        query = parse_qs(query_string, max_num_fields=20)
    except ValueError as error:
        raise RequestRefused(HTTPStatus.BAD_REQUEST, f"the query cannot be read: {error}") from None
    words = [unquote(word) for word in path.split("/")[1:]]
    try:
        return (
            _post(source, words, query) if is_post else _get(source, words, query, accept, metrics)
        )
    except DefinitionError as error:
        raise RequestRefused(HTTPStatus.NOT_FOUND, str(error)) from error
    except ConfigurationError as error:
        raise RequestRefused(HTTPStatus.BAD_REQUEST, str(error)) from error


def _get(
    source: Source,
    words: list[str],
    query: Mapping[str, list[str]],
    accept: str,
    metrics: Metrics | None,
) -> HttpResponse:
    match words:
        case ["healthz"]:
            return HttpResponse({"status": "ok"})
        case ["metrics"] if metrics is not None:
            return HttpResponse(metrics(accept))
        case ["metrics"]:
            raise RequestRefused(
                HTTPStatus.NOT_FOUND,
                "metrics need prometheus-client, which is not installed where the monitor runs: "
                "pip install '.[otel]'",
            )
        case ["api", "state"]:
            since = _one(query, "since")
            return HttpResponse(source.state(0 if since is None else _number("since", since)))
        case ["api", "transactions", id]:
            return _found(source.transaction(_number("the transaction's id", id)), "transaction")
        case ["api", "deadlocks", n]:
            return _found(source.deadlock(_number("the deadlock's number", n)), "deadlock")
        case ["api", "batches"]:
            return HttpResponse(source.batches(_one(query, "workflow"), _one(query, "id")))
        case ["api", "letters"]:
            return HttpResponse(source.letters())
        case ["api", "decisions"]:
            return HttpResponse(source.decisions())
        case ["api", "pending"]:
            return HttpResponse(source.pending())
        case ["api", "rules", _, "enable" | "disable"] | ["api", "decisions", _, "resolve"]:
            raise RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED, "use POST", {"Allow": "POST"})
    raise _nothing_there()


def _post(source: Source, words: list[str], query: Mapping[str, list[str]]) -> HttpResponse:
    try:
        match words:
            case ["api", "rules", rule, "enable" | "disable" as verb]:
                source.switch(rule, verb == "enable")
                return HttpResponse({"rule": rule, "enabled": verb == "enable"})
            case ["api", "decisions", id, "resolve"]:
                chosen = _chosen(_one(query, "choose"))
                source.resolve(id, chosen)
                return HttpResponse({"decision": id, "chosen": chosen})
    except ReadOnly as error:
        raise RequestRefused(HTTPStatus.FORBIDDEN, str(error)) from error
    except (BadEvent, DecisionClosed, RuleFailed) as error:
        raise RequestRefused(HTTPStatus.CONFLICT, str(error)) from error
    raise _nothing_there()


def _chosen(text: str | None) -> list[int]:
    """Return the numbers of the chosen candidates, given as ``0,2`` or ``none``."""
    if text is None:
        raise RequestRefused(
            HTTPStatus.BAD_REQUEST, "state the choice: ?choose=0 (or 0,2), or ?choose=none"
        )
    if text == "none":
        return []
    return [_number("the number of a candidate", each) for each in text.split(",")]


def _nothing_there() -> RequestRefused:
    return RequestRefused(
        HTTPStatus.NOT_FOUND,
        "there is nothing at this path; docs/monitoring.md lists the paths",
    )


def _found(told: dict[str, Any] | None, what: str) -> HttpResponse:
    if told is None:
        raise RequestRefused(
            HTTPStatus.NOT_FOUND, f"nothing is kept of such a {what}, or not any more"
        )
    return HttpResponse(told)


def _one(query: Mapping[str, list[str]], name: str) -> str | None:
    values = query.get(name)
    if values is not None and len(values) > 1:
        raise RequestRefused(
            HTTPStatus.BAD_REQUEST, f"{name} is given {len(values)} times; give one"
        )
    return None if values is None else values[0]


def _number(what: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS_MAX:
        raise RequestRefused(HTTPStatus.BAD_REQUEST, f"{what} is a number, not {text[:40]!r}")
    return int(text)
