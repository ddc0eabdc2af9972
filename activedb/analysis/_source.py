"""Syntax trees of existing functions; no code is run."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePath
from types import CodeType, FunctionType
from typing import TypeAlias

__all__ = ["FunctionNode", "file_of", "node_of"]

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def file_of(function: FunctionType) -> str:
    """Return the name of the file that defines a function, without its folder."""
    return PurePath(function.__code__.co_filename).name


def node_of(function: FunctionType) -> FunctionNode | None:
    """Return the definition of a function in its source file; None if it is not found or ambiguous.

    O(nodes of the file) once per file, then O(definitions at its line).
    """
    code = function.__code__
    # A notebook's cells and the like have no file, but linecache knows their source.
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    fitting = [
        node for node in _definitions(text).get(code.co_firstlineno, ()) if _fits(node, code)
    ]
    if len(fitting) > 1:
        fitting = _narrowed(fitting, code)
    return fitting[0] if len(fitting) == 1 else None


@lru_cache(maxsize=64)
def _definitions(text: str) -> dict[int, list[FunctionNode]]:
    """Return the definitions in a file by the first line of their code objects."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[int, list[FunctionNode]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            found.setdefault(node.lineno, []).append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found.setdefault(first, []).append(node)
    return found


def _fits(node: FunctionNode, code: CodeType) -> bool:
    name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    rest = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    count = len(named) + len(rest)
    return (
        name == code.co_name
        and len(named) == code.co_argcount + code.co_kwonlyargcount
        and tuple(each.arg for each in [*named, *rest]) == code.co_varnames[:count]
    )


def _narrowed(nodes: list[FunctionNode], code: CodeType) -> list[FunctionNode]:
    """Return, of definitions on one line, the innermost ones that contain all instructions."""
    places = list(_places(code))
    holding = [node for node in nodes if all(_holds(node, place) for place in places)]
    holding = [
        node
        for node in holding
        if not any(other is not node and other in ast.walk(node) for other in holding)
    ]
    return holding if places else []


def _places(code: CodeType) -> Iterator[tuple[int, int]]:
    for line, end_line, start, end in code.co_positions():
        if None not in (line, end_line, start, end) and (line, start) != (end_line, end):
            yield line or 0, start or 0


def _holds(node: FunctionNode, place: tuple[int, int]) -> bool:
    end = (node.end_lineno or 0, node.end_col_offset or 0)
    return (node.lineno, node.col_offset) <= place < end
