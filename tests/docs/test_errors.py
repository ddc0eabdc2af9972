"""Every public error has a page, of the form that all have, and shows what the code really says."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

import activedb.errors
import coupling
import lockmgr
import spark_bridge
from tests.docs.pages import DOCS, ROOT, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = DOCS / "errors"
PACKAGES = ("activedb", "lockmgr", "coupling", "spark_bridge")
NOT_OURS = {  # messages that are names, or the server's words
    "ConstraintViolation.md": "cannot insert into accounts: ",
    "coupling/OrderCycle.md": " after ",
}


def public_errors() -> dict[str, type[BaseException]]:
    """Each public error by the path of its page."""
    found = {f"{name}.md": getattr(activedb.errors, name) for name in activedb.errors.__all__}
    has_spark = find_spec("pyspark") is not None
    for package in (lockmgr, coupling, *([spark_bridge] if has_spark else [])):
        for name in package.__all__:
            each = getattr(package, name)
            if isinstance(each, type) and issubclass(each, BaseException):
                found[f"{package.__name__}/{name}.md"] = each
    return found


ERRORS = public_errors()


def test_errors_and_pages_are_the_same() -> None:
    pages = {path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md")} - {"index.md"}
    assert pages == set(ERRORS), "write docs/errors/<Name>.md as its neighbours are written"


def test_errors_index_names_every_page() -> None:
    linked = re.findall(r"^ *- \[\w+\]\((.+?)\):", (PAGES / "index.md").read_text("utf-8"), re.M)
    assert sorted(linked) == sorted(ERRORS)


@pytest.mark.parametrize("page", sorted(ERRORS))
def test_error_page_says_what_it_means_why_it_comes_and_what_to_do(page: str) -> None:
    error = ERRORS[page]
    text = (PAGES / page).read_text(encoding="utf-8")
    module = "activedb.errors" if "/" not in page else page.partition("/")[0]
    headings = re.findall(r"^## (.+)$", text, re.M)
    assert text.startswith(f"# {error.__name__}\n\n`{module}.{error.__name__}`, a kind of ")
    base = error.__bases__[0].__name__
    assert f"a kind of [{base}]({base}.md)." in text or f"a kind of `{base}`." in text
    assert f"::: {module}.{error.__name__}\n" in text
    assert headings[-1] == "Reference"
    if "It is never raised by itself." in text:
        assert headings == ["Reference"]
        assert "Kinds of it: " in text
        return
    assert headings[:-1] == ["What usually causes it", "What to do", "What it looks like"]
    (example,) = blocks(PAGES / page)
    message = " ".join(example.text.split())
    if page in NOT_OURS:
        assert NOT_OURS[page] in message
        return
    assert any(each.search(message) for each in messages()), "no code says what the page shows"


@cache
def messages() -> tuple[re.Pattern[str], ...]:
    """Return the messages of the packages, with anything where a value is put in."""
    found: set[str] = set()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            found.update(_texts(ast.parse(path.read_text(encoding="utf-8"))))
    return tuple(
        re.compile(each) for each in sorted(found) if len(re.sub(r"\.\*|\\", "", each)) >= 12
    )


def _texts(module: ast.Module) -> Iterator[str]:
    passed: set[int] = set()  # docstrings, which are no messages, and pieces of taken texts
    for node in ast.walk(module):
        if isinstance(node, ast.Expr):
            passed.add(id(node.value))
        elif id(node) in passed:
            continue
        elif isinstance(node, ast.JoinedStr):
            passed.update(map(id, node.values))
            yield "".join(
                _escaped(each.value) if isinstance(each, ast.Constant) else ".*"
                for each in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield _escaped(node.value)


def _escaped(text: object) -> str:
    return re.escape(" ".join(f"x{text}x".split())[1:-1])
