"""Statement text with normalised placeholders, and edits of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Edit", "PlainText"]

_LANGUAGES = {"postgresql": "postgres", "sqlite": "sqlite"}
_REPEATED = 8  # consecutive placeholders merged as one: IN lists of any length are alike
_PYFORMAT = re.compile(
    r"%\([^)]*\)s(?P<cast>(?:::[A-Za-z_ ]+(?:\(\d+(?:, \d+)?\))?(?:\[\])*)?)"
    r"(?:, %\([^)]*\)s(?P=cast)){" + str(_REPEATED - 1) + r",}"
    r"|%\([^)]*\)s|%%"
)
_QMARKS = re.compile(r"\?(?:, \?){" + str(_REPEATED - 1) + r",}")


@dataclass(frozen=True, slots=True)
class Edit:
    """Replacement for the plain text from `start` up to `end`."""

    start: int
    end: int
    text: str


class PlainText:
    """Statement text with normalised placeholders.

    psycopg's ``%(name)s`` becomes ``$1`` and its ``%%`` becomes ``%``; long runs of placeholders
    become one, so that IN lists of any length give the same text.

    Parameters
    ----------
    sql : str
    dialect : {"postgresql", "sqlite"}

    Attributes
    ----------
    text : str
    language : str
        sqlglot's name of the dialect.
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
        """Start positions of the placeholders."""
        return frozenset(start for start, _, _ in self._kept)

    def edited(self, edits: Iterable[Edit]) -> str:
        """Return the statement's text with `edits` applied. REQUIRES: they do not overlap."""
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
        """Return plain text in the statement's own syntax."""
        return plain.replace("%", "%%") if self._is_pyformat else plain
