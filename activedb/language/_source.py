"""Source text of the rule language, with positions and errors that show them."""

from __future__ import annotations

from dataclasses import dataclass

from activedb.errors import DefinitionError, RuleSyntaxError

__all__ = ["Source"]


@dataclass(frozen=True, slots=True)
class Source:
    """A text to read.

    Attributes
    ----------
    text : str
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise DefinitionError(
                f"the rule language is text, not {self.text!r}; a file is read by "
                "db.rules.load_file(path)"
            )

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column of a character, both from 1."""
        before = self.text[: max(0, min(offset, len(self.text)))]
        return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1

    def error(self, offset: int, message: str) -> RuleSyntaxError:
        """Return an error that shows the line with a caret below the character."""
        line, column = self.place(offset)
        shown = self.text.split("\n")[line - 1].rstrip("\r")
        # A tab is a tab in both lines, which aligns the caret.
        indent = "".join("\t" if c == "\t" else " " for c in shown[: column - 1])
        excerpt = f"{shown}\n{indent}^"
        return RuleSyntaxError(
            f"line {line}, column {column}: {message}\n{excerpt}",
            line=line,
            column=column,
            excerpt=excerpt,
        )
