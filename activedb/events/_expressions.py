"""Event expressions: the tree that says which occurrences a rule listens to.

::

    Expression
    ├── Primitive    event("EXIT"), inserted(t), updated(t, "balance"), deleted(t)
    ├── Negation     ~primitive, only as a part of a sequence
    ├── Disjunction  any_of(primitive, …), primitive | primitive
    └── Sequence     seq(...) with .same(...), .where(...), .within(...)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from activedb.errors import BadEvent, PatternError
from activedb.events._occurrence import Occurrence
from activedb.events._timestamps import seconds_us, timedelta_us

__all__ = ["Disjunction", "Expression", "Negation", "OccurrencePredicate", "Primitive", "Sequence"]

OccurrencePredicate = Callable[[Occurrence], object]
PartsPredicate = Callable[[Mapping[str, Occurrence]], object]


class Expression(ABC):
    """An event expression; immutable, compared by value."""

    __slots__ = ()

    @property
    @abstractmethod
    def keys(self) -> frozenset[tuple[str, str]]:
        """The keys of the primitive events it listens to, negated ones included.

        ``("event", name)`` for application and stream events; ``("insert" | "update" | "delete",
        full table name)`` for data changes.
        """

    @abstractmethod
    def check(self) -> None:
        """Raise `PatternError` if the expression cannot stand on its own.

        What a later method may still mend (a sequence that starts with a negation needs
        `within`) is judged here and not while the expression is being written; a `Detector`
        checks its expression.
        """

    def __invert__(self) -> Expression:
        """Negate: as a part of a sequence, no such event may occur there."""
        raise PatternError(
            f"~ negates a primitive event, not {self!r}: write seq(a, ~event('B'), c)"
        )

    def __or__(self, other: object) -> Disjunction:
        """Either of two primitive events, as `any_of`."""
        parts = (*_alternatives(self), *_alternatives(other))
        return Disjunction(tuple(dict.fromkeys(parts)))

    def same(self, *attributes: str) -> Expression:
        """Demand equal values of parameters in all parts (sequences only)."""
        raise PatternError(f"same() relates the parts of a sequence: write seq({self!r}, …).same()")

    def where(self, predicate: PartsPredicate) -> Expression:
        """Demand a predicate over the parts (sequences only)."""
        raise PatternError(
            f"where() takes the parts of a sequence: for {self!r} alone write "
            "event(…, where=lambda o: …)"
        )

    def within(self, window: float | timedelta) -> Expression:
        """Bound the time from the first to the last part (sequences only)."""
        raise PatternError(
            f"within() bounds the parts of a sequence: write seq({self!r}, …).within()"
        )


@dataclass(frozen=True, slots=True, repr=False)
class Primitive(Expression):
    """One kind of primitive event, narrowed by changed columns, a predicate, or both.

    Attributes
    ----------
    key : tuple of (str, str)
        The `Occurrence.key` it listens to.
    columns : tuple of str
        Of an update: at least one of them must have changed. Empty: any update.
    predicate : callable or None
        ``predicate(o) -> bool``; pure.
    alias : str or None
        The part's name, if it shall not be the event's.
    """

    key: tuple[str, str]
    columns: tuple[str, ...]
    predicate: OccurrencePredicate | None
    alias: str | None

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        return frozenset((self.key,))

    @property
    def name(self) -> str:
        """The part's name: the alias, or the event's name."""
        return self.key[1] if self.alias is None else self.alias

    def check(self) -> None:
        """Do nothing: a primitive event can always stand on its own."""

    def takes(self, o: Occurrence) -> bool:
        """Whether `o` is such an event.

        Raises
        ------
        BadEvent
            If a row of the update lacks one of the columns.
        """
        if o.key != self.key:
            return False
        if self.columns and not any(_changed(o, column) for column in self.columns):
            return False
        return self.predicate is None or bool(self.predicate(o))

    def __invert__(self) -> Negation:
        return Negation(self)

    def __repr__(self) -> str:
        kind, name = self.key
        text = name if kind == "event" else f"{kind.upper()} {name}"
        if self.columns:
            text += f"({', '.join(self.columns)})"
        if self.alias is not None:
            text += f" AS {self.alias}"
        if self.predicate is not None:
            text += f" WHERE {_called(self.predicate)}"
        return text


@dataclass(frozen=True, slots=True, repr=False)
class Negation(Expression):
    """A primitive event that must not occur at this place of a sequence."""

    operand: Primitive

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        return self.operand.keys

    def check(self) -> None:
        raise PatternError(
            f"{self!r} alone never occurs: negate a part of a sequence, as in seq(a, {self!r}, c) "
            "with ~ for !"
        )

    def __invert__(self) -> Expression:
        raise PatternError(f"{self!r} is negated twice: leave out both ~")

    def __repr__(self) -> str:
        return f"!{self.operand!r}"


@dataclass(frozen=True, slots=True, repr=False)
class Disjunction(Expression):
    """Any one of several primitive events.

    What occurs is the primitive event itself, once, however many of the parts take it.

    Attributes
    ----------
    parts : tuple of Primitive
        At least one, each once.
    """

    parts: tuple[Primitive, ...]

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        return frozenset(part.key for part in self.parts)

    def check(self) -> None:
        """Do nothing: primitive events can always stand on their own."""

    def __invert__(self) -> Expression:
        raise PatternError(
            f"~ negates a primitive event, not {self!r}: negate each of its parts at their place"
        )

    def __repr__(self) -> str:
        return f"ANY({', '.join(map(repr, self.parts))})"


def _alternatives(expression: object) -> tuple[Primitive, ...]:
    """The primitive events that stand for `expression` in a disjunction."""
    if isinstance(expression, Primitive):
        return (expression,)
    if isinstance(expression, Disjunction):
        return expression.parts
    raise PatternError(
        f'any_of() and | take primitive events, such as event("A") | updated(table), not '
        f"{expression!r}; define a rule for each of the others"
    )


@dataclass(frozen=True, slots=True, repr=False)
class Sequence(Expression):
    """Primitive events in strict time order, with negated ones in between.

    Attributes
    ----------
    parts : tuple of Primitive or Negation
        In order; the last one is positive, and positive parts have different names.
    attributes : tuple of str
        Parameters that must be equal in all parts.
    predicates : tuple of callable
        ``predicate(parts) -> bool`` over the positive parts; pure; all must hold.
    window_us : int or None
        The longest time from the first to the last positive part, in microseconds, inclusive.
    """

    parts: tuple[Primitive | Negation, ...]
    attributes: tuple[str, ...] = ()
    predicates: tuple[PartsPredicate, ...] = ()
    window_us: int | None = None

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        return frozenset().union(*(part.keys for part in self.parts))

    def check(self) -> None:
        if isinstance(self.parts[0], Negation) and self.window_us is None:
            raise PatternError(
                f"{self!r} starts with a negation, which looks back over the window: "
                "say how far with .within(seconds)"
            )

    def same(self, *attributes: str) -> Sequence:
        """Demand that parameters have equal values in all parts, negated ones included.

        A negated event with other values does not stand in the way.

        Parameters
        ----------
        *attributes : str
            Parameter names, at least one; those of earlier calls stay. Values are compared as
            dictionary keys are, so they must be hashable and equal to themselves.
        """
        for attribute in attributes:
            if not isinstance(attribute, str) or not attribute:
                raise PatternError(f"same() takes parameter names, not {attribute!r}")
        if not attributes:
            raise PatternError('same() needs at least one parameter name: .same("worker")')
        return replace(self, attributes=tuple(dict.fromkeys(self.attributes + attributes)))

    def where(self, predicate: PartsPredicate) -> Sequence:
        """Demand ``predicate(parts)``, a mapping of part names to the positive constituents.

        The predicate must be pure: it is called for every combination that fulfils the rest, and
        its result must depend on the parts alone. Predicates of earlier calls stay.
        """
        if not callable(predicate):
            raise PatternError(f"where() takes a function of the parts, not {predicate!r}")
        return replace(self, predicates=(*self.predicates, predicate))

    def within(self, window: float | timedelta) -> Sequence:
        """Bound the time from the first to the last positive part, inclusive.

        Parameters
        ----------
        window : int, float or timedelta
            Seconds (to the nearest microsecond) or a timedelta; positive.
        """
        if self.window_us is not None:
            raise PatternError(f"{self!r} has its window already: call within() once")
        if isinstance(window, timedelta):
            window_us: int | None = timedelta_us(window)
        elif isinstance(window, int | float) and not isinstance(window, bool):
            window_us = seconds_us(window)
        else:
            raise PatternError(f"within() takes seconds or a timedelta, not {window!r}")
        if window_us is None or window_us <= 0:
            raise PatternError(
                f"within() takes a finite window of at least a microsecond, not {window!r}"
            )
        return replace(self, window_us=window_us)

    def __repr__(self) -> str:
        text = f"SEQ({', '.join(map(repr, self.parts))})"
        if self.attributes:
            text += f" SAME {', '.join(self.attributes)}"
        if self.predicates:
            text += f" WHERE {' AND '.join(map(_called, self.predicates))}"
        if self.window_us is not None:
            text += f" WITHIN {_seconds(self.window_us)}s"
        return text


def _changed(o: Occurrence, column: str) -> bool:
    try:
        old, new = (o.old or {})[column], (o.new or {})[column]
    except KeyError:
        raise BadEvent(
            f"the update of {o.name!r} has no column {column!r} in its old or new row: "
            "an update carries both rows whole"
        ) from None
    # NaN is the one value unlike itself; NaN to NaN is no change.
    return not (old is new or old == new or (old != old and new != new))


def _called(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", None) or type(function).__name__


def _seconds(us: int) -> str:
    whole, rest = divmod(us, 1_000_000)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".") if rest else str(whole)
