"""Expressions completed by time: plus, periodic, and the time-out of partial matches."""

from __future__ import annotations

from dataclasses import dataclass

from activedb.errors import PatternError
from activedb.events._choices import Context, one_of
from activedb.events._expression import Expression
from activedb.events._kleene import Kleene
from activedb.events._names import name_text
from activedb.events._primitives import Negation, Primitive, seconds_text
from activedb.events._sequence import Sequence

__all__ = ["Periodic", "Plus", "TimedOut"]


@dataclass(frozen=True, slots=True, repr=False)
class Plus(Expression):
    """Event a fixed delay after each occurrence of its operand (Chakravarthy et al. 1994, plus).

    It has the parts and parameters of that occurrence, and the later timestamp.

    Attributes
    ----------
    operand : Expression
    delay_us : int
        Microseconds from the operand's occurrence to this event.
    """

    operand: Expression
    delay_us: int

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        return self.operand.keys

    @property
    def names(self) -> tuple[str, ...]:
        return self.operand.names

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.operand,)

    @property
    def reach_us(self) -> int | None:
        reach_us = self.operand.reach_us
        return None if reach_us is None else reach_us + self.delay_us

    def check(self) -> None:
        _check_operand(self, self.operand)

    def context(self, context: str) -> Plus:
        """Set the context of the operand."""
        operand = self.operand
        if not isinstance(operand, Primitive):
            operand = operand.context(context)
        return Plus(operand, self.delay_us)

    def __repr__(self) -> str:
        return f"AFTER({seconds_text(self.delay_us)}s, {self.operand!r})"


@dataclass(frozen=True, slots=True, repr=False)
class Periodic(Expression):
    """Ticks from one event to another (Chakravarthy et al. 1994, P and P*).

    Attributes
    ----------
    start, end : Expression
    period_us : int
        Ticks occur 1, 2, … periods after the end of `start`, before the time of `end`.
    collected : bool
        True for P*: one occurrence, at the end, with all ticks. False: one occurrence per tick.
    consumption : Context
        Choice among several open starts.
    alias : str
        The part name of the ticks.
    """

    start: Expression
    period_us: int
    end: Expression
    collected: bool = False
    consumption: Context = Context.UNRESTRICTED
    alias: str = "tick"

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        return self.start.keys | self.end.keys

    @property
    def names(self) -> tuple[str, ...]:
        ends = self.end.names if self.collected else ()
        return (*self.start.names, self.alias, *ends)

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.start, self.end)

    @property
    def reach_us(self) -> int | None:
        return None

    def check(self) -> None:
        _check_operand(self, self.start)
        _check_operand(self, self.end)
        if len(set(self.names)) < len(self.names):
            raise PatternError(f"two parts of {self!r} have one name: give one an alias")

    def context(self, context: str) -> Periodic:
        """Set the context of this expression and of its start and end."""
        start, end = (
            part if isinstance(part, Primitive) else part.context(context)
            for part in (self.start, self.end)
        )
        chosen = one_of(Context, context, "a context")
        return Periodic(start, self.period_us, end, self.collected, chosen, self.alias)

    def __repr__(self) -> str:
        star = "*" if self.collected else ""
        text = f"PERIODIC{star}({self.start!r}, {seconds_text(self.period_us)}s, {self.end!r})"
        text += "" if self.alias == "tick" else f" AS {name_text(self.alias)}"
        if self.consumption is not Context.UNRESTRICTED:
            text += f" CONTEXT {self.consumption.value}"
        return text


@dataclass(frozen=True, slots=True, repr=False)
class TimedOut(Expression):
    """Partial match of a sequence that was incomplete when its window ended.

    It occurs at the end of the window, with the parts of the longest partial match.

    Attributes
    ----------
    sequence : Sequence
        A sequence with a window and without a negation at its end.
    """

    sequence: Sequence

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        return self.sequence.keys

    @property
    def names(self) -> tuple[str, ...]:
        return self.sequence.names

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.sequence,)

    @property
    def reach_us(self) -> int | None:
        return self.sequence.window_us

    def check(self) -> None:
        self.sequence.check()
        if self.sequence.window_us is None:
            raise PatternError(f"{self!r} never occurs: give the sequence .within(seconds)")
        first = self.sequence.positives[0]
        if isinstance(first, Kleene) and first.minimum == 0:
            raise PatternError(
                f"{first!r} may be missing, so it is unknown which event begins a partial match of "
                f"{self.sequence!r}: demand the first part to time it out"
            )
        if isinstance(self.sequence.parts[-1], Negation):
            raise PatternError(
                f"{self.sequence!r} ends with a negation: the end of its window makes it whole, so "
                "it never times out"
            )

    def context(self, context: str) -> TimedOut:
        """Set the context of the sequence's parts; the sequence's own context has no effect."""
        return TimedOut(self.sequence.context(context))

    def __repr__(self) -> str:
        return f"TIMEOUT({self.sequence!r})"


def _check_operand(expression: Expression, operand: Expression) -> None:
    try:
        operand.check()
    except PatternError as error:
        raise PatternError(f"{expression!r}: {error}") from None
