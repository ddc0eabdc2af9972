"""Scenario transcripts: readable steps with their outcomes, replayed and compared to the letter.

A transcript has one command per line, ``->`` before what it causes, and whole dumps::

    begin 1 2
    1 asks X a/7 -> granted
    2 asks S a/7 -> blocked by 1 (held)
    dump
      1
      2 waits for 1 (held)
      a/7: held 1 X; queue 2 S
    1 commits -> 2 granted S a/7
"""

from __future__ import annotations

from inspect import cleandoc

from lockmgr import (
    Blocked,
    DeadlockReport,
    Denial,
    Denied,
    Effects,
    Grant,
    Mode,
    Reply,
    Resource,
    VerifyingLockTable,
)
from lockmgr._replies import resource_text


def check(transcript: str) -> VerifyingLockTable:
    """Replay the commands of a transcript on a fresh table; fail unless it reads the same."""
    expected = cleandoc(transcript)
    table = VerifyingLockTable()
    lines: list[str] = []
    for line in expected.splitlines():
        if line.startswith("  ") or not line.strip():
            continue
        command = line.split(" -> ")[0]
        if command == "dump":
            lines += ["dump", *(f"  {text}" for text in table.dump().splitlines())]
        else:
            outcome = _run(table, command.split())
            lines.append(f"{command} -> {outcome}" if outcome else command)
    actual = "\n".join(lines)
    without_blank_lines = "\n".join(line for line in expected.splitlines() if line.strip())
    assert actual == without_blank_lines
    return table


def _run(table: VerifyingLockTable, words: list[str]) -> str:
    match words:
        case ["begin", *tids, "in", parent]:
            for tid in tids:
                table.begin(int(tid), int(parent))
            return ""
        case ["begin", *tids]:
            for tid in tids:
                table.begin(int(tid))
            return ""
        case [tid, "asks", mode, resource]:
            return _reply(table.request(int(tid), path(resource), Mode[mode]))
        case [tid, "downgrades", resource, "to", mode]:
            weaker = None if mode == "none" else Mode[mode]
            return _effects(table.downgrade(int(tid), path(resource), weaker))
        case [tid, "aborts", "for", heir]:
            return _effects(table.abort(int(tid), int(heir)))
        case [tid, ("commits" | "aborts" | "cancels" | "offers") as verb]:
            return _effects(getattr(table, verb.removesuffix("s"))(int(tid)))
        case _:
            raise AssertionError(f"not a command: {' '.join(words)}")


def path(text: str) -> Resource:
    """Read ``a/7`` as ``("a", 7)``."""
    return tuple(int(part) if part.isdigit() else part for part in text.split("/"))


def _reply(reply: Reply) -> str:
    if isinstance(reply, Blocked):
        own = "blocked by " + ", ".join(f"{e.waited_for} ({e.kind})" for e in reply.edges)
    elif isinstance(reply, Denied):
        own = f"denied: {_cycle(reply.report)}"
    else:
        own = "granted"
    return "; ".join([own, *map(_effect, reply.effects)])


def _effects(effects: Effects) -> str:
    return "; ".join(map(_effect, effects))


def _effect(effect: Grant | Denial) -> str:
    if isinstance(effect, Grant):
        return f"{effect.tid} granted {effect.mode.name} {resource_text(effect.resource)}"
    return f"{effect.tid} denied: {_cycle(effect.report)}"


def _cycle(report: DeadlockReport) -> str:
    steps = "".join(f" -{edge.kind}-> {edge.waited_for}" for edge in report.cycle)
    return f"{report.victim}{steps}"
