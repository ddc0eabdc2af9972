"""Event expressions: primitive events, and combinations of events (README, "Expressions")."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from activedb.clock import timedelta_us
from activedb.errors import BadEvent, PatternError
from activedb.events._accuracy import seconds_us
from activedb.events._choices import NO_SKIP, Context, Selection, Skip, SkipTo, one_of
from activedb.events._names import dotted_text, name_text, repeated, seconds_text
from activedb.events._occurrence import Occurrence
from activedb.functions import checked_function, checked_result

if TYPE_CHECKING:
    from activedb.events._schedules import Schedule

__all__ = [
    "Combination",
    "Conjunction",
    "Constituent",
    "Disjunction",
    "Expression",
    "Kleene",
    "Negation",
    "OccurrencePredicate",
    "PartsPredicate",
    "PartsReading",
    "Periodic",
    "Plus",
    "Primitive",
    "Query",
    "Reader",
    "ReadingPredicate",
    "Sequence",
    "TimedOut",
    "called",
    "is_count",
    "operand_of",
    "walk",
    "where_text",
    "window_us_of",
]


Constituent = Any
"""The value of a part: an `Occurrence`, or for a Kleene part a tuple of them in time order."""
PartsPredicate = Callable[[Mapping[str, Constituent]], object]
Reader = Any
"""The transaction through which a predicate reads the shared store."""


class Expression(ABC):
    """An event expression; immutable, compared by value.

    ::

        Expression
        ├── Primitive     event("EXIT"), inserted(t), updated(t, "balance"), deleted(t),
        │                 late(stream), at(moment), every(seconds), cron("0 * * * *")
        ├── Query         query("Q1", pattern, returns): a pattern with a name and an output
        ├── Disjunction   a | b, any_of(a, b)
        ├── Conjunction   a & b, all_of(a, b); some_of(2, a, b, c)
        ├── Sequence      seq(...), aperiodic(...)
        ├── Plus          after(seconds, a)
        ├── Periodic      periodic(a, seconds, c)
        ├── TimedOut      sequence.timed_out()
        ├── Negation      ~a      only as a part of a sequence
        └── Kleene        many(a) only as a part of a sequence
    """

    __slots__ = ()

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        """The keys of the primitive events in the expression, negated ones included.

        ``("event", name)`` for application and stream events; ``("insert" | "update" | "delete",
        full table name)`` for data changes; ``("late", stream)`` for late events. Clock events have
        no key here: a detector makes them itself.
        """
        return frozenset().union(*(child.keys for child in self.children))

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The names of the positive parts, in the order in which they are written."""

    @property
    @abstractmethod
    def children(self) -> tuple[Expression, ...]:
        """The subexpressions, in the order in which they are written."""

    @property
    @abstractmethod
    def reach_us(self) -> int | None:
        """Upper bound on the duration of an occurrence, in microseconds; None: unbounded."""

    @abstractmethod
    def check(self) -> None:
        """Raise `PatternError` if the expression cannot stand on its own.

        This method, not the constructor, rejects what a later call can still correct: a sequence
        that starts with a negation, for example, needs `within`. A `Detector` checks its
        expression.
        """

    def __invert__(self) -> Expression:
        """Negate: as a part of a sequence, demand that no such event occurs there."""
        raise PatternError(
            f"~ negates a primitive event, not {self!r}: write seq(a, ~event('B'), c)"
        )

    def __or__(self, other: object) -> Disjunction:
        """Return the disjunction of both, as `any_of`."""
        return Disjunction.of(self, other)

    def __and__(self, other: object) -> Conjunction:
        """Return the conjunction of both, in any order, as `all_of`."""
        return Conjunction.of(self, other)

    def after(self, delay: float | timedelta) -> Plus:
        """Return the event that occurs `delay` after each occurrence of this one (plus)."""
        return Plus(self, window_us_of(delay, "after()"))

    def same(self, *attributes: str) -> Expression:
        """Demand equal values of the given parameters in all parts."""
        raise PatternError(
            f"same() relates the parts of a sequence or conjunction: write seq({self!r}, …).same()"
        )

    def where(self, predicate: PartsPredicate) -> Expression:
        """Demand a predicate over the parts."""
        raise PatternError(
            f"where() takes the parts of a sequence or conjunction: for {self!r} alone write "
            "event(…, where=lambda o: …)"
        )

    def within(self, window: float | timedelta) -> Expression:
        """Limit the time from the first to the last part."""
        raise PatternError(
            f"within() bounds the parts of a sequence or conjunction: write "
            f"seq({self!r}, …).within()"
        )

    def context(self, context: str) -> Expression:
        """Choose the possible matches that a terminator makes (Chakravarthy et al. 1994)."""
        raise PatternError(
            f"context() chooses among combinations of parts: write seq({self!r}, …).context()"
        )

    def __bool__(self) -> bool:
        raise PatternError(
            f"{self!r} has no truth value: write & for and, | for or, ~ for not, and seq(a, b) "
            "instead of comparing"
        )


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield the expression and all its subexpressions, parents first."""
    yield expression
    for child in expression.children:
        yield from walk(child)


def window_us_of(window: float | timedelta, what: str) -> int:
    """Return a positive duration in microseconds, from seconds or a timedelta.

    Raises
    ------
    PatternError
        If it is not finite or shorter than a microsecond. The message names the method, `what`.
    """
    if isinstance(window, timedelta):
        us: int | None = timedelta_us(window)
    elif isinstance(window, int | float) and not isinstance(window, bool):
        us = seconds_us(window)
    else:
        raise PatternError(f"{what} takes seconds or a timedelta, not {window!r}")
    if us is None or us <= 0:
        raise PatternError(f"{what} takes a finite time of at least a microsecond, not {window!r}")
    return us


# -- primitive events, including clock events, and their negation ----------------------------------


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
        return Kleene.of(self, minimum, maximum, greedy=greedy)

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


# -- Kleene closure: several events of one kind, as a part of a sequence ---------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Kleene(Expression):
    """Kleene closure: several events of one kind, as a part of a sequence.

    Attributes
    ----------
    operand : Primitive, or Disjunction of some
        The events that the elements are.
    minimum, maximum : int, int or None
        The number of elements, inclusive; None: unbounded.
    greedy : bool
        True if a longer binding is preferred to a shorter one.
    alias : str or None
        The part's name. None: the name of the operand, which is then a primitive event.
    """

    operand: Primitive | Disjunction
    minimum: int
    maximum: int | None
    greedy: bool = True
    alias: str | None = None

    @classmethod
    def of(cls, operand: Expression, minimum: int, maximum: int | None, *, greedy: bool) -> Kleene:
        """Check the operand and the bounds, as `many` documents them, and return the closure."""
        is_primitive = isinstance(operand, Primitive) or (
            isinstance(operand, Disjunction) and operand.is_primitive
        )
        if not is_primitive:
            raise PatternError(f"many() takes a primitive event or any_of() some, not {operand!r}")
        if not is_count(minimum, 0) or not (maximum is None or is_count(maximum, max(minimum, 1))):
            raise PatternError(
                f"many() takes how many at least and at most, not {minimum!r} and {maximum!r}"
            )
        assert isinstance(operand, Primitive | Disjunction)
        return cls(operand, minimum, maximum, greedy)

    @property
    def name(self) -> str:
        """The part's name."""
        return self.operand.names[0] if self.alias is None else self.alias

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.operand,)

    @property
    def reach_us(self) -> int | None:
        return None

    @property
    def alternatives(self) -> tuple[Primitive, ...]:
        """The primitive events that an element may be."""
        found = self.operand.children or (self.operand,)
        return tuple(part for part in found if isinstance(part, Primitive))

    def named(self, alias: str) -> Kleene:
        """Return this part under another name."""
        return replace(self, alias=checked_alias(alias))

    def check(self) -> None:
        raise PatternError(
            f"{self!r} alone has no end: make it a part of a sequence, as in seq(a, many(b), c)"
        )

    def __invert__(self) -> Expression:
        raise PatternError(f"~ negates a primitive event, not {self!r}: leave out many()")

    def __repr__(self) -> str:
        bounds = {(1, None): "+", (0, None): "*", (0, 1): "?"}.get((self.minimum, self.maximum))
        if bounds is None:
            most = "" if self.maximum is None else str(self.maximum)
            bounds = f"{{{self.minimum},{most}}}"
        text = f"({self.operand!r}){bounds}" + ("" if self.greedy else "?")
        return text if self.alias is None else f"{text} AS {name_text(self.alias)}"


# -- disjunction: any one of several events --------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Disjunction(Expression):
    """Disjunction: any one of several events.

    The occurrence is the event itself, once, however many of the parts take it.

    Attributes
    ----------
    parts : tuple of Expression
        At least one part; no duplicates.
    """

    parts: tuple[Expression, ...]

    @classmethod
    def of(cls, *parts: object) -> Disjunction:
        """Build from expressions, flattening other disjunctions."""
        found: list[Expression] = []
        for part in parts:
            checked = operand_of(part, "any_of() and |")
            found += checked.parts if isinstance(checked, Disjunction) else [checked]
        return cls(tuple(dict.fromkeys(found)))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for part in self.parts for name in part.names))

    @property
    def children(self) -> tuple[Expression, ...]:
        return self.parts

    @property
    def reach_us(self) -> int | None:
        return _longest(part.reach_us for part in self.parts)

    @property
    def is_primitive(self) -> bool:
        """True if all parts are primitive events."""
        return all(isinstance(part, Primitive) for part in self.parts)

    def check(self) -> None:
        for part in self.parts:
            part.check()

    def context(self, context: str) -> Disjunction:
        """Set the context of the parts that have one."""
        return Disjunction(
            tuple(
                part if isinstance(part, Primitive) else part.context(context)
                for part in self.parts
            )
        )

    def many(self, minimum: int = 1, maximum: int | None = None, *, greedy: bool = True) -> Kleene:
        """Return several of these events in time order, as a part of a sequence; see `many`."""
        return Kleene.of(self, minimum, maximum, greedy=greedy)

    def __invert__(self) -> Negation:
        if not self.is_primitive:
            raise PatternError(
                f"~ negates primitive events, not {self!r}: negate each of them at its place"
            )
        return Negation(self)

    def __repr__(self) -> str:
        return f"ANY({', '.join(map(repr, self.parts))})"


def operand_of(part: object, what: str) -> Expression:
    """Return `part` if it is valid as an operand of `what`, where order does not matter.

    Raises
    ------
    PatternError
        If it is no expression, or a negation or Kleene part.
    """
    if isinstance(part, Expression) and not isinstance(part, Negation | Kleene):
        return part
    hint = " (write many() and ~ inside seq() only)" if isinstance(part, Expression) else ""
    raise PatternError(f'{what} take events, such as event("A"), not {part!r}{hint}')


def _longest(reaches: Iterable[int | None]) -> int | None:
    found = list(reaches)
    return None if None in found else max((us for us in found if us is not None), default=0)


# -- named patterns with an output -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Query(Expression):
    """Named pattern with an output (Wang, Rundensteiner, Ellison 2011, appendix B).

    Its occurrences are composite events of this name, with the returned parameters.

    Attributes
    ----------
    name : str
    pattern : Expression
    returns : tuple of (str, Term)
        The output parameters and the terms that give their values; empty: all parameters of the
        parts.
    stream : str or None
        The stream that the query is on, if given.
    """

    name: str
    pattern: Expression
    returns: tuple[tuple[str, Any], ...] = ()
    stream: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.pattern,)

    @property
    def reach_us(self) -> int | None:
        return self.pattern.reach_us

    def context(self, context: str) -> Query:
        """Set the context of the pattern."""
        if isinstance(self.pattern, Primitive):
            return self
        return replace(self, pattern=self.pattern.context(context))

    def check(self) -> None:
        if isinstance(self.pattern, Negation | Kleene):
            raise PatternError(f"query {self.name}: {self.pattern!r} cannot stand alone")
        self.pattern.check()
        for name, term in self.returns:
            unknown = sorted(frozenset(term.part_names) - set(self.pattern.names))
            if unknown:
                raise PatternError(
                    f"query {self.name}: it returns {name!r} of the part {unknown[0]!r}, which "
                    f"its pattern does not have; write one of {', '.join(self.pattern.names)}"
                )

    def __repr__(self) -> str:
        return f"OUTPUT {name_text(self.name)}"


# -- base of sequences and conjunctions ------------------------------------------------------------


PartsReading = Callable[[Reader, Mapping[str, Constituent]], object]


@dataclass(frozen=True, slots=True, repr=False)
class Combination(Expression):
    """Base of sequences and conjunctions.

    Attributes
    ----------
    parts : tuple of Expression
    attributes : tuple of str
        Parameters that must be equal in all parts.
    predicates : tuple of callable or Term
        ``predicate(parts) -> bool`` over the positive parts; pure; all must be true.
    readings : tuple of callable
        ``reading(t, parts) -> bool``; they read the shared store as of the match's last event.
    window_us : int or None
        The longest time from the beginning of the first to the end of the last positive part, in
        microseconds, inclusive.
    consumption : Context
        The choice among possible matches.
    """

    parts: tuple[Expression, ...]
    attributes: tuple[str, ...] = ()
    predicates: tuple[PartsPredicate, ...] = ()
    readings: tuple[PartsReading, ...] = ()
    window_us: int | None = None
    consumption: Context = Context.UNRESTRICTED

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for part in self.parts for name in part.names)

    @property
    def children(self) -> tuple[Expression, ...]:
        return self.parts

    @property
    def reach_us(self) -> int | None:
        return self.window_us

    def same(self, *attributes: str) -> Self:
        """Demand that parameters have equal values in all parts, negated parts included.

        A negated event with other values does not prevent a match.

        Parameters
        ----------
        *attributes : str
            Parameter names, at least one; they add to those of earlier calls. Values are compared
            like dictionary keys, so they must be hashable and equal to themselves.
        """
        for attribute in attributes:
            if not isinstance(attribute, str) or not attribute:
                raise PatternError(f"same() takes parameter names, not {attribute!r}")
        if not attributes:
            raise PatternError('same() needs at least one parameter name: .same("worker")')
        return replace(self, attributes=tuple(dict.fromkeys(self.attributes + attributes)))

    def where(self, predicate: PartsPredicate) -> Self:
        """Demand ``predicate(parts)``, a mapping of part names to the positive constituents.

        The predicate must be pure: it is called for every combination that satisfies the other
        conditions, and its result must depend on the parts alone. Predicates add to those of
        earlier calls. A `Term` is evaluated as soon as the parts that it names are known, a
        function when all parts are.
        """
        if not callable(predicate):
            raise PatternError(f"where() takes a function of the parts, not {predicate!r}")
        checked_function(predicate, "the predicate given to where()")
        if getattr(predicate, "uses_this", False):
            raise PatternError(
                f"{predicate!r} is about one event, and {self!r} has several: write "
                "part('A').x for attr('x')"
            )
        if getattr(predicate, "is_reading", False):
            return self.reading(predicate)  # type: ignore[arg-type]  # a Term can be either
        unknown = sorted(frozenset(getattr(predicate, "part_names", ())) - set(self.names))
        if unknown:
            raise PatternError(
                f"{predicate!r} names the part {unknown[0]!r}, which {self!r} does not have: "
                f"write one of {', '.join(self.names)}"
            )
        return replace(self, predicates=(*self.predicates, predicate))

    def reading(self, reading: PartsReading) -> Self:
        """Demand ``reading(t, parts)``, which reads the shared store as of the match's last event.

        `t` is the transaction that processes that event; it is read-only.
        """
        if not callable(reading):
            raise PatternError(f"reading() takes a function of (t, parts), not {reading!r}")
        checked_function(reading, "the function given to reading()")
        return replace(self, readings=(*self.readings, reading))

    def within(self, window: float | timedelta) -> Self:
        """Limit the time from the first to the last positive part, inclusive.

        Parameters
        ----------
        window : int, float or timedelta
            Seconds (to the nearest microsecond) or a timedelta; positive.
        """
        if self.window_us is not None:
            raise PatternError(f"{self!r} has its window already: call within() once")
        return replace(self, window_us=window_us_of(window, "within()"))

    def context(self, context: str) -> Self:
        """Choose which possible matches are made, here and in the parts.

        Parameters
        ----------
        context : {"unrestricted", "recent", "chronicle", "continuous", "cumulative"}
        """
        return replace(
            self,
            consumption=one_of(Context, context, "a context"),
            parts=tuple(
                part if isinstance(part, Primitive | Negation | Kleene) else part.context(context)
                for part in self.parts
            ),
        )

    def _conditions(self) -> str:
        text = ""
        if self.attributes:
            names = ", ".join(map(name_text, self.attributes))
            # Without brackets the comma would seem to start the next part of an outer sequence.
            text += f" SAME {names}" if len(self.attributes) == 1 else f" SAME ({names})"
        text += where_text((*self.predicates, *self.readings))
        if self.window_us is not None:
            text += f" WITHIN {seconds_text(self.window_us)}s"
        return text

    def _choices(self) -> str:
        if self.consumption is Context.UNRESTRICTED:
            return ""
        return f" CONTEXT {self.consumption.value}"

    def _check_parts(self) -> None:
        name = repeated(self.names)
        if name is not None:
            raise PatternError(
                f"two parts of {self!r} are called {name!r}: "
                'tell them apart with alias="…", say alias="first"'
            )
        for part in self.parts:
            if isinstance(part, Kleene) and part.alias is None and len(part.alternatives) > 1:
                raise PatternError(
                    f"{part!r} is several kinds of events, so it has no name: write .named(…)"
                )
            clock = _moment_of(part)
            if clock is not None and self.attributes:
                raise PatternError(
                    f"{clock!r} is a moment and has no parameters, so {self.attributes[0]!r} "
                    "cannot be the same there: leave out same(), or compare with where()"
                )
            if not isinstance(part, Negation | Kleene):
                part.check()


def _moment_of(part: Expression) -> Primitive | None:
    """Return the clock event that may be the only constituent of a part, or None."""
    if isinstance(part, Primitive):
        return part if part.schedule is not None else None
    if isinstance(part, Query) or (len(part.children) > 1 and not isinstance(part, Disjunction)):
        return None  # it has its own parameters, or those of other constituents
    return next(
        (found for child in part.children if (found := _moment_of(child)) is not None), None
    )


# -- conjunction: several events in any order, all of them or some ---------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Conjunction(Combination):
    """Conjunction: several events in any order, all of them or some.

    Attributes
    ----------
    count : int
        The number of parts that must occur; the number of parts if all must.
    """

    count: int = 0

    @classmethod
    def of(cls, *parts: object) -> Conjunction:
        """Build the conjunction of all `parts`, flattening plain conjunctions among them."""
        found: list[Expression] = []
        for part in parts:
            checked = operand_of(part, "all_of() and &")
            plain = isinstance(checked, Conjunction) and checked == cls(
                checked.parts, count=len(checked.parts)
            )
            found += checked.children if plain else [checked]
        made = cls(tuple(found), count=len(found))
        made._check_parts()
        return made

    def check(self) -> None:
        self._check_parts()

    def __repr__(self) -> str:
        parts = ", ".join(map(repr, self.parts))
        text = f"ALL({parts})" if self.count == len(self.parts) else f"SOME({self.count}, {parts})"
        return text + self._conditions() + self._choices()


# -- sequence: events in time order ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Sequence(Combination):
    """Sequence: events in strict time order, with negated events before, between and after.

    Attributes
    ----------
    gap_us : int or None
        The longest time from the end of one constituent to the beginning of the next, in
        microseconds, inclusive.
    selection : Selection
        The events allowed between neighbours.
    skip : Skip
        Restriction on where later matches may start.
    """

    gap_us: int | None = None
    selection: Selection = Selection.ANY
    skip: Skip = NO_SKIP

    def check(self) -> None:
        self._check_parts()
        if all(isinstance(part, Negation) or _may_be_empty(part) for part in self.parts):
            raise PatternError(f"{self!r} could occur without any event: demand at least one")
        if self.window_us is None:
            self._check_decided()
            self._check_bounded()
        if self.skip.part is not None and self.skip.part not in self.names:
            raise PatternError(
                f"{self!r} skips to the part {self.skip.part!r}, which it does not have: "
                f"write one of {', '.join(self.names)}"
            )

    def _check_decided(self) -> None:
        """Check that without a window each negation has a constituent on both sides."""
        for parts, where in ((self.parts, "start"), (self.parts[::-1], "end")):
            for part in parts:
                if isinstance(part, Negation):
                    raise PatternError(
                        f"{part!r} may stand at the {where} of {self!r}, where it is never decided "
                        "without a window: say how far it looks with .within(seconds)"
                    )
                if not _may_be_empty(part):
                    break

    def _check_bounded(self) -> None:
        """Check that without a window a later part ends each unbounded Kleene part."""
        for number, part in enumerate(self.parts):
            if not isinstance(part, Kleene) or part.maximum is not None:
                continue
            is_ended = self.selection is not Selection.ANY and any(
                not isinstance(later, Negation) and not _may_be_empty(later)
                for later in self.parts[number + 1 :]
            )
            if not is_ended:
                raise PatternError(
                    f"{part!r} has neither a bound nor a window, so it would keep every event "
                    "for ever: give it a maximum, or the sequence .within(seconds)"
                )

    @property
    def positives(self) -> tuple[Expression, ...]:
        """The parts that are not negated."""
        return tuple(part for part in self.parts if not isinstance(part, Negation))

    def gap(self, longest: float | timedelta) -> Sequence:
        """Limit the time between neighbours: constituents, and elements of a Kleene part."""
        if self.gap_us is not None:
            raise PatternError(f"{self!r} has its gap already: call gap() once")
        return replace(self, gap_us=window_us_of(longest, "gap()"))

    def selecting(self, selection: str) -> Sequence:
        """Set which events are allowed between neighbours.

        Parameters
        ----------
        selection : {"any", "next", "strict"}
        """
        return replace(self, selection=one_of(Selection, selection, "a selection strategy"))

    def skipping(self, to: str, part: str | None = None) -> Sequence:
        """Set where later matches may start after a match was made.

        Parameters
        ----------
        to : {"none", "to_next", "past_last", "to_first", "to_last"}
        part : str, optional
            The name of a part, for the last two.
        """
        return replace(self, skip=Skip.of(to, part))

    def timed_out(self) -> Expression:
        """Return the event that occurs when the window of a partial match ends.

        It does not occur if the match is complete by then.
        """
        return TimedOut(self)

    def __repr__(self) -> str:
        text = f"SEQ({', '.join(map(repr, self.parts))})" + self._conditions()
        if self.gap_us is not None:
            text += f" GAP {seconds_text(self.gap_us)}s"
        if self.selection is not Selection.ANY:
            text += f" SELECT {self.selection.value}"
        if self.skip.to is not SkipTo.NONE:
            text += f" SKIP {self.skip.to.value}"
            text += "" if self.skip.part is None else f" {name_text(self.skip.part)}"
        return text + self._choices()


def _may_be_empty(part: Expression) -> bool:
    return isinstance(part, Kleene) and part.minimum == 0


# -- expressions completed by time: plus, periodic, and the time-out of partial matches ------------


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


OccurrencePredicate = Callable[[Occurrence], object]
"""A function of an occurrence, or a `Term` without part names."""
ReadingPredicate = Callable[[Reader, Occurrence], object]


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


def is_count(value: object, least: int) -> bool:
    """Check for an integer, but no bool, of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
