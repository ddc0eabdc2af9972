"""Compensation plan as a value: the steps and their effects."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from activedb.batches._cover import Cover
from activedb.batches._interference import Interference
from activedb.batches._requirements import Requirement
from activedb.spelling import listed

__all__ = ["Broken", "CompensationPlan", "Kept", "LostInput", "Mode", "Step"]


class Mode(StrEnum):
    """Extent of a compensation."""

    FULL = "full"
    """All transactions that the batches have triggered, even if others depend on them."""
    NON_INTRUSIVE = "non-intrusive"
    """The largest prefix of these transactions that affects the completion of no other batch."""
    INDEPENDENT_COVER = "independent cover"
    """All that an independent scover has triggered, and all that would stand behind that."""


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
    """A transaction that stands although some of its input was withdrawn.

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
        Source batch that becomes incomplete, or the transaction that stands without its input.
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
            ("To be taken from those who wait for it", self.to_withdraw),
        ):
            if what:
                lines.append(f"{name}: {listed(what)}.")
        for lost in self.lost_input:
            much = "all" if lost.is_all else "a part"
            basis = "what has triggered it" if lost.triggered_by else "its input"
            named = listed((*lost.batches, *lost.triggered_by))
            lines.append(f"{lost.transaction} stands without {much} of {basis}: {named}.")
        if self.interference:
            lines.append("Interfering: " + "; ".join(map(str, self.interference)) + ".")
        else:
            lines.append("No other batch is affected.")
        lines += [
            f"Broken, {each.requirement} of {each.of}: {each.reason}." for each in self.broken
        ]
        if self.not_compensable:
            lines.append(
                "It cannot be carried out: there is no compensating action for "
                f"{listed(self.not_compensable)}; declare one, or choose batches behind them."
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
