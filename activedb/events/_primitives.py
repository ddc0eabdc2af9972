"""Primitive events, including clock events, and their negation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from activedb.errors import BadEvent, PatternError
from activedb.events._expression import Expression, Reader
from activedb.events._names import dotted_text, name_text
from activedb.events._occurrence import Occurrence
from activedb.functions import checked_result

if TYPE_CHECKING:
    from activedb.events._kleene import Kleene
    from activedb.events._schedules import Schedule

__all__ = [
    "Negation",
    "OccurrencePredicate",
    "Primitive",
    "ReadingPredicate",
    "called",
    "seconds_text",
    "where_text",
]

OccurrencePredicate = Callable[[Occurrence], object]
"""A function of an occurrence, or a `Term` without part names."""
ReadingPredicate = Callable[[Reader, Occurrence], object]


@dataclass(frozen=True, slots=True, repr=False)
class Primitive(Expression):
    """One kind of primitive event, optionally narrowed by changed columns and predicates.

    Attributes
    ----------
    key : tuple of (str, str)
        The `Occurrence.key` of the events; ``("clock", text)`` for a clock event.
    columns : tuple of str
        For an update: at least one of these must have changed. Empty: any update.
    predicate : callable or Term or None
        ``predicate(o) -> bool``; pure.
    alias : str or None
        The part's name, if it differs from the event's.
    reading : callable or None
        ``reading(t, o) -> bool``, which reads the shared store as of the event's time. It is
        evaluated when the event is fed; its result is kept with the event.
    schedule : Schedule or None
        For a clock event: the moments at which it occurs.
    """

    key: tuple[str, str]
    columns: tuple[str, ...] = ()
    predicate: OccurrencePredicate | None = None
    alias: str | None = None
    reading: ReadingPredicate | None = None
    schedule: Schedule | None = None

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        return frozenset() if self.schedule is not None else frozenset((self.key,))

    @property
    def name(self) -> str:
        """The part's name: the alias, or the event's name."""
        return self.key[1] if self.alias is None else self.alias

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def children(self) -> tuple[Expression, ...]:
        return ()

    @property
    def reach_us(self) -> int | None:
        return 0

    def check(self) -> None:
        """Do nothing: a primitive event can always stand on its own."""

    def named(self, alias: str) -> Primitive:
        """Return this event as a part with another name."""
        return replace(self, alias=checked_alias(alias))

    def takes(self, o: Occurrence) -> bool:
        """Return whether `o` is such an event, judging by the event alone (not by `reading`).

        Raises
        ------
        BadEvent
            If a row of the update lacks one of the columns.
        """
        if o.key != self.key:
            return False
        if self.columns and not any(_changed(o, column) for column in self.columns):
            return False
        if self.predicate is None:
            return True
        return bool(checked_result(self.predicate(o), "the predicate (where=)"))

    def many(self, minimum: int = 1, maximum: int | None = None, *, greedy: bool = True) -> Kleene:
        """Return several of these events in time order, as a part of a sequence; see `many`."""
        from activedb.events._operators import many

        return many(self, minimum, maximum, greedy=greedy)

    def __invert__(self) -> Negation:
        return Negation(self)

    def __repr__(self) -> str:
        kind, name = self.key
        if kind in ("event", "clock"):
            text = name_text(name) if kind == "event" else name
        else:
            if kind != "transaction":  # the names of transaction events are keywords
                name = name_text(name) if kind == "late" else dotted_text(name)
            text = f"{kind.upper()} {name}"
        if self.columns:
            text += f"({', '.join(map(name_text, self.columns))})"
        if self.alias is not None:
            text += f" AS {name_text(self.alias)}"
        conditions = [f for f in (self.predicate, self.reading) if f is not None]
        if len(conditions) == 1 and self.reading is None:
            return f"{text} WHERE {called(conditions[0])}"
        return text + where_text(conditions)


@dataclass(frozen=True, slots=True, repr=False)
class Negation(Expression):
    """Negation: primitive events that must not occur at this place of a sequence.

    Attributes
    ----------
    operand : Primitive, or Disjunction of some
    """

    operand: Expression

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        return self.operand.keys

    @property
    def names(self) -> tuple[str, ...]:
        return ()

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.operand,)

    @property
    def reach_us(self) -> int | None:
        return 0

    @property
    def alternatives(self) -> tuple[Primitive, ...]:
        """The primitive events that must not occur."""
        found = self.operand.children or (self.operand,)
        return tuple(part for part in found if isinstance(part, Primitive))

    def check(self) -> None:
        raise PatternError(
            f"{self!r} alone never occurs: negate a part of a sequence, as in seq(a, {self!r}, c) "
            "with ~ for !"
        )

    def __invert__(self) -> Expression:
        raise PatternError(f"{self!r} is negated twice: leave out both ~")

    def __repr__(self) -> str:
        return f"!{self.operand!r}"


def checked_alias(alias: Any) -> str:
    """Return `alias` if it is a valid part name.

    Raises
    ------
    PatternError
        If it is not a non-empty string.
    """
    if not isinstance(alias, str) or not alias:
        raise PatternError(f"alias takes a non-empty string, not {alias!r}")
    return alias


def called(function: object) -> str:
    """Return the display form of a predicate: a term as written, a function by its name."""
    if hasattr(function, "evaluate"):  # a Term
        return repr(function)
    return getattr(function, "__name__", None) or type(function).__name__


def where_text(conditions: Iterable[object]) -> str:
    """Return conditions as a WHERE clause; the empty string if there are none."""
    # Parentheses keep a condition built with AND or OR together.
    texts = [
        f"({called(f)})" if getattr(f, "is_junction", False) else called(f) for f in conditions
    ]
    return f" WHERE {' AND '.join(texts)}" if texts else ""


def seconds_text(us: int) -> str:
    """Return microseconds as seconds, exactly: ``"45"``, ``"0.5"``."""
    whole, rest = divmod(us, 1_000_000)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".") if rest else str(whole)


def _changed(o: Occurrence, column: str) -> bool:
    try:
        old, new = (o.old or {})[column], (o.new or {})[column]
    except KeyError:
        raise BadEvent(
            f"the update of {o.name!r} has no column {column!r} in its old or new row: "
            "an update carries both rows whole"
        ) from None
    # NaN is the one value that differs from itself; NaN to NaN is no change.
    return not (old is new or old == new or (old != old and new != new))
