"""Construction of compensation plans (sections 3 and 4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from activedb.batches._composite import composite, edges_among
from activedb.batches._cover import Cover, independent_scover, transactions_of
from activedb.batches._interference import Interference, counts, interference, others_of
from activedb.batches._lineage import Lineage
from activedb.batches._plan import Broken, CompensationPlan, Kept, LostInput, Mode, Step
from activedb.batches._records import BatchKind, State
from activedb.batches._requirements import Requirement
from activedb.errors import LineageError
from activedb.spelling import listed

__all__ = ["is_begun", "plan_compensation"]


def plan_compensation(
    lineage: Lineage,
    ids: str | Iterable[str],
    mode: Mode | str = Mode.FULL,
    *,
    consecutive: bool = False,
    rounds: int | None = None,
) -> CompensationPlan:
    """Plan the compensation of batches; nothing is done or recorded.

    Parameters
    ----------
    lineage : Lineage
    ids : str or iterable of str
        Failed or recalled batches. For derived batches, full compensation drops all that follows
        from them and keeps the batches they are made of. Transactions are allowed, too, such as
        the one that failed.
    mode : Mode or str
    consecutive, rounds
        With `Mode.INDEPENDENT_COVER`, as for `independent_scover`.

    Returns
    -------
    CompensationPlan
        Plan for the lineage as it is. Later records may lead to another plan.

    Raises
    ------
    NotRecorded
        If there is no such batch.
    LineageError
        If no batch is given, the mode is unknown, or `consecutive` or `rounds` is given with
        another mode.

    Notes
    -----
    O(edges of the nodes reached), plus the cost of `interference`.
    """
    chosen_mode = _mode(mode)
    asked = lineage.in_order({ids} if isinstance(ids, str) else set(ids))
    if not asked:
        raise LineageError("no batch is given: say what is to be compensated")
    cover: Cover | None = None
    kept: tuple[Kept, ...] = ()
    if chosen_mode is Mode.INDEPENDENT_COVER:
        cover = independent_scover(lineage, asked, consecutive=consecutive, rounds=rounds)
        given_up, triggered = cover.sources, transactions_of(lineage, cover.sources)
    elif consecutive or rounds is not None:
        raise LineageError(
            f"consecutive and rounds are about covers: say {str(Mode.INDEPENDENT_COVER)!r}"
        )
    else:
        given_up, triggered = asked, composite(lineage, asked)
    live = tuple(id for id in triggered if lineage.transaction(id).is_live)
    if chosen_mode is Mode.NON_INTRUSIVE:
        live, kept = _non_interfering_prefix(lineage, live, given_up)
    affected = interference(lineage, live, given_up=given_up)
    return _Outcome(lineage, asked, given_up, cover, live, affected).plan(chosen_mode, kept)


def is_begun(lineage: Lineage, plan: CompensationPlan) -> bool:
    """Return whether a batch or transaction of a plan is already compensated or withdrawn."""
    batches = [lineage.batch(id) for id in plan.asked if not lineage.is_transaction(id)]
    transactions = map(lineage.transaction, composite(lineage, plan.asked))
    return any(batch.is_withdrawn for batch in batches) or not all(t.is_live for t in transactions)


def _mode(mode: Mode | str) -> Mode:
    try:
        return Mode(mode)
    except ValueError:
        raise LineageError(
            f"there is no compensation {mode!r}: say one of {listed(map(repr, map(str, Mode)))}"
        ) from None


def _non_interfering_prefix(
    lineage: Lineage, triggered: tuple[str, ...], given_up: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[Kept, ...]]:
    """Return the largest prefix that no other batch needs, and the rest of the transactions.

    A transaction is kept if the completion of another batch depends on it, or if one before it is
    kept: a prefix contains, with each transaction, all that come before it.
    """
    others = others_of(lineage, triggered, given_up=given_up)
    needed_by_others = {
        id
        for id in lineage.descendants(others)
        if lineage.is_transaction(id) and counts(lineage, id)
    }
    before: dict[str, set[str]] = {id: set() for id in triggered}
    for first, second, _ in edges_among(lineage, triggered):
        before[second].add(first)
    prefix: dict[str, None] = {}
    kept = []
    for id in triggered:
        if id in needed_by_others:
            kept.append(Kept(id, others_of(lineage, [id], given_up=given_up)))
        elif before[id] <= prefix.keys():
            prefix[id] = None
        else:
            kept.append(Kept(id, ()))
    return tuple(prefix), tuple(kept)


class _Outcome:
    """Effect on batches and transactions of compensating some transactions."""

    def __init__(
        self,
        lineage: Lineage,
        asked: tuple[str, ...],
        given_up: tuple[str, ...],
        cover: Cover | None,
        compensated: tuple[str, ...],
        affected: tuple[Interference, ...],
    ):
        self._lineage = lineage
        self._asked = asked
        self._given_up = given_up
        self._cover = cover
        self._compensated = compensated
        self._affected = affected
        self._gone = set(compensated)

    def plan(self, mode: Mode, kept: tuple[Kept, ...]) -> CompensationPlan:
        lineage = self._lineage
        executed = [
            found
            for found in map(lineage.transaction, reversed(self._compensated))
            if found.state is State.EXECUTED
        ]
        never = (id for id in self._compensated if lineage.transaction(id).state is State.FAILED)
        also_for: dict[str, list[str]] = {}
        for each in self._affected:
            for id in each.shared:
                also_for.setdefault(id, []).append(each.batch)
        withdrawn = lineage.in_order(found.output for found in executed if found.output)
        dropped, partially_dropped, to_withdraw = self._batches(withdrawn)
        return CompensationPlan(
            mode,
            self._asked,
            self._given_up,
            self._cover,
            tuple(
                Step(
                    found.id,
                    found.program,
                    found.number,
                    found.inputs,
                    found.output,
                    tuple(also_for.get(found.id, ())),
                )
                for found in executed
            ),
            tuple(never),
            kept,
            self._affected,
            dropped,
            partially_dropped,
            withdrawn,
            to_withdraw,
            self._lost_input(),
            self._broken(),
            tuple(
                found.id
                for found in executed
                if not lineage.workflow.programs[found.program].compensable
            ),
        )

    def _batches(
        self, withdrawn: tuple[str, ...]
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Return the batches dropped, those partially dropped, and those to withdraw."""
        lineage = self._lineage
        recalled = {id for id in (*self._asked, *self._given_up) if not lineage.is_transaction(id)}
        above = lineage.ancestors({*self._compensated, *recalled})
        standing = {
            id
            for id in lineage.descendants(above)
            if lineage.is_transaction(id)
            and id not in self._gone
            and lineage.transaction(id).is_live
        }
        feeds_standing = lineage.ancestors(standing)
        dropped: list[str] = []
        partially: list[str] = []
        for id in lineage.in_order(above):
            if lineage.is_transaction(id) or id in withdrawn:
                continue
            batch = lineage.batch(id)
            if batch.kind is BatchKind.INPUT and id not in recalled:
                continue
            if batch.producer and not lineage.transaction(batch.producer).is_live:
                continue
            waits = id not in recalled and lineage.is_still_due(id)
            (partially if waits or id in feeds_standing else dropped).append(id)
        waiting = (
            id for id in lineage.in_order(recalled | set(withdrawn)) if lineage.is_still_due(id)
        )
        return tuple(dropped), tuple(partially), tuple(waiting)

    def _lost_input(self) -> tuple[LostInput, ...]:
        """Return the transactions that stand but depend on compensated ones."""
        lineage = self._lineage
        found = []
        below = lineage.descendants(self._compensated)
        for id in lineage.in_transaction_order(i for i in below if lineage.is_transaction(i)):
            transaction = lineage.transaction(id)
            if id in self._gone or transaction.state is not State.EXECUTED:
                continue
            used = _used_batches(lineage, transaction.inputs)
            lost = tuple(b for b in used if lineage.batch(b).producer in self._gone)
            causes = tuple(each for each in transaction.triggered_by if each in self._gone)
            if lost or causes:
                stands_on = len(used) + len(transaction.triggered_by)
                found.append(LostInput(id, lost, causes, len(lost) + len(causes) == stands_on))
        return tuple(found)

    def _incomplete(self) -> Iterator[Broken]:
        """Yield the source batches, except those given up, that would become incomplete."""
        lineage = self._lineage
        for batch in lineage.sources_of(self._gone) if self._gone else ():
            if batch in self._given_up:
                continue
            found = {id for id in lineage.descendants(batch) if lineage.is_transaction(id)}
            missing = {
                id
                for id in found & self._gone
                if lineage.workflow.programs[lineage.transaction(id).program].requires(
                    Requirement.COMPLETION
                )
            }
            left = found - self._gone
            if missing and any(lineage.transaction(id).state is State.EXECUTED for id in left):
                names = listed(lineage.in_transaction_order(missing))
                yield Broken(Requirement.COMPLETION, batch, f"{names} would be missing")

    def _broken(self) -> tuple[Broken, ...]:
        found = list(self._incomplete())
        programs = self._lineage.workflow.programs
        missing: dict[str, list[str]] = {}
        region = composite(self._lineage, self._compensated)
        for first, second, _ in edges_among(self._lineage, region):
            if first in self._gone and second not in self._gone:
                missing.setdefault(second, []).append(first)
        for id in self._lineage.in_transaction_order(missing):
            transaction = self._lineage.transaction(id)
            program = programs[transaction.program]
            stands = transaction.state is State.EXECUTED
            if stands and program.requires(Requirement.MONOTONIC_EXECUTION):
                behind = listed(dict.fromkeys(missing[id]))
                found.append(
                    Broken(Requirement.MONOTONIC_EXECUTION, id, f"it would stand behind {behind}")
                )
        return tuple(found)


def _used_batches(lineage: Lineage, inputs: Iterable[str]) -> tuple[str, ...]:
    """Return the source batches and outputs that inputs are or are formed of."""
    found: dict[str, None] = {}
    for id in inputs:
        batch = lineage.batch(id)
        found.update(
            dict.fromkeys((piece.batch for piece in batch.pieces) if batch.pieces else [id])
        )
    return tuple(found)
