"""Post-processing in a part: stored outputs, and rows for the user's own tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

from activedb.errors import BadEvent
from activedb.firing import Letter, is_systemic, storable
from activedb.store.sql import TableSpec
from activedb.streams._program_transactions import ProgramTransaction
from activedb.transactions import Node, Transaction

__all__ = ["post_process"]

_Rows: TypeAlias = list[tuple[ProgramTransaction, list[Mapping[str, Any]]]]


def post_process(
    t: Node, stream: str, works: Iterable[ProgramTransaction]
) -> tuple[list[Mapping[str, Any]], list[Letter]]:
    """Post-process completed s-transactions in the serial order.

    If post-processing raises, or its result cannot be stored, the event becomes a letter; the
    effects of its s-transaction stay.

    Returns
    -------
    records : list of mapping
        Outputs that activedb stores: those of programs without an output table, and aborts.
    letters : list of Letter
    """
    records: list[Mapping[str, Any]] = []
    letters: list[Letter] = []
    rows: _Rows = []
    for work in works:
        s, defined = work.transaction, work.defined
        reason = None if work.outcome.reason is None else storable(work.outcome.reason)
        try:
            value = defined.program.output(s.type, s.params, work.outcome)
            if value is not None and defined.outputs is not None:
                rows.append((work, _as_rows(value)))
                value = None
            if value is not None or reason is not None:
                records.append(work.output(value, reason).record(defined.program.name))
        except Exception as error:  # the user's function may raise anything
            letters.append(work.letter(stream, error))
            if reason is not None:
                records.append(work.output(None, reason).record(defined.program.name))
    if not rows or (not t.hierarchy.run.careful and _inserted(t, rows) is None):
        return records, letters
    for one in rows:
        refused = _inserted(t, [one])
        if refused is not None:
            letters.append(one[0].letter(stream, refused))
    return records, letters


def _as_rows(value: Any) -> list[Mapping[str, Any]]:
    """Return the rows of an output: the mapping itself, or each item of a list."""
    found = [value] if isinstance(value, Mapping) else value
    if not isinstance(found, list) or not all(isinstance(row, Mapping) for row in found):
        raise BadEvent(
            "an output that goes into a table is a mapping of columns, or a list of such, not "
            f"{value!r}"
        )
    return found


def _inserted(t: Node, rows: _Rows) -> Exception | None:
    """Insert rows in a subtransaction; return the error, in which case none is inserted."""
    by_spec: dict[TableSpec, list[Mapping[str, Any]]] = {}
    for work, found in rows:
        if work.defined.outputs is not None:
            by_spec.setdefault(work.defined.outputs, []).extend(found)

    def insert(s: Node) -> None:
        for spec, found in by_spec.items():
            for same in _of_same_columns(found):
                Transaction(s).execute(spec.table.insert(), same)

    first = rows[0][0]
    try:
        with t.hierarchy.undoing() if t.hierarchy.run.careful else nullcontext():
            t.run_child(insert, label=f"{first.identity}.outputs", timestamp=first.timestamp)
    except Exception as error:
        if is_systemic(error, t):
            raise
        return error
    return None


def _of_same_columns(rows: Iterable[Mapping[str, Any]]) -> list[Sequence[Mapping[str, Any]]]:
    """Group rows by their columns, as one statement writes the same columns for all its rows."""
    found: dict[frozenset[str], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(frozenset(row), []).append(row)
    return list(found.values())
