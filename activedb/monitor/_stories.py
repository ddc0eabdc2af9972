"""Texts about a recorded transaction: one line, or its whole story."""

from __future__ import annotations

from typing import Any

from activedb.monitor._deadlocks import edge_text
from activedb.monitor._records import StoryStep, TransactionRecord
from activedb.monitor._redaction import Redaction

__all__ = ["node", "short", "story"]

_OUTCOMES = {
    "acted": "its action has run",
    "condition false": "its condition was false",
    "action later": "its condition was true; the action is to run later",
}
_KINDS = {"insert": "inserted", "write": "updated", "delete": "deleted"}


def _who(life: TransactionRecord) -> dict[str, Any]:
    """Return the fields that identify a transaction, for a node of the forest and for a story."""
    return {
        "id": life.id,
        "parent": life.parent,
        "top": life.top,
        "label": life.label,
        "called": life.called,
        "path": life.path,
        "rule": life.rule,
        "coupling": life.coupling,
        "state": life.state,
        "began_s": life.began_s,
    }


def node(life: TransactionRecord, waits_for: list[int]) -> dict[str, Any]:
    """Return a live transaction as a node of the forest."""
    wait = life.wait  # read once, as another thread may end it meanwhile
    return {
        **_who(life),
        "thread": life.thread,
        "waits_for": waits_for,
        "waits_since_s": None if wait is None else wait[1],
        "causes": list(life.causes),
    }


def short(life: TransactionRecord, seq: int | None = None) -> dict[str, Any]:
    """Return a transaction as one line."""
    found = {
        "id": life.id,
        "top": life.top,
        "parent": life.parent,
        "label": life.label,
        "called": life.called,
        "rule": life.rule,
        "coupling": life.coupling,
        "state": life.state,
        "began_s": life.began_s,
        "ended_s": life.ended_s,
        "error": life.error,
    }
    return found if seq is None else {"seq": seq, **found}


def story(
    life: TransactionRecord,
    steps: list[StoryStep | int],
    children: list[TransactionRecord],
    redaction: Redaction,
) -> dict[str, Any]:
    """Return the whole record of a transaction."""
    told: list[dict[str, Any]] = []
    writes = []
    at_s = life.began_s
    for step in steps:
        if isinstance(step, int):
            text = f"{step:,} steps are not kept"
            told.append(_told(at_s, "left out", text, None, None, None))
            continue
        at_s = step.at_s
        resource = None if step.resource is None else redaction.resource(step.resource)
        text = _text(step, resource, redaction)
        mode = None if resource is None else step.mode
        told.append(_told(at_s, step.what, text, resource, mode, step.other))
        if step.what == "wrote" and step.resource is not None:
            table, *key = step.resource
            writes.append(
                {
                    "table": str(table),
                    "key": ",".join(map(redaction.key, key)),
                    "kind": "update" if step.about == "write" else step.about,
                }
            )
    return {
        **_who(life),
        "ended_s": life.ended_s,
        "thread": life.thread,
        "error": life.error,
        "why": life.why,
        "tries": life.tries,
        "causes": list(life.causes),
        "deadlock": life.deadlock,
        "steps": told,
        "steps_left_out": life.left_out,
        "children": [short(child) for child in children],
        "children_total": life.children_total,
        "writes": writes,
    }


def _told(
    at_s: float,
    what: str,
    text: str,
    resource: str | None,
    mode: str | None,
    other: int | None,
) -> dict[str, Any]:
    return {
        "at_s": at_s,
        "what": what,
        "text": text,
        "resource": resource,
        "mode": mode,
        "other": other,
    }


def _text(step: StoryStep, resource: str | None, redaction: Redaction) -> str:
    what, about, other = step.what, step.about, step.other
    match what:
        case "began":
            return f"began on thread {about}"
        case "event":
            return f"event {about} was raised ({step.mode})"
        case "triggered":
            return f"rule {about} was triggered ({step.mode})"
        case "spawned":
            return f"firing {about} is to run in a transaction of its own ({step.mode})"
        case "ran":
            return f"rule {about}: {_OUTCOMES.get(step.mode or '', step.mode)}"
        case "failed":
            return about
        case "lock":
            return f"got {step.mode} on {resource}"
        case "waited" if step.edge is not None:
            return edge_text(step.edge, redaction)
        case "waited":
            return "had to wait"
        case "granted":
            return f"got {step.mode} on {resource} after waiting {about}"
        case "wrote":
            return f"{_KINDS[about]} {resource}"
        case "child":
            return f"child {about} began as transaction {other}"
        case "retried":
            return f"child {about} is tried again, as transaction {other}"
        case "child ended":
            return f"child transaction {other} has {about}"
        case "committing":
            return "its work is done; it commits"
        case "deadlock":
            return f"is the victim of deadlock {about}"
    return what
