"""Compensation plans: the steps, their effects, and their construction (sections 3 and 4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from activedb.batches._composite import composite, edges_among
from activedb.batches._cover import (
    Cover,
    Interference,
    counts,
    independent_scover,
    interference,
    others_of,
    transactions_of,
)
from activedb.batches._lineage import Lineage
from activedb.batches._records import BatchKind, State
from activedb.batches._workflow import Requirement
from activedb.errors import LineageError
from activedb.spelling import listed

__all__ = [
    "Broken",
    "CompensationPlan",
    "Kept",
    "LostInput",
    "Mode",
    "Step",
    "is_begun",
    "plan_compensation",
]


class Mode(StrEnum):
    """Extent of a compensation."""

    FULL = "full"
    """All transactions that the batches have triggered, even if others depend on them."""
    NON_INTRUSIVE = "non-intrusive"
    """The largest prefix of these transactions that affects the completion of no other batch."""
    INDEPENDENT_COVER = "independent cover"
    """All transactions that an independent source cover triggered, and all that depend on them."""


@dataclass(frozen=True, slots=True)
class Step:
    """A transaction to be compensated.

    Attributes
    ----------
    transaction, program : str
    number : int
    inputs : tuple of str
    output : str
    also_for : tuple of str
        Source batches that are not given up and lose this transaction.
    """

    transaction: str
    program: str
    number: int
    inputs: tuple[str, ...]
    output: str
    also_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """A transaction that the batches have triggered and that is not compensated.

    Attributes
    ----------
    transaction : str
    because_of : tuple of str
        Other source batches that need it; empty if it follows a transaction that is kept.
    """

    transaction: str
    because_of: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LostInput:
    """A transaction that is kept although some of its input was withdrawn.

    Attributes
    ----------
    transaction : str
    batches : tuple of str
        Inputs that compensated transactions produced.
    triggered_by : tuple of str
        Compensated transactions that have triggered it without a batch.
    is_all : bool
        True if it has no other input and no other cause.
    """

    transaction: str
    batches: tuple[str, ...]
    triggered_by: tuple[str, ...]
    is_all: bool


@dataclass(frozen=True, slots=True)
class Broken:
    """A requirement that no longer holds once the plan is carried out.

    Attributes
    ----------
    requirement : Requirement
    of : str
        Source batch that becomes incomplete, or the transaction that is kept without its input.
    reason : str
    """

    requirement: Requirement
    of: str
    reason: str


@dataclass(frozen=True, slots=True)
class CompensationPlan:
    """Transactions to compensate, in order, and the effects on batches.

    Attributes
    ----------
    mode : Mode
    asked : tuple of str
        Batches, or transactions, that were asked about.
    given_up : tuple of str
        Batches dropped on purpose: those asked about, or the sources of the cover. The batches
        that a derived batch is made of are not given up with it: other readers still use them.
    cover : Cover or None
        With `Mode.INDEPENDENT_COVER`, the origin of `given_up`.
    steps : tuple of Step
        In the order in which to compensate: the reverse of an order consistent with the
        transaction graph.
    never_executed : tuple of str
        Failed transactions that are given up: nothing to compensate.
    kept : tuple of Kept
    interference : tuple of Interference
        Other batches whose completion is affected.
    dropped : tuple of str
        Batches whose triggered transactions are all gone: source batches, and outputs of
        transactions that stand.
    partially_dropped : tuple of str
        Batches whose triggered transactions are partly gone, and partly stand or are still to come.
    withdrawn : tuple of str
        Outputs of compensated transactions.
    to_withdraw : tuple of str
        Batches of `withdrawn` and `given_up` that wait to be used. They must be withdrawn from
        their readers (`Forming.withdraw`), and recorded as withdrawn (`Lineage.withdraw`).
    lost_input : tuple of LostInput
    broken : tuple of Broken
    not_compensable : tuple of str
        Transactions of `steps` whose program has no compensating action.
    """

    mode: Mode
    asked: tuple[str, ...]
    given_up: tuple[str, ...]
    cover: Cover | None
    steps: tuple[Step, ...]
    never_executed: tuple[str, ...]
    kept: tuple[Kept, ...]
    interference: tuple[Interference, ...]
    dropped: tuple[str, ...]
    partially_dropped: tuple[str, ...]
    withdrawn: tuple[str, ...]
    to_withdraw: tuple[str, ...]
    lost_input: tuple[LostInput, ...]
    broken: tuple[Broken, ...]
    not_compensable: tuple[str, ...]

    @property
    def order(self) -> tuple[str, ...]:
        """Transactions to compensate, the first one first."""
        return tuple(step.transaction for step in self.steps)

    @property
    def transactions(self) -> tuple[str, ...]:
        """Transactions that count as compensated afterwards: `order`, and those never executed."""
        return (*self.order, *self.never_executed)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to compensate and nothing to withdraw."""
        return not self.transactions and not self.to_withdraw

    @property
    def is_interfering(self) -> bool:
        """True if the completion of other batches is affected."""
        return bool(self.interference)

    @property
    def is_possible(self) -> bool:
        """True if every step has a compensating action."""
        return not self.not_compensable

    def explain(self) -> list[str]:
        """Return the plan as human-readable sentences."""
        lines = [f"{str(self.mode).capitalize()} compensation of {listed(self.asked)}."]
        if self.cover is not None:
            lines += self.cover.explain()
        for number, step in enumerate(self.steps, 1):
            shared = f"; {listed(step.also_for)} would lose it" if step.also_for else ""
            lines.append(
                f"{number}. Compensate {step.transaction} ({step.program}), "
                f"which used {listed(step.inputs) if step.inputs else 'no batch'}{shared}."
            )
        if not self.steps:
            lines.append("There is nothing to compensate.")
        if self.never_executed:
            lines.append(f"Never executed, and given up: {listed(self.never_executed)}.")
        for kept in self.kept:
            why = (
                f"needed by {listed(kept.because_of)}"
                if kept.because_of
                else "it follows one that is kept"
            )
            lines.append(f"{kept.transaction} is kept: {why}.")
        for name, what in (
            ("Dropped", self.dropped),
            ("Partially dropped", self.partially_dropped),
            ("Withdrawn", self.withdrawn),
            ("To be withdrawn from waiting readers", self.to_withdraw),
        ):
            if what:
                lines.append(f"{name}: {listed(what)}.")
        for lost in self.lost_input:
            much = "all" if lost.is_all else "a part"
            basis = "its triggering transactions" if lost.triggered_by else "its input"
            named = listed((*lost.batches, *lost.triggered_by))
            lines.append(f"{lost.transaction} is kept without {much} of {basis}: {named}.")
        if self.interference:
            lines.append("Interfering: " + "; ".join(map(str, self.interference)) + ".")
        else:
            lines.append("No other batch is affected.")
        lines += [
            f"Broken, {each.requirement} of {each.of}: {each.reason}." for each in self.broken
        ]
        if self.not_compensable:
            lines.append(
                "The plan cannot be carried out: there is no compensating action for "
                f"{listed(self.not_compensable)}; declare one, or choose later batches."
            )
        return lines

    def record(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "mode": str(self.mode),
            "asked": list(self.asked),
            "given_up": list(self.given_up),
            "cover": None if self.cover is None else self.cover.record(),
            "steps": [
                {
                    "transaction": step.transaction,
                    "program": step.program,
                    "number": step.number,
                    "inputs": list(step.inputs),
                    "output": step.output,
                    "also_for": list(step.also_for),
                }
                for step in self.steps
            ],
            "never_executed": list(self.never_executed),
            "kept": [
                {"transaction": each.transaction, "because_of": list(each.because_of)}
                for each in self.kept
            ],
            "interference": [each.record() for each in self.interference],
            "dropped": list(self.dropped),
            "partially_dropped": list(self.partially_dropped),
            "withdrawn": list(self.withdrawn),
            "to_withdraw": list(self.to_withdraw),
            "lost_input": [
                {
                    "transaction": each.transaction,
                    "batches": list(each.batches),
                    "triggered_by": list(each.triggered_by),
                    "is_all": each.is_all,
                }
                for each in self.lost_input
            ],
            "broken": [
                {"requirement": str(each.requirement), "of": each.of, "reason": each.reason}
                for each in self.broken
            ],
            "not_compensable": list(self.not_compensable),
            "is_interfering": self.is_interfering,
            "is_possible": self.is_possible,
        }


# -- construction of compensation plans (sections 3 and 4) -----------------------------------------


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
        raise LineageError("no batch is given: name the batches to compensate")
    cover: Cover | None = None
    kept: tuple[Kept, ...] = ()
    if chosen_mode is Mode.INDEPENDENT_COVER:
        cover = independent_scover(lineage, asked, consecutive=consecutive, rounds=rounds)
        given_up, triggered = cover.sources, transactions_of(lineage, cover.sources)
    elif consecutive or rounds is not None:
        raise LineageError(
            f"consecutive and rounds apply only to covers: use mode={str(Mode.INDEPENDENT_COVER)!r}"
        )
    else:
        given_up, triggered = asked, composite(lineage, asked)
    live = tuple(id for id in triggered if lineage.transaction(id).is_live)
    if chosen_mode is Mode.NON_INTRUSIVE:
        live, kept = _non_interfering_prefix(lineage, live, given_up)
    affected = interference(lineage, live, given_up=given_up)
    return _CompensationEffect(lineage, asked, given_up, cover, live, affected).plan(
        chosen_mode, kept
    )


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
            f"there is no compensation {mode!r}: use one of {listed(map(repr, map(str, Mode)))}"
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


class _CompensationEffect:
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
