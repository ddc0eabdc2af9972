"""Definitions of all metrics: names, labels and help texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["BOUNDS_S", "COUNTED", "FAMILIES", "OF_LOCKS", "PREFIX", "Family", "unknown"]

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
            "Runs of rules, by what came of them; a rule in quarantine was not run.",
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
