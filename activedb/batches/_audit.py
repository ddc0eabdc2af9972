"""Audit of an execution against the requirements of section 2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from activedb.batches._composite import edges_among
from activedb.batches._lineage import Lineage
from activedb.batches._workflow import Requirement
from activedb.errors import LineageError
from activedb.spelling import listed

__all__ = ["Act", "Violation", "audit_batches"]


class Act(StrEnum):
    """Action on a whole transaction."""

    EXECUTE = "execute"
    COMPENSATE = "compensate"


@dataclass(frozen=True, slots=True)
class Violation:
    """A requirement that an execution does not fulfil.

    Attributes
    ----------
    requirement : Requirement
    of : str
        Source batch that is incomplete, or else the transaction that is out of place.
    reason : str
    """

    requirement: Requirement
    of: str
    reason: str

    def record(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {"requirement": str(self.requirement), "of": self.of, "reason": self.reason}


def audit_batches(
    lineage: Lineage,
    history: Iterable[tuple[Act | str, str]],
    *,
    serial: Sequence[str] | None = None,
) -> tuple[Violation, ...]:
    """Find where an execution violates the requirements of its programs.

    Parameters
    ----------
    lineage : Lineage
        All transactions of the execution. Their recorded states are ignored.
    history : iterable of (Act, str)
        Actions on transactions, in the order of time.
    serial : sequence of str or None
        Serial order to which the execution is equivalent, as far as it is known, with each
        transaction once. By default, the order of execution. Transactions of programs that relax
        serializability may be missing from it.

    Returns
    -------
    tuple of Violation
        Violations by requirement, in the order of section 2. Empty if the execution is correct.

    Raises
    ------
    LineageError
        If the history is inconsistent (it executes a transaction that stands, compensates one that
        does not stand, or names one that is not recorded), or if the serial order has transactions
        that the history does not have.

    Notes
    -----
    O(history + edges), and O(edges below) for each source batch.
    """
    acts = [(Act(act), lineage.transaction(id).id) for act, id in history]
    standing = _standing_after(acts)
    order = list(dict.fromkeys(id for act, id in acts if act is Act.EXECUTE))
    given = order if serial is None else list(serial)
    unknown = sorted(set(given) - set(order))
    if unknown:
        raise LineageError(f"the serial order has {listed(unknown)}, which the history has not")
    places = {id: place for place, id in reversed(list(enumerate(given)))}
    edges = [(first, second) for first, second, _ in edges_among(lineage, order)]
    return (
        *_serializable(lineage, order, Counter(given)),
        *_transaction_order(lineage, edges, places),
        *_batch_order(lineage, places),
        *_completion(lineage, standing),
        *_monotonic(lineage, acts),
    )


def _requires(lineage: Lineage, transaction: str, requirement: Requirement) -> bool:
    program = lineage.transaction(transaction).program
    return lineage.workflow.programs[program].requires(requirement)


def _standing_after(acts: Iterable[tuple[Act, str]]) -> set[str]:
    standing: set[str] = set()
    for act, id in acts:
        if (act is Act.EXECUTE) == (id in standing):
            does = "does" if id in standing else "does not"
            raise LineageError(f"the history cannot {act} {id}: it {does} stand then")
        standing ^= {id}
    return standing


def _serializable(
    lineage: Lineage, executed: list[str], places: Mapping[str, int]
) -> Iterator[Violation]:
    for id in executed:
        count = places.get(id, 0)
        if count != 1 and _requires(lineage, id, Requirement.SERIALIZABLE):
            reason = f"it has {count} places in the serial order"
            yield Violation(Requirement.SERIALIZABLE, id, reason)


def _transaction_order(
    lineage: Lineage, edges: list[tuple[str, str]], places: dict[str, int]
) -> Iterator[Violation]:
    for first, second in edges:
        is_turned = first in places and second in places and places[second] < places[first]
        if is_turned and _requires(lineage, second, Requirement.TRANSACTION_ORDER):
            yield Violation(Requirement.TRANSACTION_ORDER, second, f"it comes before {first}")


def _batch_order(lineage: Lineage, places: dict[str, int]) -> Iterator[Violation]:
    last: dict[str, str] = {}
    for id in lineage.in_transaction_order(places):
        program = lineage.transaction(id).program
        before = last.setdefault(program, id)
        if places[id] < places[before]:
            if _requires(lineage, id, Requirement.BATCH_ORDER):
                yield Violation(Requirement.BATCH_ORDER, id, f"it comes before {before}")
        else:
            last[program] = id


def _completion(lineage: Lineage, standing: set[str]) -> Iterator[Violation]:
    for batch in lineage.batches():
        if not lineage.is_source(batch.id):
            continue
        found = {id for id in lineage.descendants(batch.id) if lineage.is_transaction(id)}
        missing = [
            id
            for id in lineage.in_transaction_order(found - standing)
            if _requires(lineage, id, Requirement.COMPLETION)
        ]
        if missing and found & standing:
            yield Violation(
                Requirement.COMPLETION, batch.id, f"{listed(missing)} are missing, others stand"
            )


def _monotonic(lineage: Lineage, acts: list[tuple[Act, str]]) -> Iterator[Violation]:
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    every = (each.id for each in lineage.transactions())
    for first, second, _ in edges_among(lineage, every):
        before.setdefault(second, []).append(first)
        after.setdefault(first, []).append(second)
    standing: set[str] = set()
    broken: dict[str, str] = {}
    for act, id in acts:
        standing ^= {id}
        if act is Act.EXECUTE:
            alone = [(id, other) for other in before.get(id, ()) if other not in standing]
        else:
            alone = [(other, id) for other in after.get(id, ()) if other in standing]
        for left, gone in alone:
            if _requires(lineage, left, Requirement.MONOTONIC_EXECUTION):
                broken.setdefault(left, gone)
    for left, gone in broken.items():
        yield Violation(Requirement.MONOTONIC_EXECUTION, left, f"it has stood without {gone}")
