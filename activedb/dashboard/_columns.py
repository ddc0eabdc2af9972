"""Columns of the tables, in display order."""

from __future__ import annotations

from activedb.dashboard._cells import Column

__all__ = [
    "BATCHES",
    "COUNTERS",
    "DEADLOCKS",
    "DECISIONS",
    "EVENTS",
    "FOREST",
    "LETTERS",
    "LOCKS",
    "RECENT",
    "RULES",
    "STEPS",
    "STREAMS",
    "WAITS",
    "WRITES",
]

STATES = {
    "committed": "good",
    "aborted": "bad",
    "committing": "accent",
    "active": "accent",
    "waiting": "warn",
}
BATCH_STATES = {
    "whole": "good",
    "partially dropped": "warn",
    "dropped": "bad",
    "withdrawn": "bad",
}
KINDS = {
    "row": "muted",
    "signal": "muted",
    "stream": "muted",
    "clock": "muted",
    "composite": "accent",
}
WAITING, UPGRADING = "waiting", "waiting to upgrade"

FOREST = (
    Column("transaction", "Transaction", sort=False, kind="transaction"),
    Column("state", "State", tones=STATES),
    Column("rule", "Rule", wrap=True),
    Column("coupling", "Coupling"),
    Column("waits", "Waits for", wrap=True),
    Column("age", "Age", "right", "age"),
    Column("thread", "Thread", wide=True),
)
LOCKS = (
    Column("resource", "Resource", wrap=True),
    Column("transaction", "Transaction", kind="transaction"),
    Column("mode", "Mode"),
    Column("has", "Status", tones={WAITING: "warn", UPGRADING: "warn"}),
)
WAITS = (
    Column("waiter", "Transaction", kind="transaction"),
    Column("blocker", "Blocked by", kind="transaction"),
    Column("resource", "Resource", wrap=True),
    Column("kind", "Kind"),
)
DEADLOCKS = (
    Column("n", "Number", "right"),
    Column("at", "Time", kind="time"),
    Column("victim", "Victim", kind="transaction"),
    Column("ids", "Transactions in the cycle"),
    Column("resources", "Resources", wide=True, wrap=True),
    Column("replay", "Replay", sort=False),
)
RULES = (
    Column("rule", "Rule", wrap=True),
    Column("state", "State"),
    Column("on", "On", wide=True, wrap=True),
    Column("coupling", "Coupling", wrap=True),
    Column("matched", "Matched", "right"),
    Column("fired", "Fired", "right"),
    Column("not", "Condition false", "right", wide=True),
    Column("aborted", "Aborted", "right"),
    Column("p50", "p50", "right", kind="span"),
    Column("p99", "p99", "right", kind="span"),
    Column("partials", "Partials", "right"),
    Column("last", "Last fired", "right", "age", wide=True),
)
DECISIONS = (
    Column("rule", "Rule", wrap=True),
    Column("at", "Time"),
    Column("n", "Number", "right"),
    Column("candidate", "Candidate", wrap=True),
    Column("why", "Why not certain", wrap=True),
    Column("id", "Decision", wide=True),
)
EVENTS = (
    Column("at", "Time", kind="time"),
    Column("kind", "Kind", tones=KINDS),
    Column("name", "Event", wrap=True),
    Column("transaction", "Transaction", kind="transaction"),
    Column("params", "Parameters", wrap=True),
)
RECENT = (
    Column("at", "Ended", kind="time"),
    Column("transaction", "Transaction", kind="transaction"),
    Column("state", "State", tones=STATES),
    Column("rule", "Rule", wrap=True),
    Column("coupling", "Coupling", wide=True),
    Column("took", "Duration", "right", kind="span"),
    Column("error", "Reason", wrap=True),
)
STREAMS = (
    Column("stream", "Stream"),
    Column("events", "Events", "right"),
    Column("late", "Late", "right"),
    Column("dead", "Dead letters", "right"),
    Column("undecided", "Undecided", "right"),
    Column("waiting", "Waiting", "right"),
    Column("batches", "Batches", "right"),
    Column("punctuation", "Punctuation", kind="time"),
    Column("behind", "Lag", "right", kind="span"),
)
COUNTERS = (Column("name", "Counter", wrap=True), Column("value", "Count", "right"))
BATCHES = (
    Column("batch", "Batch"),
    Column("stream", "Stream"),
    Column("kind", "Origin"),
    Column("state", "State", tones=BATCH_STATES),
    Column("failed", "Failed", wrap=True),
)
LETTERS = (
    Column("source", "Source"),
    Column("identity", "Identity"),
    Column("kind", "Kind"),
    Column("error", "Error", wrap=True),
    Column("reason", "Reason", wrap=True),
)
STEPS = (
    Column("at", "Elapsed", "right", "span"),
    Column("what", "Step", wrap=True),
    Column("text", "Description", sort=False, wrap=True),
    Column("resource", "Resource", wrap=True),
    Column("mode", "Mode"),
    Column("other", "Other", kind="transaction"),
)
WRITES = (Column("kind", "Kind"), Column("table", "Table"), Column("row", "Row"))
