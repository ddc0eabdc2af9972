"""References to events in SQL, replaced by unique names while the SQL is parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from activedb.events.terms import Attribute
from activedb.language._names import Scope
from activedb.language._parser import SourceText
from activedb.spelling import did_you_mean

__all__ = ["Referring"]

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
                name, dot = "", False
                before = "."
            elif before != ".":
                name, begin, dot = word, at, False
            else:
                name, dot = "", False
        elif kind not in ("space", "comment"):
            dot = piece == "." and bool(name) and not dot
            if not dot:
                name = ""
            before = piece
        at += len(piece)
