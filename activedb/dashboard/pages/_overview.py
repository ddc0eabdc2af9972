"""Overview: throughput, latency, and conditions that need attention."""

from __future__ import annotations

from activedb.dashboard import _tables
from activedb.dashboard._elements import ChartLine, Figure, text
from activedb.dashboard._live import frame, section
from activedb.dashboard._poller import Point, Poller, PollResult
from activedb.dashboard._tables import LiveColumn, Row, cell
from activedb.dashboard._words import count, duration, rate, short
from activedb.spelling import counted

__all__ = ["overview_page"]

_ATTENTION = (
    LiveColumn("what", "Issue", wrap=True),
    LiveColumn("do", "Action", sort=False, wrap=True),
)
_LONG_S = 5.0
_LATELY_S = 300.0

_THROUGHPUT = (
    ChartLine("committed", lambda point: point.rates["committed"], "good"),
    ChartLine("aborted", lambda point: point.rates["aborted"], "bad"),
    ChartLine("rules fired", lambda point: point.rates["fired"], "accent", "dashed"),
)


def _ms(name: str, colour: str) -> ChartLine:
    """Return the line of a quantile in milliseconds."""

    def value(point: Point) -> float | None:
        seconds = point.latencies_s.get(name)
        return None if seconds is None else seconds * 1000

    return ChartLine(name, value, colour, "dashed" if name.endswith("p99") else "solid")


_LATENCY = (
    _ms("transaction p50", "accent"),
    _ms("transaction p99", "bad"),
    _ms("rule p50", "other"),
    _ms("rule p99", "warn"),
)


def overview_page(poller: Poller) -> None:
    """Show figures, two charts, what needs attention, and all counters."""
    with frame(poller, "Overview", "/") as live:
        live.figures("Now", _figures)
        with text("div", classes="adb-columns"):
            with section("Throughput", "Top-level transactions and rules, per second."):
                live.lines("Throughput", "per second", _THROUGHPUT, _throughput_said)
            with section(
                "Latency",
                "In ms. p50 is the median, p99 the 99th percentile.",
            ):
                live.lines("Latency", "ms", _LATENCY, _latency_said)
        with section("Needs attention"):
            live.table(
                "Needs attention",
                _ATTENTION,
                _attention,
                empty="No quarantined rules, open decisions, long waits, recent deadlocks or dead "
                "letters.",
            )
        with section("Recently aborted", "Among the last 1,000 transactions that ended."):
            live.table(
                "Recently aborted transactions",
                _tables.RECENT,
                _tables.aborts,
                empty="None of them aborted.",
                height="18rem",
            )
        with section("Counters", "Since the process opened its database."):
            live.table(
                "Counters",
                _tables.COUNTERS,
                _tables.counters,
                empty="No counters yet.",
                filterable=True,
                height="18rem",
            )


def _figures(snapshot: PollResult) -> list[Figure]:
    rates = snapshot.rates
    state = snapshot.state or {"forest": {"total": 0, "shown": []}, "locks": {}, "latency_s": {}}
    forest, locks = state["forest"], state["locks"]
    waiting = sum(1 for node in forest["shown"] if node["waits_for"])
    latency = state["latency_s"].get("transaction", {})
    failed, half = rates.get("failed", 0), duration(latency.get("p50") or None)
    return [
        Figure("Committed", rate(rates.get("committed")), "/s"),
        Figure(
            "Aborted",
            rate(rates.get("aborted")),
            "/s",
            tone="warn" if rates.get("aborted", 0) > rates.get("committed", 0) else "",
        ),
        Figure("Live now", count(forest["total"]), "transactions"),
        Figure("Waiting", count(waiting), "for locks", tone="warn" if waiting else ""),
        Figure("Locks", count(locks.get("total", 0))),
        Figure("Rules fired", rate(rates.get("fired")), "/s"),
        Figure("Rules failed", rate(rates.get("failed")), "/s", tone="bad" if failed else ""),
        Figure("Latency p99", duration(latency.get("p99") or None), note=f"p50 {half}"),
    ]


def _throughput_said(snapshot: PollResult) -> str:
    rates = snapshot.rates
    if not rates:
        return ""
    return (
        f"{rate(rates['committed'])} committed, {rate(rates['aborted'])} aborted and "
        f"{rate(rates['fired'])} rules fired per second"
    )


def _latency_said(snapshot: PollResult) -> str:
    latency = (snapshot.state or {}).get("latency_s", {}).get("transaction", {})
    half, longest = duration(latency.get("p50") or None), duration(latency.get("p99") or None)
    return f"transactions take {half} in the median, and {longest} in the 99th percentile"


def _attention(snapshot: PollResult) -> list[Row]:
    state = snapshot.state
    if state is None:
        return []
    rows: list[Row] = []

    def add(what: object, todo: str, href: str) -> None:
        rows.append({"key": str(what), "what": cell(str(what), href=href), "do": todo})

    for rule in state["rules"]:
        if rule["quarantined"]:
            add(
                f"rule {short(rule['name'], 60)} is in quarantine",
                f"fix it, then run activedb rules enable {short(rule['name'], 60)}",
                "/rules",
            )
        if rule.get("undecided"):
            add(
                f"rule {short(rule['name'], 60)} has {counted(rule['undecided'], 'open decision')}",
                "resolve them on the Rules page, or with activedb decisions",
                "/rules",
            )
    now_s = state["process"]["now_s"]
    for node in state["forest"]["shown"]:
        # An older activedb does not report when the wait began.
        since_s = node.get("waits_since_s", node["began_s"])
        if node["waits_for"] and since_s is not None and now_s - since_s > _LONG_S:
            add(
                f"transaction {node['id']} {_tables.label(node)} waits for "
                f"{_tables.ids(node['waits_for'], 3)}",
                "the blocker's page shows what it does; a wait times out after lock_timeout_ms",
                _tables.transaction_link(node["waits_for"][0]),
            )
    fresh = [each for each in state["deadlocks"] if now_s - each["at_s"] < _LATELY_S]
    if fresh:
        add(
            f"{counted(len(fresh), 'deadlock')} in the last five minutes",
            "victims are retried; to avoid deadlocks, lock rows in the same order everywhere",
            "/locks",
        )
    letters = state.get("letters", {})  # an older activedb does not report them
    if letters.get("event"):
        add(
            f"{counted(letters['event'], 'dead letter')} of events",
            "activedb dead-letter ls shows the reasons",
            "/batches",
        )
    if letters.get("rule"):
        add(
            f"{counted(letters['rule'], 'dead letter')} of rules",
            "activedb dead-letter ls shows the reasons; activedb dead-letter retry runs them again",
            "/batches",
        )
    for stream in state["streams"]:
        name = short(stream["name"], 60)
        if stream["undecided"]:
            add(
                f"stream {name} has {counted(stream['undecided'], 'open decision')}",
                "resolve them on the Rules page, or with activedb decisions",
                "/rules",
            )
        if stream["late"]:
            add(
                f"stream {name} has {counted(stream['late'], 'late event')}",
                "they are set aside; a longer delay of the stream would include them",
                "/batches",
            )
    dropped = state["counters"].get("partials_dropped", 0)
    if dropped:
        add(
            f"{counted(dropped, 'event')} kept for patterns had to be dropped",
            "raise partials_max, or make the pattern expire sooner",
            "/rules",
        )
    return rows
