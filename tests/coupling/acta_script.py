"""Histories written by hand: ``begin 1; imm 1 2; write 2 a/1; delegate 2 1; commit 2; …``."""

from __future__ import annotations

from typing import Any

from coupling.acta import (
    AbortEvent,
    AbortOperation,
    BeginEvent,
    CommitEvent,
    CommitOperation,
    DelegateEvent,
    Event,
    History,
    ObjectOperation,
    OperationKind,
    SpawnEvent,
    SpawnMode,
)

__all__ = ["played"]

_MODES = {mode.value.removeprefix("spawn_"): mode for mode in SpawnMode}
_OUTCOMES: dict[str, type[CommitOperation | AbortOperation]] = {
    "commit_operation": CommitOperation,
    "abort_operation": AbortOperation,
}


def played(text: str) -> History:
    """One event per line or semicolon; operations are numbered from 1, in their order."""
    events: list[Event] = []
    number = 0
    for step in text.replace(";", "\n").splitlines():
        words = step.split()
        if not words:
            continue
        named = dict(word.split("=") for word in words if "=" in word)
        options: dict[str, Any] = {k: None if v == "none" else int(v) for k, v in named.items()}
        name, by, *more = [word for word in words if "=" not in word]
        t = int(by)
        if name in _MODES:
            mode = _MODES[name]
            options = {"parent": t if mode.is_child else None, **options}
            events.append(SpawnEvent(t, int(more[0]), mode, **options))
        elif name == "begin":
            events.append(BeginEvent(t, **options))
        elif name in ("commit", "abort"):
            events.append(CommitEvent(t) if name == "commit" else AbortEvent(t))
        elif name == "delegate":
            numbers = tuple(map(int, more[1].split(","))) if len(more) > 1 else None
            events.append(DelegateEvent(t, int(more[0]), numbers))
        elif name in _OUTCOMES:
            events.append(_OUTCOMES[name](t, int(more[0])))
        else:
            number += 1
            options = {"number": number, **options}
            path = tuple(more[0].split("/"))
            events.append(ObjectOperation(t, kind=OperationKind(name), object=path, **options))
    return History(tuple(events))
