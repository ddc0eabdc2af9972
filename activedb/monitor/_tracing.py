"""Traces for OpenTelemetry: a span for each transaction.

```
  your span ─► transaction ─┬─► rule (immediate)
                  ▲    ▲    └─► rule (deferred) ──► subtransaction
          link ───┘    └─── link
      rule (detached)   rule (sequential)      each the root of a separate trace, perhaps in
                                               another process: the firing's record carries it
```
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Any

from activedb.monitor._extras import needed
from activedb.monitor._source import Subject
from activedb.store.journals import Repeated
from activedb.transactions import Observer, State, TransactionNode

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, TracerProvider

__all__ = ["Tracing", "trace"]

_NEED = "traces need"
_TRACEPARENT = "traceparent"


def trace(db: Subject, tracer_provider: TracerProvider | None = None) -> Tracing:
    """Make a span of each transaction that begins from now on.

    Parameters
    ----------
    db : Database
    tracer_provider : opentelemetry.trace.TracerProvider, optional
        The global one by default.

    Returns
    -------
    Tracing
        Its `stop` ends the tracing.

    Raises
    ------
    ConfigurationError
        If OpenTelemetry is not installed.
    """
    return Tracing(db, tracer_provider)


@dataclass(slots=True)
class _Open:
    """A span that has not ended.

    Attributes
    ----------
    error : str
        Reason of the abort, as names of types.
    failed : dict of str to int
        Number of aborted tries of each child, by label.
    """

    span: Span
    error: str = ""
    failed: dict[str, int] = field(default_factory=dict)


class Tracing(Observer):
    """Observer that makes a span of each transaction; made by `trace`.

    The span of a transaction is OpenTelemetry's current one while its block runs, so calls made by
    a rule show up under it. The span that is current when a top-level transaction is entered is the
    parent. The span of a firing has no parent but a link to the span in which it was triggered.

    Spans contain names of rules, kinds of errors and numbers, but no rows, no parameters of events
    and no texts of errors.
    """

    def __init__(self, db: Subject, tracer_provider: TracerProvider | None):
        self._trace = needed("opentelemetry.trace", _NEED)
        self._context = needed("opentelemetry.context", _NEED)
        propagation = needed("opentelemetry.trace.propagation.tracecontext", _NEED)
        self._propagator = propagation.TraceContextTextMapPropagator()
        version = importlib.metadata.version("activedb")
        self._tracer = self._trace.get_tracer("activedb", version, tracer_provider)
        # By transaction id; a thread changes only the spans of its own transactions.
        self._open: dict[int, _Open] = {}
        self._tokens: dict[int, tuple[int, Token[Context]]] = {}  # with the thread
        self._forest = db.admin.internals.forest
        self._forest.observe(self)

    def stop(self) -> None:
        """Make no more spans; spans of live transactions end as usual."""
        self._forest.unobserve(self)

    # -- what the forest calls -------------------------------------------------------------

    def began(self, t: TransactionNode) -> None:
        """Begin the span of a subtransaction."""
        if t.parent is not None:  # a top-level one may never be entered
            self._start(t)

    def entered(self, t: TransactionNode) -> None:
        """Make the span current; for a top-level transaction, begin it first."""
        span = self._of(t).span
        token = self._context.attach(self._trace.set_span_in_context(span))
        self._tokens[t.id] = get_ident(), token

    def left(self, t: TransactionNode) -> None:
        """Make the previously current span current again."""
        thread, token = self._tokens.pop(t.id, (None, None))
        if token is not None and thread == get_ident():  # on another thread it is not current
            self._context.detach(token)

    def spawned(self, t: TransactionNode, firing: str, coupling: str) -> None:
        """Note in the span that a rule was triggered that runs elsewhere."""
        attributes = {"activedb.firing": firing, "activedb.coupling": str(coupling)}
        self._of(t).span.add_event("rule triggered", attributes)

    def carried(self, t: TransactionNode) -> str | None:
        """Return the span in the format of W3C's ``traceparent``."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._trace.set_span_in_context(self._of(t).span))
        return carrier.get(_TRACEPARENT)

    def failing(self, t: TransactionNode, error: BaseException | None) -> None:
        """Record the reason of an abort."""
        opened = self._open.get(t.id)
        if opened is not None:
            opened.error = _kinds(error)

    def ended(self, t: TransactionNode) -> None:
        """End the span."""
        opened = self._open.pop(t.id, None)
        if opened is None:
            return
        span = opened.span
        is_committed = t.state is State.COMMITTED
        span.set_attribute("activedb.outcome", str(t.state))
        if not is_committed:
            # An aborting superior takes its open inferiors along, without a notification for each.
            error = opened.error or "TransactionAborted"
            span.set_attribute("error.type", error.partition(" ")[0])
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error))
        above = None if t.parent is None else self._open.get(t.parent.id)
        if above is not None and not is_committed:
            above.failed[t.label] = above.failed.get(t.label, 0) + 1
        span.end()

    # -- inside ----------------------------------------------------------------------------

    def _of(self, t: TransactionNode) -> _Open:
        return self._open.get(t.id) or self._start(t)

    def _start(self, t: TransactionNode) -> _Open:
        """Begin the span of `t`; before it that of its superior, if the caller's has none yet."""
        run = t.hierarchy.run
        links: tuple[Link, ...] = ()
        attributes: dict[str, Any] = {"activedb.transaction": t.id, "activedb.label": t.label}
        if t.parent is not None:
            above = self._of(t.parent)
            context = self._trace.set_span_in_context(above.span)
            attributes["activedb.retries"] = above.failed.get(t.label, 0)
        else:
            # The pool may run a firing on a thread where an unrelated span is current.
            context = None if run.coupling is None else self._context.Context()
            links = self._links(run.origin)
            attributes["activedb.retries"] = run.tries - 1
        if t.rule is not None:
            attributes["activedb.rule"] = t.rule
        if t.coupling is not None:
            attributes["activedb.coupling"] = t.coupling
        span = self._tracer.start_span(
            _name(t), context=context, attributes=attributes, links=links
        )
        opened = self._open[t.id] = _Open(span)
        return opened

    def _links(self, origin: str | None) -> tuple[Link, ...]:
        """Return a link to the span that triggered a firing, if its record has one."""
        if not isinstance(origin, str):
            return ()
        context = self._propagator.extract({_TRACEPARENT: origin}, self._context.Context())
        found = self._trace.get_current_span(context).get_span_context()
        return (self._trace.Link(found),) if found.is_valid else ()


def _name(t: TransactionNode) -> str:
    if t.rule is not None:
        return f"rule {t.rule}"
    if t.parent is not None:
        return "subtransaction"
    is_batch = t.hierarchy.run.batch in (Repeated.STREAM, Repeated.WORKFLOW)
    return "batch" if is_batch else "transaction"


def _kinds(error: BaseException | None) -> str:
    """Return the types of an error and its causes, without messages, which may quote values."""
    kinds: list[str] = []
    while error is not None and len(kinds) < 5:
        kinds.append(type(error).__name__)
        error = error.__cause__
    return " from ".join(kinds)
