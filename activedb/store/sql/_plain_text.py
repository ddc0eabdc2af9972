"""A statement's text with its placeholders out of the way, and edits made in it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Edit", "PlainText"]

_LANGUAGES = {"postgresql": "postgres", "sqlite": "sqlite"}
_REPEATED = 8  # placeholders in a row that are analysed as one: IN lists of any length are alike
_PYFORMAT = re.compile(
    r"%\([^)]*\)s(?P<cast>(?:::[A-Za-z_ ]+(?:\(\d+(?:, \d+)?\))?(?:\[\])*)?)"
    r"(?:, %\([^)]*\)s(?P=cast)){" + str(_REPEATED - 1) + r",}"
    r"|%\([^)]*\)s|%%"
)
_QMARKS = re.compile(r"\?(?:, \?){" + str(_REPEATED - 1) + r",}")


@dataclass(frozen=True, slots=True)
class Edit:
    """What to put where text stood: plain text from `start` up to `end`."""

    start: int
    end: int
    text: str


class PlainText:
    """A statement's text with its placeholders out of the way.

    psycopg's ``%(name)s`` become ``$1`` and its ``%%`` become ``%``; long rows of placeholders
    become one, so that IN lists of any length are the same text.

    Parameters
    ----------
    sql : str
    dialect : {"postgresql", "sqlite"}

    Attributes
    ----------
    text : str
    language : str
        What sqlglot calls the dialect.
    """

    def __init__(self, sql: str, dialect: str):
        self.language = _LANGUAGES[dialect]
        self._is_pyformat = dialect == "postgresql"
        self._kept: list[tuple[int, int, str]] = []
        parts: list[str] = []
        length = done = 0
        for found in (_PYFORMAT if self._is_pyformat else _QMARKS).finditer(sql):
            before = sql[done : found.start()]
            if self._is_pyformat:
                known = found.group()
                plain = "%" if known == "%%" else "$1" + (found.group("cast") or "")
            else:
                known, plain = found.group(), "?"
            parts += [before, plain]
            start = length + len(before)
            length = start + len(plain)
            if known != "%%":
                self._kept.append((start, length, known))
            done = found.end()
        parts.append(sql[done:])
        self.text = "".join(parts)

    @property
    def places(self) -> frozenset[int]:
        """Where the placeholders stand."""
        return frozenset(start for start, _, _ in self._kept)

    def edited(self, edits: Iterable[Edit]) -> str:
        """The statement's text with `edits` made, which do not overlap."""
        changes = [(start, end, kept) for start, end, kept in self._kept]
        changes += [(edit.start, edit.end, edit.text) for edit in edits]
        parts: list[str] = []
        done = 0
        for start, end, text in sorted(changes):
            assert start >= done, "edits overlap"
            parts += [self.restored(self.text[done:start]), text]
            done = end
        parts.append(self.restored(self.text[done:]))
        return "".join(parts)

    def restored(self, plain: str) -> str:
        """Plain text as it stands in the statement."""
        return plain.replace("%", "%%") if self._is_pyformat else plain
