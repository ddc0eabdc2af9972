"""Axioms 1 to 6, the first half of 7, 16, 18, 20 and 26: start, end and parent of transactions."""

from __future__ import annotations

from collections.abc import Iterator

from coupling.acta._axioms import Violation
from coupling.acta._events import Operation
from coupling.acta._history import History
from coupling.acta._transactions import RecordedTransaction, RecordedTransactions

__all__ = ["check_lives"]


def check_lives(history: History, lives: RecordedTransactions) -> Iterator[Violation]:
    """Yield the violations of these axioms. O(n · depth)."""
    for life in lives.of.values():
        yield from _significant(life)
        yield from _initiated(life)
        yield from _ended(life)
        yield from _fundamental(history, life)
        yield from _place(lives, life)


def _significant(life: RecordedTransaction) -> Iterator[Violation]:
    if not life.is_child:
        for position in life.delegates:
            yield Violation(
                1,
                life.id,
                f"transaction {life.id} is top-level and delegates, which is no event of its kind",
                (position,),
            )
        return
    for position in life.begins:
        yield Violation(
            4,
            life.id,
            f"transaction {life.id} is a subtransaction and has a Begin, which only top-level "
            f"transactions have",
            (position,),
        )


def _initiated(life: RecordedTransaction) -> Iterator[Violation]:
    axiom = 5 if life.is_child else 2
    starts = [position for position, _ in life.spawns]
    if not life.is_child:
        starts += life.begins
    others = [position for position in life.own if position not in life.begins]
    if not starts:
        yield Violation(
            axiom,
            life.id,
            f"transaction {life.id} is top-level and has no Begin, and no transaction spawns it",
            tuple(life.own[:1]),
        )
    elif others and others[0] < min(starts):
        yield Violation(
            axiom,
            life.id,
            f"transaction {life.id} does something before it is initiated",
            (others[0], min(starts)),
        )


def _ended(life: RecordedTransaction) -> Iterator[Violation]:
    axiom = 6 if life.is_child else 3
    ends = life.ends
    if not ends:
        if not life.is_promise:
            last = life.own[-1] if life.own else life.spawns[-1][0]
            yield Violation(
                axiom,
                life.id,
                f"transaction {life.id} neither commits nor aborts",
                (last,),
            )
        return
    if len(ends) > 1:
        yield Violation(axiom, life.id, f"transaction {life.id} ends {len(ends)} times", (*ends,))
    operations = set(life.operations)
    late = [p for p in life.own if p > ends[0] and p not in operations and p not in ends]
    if late:
        yield Violation(
            axiom,
            life.id,
            f"transaction {life.id} ends and does something afterwards",
            (ends[0], *late),
        )


def _fundamental(history: History, life: RecordedTransaction) -> Iterator[Violation]:
    for what, positions in (
        ("begins", life.begins),
        ("is spawned", [position for position, _ in life.spawns]),
    ):
        if len(positions) > 1:
            yield Violation(
                7,
                life.id,
                f"transaction {life.id} {what} {len(positions)} times",
                tuple(positions),
            )
    starts = [position for position, _ in life.spawns] + life.begins
    start, end = min(starts, default=None), min(life.ends, default=None)
    for position in life.operations:
        operation = history.events[position]
        assert isinstance(operation, Operation)
        what = f"transaction {life.id} invokes operation {operation.number}"
        if end is not None and position > end:
            yield Violation(7, life.id, f"{what} after its end", (end, position))
        elif start is None or position < start:
            at = (position,) if start is None else (position, start)
            yield Violation(7, life.id, f"{what} before it is initiated", at)


def _place(lives: RecordedTransactions, life: RecordedTransaction) -> Iterator[Violation]:
    first = (life.begins or life.own or [position for position, _ in life.spawns])[0]
    if life.begins and life.parent is not None:
        yield Violation(
            16,
            life.id,
            f"transaction {life.id} begins as top-level and has the parent {life.parent}",
            (first,),
        )
    for position, spawn in life.spawns:
        if spawn.mode.is_child and spawn.parent != spawn.by:
            yield Violation(
                18,
                life.id,
                f"transaction {spawn.by} spawns {life.id} as a child, whose parent is "
                f"{spawn.parent}",
                (position,),
            )
        elif not spawn.mode.is_child and spawn.parent is not None:
            yield Violation(
                20,
                life.id,
                f"transaction {spawn.by} spawns {life.id} as top-level, and it has the parent "
                f"{spawn.parent}",
                (position,),
            )
    if life.parent is None:
        wrong = "is a subtransaction and has no superiors" if life.is_child else ""
    elif not life.is_child or life.spawns[0][1].by != life.parent:
        wrong = f"has the superior {life.parent}, which has not spawned it as a child"
    elif lives.line(life.id)[-1].parent is not None:
        wrong = "has superiors among which there is no top-level transaction"
    else:
        wrong = ""
    if wrong:
        at = life.spawns[0][0] if life.spawns else first
        yield Violation(26, life.id, f"transaction {life.id} {wrong}", (at,))
