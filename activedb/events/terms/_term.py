"""The base of all terms: what can be asked of each, and the operators that build more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from activedb.errors import BadEvent, PatternError
from activedb.events._occurrence import Occurrence

if TYPE_CHECKING:
    from activedb.events.terms._logic import And, Between, In, IsNull, Like, Not, Or
    from activedb.events.terms._operations import Arithmetic, Comparison, Negative

__all__ = ["Compiled", "Term", "Value"]

Value = Any
"""A number, string, boolean, date, time, duration or bytes; None is NULL, the unknown."""
Compiled = Callable[[Mapping[str, Any], Occurrence | None, Any], Value]
"""A term as a function of the parts, the event itself, and the reader."""

_NO_PARTS: Mapping[str, Any] = {}


class Term(ABC):
    """A value or a condition computed from the events of a match; immutable.

    ::

        Term
        ├── Literal       5, 'safe'
        ├── Attribute     attr("x"): of the event itself; part("A").x: of a part
        ├── Aggregate     part("B").x.sum(), .avg(), .min(), .max(), .count(), .first(), .last(),
        │                 .prev(); part("B").count()
        ├── Comparison    = != < <= > >=
        ├── Arithmetic    + - * / %      Negative    -a
        ├── And, Or, Not  & | ~
        ├── IsNull, In, Between, Like
        └── Subquery, Exists, InSubquery   SELECTs over the shared store: such a term is a reading

    Terms are compared structurally: ``bool(a == b)`` tells whether `a` and `b` are the same term,
    as ``a == b`` itself is a term, a `Comparison` (so tuples and dataclasses of terms can be
    compared, and terms be keys). No other term is a truth value.
    """

    # -- what it is ------------------------------------------------------------------------

    @property
    @abstractmethod
    def operands(self) -> tuple[Term, ...]:
        """The terms that it is made of, in the order in which they are written."""

    @abstractmethod
    def _compiled(self) -> Compiled:
        """The function that computes it; nested closures, nothing is generated as text."""

    @abstractmethod
    def _text(self) -> tuple[str, int]:
        """Its text in the rule language, and how strongly that binds (`_precedence`)."""

    def walk(self) -> Iterator[Term]:
        """Yield it and all terms in it, from the outside in."""
        yield self
        for operand in self.operands:
            yield from operand.walk()

    @cached_property
    def part_names(self) -> frozenset[str]:
        """The names of the parts that it names."""
        return frozenset().union(*(operand.part_names for operand in self.operands))

    @cached_property
    def aggregated(self) -> frozenset[str]:
        """The parts named under an aggregate, `prev` apart: it is judged when they are complete."""
        return frozenset().union(*(operand.aggregated for operand in self.operands))

    @cached_property
    def uses_prev(self) -> bool:
        """Whether it compares an element of a Kleene part with the one before it."""
        return any(operand.uses_prev for operand in self.operands)

    @cached_property
    def uses_this(self) -> bool:
        """Whether it takes an attribute of the event itself, and not of a part."""
        return any(operand.uses_this for operand in self.operands)

    @cached_property
    def is_reading(self) -> bool:
        """Whether it reads the shared store."""
        return any(operand.is_reading for operand in self.operands)

    @property
    def is_junction(self) -> bool:
        """Whether it is made of several conditions with AND or OR."""
        return False

    # -- its value -------------------------------------------------------------------------

    @cached_property
    def compiled(self) -> Compiled:
        """Its value as a function of the parts, the event itself and the reader."""
        return self._compiled()

    def evaluate(
        self,
        parts: Mapping[str, Any],
        this: Occurrence | None = None,
        reader: Any = None,
    ) -> Value:
        """Return its value.

        Parameters
        ----------
        parts : mapping of str to Occurrence or tuple of Occurrence
            The constituents by part name. A part that is not there is NULL in all its attributes.
        this : Occurrence, optional
            The event itself, for `attr`.
        reader : Transaction, optional
            What a reading reads through.

        Returns
        -------
        value
            None is NULL; a condition is True, False or, if that is unknown, None.

        Raises
        ------
        BadEvent
            If an event lacks an attribute, or has one of a type that cannot be used so.
        """
        return self.compiled(parts, this, reader)

    def __call__(self, subject: Any, read: Any = None, /) -> bool:
        """Whether it is true: ``term(o)``, ``term(parts)``; ``term(reader, o or parts)``."""
        reader = None
        if read is not None:
            reader, subject = subject, read
        if type(subject) is Occurrence or isinstance(subject, Occurrence):
            value = self.compiled(subject.parts, subject, reader)
        else:
            value = self.compiled(subject, None, reader)
        if value is None or value is True or value is False:
            return value is True
        raise BadEvent(f"{self!r} is {value!r}, and not true, false or unknown: compare it")

    # -- structure -------------------------------------------------------------------------

    def _structure(self) -> tuple[Any, ...]:
        """What makes two terms the same."""
        return (type(self), *(getattr(self, field.name) for field in fields(self)))  # type: ignore[arg-type]

    def same_as(self, other: object) -> bool:
        """Whether the other is the same term."""
        return self is other or (
            isinstance(other, Term)
            and type(self) is type(other)
            and hash(self) == hash(other)
            and self._structure() == other._structure()
        )

    @cached_property
    def _hash(self) -> int:
        return hash(self._structure())

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __bool__(self) -> bool:
        raise PatternError(
            f"{self!r} is no truth value: write & for and, | for or, ~ for not, in brackets, and "
            "call it to judge it"
        )

    def __repr__(self) -> str:
        return self._text()[0]

    # -- operators -------------------------------------------------------------------------

    def __eq__(self, other: object) -> Comparison:  # type: ignore[override]
        return self._compared("=", other)

    def __ne__(self, other: object) -> Comparison:  # type: ignore[override]
        return self._compared("!=", other)

    def __lt__(self, other: object) -> Comparison:
        return self._compared("<", other)

    def __le__(self, other: object) -> Comparison:
        return self._compared("<=", other)

    def __gt__(self, other: object) -> Comparison:
        return self._compared(">", other)

    def __ge__(self, other: object) -> Comparison:
        return self._compared(">=", other)

    def __add__(self, other: object) -> Arithmetic:
        return self._computed("+", self, other)

    def __radd__(self, other: object) -> Arithmetic:
        return self._computed("+", other, self)

    def __sub__(self, other: object) -> Arithmetic:
        return self._computed("-", self, other)

    def __rsub__(self, other: object) -> Arithmetic:
        return self._computed("-", other, self)

    def __mul__(self, other: object) -> Arithmetic:
        return self._computed("*", self, other)

    def __rmul__(self, other: object) -> Arithmetic:
        return self._computed("*", other, self)

    def __truediv__(self, other: object) -> Arithmetic:
        return self._computed("/", self, other)

    def __rtruediv__(self, other: object) -> Arithmetic:
        return self._computed("/", other, self)

    def __mod__(self, other: object) -> Arithmetic:
        return self._computed("%", self, other)

    def __rmod__(self, other: object) -> Arithmetic:
        return self._computed("%", other, self)

    def __neg__(self) -> Negative:
        from activedb.events.terms._operations import Negative

        return Negative(self)

    def __and__(self, other: object) -> And:
        from activedb.events.terms._logic import And

        return And.of(self, other)

    def __rand__(self, other: object) -> And:
        from activedb.events.terms._logic import And

        return And.of(other, self)

    def __or__(self, other: object) -> Or:
        from activedb.events.terms._logic import Or

        return Or.of(self, other)

    def __ror__(self, other: object) -> Or:
        from activedb.events.terms._logic import Or

        return Or.of(other, self)

    def __invert__(self) -> Not:
        from activedb.events.terms._logic import Not

        return Not(self)

    def is_null(self) -> IsNull:
        """Whether it is NULL: never unknown."""
        from activedb.events.terms._logic import IsNull

        return IsNull(self)

    def in_(self, choices: Any) -> In:
        """Whether it equals one of `choices`, an iterable of values or terms."""
        from activedb.events.terms._logic import In

        return In.of(self, choices)

    def between(self, low: Any, high: Any) -> Between:
        """Whether ``low <= self <= high``."""
        from activedb.events.terms._literal import as_term
        from activedb.events.terms._logic import Between

        return Between(self, as_term(low), as_term(high))

    def like(self, pattern: Any) -> Like:
        r"""Whether it matches: % is any text, _ any character, a backslash takes the next as is."""
        from activedb.events.terms._literal import as_term
        from activedb.events.terms._logic import Like

        return Like(self, as_term(pattern))

    def _compared(self, operator: str, other: object) -> Comparison:
        from activedb.events.terms._literal import as_term, is_literal
        from activedb.events.terms._operations import Comparison

        if not isinstance(other, Term) and not is_literal(other):
            return NotImplemented  # type: ignore[no-any-return]  # as operators may
        return Comparison(operator, self, as_term(other))

    @staticmethod
    def _computed(operator: str, left: object, right: object) -> Arithmetic:
        from activedb.events.terms._literal import as_term
        from activedb.events.terms._operations import Arithmetic

        return Arithmetic(operator, as_term(left), as_term(right))
