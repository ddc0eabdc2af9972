"""Conditions compiled to programs of a stack machine over numeric columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from activedb.columns.detect._keys import ValueNumbers
from activedb.columns.events import NO_VALUE, EventColumns, Ints, arrow
from activedb.errors import BadEvent
from activedb.events.terms import (
    Aggregate,
    And,
    Arithmetic,
    Attribute,
    Between,
    Comparison,
    In,
    IsNull,
    Literal,
    Negative,
    Not,
    Or,
    Term,
)

__all__ = ["CompiledCondition", "CompiledConditions", "why_no_program"]

pa = arrow()

# Same numbering as in `activedb.columns.detect._nodes`.
_CONST, _NULL, _LOAD, _EQ, _NE, _LT, _LE, _GT, _GE, _ADD, _SUB, _MUL, _NEG = range(13)
_AND, _OR, _NOT, _IS_NULL = range(13, 17)
_COMPARISONS: Final = {"=": _EQ, "!=": _NE, "<": _LT, "<=": _LE, ">": _GT, ">=": _GE}
_SUMS: Final = {"+": _ADD, "-": _SUB, "*": _MUL}

_ADMITTED_MAX: Final = 64  # batches of different kinds

_TEXTS_MAX: Final = 65_536  # texts that single-event conditions number before they forget


def why_no_program(term: object) -> str | None:
    """Return why a condition cannot be compiled; None if it can."""
    if not isinstance(term, Term):
        return f"{getattr(term, '__name__', term)!r} is a function"
    for one in term.walk():
        if isinstance(one, Attribute):
            known = not one.old
        elif isinstance(one, Aggregate):
            known = one.uses_prev and not one.old
        elif isinstance(one, Literal):
            known = one.value is None or (
                isinstance(one.value, bool | int | float | str)
                and not (isinstance(one.value, int) and abs(one.value) > EXACT_MAX)
            )
        elif isinstance(one, Arithmetic):
            known = one.operator in _SUMS
        else:
            known = isinstance(one, Comparison | And | Or | Not | IsNull | In | Between | Negative)
        if not known:
            return f"{one!r} cannot be compiled"
    if not isinstance(term, Comparison | And | Or | Not | IsNull | In | Between):
        return f"{term!r} is not a condition"
    for one in term.walk():
        if isinstance(one, And | Or | Not):
            for condition in one.operands:
                if not isinstance(condition, Comparison | And | Or | Not | IsNull | In | Between):
                    return f"{condition!r} is not a condition"
    return None


@dataclass(frozen=True, slots=True)
class CompiledCondition:
    """Compiled condition.

    Attributes
    ----------
    term : Term
    part : int
        The part at which it is evaluated.
    """

    term: Term
    part: int


class CompiledConditions:
    """Conditions of a plan over several events, and the columns they load.

    Parameters
    ----------
    programs : tuple of CompiledCondition
    names : tuple of str
        Names of the positive parts.
    """

    def __init__(self, programs: tuple[CompiledCondition, ...], names: tuple[str, ...]):
        self._programs = programs
        self._names = names
        loads = [load for program in programs for load in _loads(program.term)]
        self.columns: tuple[str, ...] = tuple(dict.fromkeys(load.name or "" for load in loads))
        # Per column: the parts whose events must have it.
        self._loaded_by = [
            frozenset(self._place(load) for load in loads if load.name == column)
            for column in self.columns
        ]
        self._texts = ValueNumbers()
        self._known: Kinds = (Kind("null"),) * len(self.columns)  # of all admitted events
        self._admitted: list[tuple[int, Kinds]] = []  # theirs, each until the time of the last one
        self.constants: list[float] = []
        code: list[tuple[int, int, int, int]] = []
        ends = []
        for program in programs:
            code += self._compiled(program.term)
            ends.append(len(code))
        self._texts_of_literals = len(self._texts)  # literals have the first numbers, and keep them
        self.code: Ints = np.array(code, np.int64).reshape(-1, 4)
        self.ends: Ints = np.array(ends, np.int64)
        self.parts: Ints = np.array([program.part for program in programs], np.int64)
        self.prevs = np.array([program.term.uses_prev for program in programs], bool)
        self.literals: Floats = np.array(self.constants, np.float64)

    def load(self, columns: EventColumns, rows: Ints, masks: Ints) -> tuple[Floats, Ints, Kinds]:
        """Return the values of some events, which of them are NULL, and their kinds.

        Parameters
        ----------
        rows : array of int64
        masks : array of int64
            Per row of `rows`: the parts that take it.

        Returns
        -------
        values : array of float64, of shape (rows, columns)
        nulls : array of int64, of shape (rows,)
            Bit c: column c is NULL.
        kinds : tuple of Kind
            One per column.

        Raises
        ------
        BadEvent
            If a value is absent, of a type incompatible with the others, or too large.
        """
        values = np.zeros((len(rows), len(self.columns)))
        nulls = np.zeros(len(rows), np.int64)
        kinds = [Kind("null")] * len(self.columns)
        for place, name in enumerate(self.columns):
            needed = sum(1 << part for part in self._loaded_by[place])
            wanted = (masks & needed) != 0
            if not wanted.any():
                continue
            column = columns.params.get(name)
            if column is None:
                raise BadEvent(f"the events have no attribute {name!r}, which a condition needs")
            taken = (
                column[rows[wanted]]
                if isinstance(column, np.ndarray)
                else column.take(pa.array(rows[wanted]))
            )
            kinds[place], numbers, unknown = numbers_of(name, taken, self._texts)
            values[wanted, place] = numbers
            nulls[wanted] |= unknown.astype(np.int64) << place
        for program in self._programs:
            self._check(program.term, kinds)
        return values, nulls, tuple(kinds)

    def admit(self, kinds: Kinds, last_us: int, before_us: int) -> bool:
        """Admit events of some kinds beside those admitted earlier that they may meet.

        Parameters
        ----------
        last_us : int
            Time of the last of the events.
        before_us : int
            Start of the window of the first: it meets no event before.

        Returns
        -------
        bool
            Whether the conditions require that events before `before_us` are forgotten.

        Raises
        ------
        BadEvent
            If the values cannot be compared with those of events in the window, or not exactly.
        """
        forgets = False
        try:
            together = self._together(self._known, kinds)
        except BadEvent:
            met = [each for each in self._admitted if each[0] >= before_us]
            if len(met) == len(self._admitted):
                raise
            together = self._together(*(kinds for _, kinds in met), kinds)
            self._admitted, forgets = met, True
        self._known = together
        if self._admitted and self._admitted[-1][1] == kinds:
            self._admitted.pop()
        elif len(self._admitted) == _ADMITTED_MAX:  # one entry for all, which lives longer
            self._admitted = [(self._admitted[-1][0], together)]
        self._admitted.append((last_us, kinds))
        return forgets

    def _together(self, *admitted: Kinds) -> Kinds:
        """Return the kinds of all events; raise `BadEvent` if they cannot be compared."""
        together = tuple(
            reduce(partial(joined, name), of_column)
            for name, of_column in zip(self.columns, zip(*admitted, strict=True), strict=True)
        )
        for program in self._programs:
            self._check(program.term, together)
        return together

    def copy(self) -> CompiledConditions:
        """Return an independent copy; O(texts)."""
        made = copy(self)
        made._texts, made._admitted = self._texts.copy(), list(self._admitted)
        return made

    @property
    def texts(self) -> int:
        """Number of known texts."""
        return len(self._texts)

    def keep_texts(self, values: Floats) -> None:
        """Forget the texts that neither the loaded values nor the conditions contain.

        Parameters
        ----------
        values : array of float64, of shape (rows, columns)
            Loaded values; their texts are renumbered in place.
        """
        columns = [place for place, kind in enumerate(self._known) if kind.name == "text"]
        held = values[:, columns]
        literals = np.arange(self._texts_of_literals)
        kept: Ints = np.unique(np.concatenate((held.ravel(), literals))).astype(np.int64)
        values[:, columns] = np.searchsorted(kept, held.astype(np.int64))
        self._texts.keep(kept)

    def hold(self, columns: EventColumns, rows: Ints) -> npt.NDArray[np.bool_]:
        """Return for which events all conditions are true; REQUIRES: single-event conditions.

        Raises
        ------
        BadEvent
            As for `load`.
        """
        values, nulls, _ = self.load(columns, rows, np.ones(len(rows), np.int64))
        begin, holds = 0, np.ones(len(rows), bool)
        for end in self.ends:
            holds &= _true(self.code[begin:end].tolist(), self.constants, values, nulls)
            begin = end
        if self.texts > _TEXTS_MAX:
            self.keep_texts(np.empty((0, len(self.columns))))
        return holds

    def _compiled(self, term: Term) -> Iterator[tuple[int, int, int, int]]:
        if isinstance(term, Attribute | Aggregate):
            assert term.name is not None
            previous = int(isinstance(term, Aggregate))
            yield _LOAD, self.columns.index(term.name), self._place(term), previous
        elif isinstance(term, Literal):
            if term.value is None:
                yield _NULL, 0, 0, 0
                return
            value = term.value
            if isinstance(value, str):
                value = int(self._texts.number(np.array([value], object), "a literal")[0])
            self.constants.append(float(value))
            yield _CONST, len(self.constants) - 1, 0, 0
        elif isinstance(term, In):
            for place, choice in enumerate(term.choices):
                yield from self._compiled(term.operand)
                yield from self._compiled(choice)
                yield _EQ, 0, 0, 0
                if place:
                    yield _OR, 0, 0, 0
        elif isinstance(term, Between):
            yield from self._compiled((term.operand >= term.low) & (term.operand <= term.high))
        else:
            for place, operand in enumerate(term.operands):
                yield from self._compiled(operand)
                if place and isinstance(term, And | Or):
                    yield (_AND if isinstance(term, And) else _OR), 0, 0, 0
            if isinstance(term, Comparison):
                yield _COMPARISONS[term.operator], 0, 0, 0
            elif isinstance(term, Arithmetic):
                yield _SUMS[term.operator], 0, 0, 0
            elif isinstance(term, Not | IsNull | Negative):
                operation = {Not: _NOT, IsNull: _IS_NULL, Negative: _NEG}[type(term)]
                yield operation, 0, 0, 0

    def _place(self, load: Attribute | Aggregate) -> int:
        """Return the index of the part it belongs to; 0 for the event itself."""
        return 0 if load.part is None else self._names.index(load.part)

    def _check(self, term: Term, kinds: Sequence[Kind]) -> Kind:
        """Return the kind of a term's result over columns of these kinds.

        Raises
        ------
        BadEvent
            If the term cannot be computed, or not exactly.
        """
        if isinstance(term, Attribute | Aggregate):
            return kinds[self.columns.index(term.name or "")]
        if isinstance(term, Literal):
            return _literal_kind(term.value)
        found = [self._check(operand, kinds) for operand in term.operands]
        names = {kind.name for kind in found} - {"null"}
        if isinstance(term, Arithmetic | Negative):
            if names - {"number"}:
                raise BadEvent(f"{term!r} uses a non-numeric value")
            sizes = [kind.most for kind in found]
            is_product = isinstance(term, Arithmetic) and term.operator == "*"
            most = sizes[0] * sizes[1] if is_product else sum(sizes)
            if most > EXACT_MAX:
                raise BadEvent(
                    f"{term!r} may exceed 2**53, up to which it is exact: use a Detector"
                )
            return Kind("number", most)
        if isinstance(term, Comparison | In | Between):
            if "text" in names and names != {"text"}:
                raise BadEvent(f"{term!r} compares texts with other values")
            ordered = isinstance(term, Between) or (
                isinstance(term, Comparison) and term.operator not in ("=", "!=")
            )
            if ordered and "text" in names:
                raise BadEvent(
                    f"{term!r} orders texts, which compiled conditions do not: use a Detector"
                )
        return Kind("truth")


def _true(
    code: list[list[int]], constants: list[float], values: Floats, nulls: Ints
) -> npt.NDArray[np.bool_]:
    """Run a program for all events at once, as `_predicates.is_true` does for one."""
    stack: list[tuple[Any, Any]] = []
    for operation, place, _, _ in code:
        if operation == _CONST:
            stack.append((np.full(len(values), constants[place]), np.zeros(len(values), bool)))
        elif operation == _NULL:
            stack.append((np.zeros(len(values)), np.ones(len(values), bool)))
        elif operation == _LOAD:
            stack.append((values[:, place], (nulls >> place & 1).astype(bool)))
        elif operation in (_NOT, _IS_NULL, _NEG):
            a, unknown = stack.pop()
            if operation == _IS_NULL:
                stack.append((unknown, np.zeros(len(values), bool)))
            else:
                stack.append((1.0 - a if operation == _NOT else -a, unknown))
        else:
            b, b_unknown = stack.pop()
            a, a_unknown = stack.pop()
            unknown = a_unknown | b_unknown
            if operation in (_AND, _OR):
                decisive = float(operation == _OR)
                decided = (~a_unknown & (a == decisive)) | (~b_unknown & (b == decisive))
                value = np.where(decided, decisive, 1.0 - decisive)
                stack.append((value, unknown & ~decided))
            else:
                stack.append((_UFUNCS[operation](a, b), unknown))
    [(value, unknown)] = stack
    true: npt.NDArray[np.bool_] = (value == 1.0) & ~unknown
    return true


_UFUNCS: Final = {
    _EQ: np.equal,
    _NE: np.not_equal,
    _LT: np.less,
    _LE: np.less_equal,
    _GT: np.greater,
    _GE: np.greater_equal,
    _ADD: np.add,
    _SUB: np.subtract,
    _MUL: np.multiply,
}


def _loads(term: Term) -> Iterator[Attribute | Aggregate]:
    return (one for one in term.walk() if isinstance(one, Attribute | Aggregate))


def _literal_kind(value: object) -> Kind:
    if value is None:
        return Kind("null")
    if isinstance(value, bool):
        return Kind("truth")
    if isinstance(value, str):
        return Kind("text")
    assert isinstance(value, int | float)
    return Kind("number", 0 if isinstance(value, float) else abs(value))


# -- conversion of columns to floats, with the kind of their values ----------------------------


EXACT_MAX: Final = 2**53
"""Limit up to which floats hold integers exactly."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of a term's result: number, truth value, text, or NULL only.

    Attributes
    ----------
    name : {"number", "text", "truth", "null"}
    most : int
        Upper bound on the absolute value of its integers; 0 if it has only floats.
    """

    name: str
    most: int = 0


Kinds: TypeAlias = tuple[Kind, ...]
"""Kinds of all columns that conditions load."""


def numbers_of(
    name: str, column: Any, texts: ValueNumbers
) -> tuple[Kind, Floats, npt.NDArray[np.bool_]]:
    """Return a column as floats, with texts replaced by their numbers."""
    kind = None
    if isinstance(column, np.ndarray) and column.dtype.kind in "OUS":
        kind, column = _objects(name, column.astype(object))
    elif isinstance(column, np.ndarray):
        return _plain(name, column), column.astype(np.float64), np.zeros(len(column), bool)
    unknown = column.is_null().to_numpy(zero_copy_only=False)
    type_ = column.type
    if unknown.all():  # an all-NULL column carries no kind, whatever its type
        return Kind("null"), np.zeros(len(column)), unknown
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return Kind("text"), texts.number(column, name).astype(np.float64), unknown
    if pa.types.is_boolean(type_):
        filled = pa.compute.fill_null(column, False)
    elif pa.types.is_integer(type_) or pa.types.is_floating(type_):
        filled = pa.compute.fill_null(column, 0)
    else:
        raise BadEvent(
            f"the attribute {name!r} has values of the type {type_}, which compiled conditions "
            "do not compare: use a Detector"
        )
    whole = filled.to_numpy(zero_copy_only=False)
    return kind or _plain(name, whole), whole.astype(np.float64), unknown


def joined(name: str, a: Kind, b: Kind) -> Kind:
    if "null" in (a.name, b.name):
        return b if a.name == "null" else a
    if a.name != b.name:
        raise BadEvent(f"the attribute {name!r} is a {a.name} in some events, a {b.name} in others")
    return Kind(a.name, max(a.most, b.most))


def _plain(name: str, column: npt.NDArray[Any]) -> Kind:
    """Return the kind of an array of numbers or truth values."""
    if not np.can_cast(column.dtype, np.float64):
        raise BadEvent(
            f"the attribute {name!r} has values of the type {column.dtype}, which compiled "
            "conditions do not compare: use a Detector"
        )
    if column.dtype.kind == "b":
        return Kind("truth")
    if column.dtype.kind == "f":
        return Kind("number")
    most = max(abs(int(column.min())), abs(int(column.max()))) if len(column) else 0
    if most > EXACT_MAX:
        raise BadEvent(
            f"the attribute {name!r} has integers beyond 2**53, which compiled conditions do not "
            "compare exactly: use a Detector"
        )
    return Kind("number", most)


def _objects(name: str, column: npt.NDArray[Any]) -> tuple[Kind, Any]:
    """Return the kind of an array of objects, and a pyarrow array of floats or texts."""
    values = column.tolist()
    types = {type(value) for value in values} - {type(None)}
    if type(NO_VALUE) in types:
        raise BadEvent(f"an event has no attribute {name!r}, which a condition needs")
    if not types:
        return Kind("null"), pa.nulls(len(values))
    if types == {str}:
        return Kind("text"), pa.array(values, pa.string())
    most = max((abs(value) for value in values if type(value) is int), default=0)
    if types <= {int, float} and most <= EXACT_MAX:
        kind = Kind("number", most)
    elif types == {bool}:
        kind = Kind("truth")
    else:
        raise BadEvent(
            f"the attribute {name!r} has values that compiled conditions do not compare: use a "
            "Detector"
        )
    return kind, pa.array([None if v is None else float(v) for v in values], pa.float64())
