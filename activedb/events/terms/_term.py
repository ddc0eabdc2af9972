"""Base class of all terms: common properties, and the operators that build terms."""

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
"""A number, string, boolean, date, time, duration or bytes; None is NULL (unknown)."""
Compiled = Callable[[Mapping[str, Any], Occurrence | None, Any], Value]
"""A term as a function of the parts, the event itself, and the reader."""

_NO_PARTS: Mapping[str, Any] = {}


class Term(ABC):
    """Value or condition computed from the events of a match; immutable.

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

    Terms are compared structurally. ``a == b`` is a term itself, a `Comparison`; ``bool(a == b)``
    is True if `a` and `b` are the same term. So tuples and dataclasses of terms can be compared,
    and terms can be dictionary keys. No other term has a truth value.
    """

    # -- properties ------------------------------------------------------------------------

    @property
    @abstractmethod
    def operands(self) -> tuple[Term, ...]:
        """The subterms, in the order in which they are written."""

    @abstractmethod
    def _compiled(self) -> Compiled:
        """Return the function that computes the term: nested closures, no generated code."""

    @abstractmethod
    def _text(self) -> tuple[str, int]:
        """Return the text in the rule language and its binding strength (`_precedence`)."""

    def walk(self) -> Iterator[Term]:
        """Yield the term and all its subterms, outermost first."""
        yield self
        for operand in self.operands:
            yield from operand.walk()

    @cached_property
    def part_names(self) -> frozenset[str]:
        """The names of the parts to which the term refers."""
        return frozenset().union(*(operand.part_names for operand in self.operands))

    @cached_property
    def aggregated(self) -> frozenset[str]:
        """The parts under an aggregate other than `prev`: the term needs them complete."""
        return frozenset().union(*(operand.aggregated for operand in self.operands))

    @cached_property
    def uses_prev(self) -> bool:
        """True if it compares an element of a Kleene part with the element before it."""
        return any(operand.uses_prev for operand in self.operands)

    @cached_property
    def uses_this(self) -> bool:
        """True if it uses an attribute of the event itself, not of a part."""
        return any(operand.uses_this for operand in self.operands)

    @cached_property
    def is_reading(self) -> bool:
        """True if it reads the shared store."""
        return any(operand.is_reading for operand in self.operands)

    @property
    def is_junction(self) -> bool:
        """True if it joins several conditions with AND or OR."""
        return False

    # -- evaluation ------------------------------------------------------------------------

    @cached_property
    def compiled(self) -> Compiled:
        """The term as a function of the parts, the event itself and the reader."""
        return self._compiled()

    def evaluate(
        self,
        parts: Mapping[str, Any],
        this: Occurrence | None = None,
        reader: Any = None,
    ) -> Value:
        """Return the value of the term.

        Parameters
        ----------
        parts : mapping of str to Occurrence or tuple of Occurrence
            The constituents by part name. All attributes of a missing part are NULL.
        this : Occurrence, optional
            The event itself, for `attr`.
        reader : Transaction, optional
            The transaction through which readings read.

        Returns
        -------
        value
            None is NULL; a condition is True, False, or None if unknown.

        Raises
        ------
        BadEvent
            If an event lacks an attribute, or its type does not fit the operation.
        """
        return self.compiled(parts, this, reader)

    def __call__(self, subject: Any, read: Any = None, /) -> bool:
        """Return whether it is true: ``term(o)``, ``term(parts)``, ``term(reader, o or parts)``."""
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
        """Return the fields that determine whether two terms are the same."""
        return (type(self), *(getattr(self, field.name) for field in fields(self)))  # type: ignore[arg-type]

    def same_as(self, other: object) -> bool:
        """Return whether `other` is the same term."""
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
        """Return the condition that the value is NULL; it is never unknown."""
        from activedb.events.terms._logic import IsNull

        return IsNull(self)

    def in_(self, choices: Any) -> In:
        """Return the condition that it equals one of `choices`, an iterable of values or terms."""
        from activedb.events.terms._logic import In

        return In.of(self, choices)

    def between(self, low: Any, high: Any) -> Between:
        """Return the condition ``low <= self <= high``."""
        from activedb.events.terms._literal import as_term
        from activedb.events.terms._logic import Between

        return Between(self, as_term(low), as_term(high))

    def like(self, pattern: Any) -> Like:
        r"""Return the condition that it matches a pattern with %, _ and backslash (see `Like`)."""
        from activedb.events.terms._literal import as_term
        from activedb.events.terms._logic import Like

        return Like(self, as_term(pattern))

    def _compared(self, operator: str, other: object) -> Comparison:
        from activedb.events.terms._literal import as_term, is_literal
        from activedb.events.terms._operations import Comparison

        if not isinstance(other, Term) and not is_literal(other):
            return NotImplemented  # type: ignore[no-any-return]  # operators may return it
        return Comparison(operator, self, as_term(other))

    @staticmethod
    def _computed(operator: str, left: object, right: object) -> Arithmetic:
        from activedb.events.terms._literal import as_term
        from activedb.events.terms._operations import Arithmetic

        return Arithmetic(operator, as_term(left), as_term(right))
