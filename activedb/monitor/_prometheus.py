"""Metrics for Prometheus, read from a database object on each scrape."""

from __future__ import annotations

import importlib.metadata
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from activedb.errors import ActiveDBError, ConfigurationError
from activedb.metrics import Histogram
from activedb.monitor._extras import needed
from activedb.monitor._families import (
    BOUNDS_S,
    COUNTED,
    FAMILIES,
    OF_LOCKS,
    PREFIX,
    Family,
    unknown,
)
from activedb.monitor._subject import Subject
from activedb.transactions import Node, Observer, State

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from activedb.store.journals import FiringCounts

__all__ = ["Collector", "Exposition", "Latencies", "collector"]


_Labels: TypeAlias = tuple[str, ...]

_OTHER = "(other)"
_GAUGES = ("partials", "partials_dropped")  # gauges among the counters of a database object
_OUTCOMES = {"processed": "events", "late": "late", "dead": "dead"}  # by their names in the ledger
_ASKED_S_MAX = 1.0
_NEED = "metrics need"


def collector(db: Subject, *, rules_max: int = 100) -> Collector:
    """Return a collector for a Prometheus registry: ``REGISTRY.register(collector(db))``.

    Parameters
    ----------
    db : Database
        The object whose transactions are timed from now on; all else is read on each scrape.
    rules_max : int
        Number of rules with a label each: those that were triggered first. The other rules are
        summed up as ``(other)``.

    Raises
    ------
    ConfigurationError
        If prometheus-client is not installed, or `rules_max` is negative.
    """
    return Collector(db, rules_max)


class Collector:
    """Collector as prometheus-client defines one; made by `collector`.

    A scrape costs O(rules + live transactions), and a few short statements at the server, over dead
    letters, pending firings and the batches of each stream. If the server cannot be reached the
    remaining metrics are reported without these. Safe to use from many threads.
    """

    def __init__(self, db: Subject, rules_max: int):
        if isinstance(rules_max, bool) or not isinstance(rules_max, int) or rules_max < 0:
            raise ConfigurationError(f"rules_max takes a number of rules, not {rules_max!r}")
        self._core = needed("prometheus_client.core", _NEED)
        self._db = db
        self._rules_max = rules_max
        self._latencies = db._forest.observed_by(Latencies)
        self._latch = threading.Lock()
        self._asking = threading.Lock()
        self._labelled: dict[str, None] = {}

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without values, by which a registry refuses a second database."""
        return (self._metric(family) for family in FAMILIES.values())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with their present values."""
        yield self._told("info", {(importlib.metadata.version("activedb"),): 1})
        yield from self._counted()
        yield from self._of_rules()
        yield from self._of_transactions()
        yield from self._of_store()

    # -- parts -----------------------------------------------------------------------------

    def _counted(self) -> Iterator[Metric]:
        counters = self._db.admin.counters()
        counters.pop("events_waiting")  # reported per stream
        for name in _GAUGES:
            yield self._told(name, {(): counters.pop(name)})
        for family in COUNTED:
            yield self._of(family, lambda name: counters.pop(name, 0))
        for name in counters:
            yield self._of(unknown(name), counters.__getitem__)
        of_locks = self._db._forest.locks.counters
        for family in OF_LOCKS:
            yield self._of(family, lambda name: getattr(of_locks, name))

    def _of_rules(self) -> Iterator[Metric]:
        firings: dict[_Labels, int] = {}
        triggered: dict[_Labels, int] = {}
        undecided: dict[_Labels, int] = {}
        durations: dict[_Labels, list[Histogram]] = {}
        for rule, figure in self._db._triggering.figures.of_rules().items():
            label = self._label(rule)
            for outcome, count in figure.outcomes().items():
                key = (label, outcome)
                firings[key] = firings.get(key, 0) + count
            triggered[label,] = triggered.get((label,), 0) + figure.matched
            undecided[label,] = undecided.get((label,), 0) + figure.undecided
            durations.setdefault((label,), []).append(figure.latencies)
        yield self._told("rule_firings", firings)
        yield self._told("rule_triggered", triggered)
        yield self._told("rule_undecided", undecided)
        yield self._spread("rule_duration_seconds", durations)

    def _of_transactions(self) -> Iterator[Metric]:
        found = self._latencies
        outcomes: dict[_Labels, list[Histogram]] = {
            ("committed",): [found.committed],
            ("aborted",): [found.aborted],
        }
        yield self._spread("transaction_duration_seconds", outcomes)
        yield self._spread("commit_duration_seconds", {(): [found.commit]})
        tops, subs = self._db._forest.live()
        yield self._told("transactions_live", {("top-level",): tops, ("sub",): subs})
        waiting = self._db._forest.locks.census().waiting
        yield self._told("lock_requests_waiting", {(): waiting})
        yield self._told("firings_running", {(): self._db._launcher.running})
        runs = sorted(dict(self._db._stream_runs).items())
        yield self._told("events_waiting", {(name,): run.waiting for name, run in runs})

    def _of_store(self) -> Iterator[Metric]:
        """Yield the metrics that only the server knows."""
        found = self._asked()
        yield self._told("store_reachable", {(): 0 if found is None else 1})
        if found is None:
            return
        standing, totals, decisions = found
        left_open: dict[_Labels, int] = {}
        for rule, count in decisions.items():
            label = (self._label(rule),)
            left_open[label] = left_open.get(label, 0) + count
        letters: dict[_Labels, int] = {
            (kind,): standing.letters.get(kind, 0) for kind in ("event", "rule")
        }
        events: dict[_Labels, int] = {
            (name, outcome): of_stream[counted]
            for name, of_stream in totals.items()
            for outcome, counted in _OUTCOMES.items()
        }
        yield self._told("dead_letters", letters)
        yield self._told("decisions_open", left_open)
        undecided: dict[_Labels, int] = {(name,): of["undecided"] for name, of in totals.items()}
        yield self._told("stream_undecided", undecided)
        yield self._told("firings_pending", {(): standing.pending})
        yield self._told("stream_events", events)

    def _asked(self) -> tuple[FiringCounts, dict[str, dict[str, int]], dict[str, int]] | None:
        """Return the server's counts by stream and rule; None if it cannot be asked.

        A scrape waits at most a moment for the statements of another one, so that scrapes do not
        pile up when a server does not answer.
        """
        if not self._asking.acquire(timeout=_ASKED_S_MAX):
            return None
        try:
            if self._db._closed:  # a statement would open a connection that is never closed
                return None
            runs = sorted(dict(self._db._stream_runs).items())
            standing = self._db._launcher.journal.standing()
            totals = {name: {**run.totals(), "undecided": run.undecided()} for name, run in runs}
            return standing, totals, self._db.decisions.open_by_rule()
        except ActiveDBError:
            return None
        finally:
            self._asking.release()

    # -- inside ----------------------------------------------------------------------------

    def _label(self, rule: str) -> str:
        with self._latch:
            if rule not in self._labelled and len(self._labelled) < self._rules_max:
                self._labelled[rule] = None
            return rule if rule in self._labelled else _OTHER

    def _metric(self, family: Family) -> Any:
        kinds = {
            "counter": self._core.CounterMetricFamily,
            "gauge": self._core.GaugeMetricFamily,
            "histogram": self._core.HistogramMetricFamily,
        }
        return kinds[family.kind](PREFIX + family.name, family.help, labels=family.labels)

    def _told(self, name: str, values: Mapping[_Labels, float]) -> Metric:
        return self._filled(FAMILIES[name], values)

    def _of(self, family: Family, value: Callable[[str], float]) -> Metric:
        """Return a counter whose values have other names in `Admin.counters`."""
        return self._filled(family, {key: value(name) for key, name in family.values.items()})

    def _filled(self, family: Family, values: Mapping[_Labels, float]) -> Metric:
        metric = self._metric(family)
        for labels, value in values.items():
            metric.add_metric(labels, value)
        found: Metric = metric
        return found

    def _spread(self, name: str, durations: Mapping[_Labels, list[Histogram]]) -> Metric:
        """Return a histogram; durations under the same labels are added up."""
        metric = self._metric(FAMILIES[name])
        for labels, parts in durations.items():
            found = [part.distribution(BOUNDS_S) for part in parts]
            counts = [sum(column) for column in zip(*(each.at_most for each in found), strict=True)]
            buckets = [(repr(bound), count) for bound, count in zip(BOUNDS_S, counts, strict=True)]
            buckets.append(("+Inf", sum(each.count for each in found)))
            metric.add_metric(labels, buckets, sum(each.total_s for each in found))
        result: Metric = metric
        return result


class Exposition:
    """Metrics of a database object as text, in the format that the client accepts."""

    def __init__(self, db: Subject):
        self._exposition = needed("prometheus_client.exposition", _NEED)
        self._registry = _Alone(collector(db))

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """Return the text and its content type, for an ``Accept`` header."""
        encode, content_type = self._exposition.choose_encoder(accept)
        text: bytes = encode(self._registry)
        return text, str(content_type)


class _Alone:
    """Registry with a single collector, which cannot clash with any other."""

    def __init__(self, one: Collector):
        self._one = one

    def collect(self) -> Iterable[Metric]:
        return self._one.collect()


# -- durations of top-level transactions and of their commits ----------------------------------


class Latencies(Observer):
    """Durations of top-level transactions, one per try; attach at most one instance to a forest.

    A top-level transaction that the caller manages, with blocks of ours inside it, is not measured,
    since its duration is up to the caller.

    Attributes
    ----------
    committed, aborted : Histogram
        Time from the begin of the block, or function, to the end of the commit or abort.
    commit : Histogram
        Time from the end of the work, including all deferred rules, to the end of the commit: the
        server's share.
    """

    def __init__(self) -> None:
        self.committed = Histogram()
        self.aborted = Histogram()
        self.commit = Histogram()
        self._entered: dict[int, float] = {}
        self._committing: dict[int, float] = {}

    def entered(self, t: Node) -> None:
        """Record the begin of a top-level transaction."""
        if t.parent is None:
            self._entered[t.id] = time.perf_counter()

    def committing(self, t: Node) -> None:
        """Record when the work of an entered top-level transaction is done."""
        if t.id in self._entered:
            self._committing[t.id] = time.perf_counter()

    def ended(self, t: Node) -> None:
        """Record the durations of a transaction that was entered."""
        began_s = self._entered.get(t.id)
        if began_s is None:
            return
        now_s = time.perf_counter()
        committing_s = self._committing.pop(t.id, None)
        if t.state is not State.COMMITTED:
            self.aborted.record(now_s - began_s)
            return
        self.committed.record(now_s - began_s)
        if committing_s is not None:
            self.commit.record(now_s - committing_s)

    def left(self, t: Node) -> None:
        """Forget the times of a transaction."""
        self._entered.pop(t.id, None)
