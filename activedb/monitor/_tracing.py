"""Traces for OpenTelemetry: a span for each transaction.

```
  your span ─► transaction ─┬─► rule (immediate)
                  ▲    ▲    └─► rule (deferred) ──► subtransaction
          link ───┘    └─── link
      rule (detached)   rule (sequential)      each the root of a trace of its own, perhaps in
                                               another process: the firing's record has carried it
```
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Any

from activedb.monitor._extras import needed
from activedb.monitor._subject import Subject
from activedb.transactions import Observer, State, Transaction

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
        Its `stop` ends that.

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
        Why the transaction aborts, in names of types.
    failed : dict of str to int
        How many tries of each child have aborted, by label.
    """

    span: Span
    error: str = ""
    failed: dict[str, int] = field(default_factory=dict)


class Tracing(Observer):
    """Makes spans of transactions; made by `trace`.

    The span of a transaction is the current one of OpenTelemetry while its block runs, so what a
    rule calls shows up under it; and what is current when a top-level transaction is entered is
    its parent. That of a firing has none: it has a link to the span in which it was triggered.

    Spans have the names of rules, kinds of errors and numbers in them, but no row, no parameter of
    an event and no text of an error.
    """

    def __init__(self, db: Subject, tracer_provider: TracerProvider | None):
        self._trace = needed("opentelemetry.trace", _NEED)
        self._context = needed("opentelemetry.context", _NEED)
        propagation = needed("opentelemetry.trace.propagation.tracecontext", _NEED)
        self._propagator = propagation.TraceContextTextMapPropagator()
        version = importlib.metadata.version("activedb")
        self._tracer = self._trace.get_tracer("activedb", version, tracer_provider)
        # By the transactions' ids; a thread changes those of its own transactions only.
        self._open: dict[int, _Open] = {}
        self._tokens: dict[int, tuple[int, Token[Context]]] = {}  # with the thread
        self._forest = db._forest
        self._forest.observe(self)

    def stop(self) -> None:
        """Make no more spans; those of transactions that live end as they do."""
        self._forest.unobserve(self)

    # -- what the forest calls -------------------------------------------------------------

    def began(self, t: Transaction) -> None:
        """Begin the span of a subtransaction."""
        if t.parent is not None:  # a top-level one may never be entered
            self._start(t)

    def entered(self, t: Transaction) -> None:
        """Make the span the current one, first begin that of a top-level transaction."""
        span = self._of(t).span
        token = self._context.attach(self._trace.set_span_in_context(span))
        self._tokens[t.id] = get_ident(), token

    def left(self, t: Transaction) -> None:
        """Make that span the current one that was so before."""
        thread, token = self._tokens.pop(t.id, (None, None))
        if token is not None and thread == get_ident():  # elsewhere it is not the current one
            self._context.detach(token)

    def spawned(self, t: Transaction, firing: str, coupling: str) -> None:
        """Note in the span that a rule was triggered which runs elsewhere."""
        attributes = {"activedb.firing": firing, "activedb.coupling": str(coupling)}
        self._of(t).span.add_event("rule triggered", attributes)

    def carried(self, t: Transaction) -> str | None:
        """The span, as W3C's ``traceparent`` puts it."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._trace.set_span_in_context(self._of(t).span))
        return carrier.get(_TRACEPARENT)

    def failing(self, t: Transaction, error: BaseException | None) -> None:
        """Keep why."""
        opened = self._open.get(t.id)
        if opened is not None:
            opened.error = _kinds(error)

    def ended(self, t: Transaction) -> None:
        """End the span."""
        opened = self._open.pop(t.id, None)
        if opened is None:
            return
        span = opened.span
        is_committed = t.state is State.COMMITTED
        span.set_attribute("activedb.outcome", str(t.state))
        if not is_committed:
            # A superior that aborts takes along whoever is open, without a word to each.
            error = opened.error or "TransactionAborted"
            span.set_attribute("error.type", error.partition(" ")[0])
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error))
        above = None if t.parent is None else self._open.get(t.parent.id)
        if above is not None and not is_committed:
            above.failed[t.label] = above.failed.get(t.label, 0) + 1
        span.end()

    # -- inside ----------------------------------------------------------------------------

    def _of(self, t: Transaction) -> _Open:
        return self._open.get(t.id) or self._start(t)

    def _start(self, t: Transaction) -> _Open:
        """Begin the span of `t`; first that of its superior, if a caller's own is not there yet."""
        run = t.hierarchy.run
        links: tuple[Link, ...] = ()
        attributes: dict[str, Any] = {"activedb.transaction": t.id, "activedb.label": t.label}
        if t.parent is not None:
            above = self._of(t.parent)
            context = self._trace.set_span_in_context(above.span)
            attributes["activedb.retries"] = above.failed.get(t.label, 0)
        else:
            # The pool may run a firing on a thread where something else is under way.
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
        """A link to the span that has triggered a firing, if its record tells of one."""
        if not isinstance(origin, str):
            return ()
        context = self._propagator.extract({_TRACEPARENT: origin}, self._context.Context())
        found = self._trace.get_current_span(context).get_span_context()
        return (self._trace.Link(found),) if found.is_valid else ()


def _name(t: Transaction) -> str:
    if t.rule is not None:
        return f"rule {t.rule}"
    if t.parent is not None:
        return "subtransaction"
    return "batch" if t.hierarchy.run.is_batch else "transaction"


def _kinds(error: BaseException | None) -> str:
    """What went wrong and why, without what it says: that may have values of users in it."""
    kinds: list[str] = []
    while error is not None and len(kinds) < 5:
        kinds.append(type(error).__name__)
        error = error.__cause__
    return " from ".join(kinds)
