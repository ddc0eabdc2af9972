"""Check the English: docstrings open with an imperative verb or a noun, and no text has idioms.

Texts are docstrings, comments, string literals (so messages, pages and help) and Markdown.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PLACES = (
    "activedb",
    "lockmgr",
    "coupling",
    "spark_bridge",
    "pytest_activedb",
    "benchmarks",
    "tools",
    "docs",
    "examples",
    "tests",
    "migrations",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
)
OPENINGS = frozenset(
    word
    for words in (
        # question words and pronouns
        "what who whose whom whether which how where when why that this these those it its",
        "they their them there nobody somebody anybody nothing something someone everything",
        "everybody none",
        # prepositions and conjunctions
        "of as for from in with by at on to between before after around beside behind under",
        "over or and but so if also again only not likewise same like else",
        # verbs in the third person
        "makes takes tells reads holds keeps finds gives checks counts raises writes runs does",
        "is are has says knows stands lives listens asks waits calls returns sends stops starts",
    )
    for word in words.split()
)
_TEXTS = frozenset(
    {tokenize.COMMENT, tokenize.STRING} | {getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
)

IDIOMS = {
    r"\bgiv(?:e|es|en|ing) way\b|\bgave way\b": "name the victim, or what is rolled back",
    r"\bcomes? to nothing\b": "failed for good",
    r"\bfallen due\b|\bfalls due\b": "runnable, or due",
    r"\bin hand\b": "pending",
    r"\btells? of\b|\btold of\b": "report, list or describe",
    # Not the name of a user, in quotes or in a URL.
    r"(?<![\"'`/])\bnobody\b": "no transaction, no process, no caller",
    # Not a name alone, in quotes or in the braces of an f-string.
    r"\b(?!(?<=[\"'`{])\w+[\"'`}])(?:somebody|anybody)\b": "another program, a user, a caller",
    r"\bthose of which\b|\bthat of which\b": "name the subject",
    r"\bcomes? along\b|\btaken? along\b": "say what happens to it",
    r"\bas it were\b|\bso to speak\b": "leave it out",
    r"\bmend(?:s|ed|ing)?\b": "fix or correct",
}


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring, those of attributes and constants included."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in node.body:
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
                and statement.value.value.strip()
            ):
                yield statement.lineno, statement.value.value


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each comment and string literal, docstrings included."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _TEXTS:
            yield token.start[0], token.string


def complaints(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the complaint for each text that breaks a rule."""
    for line, docstring in docstrings(source):
        first = docstring.split()[0].strip("`.,:;()").lower()
        if first in OPENINGS:
            yield line, f'docstring opens with "{first}": open with an imperative verb or a noun'
    for line, text in texts(source):
        yield from idioms(line, text)


def idioms(line: int, text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the complaint for each idiom in a text that begins at `line`."""
    for idiom, instead in IDIOMS.items():
        for found in re.finditer(idiom, text, re.IGNORECASE):
            yield line + text[: found.start()].count("\n"), f'"{found[0]}": say {instead}'


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the complaints about the given files and folders; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("places", nargs="*", default=PLACES, help="files or folders")
    places = [Path(place) for place in parser.parse_args(arguments).places]
    files = [f for p in places for f in (sorted(p.rglob("*")) if p.is_dir() else [p])]
    files = [f for f in files if f.resolve() != Path(__file__).resolve()]  # which has the idioms
    found = 0
    for file in files:
        if file.suffix == ".py":
            wrong = complaints(file.read_text(encoding="utf-8"))
        elif file.suffix == ".md":
            wrong = idioms(1, file.read_text(encoding="utf-8"))
        else:
            continue
        for line, complaint in wrong:
            print(f"{file}:{line}: {complaint}")
            found += 1
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
