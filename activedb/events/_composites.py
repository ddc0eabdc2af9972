"""Expressions over several events: disjunction, conjunction, sequence, Kleene, query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self, TypeVar

from activedb.errors import PatternError
from activedb.events._choices import NO_SKIP, Context, Selection, Skip, SkipTo, one_of
from activedb.events._expression import (
    Constituent,
    Expression,
    PartsPredicate,
    Reader,
    window_us_of,
)
from activedb.events._names import name_text
from activedb.events._primitives import (
    Negation,
    Primitive,
    checked_alias,
    seconds_text,
    where_text,
)

__all__ = ["Conjunction", "Disjunction", "Kleene", "PartsReading", "Query", "Sequence"]

PartsReading = Callable[[Reader, Mapping[str, Constituent]], object]
C = TypeVar("C", bound="_Combination")


@dataclass(frozen=True, slots=True, repr=False)
class Disjunction(Expression):
    """Any one of several events.

    What occurs is the event itself, once, however many of the parts take it.

    Attributes
    ----------
    parts : tuple of Expression
        At least one, each once.
    """

    parts: tuple[Expression, ...]

    @classmethod
    def of(cls, *parts: object) -> Disjunction:
        """Of expressions, other disjunctions taken apart."""
        found: list[Expression] = []
        for part in parts:
            checked = _operand(part, "any_of() and |")
            found += checked.parts if isinstance(checked, Disjunction) else [checked]
        return cls(tuple(dict.fromkeys(found)))

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        return frozenset().union(*(part.keys for part in self.parts))

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
        """Whether all its parts are primitive events."""
        return all(isinstance(part, Primitive) for part in self.parts)

    def check(self) -> None:
        for part in self.parts:
            part.check()

    def context(self, context: str) -> Disjunction:
        """Set the context of the parts that choose among combinations."""
        return Disjunction(
            tuple(
                part if isinstance(part, Primitive) else part.context(context)
                for part in self.parts
            )
        )

    def many(self, minimum: int = 1, maximum: int | None = None, *, greedy: bool = True) -> Kleene:
        """Several of them in a row of time, as a part of a sequence; as `many`."""
        from activedb.events._operators import many

        return many(self, minimum, maximum, greedy=greedy)

    def __invert__(self) -> Negation:
        if not self.is_primitive:
            raise PatternError(
                f"~ negates primitive events, not {self!r}: negate each of them at its place"
            )
        return Negation(self)

    def __repr__(self) -> str:
        return f"ANY({', '.join(map(repr, self.parts))})"


@dataclass(frozen=True, slots=True, repr=False)
class Kleene(Expression):
    """Several events of one kind, as a part of a sequence.

    Attributes
    ----------
    operand : Primitive, or Disjunction of some
    minimum, maximum : int, int or None
        How many, inclusive; None: without bound.
    greedy : bool
        Whether a longer binding is preferred to a shorter one.
    alias : str or None
        The part's name; else that of the operand, which is then a primitive event.
    """

    operand: Primitive | Disjunction
    minimum: int
    maximum: int | None
    greedy: bool = True
    alias: str | None = None

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        return self.operand.keys

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
        """The primitive events of which each element is one."""
        found = self.operand.children or (self.operand,)
        return tuple(part for part in found if isinstance(part, Primitive))

    def named(self, alias: str) -> Kleene:
        """The same as a part of another name."""
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


@dataclass(frozen=True, slots=True, repr=False)
class _Combination(Expression):
    """What sequence and conjunction have in common.

    Attributes
    ----------
    parts : tuple of Expression
    attributes : tuple of str
        Parameters that must be equal in all parts.
    predicates : tuple of callable or Term
        ``predicate(parts) -> bool`` over the positive parts; pure; all must hold.
    readings : tuple of callable
        ``reading(t, parts) -> bool``, which read the shared store as of the match's last event.
    window_us : int or None
        The longest time from the beginning of the first to the end of the last positive part, in
        microseconds, inclusive.
    consumption : Context
        Which of the possible matches are made.
    """

    parts: tuple[Expression, ...]
    attributes: tuple[str, ...] = ()
    predicates: tuple[PartsPredicate, ...] = ()
    readings: tuple[PartsReading, ...] = ()
    window_us: int | None = None
    consumption: Context = Context.UNRESTRICTED

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        return frozenset().union(*(part.keys for part in self.parts))

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

    def where(self, predicate: PartsPredicate) -> Self:
        """Demand ``predicate(parts)``, a mapping of part names to the positive constituents.

        The predicate must be pure: it is called for every combination that fulfils the rest, and
        its result must depend on the parts alone. Predicates of earlier calls stay. A `Term` is
        judged as soon as the parts are there that it names, a function when all are.
        """
        if not callable(predicate):
            raise PatternError(f"where() takes a function of the parts, not {predicate!r}")
        if getattr(predicate, "uses_this", False):
            raise PatternError(
                f"{predicate!r} is about one event, and {self!r} has several: write "
                "part('A').x for attr('x')"
            )
        if getattr(predicate, "is_reading", False):
            return self.reading(predicate)  # type: ignore[arg-type]  # a Term: it takes both
        unknown = sorted(frozenset(getattr(predicate, "part_names", ())) - set(self.names))
        if unknown:
            raise PatternError(
                f"{predicate!r} names the part {unknown[0]!r}, which {self!r} does not have: "
                f"write one of {', '.join(self.names)}"
            )
        return replace(self, predicates=(*self.predicates, predicate))

    def reading(self, reading: PartsReading) -> Self:
        """Demand ``reading(t, parts)``, which reads the shared store as of the match's last event.

        `t` is the transaction in which that event is processed; it may only read.
        """
        if not callable(reading):
            raise PatternError(f"reading() takes a function of (t, parts), not {reading!r}")
        return replace(self, readings=(*self.readings, reading))

    def within(self, window: float | timedelta) -> Self:
        """Bound the time from the first to the last positive part, inclusive.

        Parameters
        ----------
        window : int, float or timedelta
            Seconds (to the nearest microsecond) or a timedelta; positive.
        """
        if self.window_us is not None:
            raise PatternError(f"{self!r} has its window already: call within() once")
        return replace(self, window_us=window_us_of(window, "within()"))

    def context(self, context: str) -> Self:
        """Choose which of the possible matches are made, here and in the parts.

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
            # Without brackets the comma would seem to begin the next part of an outer sequence.
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
        names = self.names
        for name in names:
            if names.count(name) > 1:
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


@dataclass(frozen=True, slots=True, repr=False)
class Conjunction(_Combination):
    """Several events in any order: all of them, or some.

    Attributes
    ----------
    count : int
        How many of the parts must occur; of all parts for a conjunction.
    """

    count: int = 0

    @classmethod
    def of(cls, *parts: object) -> Conjunction:
        """Of all the expressions; plain conjunctions of all their parts are taken apart."""
        found: list[Expression] = []
        for part in parts:
            checked = _operand(part, "all_of() and &")
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


@dataclass(frozen=True, slots=True, repr=False)
class Sequence(_Combination):
    """Events in strict time order, with negated ones before, between and after.

    Attributes
    ----------
    gap_us : int or None
        The longest time from the end of one constituent to the beginning of the next, in
        microseconds, inclusive.
    selection : Selection
        Which events may stand between neighbours.
    skip : Skip
        Where later matches may start.
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
        """Without a window a negation needs a constituent on both sides."""
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
        """Without a window an unbounded Kleene part must be ended by a later part."""
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
        """Bound the time between neighbours: constituents, and elements of a Kleene part."""
        if self.gap_us is not None:
            raise PatternError(f"{self!r} has its gap already: call gap() once")
        return replace(self, gap_us=window_us_of(longest, "gap()"))

    def selecting(self, selection: str) -> Sequence:
        """Say which events may stand between neighbours.

        Parameters
        ----------
        selection : {"any", "next", "strict"}
        """
        return replace(self, selection=one_of(Selection, selection, "a selection strategy"))

    def skipping(self, to: str, part: str | None = None) -> Sequence:
        """Say where later matches may start, once one was made.

        Parameters
        ----------
        to : {"none", "to_next", "past_last", "to_first", "to_last"}
        part : str, optional
            Of the last two: the part.
        """
        return replace(self, skip=Skip.of(to, part))

    def timed_out(self) -> Expression:
        """What occurs when the window of a partial match ends before it is whole."""
        from activedb.events._temporal import TimedOut

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


@dataclass(frozen=True, slots=True, repr=False)
class Query(Expression):
    """A pattern with a name and an output (Wang, Rundensteiner, Ellison 2011, appendix B).

    Its occurrences are composite events of this name with the returned parameters.

    Attributes
    ----------
    name : str
    pattern : Expression
    returns : tuple of (str, Term)
        The parameters of its output and where they come from; empty: all parameters of the parts.
    stream : str or None
        The stream that it is on, if it is said.
    """

    name: str
    pattern: Expression
    returns: tuple[tuple[str, Any], ...] = ()
    stream: str | None = None

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        return self.pattern.keys

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


def _operand(part: object, what: str) -> Expression:
    if isinstance(part, Expression) and not isinstance(part, Negation | Kleene):
        return part
    hint = " (write many() and ~ inside seq() only)" if isinstance(part, Expression) else ""
    raise PatternError(f'{what} take events, such as event("A"), not {part!r}{hint}')


def _moment_of(part: Expression) -> Primitive | None:
    """The clock event that may be all there is of a part."""
    if isinstance(part, Primitive):
        return part if part.schedule is not None else None
    if isinstance(part, Query) or (len(part.children) > 1 and not isinstance(part, Disjunction)):
        return None  # it has parameters of its own, or of other constituents
    return next(
        (found for child in part.children if (found := _moment_of(child)) is not None), None
    )


def _may_be_empty(part: Expression) -> bool:
    return isinstance(part, Kleene) and part.minimum == 0


def _longest(reaches: Iterable[int | None]) -> int | None:
    found = list(reaches)
    return None if None in found else max((us for us in found if us is not None), default=0)
