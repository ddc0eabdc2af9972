"""Tables of the pages: columns in display order, and rows as pure functions of a snapshot.

A row function is passed to `PollResult.once`, so it runs once per look for all browsers together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlencode

from activedb.dashboard._poller import PollResult
from activedb.dashboard._words import moment, short

__all__ = [
    "BATCHES",
    "COUNTERS",
    "DEADLOCKS",
    "DECISIONS",
    "EVENTS",
    "EVENTS_SHOWN",
    "FOREST",
    "LETTERS",
    "LOCKS",
    "RECENT",
    "RULES",
    "STEPS",
    "STREAMS",
    "WAITS",
    "WRITES",
    "LiveColumn",
    "Row",
    "Value",
    "aborts",
    "batch_link",
    "cell",
    "counters",
    "deadlock_link",
    "deadlocks",
    "decisions",
    "difference",
    "ended",
    "event",
    "forest",
    "ids",
    "label",
    "locks",
    "packed",
    "recent",
    "resource_name",
    "rules",
    "streams",
    "transaction",
    "transaction_link",
    "transaction_name",
    "waiting_only",
    "waits",
]


Row = Mapping[str, Any]
"""A row by column name, with its ``key``; a cell is a text, a number or a mapping (`cell`)."""


def cell(
    shown: str | float | None,
    *,
    sort: float | str | None = None,
    href: str | None = None,
    tone: str | None = None,
    hint: str | None = None,
) -> Any:
    """Return a cell of a table.

    Parameters
    ----------
    shown : str, float or None
        Its text; in a column of ages, a moment.
    sort : float or str or None
        Sort key, if the text is not.
    href : str or None
        Page of the dashboard to link to.
    tone : str or None
        ``good``, ``bad``, ``warn``, ``accent`` or ``muted``: the meaning of the text, shown as a
        colour.
    hint : str or None
        Longer text, shown as a tooltip.
    """
    given = {"sort": sort, "href": href, "tone": tone, "hint": hint}
    more = {name: value for name, value in given.items() if value is not None}
    return {"text": shown, **more} if more else shown


@dataclass(frozen=True, slots=True)
class LiveColumn:
    """A column of a `LiveTable`.

    Attributes
    ----------
    name, label : str
        The key of its cells, and the text of the header.
    align : str
        ``right`` for numbers.
    kind : str
        Type of the cells, which decides how the browser shows them. ``age``: moments, as the time
        since then; ``time``: moments, as clock times; ``span``: durations in seconds;
        ``transaction``: numbers of transactions, or lists of number, name and level of indentation;
        ``action``: buttons. Otherwise texts, numbers or results of `cell`.
    sort : bool
        Whether the header sorts the rows.
    wide : bool
        Whether the column is left out on narrow screens.
    wrap : bool
        Whether a cell may take several lines; for texts.
    tones : mapping of str to str
        Tones (see `cell`) of some of its texts.
    """

    name: str
    label: str
    align: Literal["left", "right"] = "left"
    kind: Literal["", "age", "time", "span", "transaction", "action"] = ""
    sort: bool = True
    wide: bool = False
    wrap: bool = False
    tones: Mapping[str, str] = field(default_factory=dict)


def packed(row: Row, columns: Sequence[LiveColumn]) -> list[Any]:
    """Return a row as it is sent: its key, its tone, and its cells in the order of the columns."""
    cells = (_rounded(row.get(column.name), column.kind) for column in columns)
    return [row["key"], row.get("tone", ""), *cells]


def _rounded(value: Any, kind: str) -> Any:
    """Round a number to the digits that are shown: milliseconds, or four figures of a duration."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.4g}") if kind == "span" else round(value, 3)


def difference(old: Mapping[str, Row], new: Mapping[str, Row]) -> dict[str, Any] | None:
    """Return the patch from `old` to `new`: rows to put, keys to drop, the order if changed."""
    put = [row for key, row in new.items() if old.get(key) != row]
    drop = [key for key in old if key not in new]
    patch: dict[str, Any] = {"put": put, "drop": drop}
    if list(old) != list(new):
        patch["order"] = list(new)
    return patch if put or drop or "order" in patch else None


# -- columns of the tables, in display order -------------------------------------------------------


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
    LiveColumn("transaction", "Transaction", sort=False, kind="transaction"),
    LiveColumn("state", "State", tones=STATES),
    LiveColumn("rule", "Rule", wrap=True),
    LiveColumn("coupling", "Coupling"),
    LiveColumn("waits", "Waits for", wrap=True),
    LiveColumn("age", "Age", "right", "age"),
    LiveColumn("thread", "Thread", wide=True),
)
LOCKS = (
    LiveColumn("resource", "Resource", wrap=True),
    LiveColumn("transaction", "Transaction", kind="transaction"),
    LiveColumn("mode", "Mode"),
    LiveColumn("has", "Status", tones={WAITING: "warn", UPGRADING: "warn"}),
)
WAITS = (
    LiveColumn("waiter", "Transaction", kind="transaction"),
    LiveColumn("blocker", "Blocked by", kind="transaction"),
    LiveColumn("resource", "Resource", wrap=True),
    LiveColumn("kind", "Kind"),
)
DEADLOCKS = (
    LiveColumn("n", "Number", "right"),
    LiveColumn("at", "Time", kind="time"),
    LiveColumn("victim", "Victim", kind="transaction"),
    LiveColumn("ids", "Transactions in the cycle"),
    LiveColumn("resources", "Resources", wide=True, wrap=True),
    LiveColumn("replay", "Replay", sort=False),
)
RULES = (
    LiveColumn("rule", "Rule", wrap=True),
    LiveColumn("state", "State"),
    LiveColumn("on", "On", wide=True, wrap=True),
    LiveColumn("coupling", "Coupling", wrap=True),
    LiveColumn("matched", "Matched", "right"),
    LiveColumn("fired", "Fired", "right"),
    LiveColumn("not", "Condition false", "right", wide=True),
    LiveColumn("aborted", "Aborted", "right"),
    LiveColumn("p50", "p50", "right", kind="span"),
    LiveColumn("p99", "p99", "right", kind="span"),
    LiveColumn("partials", "Partials", "right"),
    LiveColumn("last", "Last fired", "right", "age", wide=True),
)
DECISIONS = (
    LiveColumn("rule", "Rule", wrap=True),
    LiveColumn("at", "Time"),
    LiveColumn("n", "Number", "right"),
    LiveColumn("candidate", "Candidate", wrap=True),
    LiveColumn("why", "Why not certain", wrap=True),
    LiveColumn("id", "Decision", wide=True),
)
EVENTS = (
    LiveColumn("at", "Time", kind="time"),
    LiveColumn("kind", "Kind", tones=KINDS),
    LiveColumn("name", "Event", wrap=True),
    LiveColumn("transaction", "Transaction", kind="transaction"),
    LiveColumn("params", "Parameters", wrap=True),
)
RECENT = (
    LiveColumn("at", "Ended", kind="time"),
    LiveColumn("transaction", "Transaction", kind="transaction"),
    LiveColumn("state", "State", tones=STATES),
    LiveColumn("rule", "Rule", wrap=True),
    LiveColumn("coupling", "Coupling", wide=True),
    LiveColumn("took", "Duration", "right", kind="span"),
    LiveColumn("error", "Reason", wrap=True),
)
STREAMS = (
    LiveColumn("stream", "Stream"),
    LiveColumn("events", "Events", "right"),
    LiveColumn("late", "Late", "right"),
    LiveColumn("dead", "Dead letters", "right"),
    LiveColumn("undecided", "Undecided", "right"),
    LiveColumn("waiting", "Waiting", "right"),
    LiveColumn("batches", "Batches", "right"),
    LiveColumn("punctuation", "Punctuation", kind="time"),
    LiveColumn("behind", "Lag", "right", kind="span"),
)
COUNTERS = (LiveColumn("name", "Counter", wrap=True), LiveColumn("value", "Count", "right"))
BATCHES = (
    LiveColumn("batch", "Batch"),
    LiveColumn("stream", "Stream"),
    LiveColumn("kind", "Origin"),
    LiveColumn("state", "State", tones=BATCH_STATES),
    LiveColumn("failed", "Failed", wrap=True),
)
LETTERS = (
    LiveColumn("source", "Source"),
    LiveColumn("identity", "Identity"),
    LiveColumn("kind", "Kind"),
    LiveColumn("error", "Error", wrap=True),
    LiveColumn("reason", "Reason", wrap=True),
)
STEPS = (
    LiveColumn("at", "Elapsed", "right", "span"),
    LiveColumn("what", "Step", wrap=True),
    LiveColumn("text", "Description", sort=False, wrap=True),
    LiveColumn("resource", "Resource", wrap=True),
    LiveColumn("mode", "Mode"),
    LiveColumn("other", "Other", kind="transaction"),
)
WRITES = (LiveColumn("kind", "Kind"), LiveColumn("table", "Table"), LiveColumn("row", "Row"))


Value = Mapping[str, Any]

_NAMELESS = re.compile("[0-9a-f]{32}")  # the generated number of a run without a name


def transaction(id: int | None, name: str = "", level: int = 0) -> Any:
    """Return the cell of a transaction: its number, and its name and level if it has any."""
    if id is None:
        return ""
    return [id, name, level] if level else [id, name] if name else id


def transaction_name(id: int) -> str:
    """Return a transaction's number; numbers below zero are processes of the server."""
    return str(id) if id >= 0 else f"server process {-id}"


def label(told: Value) -> str:
    """Return a transaction's name: the function that it runs, or its place in its hierarchy."""
    name = told.get("called") or told["label"]
    return "" if _NAMELESS.fullmatch(name) else short(name, 40)


def resource_name(resource: Any) -> str:
    """Return a resource of a lock as one text: accounts / 7."""
    if isinstance(resource, str) or not isinstance(resource, Sequence):
        return short(resource)
    return short(" / ".join(str(part) for part in resource))


def ids(values: Sequence[int], most: int = 8) -> str:
    """Return some transactions' numbers, and a count of the rest."""
    shown = ", ".join(str(value) for value in values[:most])
    return shown if len(values) <= most else f"{shown} and {len(values) - most:,} more"


def forest(snapshot: PollResult) -> list[Row]:
    """Return the live transactions, children below their parents. O(n)."""
    nodes: list[Value] = _of(snapshot, "forest", "shown")
    known = {node["id"]: node for node in nodes}
    below: dict[int | None, list[Value]] = {}
    for node in nodes:
        parent = node["parent"] if node["parent"] in known else None
        below.setdefault(parent, []).append(node)
    because: dict[int, str] = {}
    for edge in _of(snapshot, "locks", "edges"):
        because.setdefault(edge["waiter"], resource_name(edge["resource"]))
    rows: list[Row] = []
    stack = [(node, 0) for node in reversed(below.get(None, ()))]
    while stack:
        node, level = stack.pop()
        rows.append(_node(node, level, because.get(node["id"], "")))
        stack += [(child, level + 1) for child in reversed(below.get(node["id"], ()))]
    return rows


def _node(node: Value, level: int, because: str) -> Row:
    waits = node["waits_for"]
    said = f"{ids(waits, 3)}: {because}" if waits and because else ids(waits, 3)
    if node["causes"] and not waits:
        said = f"the outcome of {ids(node['causes'], 3)}" if node["state"] == "committing" else ""
    return {
        "key": str(node["id"]),
        "transaction": transaction(node["id"], label(node), level),
        "state": "waiting" if waits else node["state"],
        "rule": short(node["rule"]),
        "coupling": node["coupling"] or ("" if node["parent"] else "top-level"),
        "waits": said,
        "age": node["began_s"],
        "thread": short(node["thread"], 32),
        "tone": "warn" if waits else "",
    }


def waiting_only(snapshot: PollResult) -> list[Row]:
    """Return the hierarchies in which a transaction waits."""
    nodes: list[Value] = _of(snapshot, "forest", "shown")
    tops = {node["top"] for node in nodes if node["waits_for"]}
    kept = {str(node["id"]) for node in nodes if node["top"] in tops}
    return [row for row in snapshot.once(forest) if row["key"] in kept]


def locks(snapshot: PollResult) -> list[Row]:
    """Return the holders, retainers and waiters of each lock, by resource."""
    labels = _labels(snapshot)
    found: list[tuple[str, int, Row]] = []
    for lock in _of(snapshot, "locks", "shown"):
        has = "held" if lock["held"] else "retained"
        found.append(_lock(lock, labels, has, 0))
    for request in _of(snapshot, "locks", "queue"):
        has = UPGRADING if request["upgrade"] else WAITING
        found.append(_lock(request, labels, has, 1))
    found.sort(key=lambda each: (each[0], each[1]))
    return [row for _, _, row in found]


def _lock(lock: Value, labels: Mapping[int, str], has: str, place: int) -> tuple[str, int, Row]:
    name = resource_name(lock["resource"])
    waits = place == 1
    row = {
        "key": f"{lock['id']} {has} {lock['mode']} {name}",
        "resource": name,
        "transaction": transaction(lock["id"], labels.get(lock["id"], "")),
        "mode": lock["mode"],
        "has": has,
        "tone": "warn" if waits else "",
    }
    return name, place, row


def waits(snapshot: PollResult) -> list[Row]:
    """Return the edges of the wait-for graph."""
    labels = _labels(snapshot)
    return [
        {
            "key": f"{edge['waiter']} {edge['blocker']} {edge['kind']} {n}",
            "waiter": transaction(edge["waiter"], labels.get(edge["waiter"], "")),
            "blocker": transaction(edge["blocker"], labels.get(edge["blocker"], "")),
            "resource": resource_name(edge["resource"]),
            "kind": short(edge["kind"]),
        }
        for n, edge in enumerate(_of(snapshot, "locks", "edges"))
    ]


def deadlocks(snapshot: PollResult) -> list[Row]:
    """Return the last deadlocks, newest first."""
    return [
        {
            "key": str(each["n"]),
            "n": each["n"],
            "at": each["at_s"],
            "victim": transaction(each["victim"]),
            "ids": ids(each["ids"]),
            "resources": short(", ".join(resource_name(x) for x in each["resources"])),
            "replay": cell("replay", href=deadlock_link(each["n"])),
        }
        for each in reversed((snapshot.state or {}).get("deadlocks", []))
    ]


def rules(snapshot: PollResult) -> list[Row]:
    """Return the catalog, in order of definition; each with a button if rules may be switched."""
    state = snapshot.state or {}
    is_writable = bool(state.get("process", {}).get("writable"))
    return [_rule(rule, is_writable) for rule in state.get("rules", [])]


def _rule(rule: Value, is_writable: bool) -> Row:
    quarantine = rule["quarantined"]
    if quarantine:
        state = cell(
            "quarantined", tone="bad", hint=None if quarantine is True else short(quarantine, 300)
        )
    elif rule["enabled"]:
        state = cell("enabled", tone="good")
    else:
        state = cell("disabled", tone="muted")
    coupling = rule["coupling"]
    if rule["condition_action"] not in (None, "", "immediate"):
        coupling = f"{coupling}, action {rule['condition_action']}"
    priority = rule["priority"]
    row = {
        "key": rule["name"],
        "rule": short(rule["name"], 60),
        "state": state,
        "on": cell(short(rule["on"], 60), hint=short(rule["on"], 400)),
        "coupling": coupling if priority is None else f"{coupling}, priority {priority}",
        "matched": _number(rule["matched"]),
        "fired": _number(rule["fired"]),
        "not": _number(rule["conditions_false"]),
        "aborted": _number(rule["aborted"], tone="bad"),
        "p50": rule["p50_s"] or None,
        "p99": rule["p99_s"] or None,
        "partials": _number(rule["partials"]),
        "last": rule["last_fired_s"] or cell("never", sort=0),
    }
    if is_writable:
        row["act"] = "Disable" if rule["enabled"] and not quarantine else "Enable"
    return row


def decisions(found: Sequence[Value]) -> tuple[list[Row], int]:
    """Return the candidates of the first open decisions, each with a button; how many decisions.

    A decision is shown with all of its candidates, or not at all; the first one always.
    """
    rows: list[Row] = []
    for shown, each in enumerate(found):
        if rows and len(rows) + len(each["texts"]) > DECISIONS_SHOWN:
            return rows, shown
        for n, candidate in enumerate(each["texts"]):
            why = each["why"][n] if n < len(each["why"]) else ""
            rows.append(
                {
                    "key": f"{each['id']} {n}",
                    "rule": short(each["rule"], 60),
                    "at": cell(moment(each["us"] / 1e6), sort=each["us"]),
                    "n": n,
                    "candidate": cell(short(candidate, 160), hint=short(candidate, 600)),
                    "why": cell(short(why, 160), hint=short(why, 600)),
                    "id": short(each["id"], 60),
                    "act": "Decide",
                }
            )
    return rows, len(found)


DECISIONS_SHOWN = EVENTS_SHOWN = 200


def event(told: Value) -> Row:
    """Return the row of an event."""
    return {
        "key": str(told["seq"]),
        "at": told["at_s"],
        "kind": told["kind"],
        "name": short(" ".join(filter(None, (told.get("what"), told["name"]))), 80),
        "transaction": transaction(told["transaction"]),
        "params": _params(told["params"]),
    }


def _params(params: Any) -> Any:
    if isinstance(params, Mapping):
        params = ", ".join(f"{name} = {value}" for name, value in params.items())
    shown = short(params, 100)
    return cell(shown, hint=short(params, 600)) if shown.endswith("…") else shown


def recent(snapshot: PollResult) -> list[Row]:
    """Return the transactions that ended last, newest first."""
    return [ended(each) for each in reversed(snapshot.recent[-EVENTS_SHOWN:])]


def aborts(snapshot: PollResult) -> list[Row]:
    """Return the transactions that aborted last, newest first."""
    kept = [each for each in snapshot.recent if each["state"] == "aborted"]
    return [ended(each) for each in reversed(kept[-50:])]


def ended(each: Value) -> Row:
    """Return the row of an ended transaction."""
    took_s = None if each["ended_s"] is None else each["ended_s"] - each["began_s"]
    error = short(each["error"], 100)
    return {
        "key": str(each["id"]),
        "at": each["ended_s"],
        "transaction": transaction(each["id"], label(each)),
        "state": each["state"],
        "rule": short(each["rule"]),
        "coupling": each["coupling"] or ("" if each["parent"] else "top-level"),
        "took": took_s,
        "error": cell(error, hint=short(each["error"], 600)) if error.endswith("…") else error,
    }


def streams(snapshot: PollResult) -> list[Row]:
    """Return the streams with their progress."""
    return [
        {
            "key": stream["name"],
            "stream": short(stream["name"], 60),
            "events": _number(stream["events"]),
            "late": _number(stream["late"], tone="warn"),
            "dead": _number(stream["dead"], tone="bad"),
            "undecided": _number(stream["undecided"], tone="warn"),
            "waiting": _number(stream["waiting"]),
            "batches": _number(stream["batches"]),
            "punctuation": stream["punctuation_s"],
            "behind": stream["behind_s"],
        }
        for stream in (snapshot.state or {}).get("streams", [])
    ]


def counters(snapshot: PollResult) -> list[Row]:
    """Return all counters of the process by name."""
    return [
        {"key": name, "name": name.replace("_", " "), "value": value}
        for name, value in sorted((snapshot.state or {}).get("counters", {}).items())
    ]


def transaction_link(id: int) -> str:
    """Return the link to the page of a transaction."""
    return f"/transactions/{int(id)}"


def deadlock_link(n: int) -> str:
    """Return the link to the replay of a deadlock."""
    return f"/deadlocks/{int(n)}"


def batch_link(id: str | None, workflow: str) -> str:
    """Return the link to a workflow's batches; with `id` the page draws that batch's lineage."""
    query = {"workflow": workflow} if id is None else {"workflow": workflow, "id": id}
    return f"/batches?{urlencode(query)}"


def _number(value: int | None, *, tone: str = "") -> Any:
    """Return a count; coloured if it is not zero."""
    if tone and value:
        return cell(value, tone=tone)
    return value


def _of(snapshot: PollResult, part: str, name: str) -> list[Value]:
    return [] if snapshot.state is None else snapshot.state[part][name]


def _labels(snapshot: PollResult) -> dict[int, str]:
    return {node["id"]: label(node) for node in _of(snapshot, "forest", "shown")}
