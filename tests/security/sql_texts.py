"""Search for SQL that is put together at run time, and for what is put into it.

A *place* is a module and the function in it. In each string that has words of SQL in it and is put
together (an f-string, ``+``, ``%``, ``format``), the expressions are found; and in each call that
takes SQL as text, its argument, unless it is a constant or such a string itself.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WORDS = re.compile(
    r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE|ALTER|DROP|LOCK TABLE|GRANT|REVOKE|TRUNCATE"
    r"|COPY|LISTEN|NOTIFY|SAVEPOINT|SET|WITH|FROM|WHERE|UNION|VALUES|COLLATE|JOIN|ORDER BY)\b"
)
_TAKES_SQL = {"text", "literal_column", "DDL", "SQL", "exec_driver_sql", "exec_params"}
_OF_DRIVERS = {"execute", "executemany", "executescript", "copy"}
_DRIVERS = re.compile(r"\b_?(driver|cursor)\b|driver_connection")
_MAY_HAVE_SOME = re.compile(
    f"{_WORDS.pattern}|{'|'.join(rf'{name}[(]' for name in sorted(_TAKES_SQL | _OF_DRIVERS))}"
)
"""Pattern for the text of a module, which saves parsing most of them."""
_QUOTING = {"quote", "quoted", "literal", "format_table"}
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")


@dataclass(frozen=True, order=True)
class Put:
    """An expression that is put into SQL, or handed over as SQL."""

    place: str
    expression: str

    def __str__(self) -> str:
        return f"{self.place}: {self.expression}"


def puts(path: Path, name: str) -> set[Put]:
    """Return what a module puts into SQL, except constants and names quoted right there."""
    text = path.read_text(encoding="utf-8")
    if not _MAY_HAVE_SOME.search(text):
        return set()
    tree = ast.parse(text)
    constants = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    return {
        Put(" ".join((name, ".".join(scope))).rstrip(), ast.unparse(expression))
        for scope, expression in _found(tree, ())
        if not _is_plain(expression, constants)
    }


def _found(node: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ast.expr]]:
    if isinstance(node, ast.Raise):
        return  # a message
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope = (*scope, node.name)
    made = _made(node)
    if made is not None and _WORDS.search(made[0]):
        for expression in made[1]:
            yield scope, expression
    if isinstance(node, ast.Call) and node.args and _takes_sql(node.func):
        handed = _made(node.args[0])
        if handed is None:
            yield scope, node.args[0]
        elif not _WORDS.search(handed[0]):
            for expression in handed[1]:
                yield scope, expression
    for child in ast.iter_child_nodes(node):
        yield from _found(child, scope)


def _made(node: ast.AST) -> tuple[str, list[ast.expr]] | None:
    """The constant text of a string that is put together, and what else is in it."""
    match node:
        case ast.JoinedStr(values):
            text = "".join(str(v.value) for v in values if isinstance(v, ast.Constant))
            return text, [v.value for v in values if isinstance(v, ast.FormattedValue)]
        case ast.BinOp(left, ast.Add() | ast.Mod(), right):
            sides = [_made(left) or (_text(left), [left]), _made(right) or (_text(right), [right])]
            if not any(isinstance(n, ast.Constant | ast.JoinedStr) for n in (left, right)):
                return None
            return " ".join(text for text, _ in sides), [e for _, es in sides for e in es]
        case ast.Call(ast.Attribute(ast.Constant(str(text)), "format"), positional, named):
            return text, [*positional, *(each.value for each in named)]
    return None


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _takes_sql(function: ast.expr) -> bool:
    match function:
        case ast.Name(name):
            return name in _TAKES_SQL
        case ast.Attribute(of, name):
            is_driver = name in _OF_DRIVERS and bool(_DRIVERS.search(ast.unparse(of)))
            return name in _TAKES_SQL or is_driver
    return False


def _is_plain(expression: ast.expr, constants: set[str]) -> bool:
    """Return whether it is a constant of the module, or a name that is quoted right there."""
    match expression:
        case ast.Constant():
            return True
        case ast.Name(name):
            return name in constants or bool(_CONSTANT.fullmatch(name))
        case ast.Call(ast.Name(name) | ast.Attribute(_, name)):
            return name in _QUOTING
    return False
