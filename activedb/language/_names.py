"""Names, literals and durations in a text, and the events and tables that names denote."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Any

from lark import Token, Tree

from activedb.events.terms import Attribute
from activedb.language._parser import SourceText, start_of
from activedb.spelling import did_you_mean

__all__ = [
    "UNITS_US",
    "Referring",
    "Scope",
    "columns_of",
    "duration_us",
    "literal_value",
    "name_of",
    "named",
    "whole_number",
]


_UNITS = {
    1: "us microsecond microseconds",
    1_000: "ms millisecond milliseconds",
    1_000_000: "s sec secs second seconds",
    60_000_000: "m min mins minute minutes",
    3_600_000_000: "h hour hours",
    86_400_000_000: "d day days",
}
UNITS_US = {name: us for us, names in _UNITS.items() for name in names.split()}
"""Microseconds of each unit of time, by all its names."""
# A number of any length is computed exactly or refused, and quickly: more digits than these are too
# long for a duration, or a fraction of a microsecond.
_EXACT = Context(prec=60, Emin=-60, Emax=60, traps=[Inexact, InvalidOperation, Overflow])
_INTERVAL = re.compile(r"\s*(-?)\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*\Z", re.IGNORECASE)


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    if value.is_snan():  # no term takes it
        raise InvalidOperation
    return value


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value) and "inf" not in text.lower():
        raise OverflowError
    return value


_TYPES: dict[str, Callable[[str], Any]] = {
    "DATE": date.fromisoformat,
    "TIME": time.fromisoformat,
    "TIMESTAMP": datetime.fromisoformat,
    "DECIMAL": _decimal,
    "FLOAT": _float,
}


def name_of(tree: Tree[Token]) -> str:
    """Return the name in a ``name`` tree."""
    return str(tree.children[0])


def whole_number(source: SourceText, token: Token) -> int:
    """Return the value of a number without a fraction."""
    if not token.isdigit():
        raise source.error(start_of(token), f"expected a whole number, found {token!s}")
    value: int = _converted(source, token, int, str(token), "whole number")
    return value


def duration_us(source: SourceText, tree: Tree[Token]) -> int:
    """Return the exact microseconds of a number with a unit."""
    number, unit = tree.children
    assert isinstance(unit, Tree)
    return _us(source, start_of(unit), str(number), name_of(unit))


def literal_value(source: SourceText, tree: Tree[Token]) -> Any:
    """Return the value of a ``literal`` tree."""
    first = tree.children[0]
    assert isinstance(first, Token)
    text = str(first)
    if first.type == "NUMBER":
        return _converted(source, first, int if text.isdigit() else _float, text, "number")
    if first.type == "STRING":
        return text
    if first.type == "BYTES":
        return _converted(source, first, bytes.fromhex, text[2:-1], "byte string")
    if first.type != "TYPED":
        return {"TRUE": True, "FALSE": False, "NULL": None}[first.type]
    kind, written = text.upper(), str(tree.children[1])
    if kind == "INTERVAL":
        match = _INTERVAL.match(written)
        if match is None:
            raise source.error(start_of(tree.children[1]), "write INTERVAL '5 min'")
        sign, number, unit = match.groups()
        us = _us(source, start_of(tree.children[1]), number, unit)
        try:
            return timedelta(microseconds=-us if sign else us)
        except OverflowError:
            raise source.error(start_of(tree.children[1]), "the duration is too long") from None
    return _converted(source, first, _TYPES[kind], written, kind)


def _converted(
    source: SourceText, token: Token, convert: Callable[[str], Any], text: str, kind: str
) -> Any:
    try:
        return convert(text)
    except (ValueError, InvalidOperation):
        raise source.error(start_of(token), f"{text!r} is not a valid {kind}") from None
    except OverflowError:
        raise source.error(start_of(token), f"{text} is beyond the range of floats") from None


def _us(source: SourceText, at: int, number: str, unit: str) -> int:
    scale = UNITS_US.get(unit.lower())
    if scale is None:
        raise source.error(
            at, f"{unit!r} is not a unit of time; {did_you_mean(unit.lower(), UNITS_US)}"
        )
    try:
        us = _EXACT.to_integral_exact(_EXACT.multiply(Decimal(number), scale))
    except (InvalidOperation, Overflow):
        raise source.error(at, "the duration is too long") from None
    except Inexact:
        raise source.error(at, f"{number} {unit} is not a whole number of microseconds") from None
    return int(us)


def named(name: str, known: Iterable[str], *, is_quoted: bool) -> str | None:
    """Return the entry of `known` that a name in SQL denotes, or None.

    An exact match wins. An unquoted name also matches the only entry that differs in case alone, as
    SQL folds case.
    """
    names = tuple(known)
    if name in names:
        return name
    if is_quoted:
        return None
    folded = [other for other in names if other.casefold() == name.casefold()]
    return folded[0] if len(folded) == 1 else None


def columns_of(table: Any) -> Mapping[str, Any]:
    """Return the columns of a declared table by name, in order."""
    return {column.name: column for column in table.columns}


@dataclass(frozen=True, slots=True)
class Scope:
    """Names before a dot that denote events.

    Attributes
    ----------
    parts : tuple of str, or None
        Parts of the pattern, whose attributes can be named; None: any name counts as a part.
    this : frozenset of str
        Names of the event itself.
    old : frozenset of str
        Names of the row before its change.
    is_of_one : bool
        True if an attribute of the event itself may be named without an event.
    attributes : mapping of str to frozenset of str
        Attributes of the names whose attributes are known; other names may have any.
    """

    parts: tuple[str, ...] | None = ()
    this: frozenset[str] = frozenset()
    old: frozenset[str] = frozenset()
    is_of_one: bool = False
    attributes: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All names of events."""
        return (*(self.parts or ()), *sorted(self.this | self.old))

    @property
    def transitions(self) -> frozenset[str]:
        """Words NEW and OLD, if they denote events."""
        return (self.this | self.old) & {"NEW", "OLD"}

    def attribute(self, name: str, attribute: str) -> Attribute | None:
        """Return the attribute that ``name.attribute`` denotes; None if the name is no event."""
        if name in self.this:
            return Attribute(None, attribute)
        if name in self.old:
            return Attribute(None, attribute, old=True)
        return self.part(name, attribute)

    def part(self, name: str, attribute: str) -> Attribute | None:
        """Return an attribute of a part; None if there is no such part."""
        is_part = self.parts is None or name in self.parts
        return Attribute(name, attribute) if is_part else None

    def unknown_attribute(self, name: str, attribute: str) -> frozenset[str] | None:
        """Return the attributes of `name` if they are known and `attribute` is not among them."""
        known = self.attributes.get(name)
        return known if known is not None and attribute not in known else None

    def naming(self, *names: str) -> Scope:
        """Return this scope with more names for the event itself."""
        return replace(self, this=self.this | frozenset(names))


# -- references to events in SQL, replaced by unique names while it is parsed ----------------------

_PIECE = re.compile(
    r"""(?P<string>'(?:[^']|'')*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
      | (?P<comment>--[^\n]*|/\*.*?\*/)
      | (?P<quoted>"(?:[^"]|"")+")
      | (?P<word>[^\W\d][\w$]*)
      | (?P<space>\s+)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_HYPHENED = re.compile(r"[^\W\d]\w*(?:-[^\W\d]\w*)*")


@dataclass(slots=True)
class Referring:
    """SQL in which unique names replace the references to events.

    Attributes
    ----------
    sql : str
        Original SQL.
    text : str
        SQL with ``activedb_ref_1``, … in place of the references.
    references : list of Attribute
        Attributes that these names stand for.
    names : dict of str to int
        Names before the dots, each with the offset of one occurrence.
    """

    source: SourceText
    offset: int
    sql: str
    text: str = ""
    mark: str = "activedb_ref_"
    references: list[Attribute] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    _moves: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, source: SourceText, offset: int, sql: str, scope: Scope) -> Referring:
        """Find the references in `sql`, which begins at `offset` of the text.

        Raises
        ------
        RuleSyntaxError
            At a reference to an attribute that its event does not have.
        """
        found = cls(source, offset, sql)
        while found.mark in sql:
            found.mark += "_"
        made, done = "", 0
        for begin, end, name, attribute in _dotted(sql):
            if name not in scope.names and name.upper() in scope.transitions:
                name = name.upper()  # NEW and OLD are keywords, in any case
            reference = scope.attribute(name, attribute) if name in scope.names else None
            if reference is None:
                continue
            known = scope.unknown_attribute(name, attribute)
            if known is not None:
                raise source.error(
                    offset + begin,
                    f"{name} has no attribute {attribute!r}; {did_you_mean(attribute, known)}",
                )
            if reference not in found.references:
                found.references.append(reference)
            number = [bool(r == reference) for r in found.references].index(True) + 1
            made += sql[done:begin]
            found._moves.append((len(made), begin))
            made += f"{found.mark}{number}"
            found._moves.append((len(made), end))
            found.names.setdefault(name, begin)
            done = end
        found.text = made + sql[done:]
        return found

    def place(self, at: int) -> int:
        """Return the offset in the whole text of a character of `text`."""
        moved = 0
        for here, there in self._moves:
            if here <= at:
                moved = there - here
        return self.offset + at + moved

    def is_reference(self, name: str) -> bool:
        """Return whether a name in `text` stands for a reference."""
        return name.startswith(self.mark) and name[len(self.mark) :].isdigit()

    def parameters(self, sql: str) -> tuple[str, tuple[str, ...]]:
        """Return SQL with ``:ref_1`` for the names, other colons escaped, and its parameters."""
        found: list[str] = []

        def parameter(match: re.Match[str]) -> str:
            name = f"ref_{match.group(1)}"
            if name not in found:
                found.append(name)
            return f":{name}"

        escaped = sql.replace(":", "\\:")
        made = re.sub(rf'"?{self.mark}(\d+)"?', parameter, escaped)
        return made, tuple(found)


def _dotted(sql: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield begin, end and both names of each ``name.attribute``, except in names of three."""
    at, before = 0, ""  # the text before a name that a dot may follow
    name, begin, dot = "", 0, False
    while at < len(sql):
        match = _PIECE.match(sql, at)
        assert match is not None
        kind, piece = match.lastgroup, match.group()
        if kind == "tag":
            kind = "string"
        if kind in ("word", "quoted"):
            if kind == "word" and dot and name:
                longer = _HYPHENED.match(sql, at)
                piece = longer.group() if longer is not None else piece
            word = piece[1:-1].replace('""', '"') if kind == "quoted" else piece
            if dot and name:
                yield begin, at + len(piece), name, word
                name = ""
            elif before != ".":
                name, begin = word, at
            else:
                name = ""
            dot, before = False, ""
        elif kind not in ("space", "comment"):
            dot = piece == "." and bool(name) and not dot
            if not dot:
                name = ""
            before = piece
        at += len(piece)
