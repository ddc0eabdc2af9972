"""Metrics for Prometheus, read from a database object on each scrape."""

from __future__ import annotations

import importlib.metadata
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from activedb.errors import ActiveDBError, ConfigurationError
from activedb.metrics import Histogram
from activedb.monitor._extras import needed
from activedb.monitor._source import Subject
from activedb.transactions import Observer, State, TransactionNode

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from activedb.store.journals import FiringCounts

__all__ = [
    "BOUNDS_S",
    "COUNTED",
    "FAMILIES",
    "OF_LOCKS",
    "PREFIX",
    "Collector",
    "Exposition",
    "Family",
    "Latencies",
    "collector",
    "grafana_dashboard",
    "unknown",
]


def grafana_dashboard() -> str:
    """Return a dashboard over the metrics of `collector`, as JSON that Grafana imports."""
    return (resources.files(__package__) / "grafana" / "activedb.json").read_text("utf-8")


# -- definitions of all metrics: names, labels and help texts --------------------------------------


PREFIX = "activedb_"

BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""Upper bounds of the histograms' buckets; longer durations are in the last bucket, ``+Inf``."""

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric.

    Attributes
    ----------
    name : str
        Name without the prefix, and without the ``_total`` suffix of a counter.
    kind : {"counter", "gauge", "histogram"}
    help : str
    labels : tuple of str
    values : dict of tuple of str to str
        For a counter of `Admin.counters`: its name there for each combination of labels.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    values: Mapping[tuple[str, ...], str] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        """Name used in queries; for a histogram, the name of its buckets without ``_bucket``."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


def _counted(name: str, help: str, value: str | None = None) -> Family:
    """Return a counter that `Admin.counters` has under the same name, or under `value`."""
    return Family(name, "counter", help, values={(): value or name})


COUNTED = (
    Family(
        "transactions",
        "counter",
        "Top-level transactions that have ended; each try is one.",
        ("outcome",),
        {("committed",): "transactions_committed", ("aborted",): "transactions_aborted"},
    ),
    Family(
        "subtransactions",
        "counter",
        "Subtransactions that have ended; each try is one.",
        ("outcome",),
        {("committed",): "subtransactions_committed", ("aborted",): "subtransactions_aborted"},
    ),
    Family(
        "transactions_interrupted",
        "counter",
        "Transactions that were ended from outside.",
        ("reason",),
        {("cancelled",): "transactions_cancelled", ("timeout",): "transactions_timed_out"},
    ),
    Family(
        "queries",
        "counter",
        "Queries, by what they lock: rows alone, predicates and rows, or a table as a whole.",
        ("locks",),
        {
            ("rows",): "queries_locking_rows",
            ("predicates",): "queries_locking_predicates",
            ("tables",): "queries_locking_tables",
        },
    ),
    Family(
        "retries",
        "counter",
        "Failures of transactions after which the same work was tried again.",
        ("cause",),
        {
            ("deadlock",): "retries_after_deadlocks",
            ("lock_timeout",): "retries_after_lock_timeouts",
            ("serialization_conflict",): "retries_after_serialization_conflicts",
            ("connection_lost",): "retries_after_connections_lost",
        },
    ),
    Family(
        "s_transactions",
        "counter",
        "Transactions of programs over streams, by outcome.",
        ("outcome",),
        {("committed",): "s_transactions_committed", ("aborted",): "s_transactions_aborted"},
    ),
    _counted("retries_exhausted", "Failures after which no further try was allowed."),
    _counted("transactions_retried", "Tries after the first one."),
    _counted("cancels_failed", "Statements that could not be cancelled, as the server was gone."),
    _counted("sessions_lost", "Sessions that ended as the connection was lost."),
    _counted("deadlocks_crossing", "Deadlocks that went through the server."),
    _counted("dependents_rolled_back", "Causal rules rolled back in a deadlock with their cause."),
    _counted("hierarchies_recorded", "Hierarchies that were recorded for an audit."),
    _counted(
        "hierarchies_dropped",
        "Recorded hierarchies that were dropped for lack of room.",
    ),
    _counted("matches", "Composite events that were detected."),
    _counted("matches_undecided", "Possible matches that were left open; see rule_undecided."),
    _counted("rules_fired", "Actions of rules that were run; see rule_firings."),
    _counted("rules_failed", "Rules that have failed alone, for good, and left a dead letter."),
    _counted("rules_quarantined", "Rules that were put into quarantine."),
    _counted("partials_not_durable", "Partial matches that could not be made durable."),
    _counted("producers_silent", "Times that a producer of a stream was found silent."),
)
"""Counters of `Admin.counters`."""

OF_LOCKS = (
    _counted("lock_requests", "Requests for locks, those on tables included.", "requests"),
    _counted("lock_grants", "Requests for locks that were granted.", "grants"),
    _counted("lock_waits", "Requests for which a thread went to sleep.", "waits"),
    _counted("lock_wait_seconds", "Time that threads slept for locks.", "wait_s_total"),
    _counted("lock_timeouts", "Requests that were given up.", "timeouts"),
    _counted("deadlocks", "Cycles found in the wait-for graph.", "deadlocks"),
    _counted("deadlock_victims", "Waits that were ended to break a deadlock.", "victims"),
    _counted("lock_escalations", "Exchanges of row locks for one on the table.", "escalations"),
)
"""Counters of the lock manager."""

FAMILIES = {
    family.name: family
    for family in (
        *COUNTED,
        *OF_LOCKS,
        Family("info", "gauge", "Always 1; which activedb this is.", ("version",)),
        Family(
            "rule_firings",
            "counter",
            "Runs of rules, by outcome; a rule in quarantine was not run.",
            ("rule", "outcome"),
        ),
        Family("rule_triggered", "counter", "How often a rule was triggered.", ("rule",)),
        Family("rule_undecided", "counter", "Choices that a rule has left open.", ("rule",)),
        Family(
            "rule_duration_seconds",
            "histogram",
            "From the start of a rule's run to the end of its action.",
            ("rule",),
        ),
        Family(
            "transaction_duration_seconds",
            "histogram",
            "From the begin of a top-level transaction to its end; each try is one.",
            ("outcome",),
        ),
        Family(
            "commit_duration_seconds",
            "histogram",
            "From the end of the work of a top-level transaction to the end of its commit.",
        ),
        Family("transactions_live", "gauge", "Transactions that have not ended.", ("kind",)),
        Family("lock_requests_waiting", "gauge", "Transactions that wait for a lock."),
        Family("partials", "gauge", "Occurrences that detectors keep for later matches."),
        Family("partials_dropped", "gauge", "Occurrences that detectors had no room for."),
        Family("firings_running", "gauge", "Firings that this process has started."),
        Family("events_waiting", "gauge", "Events that punctuation has not passed.", ("stream",)),
        Family(
            "stream_events",
            "counter",
            "Events of a stream since it began, from the database.",
            ("stream", "outcome"),
        ),
        Family("dead_letters", "gauge", "Dead letters in the database.", ("kind",)),
        Family("decisions_open", "gauge", "Choices in the database that are open.", ("rule",)),
        Family(
            "stream_undecided",
            "gauge",
            "Choices in the database that events of a stream have left open.",
            ("stream",),
        ),
        Family("firings_pending", "gauge", "Firings in the database that are not done."),
        Family("store_reachable", "gauge", "1 if the database could be read for this, else 0."),
    )
}
"""All metrics by name."""


def unknown(name: str) -> Family:
    """Return a metric for a counter that no family describes."""
    return _counted(name, f"As Admin.counters()[{name!r}].")


# -- metrics for Prometheus, read from a database object on each scrape ----------------------------


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
        self._internals = db.admin.internals
        self._rules_max = rules_max
        self._latencies = self._internals.forest.observed_by(Latencies)
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
        of_locks = self._internals.forest.locks.counters
        for family in OF_LOCKS:
            yield self._of(family, lambda name: getattr(of_locks, name))

    def _of_rules(self) -> Iterator[Metric]:
        firings: dict[_Labels, int] = {}
        triggered: dict[_Labels, int] = {}
        undecided: dict[_Labels, int] = {}
        durations: dict[_Labels, list[Histogram]] = {}
        for rule, figure in self._internals.triggering.figures.of_rules().items():
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
        tops, subs = self._internals.forest.live()
        yield self._told("transactions_live", {("top-level",): tops, ("sub",): subs})
        waiting = self._internals.forest.locks.census().waiting
        yield self._told("lock_requests_waiting", {(): waiting})
        yield self._told("firings_running", {(): self._internals.launcher.running})
        runs = sorted(dict(self._internals.runs).items())
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
            runs = sorted(dict(self._internals.runs).items())
            standing = self._internals.launcher.journal.standing()
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

    def entered(self, t: TransactionNode) -> None:
        """Record the begin of a top-level transaction."""
        if t.parent is None:
            self._entered[t.id] = time.perf_counter()

    def committing(self, t: TransactionNode) -> None:
        """Record when the work of an entered top-level transaction is done."""
        if t.id in self._entered:
            self._committing[t.id] = time.perf_counter()

    def ended(self, t: TransactionNode) -> None:
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

    def left(self, t: TransactionNode) -> None:
        """Forget the times of a transaction."""
        self._entered.pop(t.id, None)
