"""Rooms meet at their doors: what import-linter cannot see of the arrows between packages."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import networkx
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("activedb", "coupling", "lockmgr", "pytest_activedb", "spark_bridge")
STORE = ("activedb", "store")
RING_MAX = 3
KNOWN_AS_A_WHOLE: dict[tuple[str, ...], int] = {
    # A node calls its forest at each step of its life, and the forest has the parts that hold
    # nodes: the tree and what observes it, waits in it, or depends in it are one subject.
    ("activedb", "transactions"): 7,
    ("activedb", "streams"): 8,
    ("activedb", "scheduling"): 4,
}
"""Upper bounds on the modules of a ring of imports, those for types included, by room."""
HEAVY = ("sqlalchemy", "psycopg", "sqlglot", "lark", "pydantic", "networkx", "numpy", "asyncio")


@cache
def sources() -> tuple[tuple[Path, ast.Module], ...]:
    """Return all modules, parsed once for all tests."""
    return tuple(
        (file.relative_to(ROOT), ast.parse(file.read_text(encoding="utf-8")))
        for package in PACKAGES
        for file in sorted((ROOT / package).rglob("*.py"))
    )


def room_of(parts: tuple[str, ...]) -> tuple[str, ...]:
    """The room of a module: its package, in activedb one deeper, in the store one more."""
    if parts[:2] == STORE:
        return parts[:3] if len(parts) > 3 else parts[:2]
    return parts[:2] if parts[0] == "activedb" and len(parts) > 2 else parts[:1]


def arrows(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and the dotted name of each import of ours; of names that are modules, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            folder = ROOT.joinpath(*node.module.split("."))
            for name in node.names:
                is_module = (folder / f"{name.name}.py").is_file() or (folder / name.name).is_dir()
                yield node.lineno, f"{node.module}.{name.name}" if is_module else node.module
        elif isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name


def test_no_room_imports_a_private_module_of_another_room() -> None:
    found = []
    for file, tree in sources():
        for line, target in arrows(tree):
            parts = tuple(target.split("."))
            if parts[0] not in PACKAGES or not parts[-1].startswith("_"):
                continue
            mine, other = room_of(file.parts), room_of((*parts[:-1], "module.py"))
            if mine != other and parts != ("activedb", "_starting"):
                found.append(f"{file}:{line}: {target}")
    assert not found, "\n".join(found)


OF_LIBRARIES = ("_limit", "_make")
"""Names of SQLAlchemy and of named tuples that a room of ours has, too."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_LIBRARIES


def private_names(tree: ast.Module) -> Iterator[str]:
    """The private attributes that a module defines: methods, fields, and those set on ``self``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef):
                    yield each.name
                elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    yield each.target.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_no_room_reads_a_private_attribute_of_another_room() -> None:
    defined: dict[tuple[str, ...], set[str]] = {}
    for file, tree in sources():
        names = defined.setdefault(room_of(file.parts), set())
        names |= {name for name in private_names(tree) if is_private(name)}
    everywhere = set().union(*defined.values())
    found = [
        f"{file}:{node.lineno}: {ast.unparse(node)}"
        for file, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and is_private(node.attr)
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        and node.attr in everywhere - defined[room_of(file.parts)]
    ]
    assert not found, "\n".join(found)


OF_TWO_INTERFACES = {
    # Each is documented in the reference, or exported for users, in the sense of its own subject.
    "At": ("activedb/events/_schedules.py", "activedb/scheduling/_operations.py"),
    "Deadlock": ("activedb/errors.py", "lockmgr/_refusals.py"),
    "LockTimeout": ("activedb/errors.py", "lockmgr/_refusals.py"),
    "Mode": ("activedb/batches/_plan.py", "lockmgr/_modes.py"),
    "Program": ("activedb/batches/_workflow.py", "activedb/scheduling/_program.py"),
    "State": ("activedb/batches/_records.py", "activedb/transactions/_states.py"),
    "Transaction": ("activedb/batches/_records.py", "activedb/transactions/_transaction.py"),
}
"""Classes that two public interfaces define under one name, with their modules."""


def test_each_name_of_a_class_is_defined_in_one_module() -> None:
    """A reader who searches for a class finds one; a leading underscore makes no other name."""
    homes: dict[str, set[str]] = {}
    for file, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), set()).add(file.as_posix())
    found = {name: tuple(sorted(files)) for name, files in homes.items() if len(files) > 1}
    assert found == OF_TWO_INTERFACES


def test_no_module_of_ours_is_named_by_a_string() -> None:
    """Import by name is for entry points, optional libraries, users' files and lazy exports."""
    found = [
        f"{file}:{node.lineno}"
        for file, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module"
        and any(
            isinstance(part, ast.Constant) and str(part.value).startswith(PACKAGES)
            for argument in node.args
            for part in ast.walk(argument)
        )
        and file.name != "__init__.py"
    ]
    assert not found


def lines_in_functions(tree: ast.Module) -> set[int]:
    """The lines of the imports inside of functions: they load slow packages when they are used."""
    return {
        node.lineno
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }


def test_no_import_inside_a_function_hides_a_circle_of_rooms() -> None:
    entered: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    hidden: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []
    for file, tree in sources():
        mine, late = room_of(file.parts), lines_in_functions(tree)
        for line, target in arrows(tree):
            parts = tuple(target.split("."))
            other = room_of((*parts, "module.py"))
            if parts[0] not in PACKAGES or other in (mine, ("activedb",)):
                continue
            if line in late:
                hidden.append((f"{file}:{line}: {target}", mine, other))
            else:
                entered.setdefault(mine, set()).add(other)
    assert hidden
    found = []
    for text, mine, other in hidden:
        reached, left = {other}, [other]
        while left:
            fresh = entered.get(left.pop(), set()) - reached
            reached |= fresh
            left += fresh
        if mine in reached:
            found.append(text)
    assert not found, "\n".join(found)


def run_by_import(tree: ast.Module) -> Iterator[ast.AST]:
    """The parts of a module that its import runs: those outside of functions."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            left += ast.iter_child_nodes(node)


def test_no_test_module_opens_a_database_when_it_is_imported() -> None:
    """Prevent leaks: Python 3.13 reports one in whichever test collects the garbage."""
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in sorted(ROOT.joinpath("tests").rglob("*.py"))
        for node in run_by_import(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "connect"
    ]
    assert not found


def loaded(tree: ast.Module) -> Iterator[str]:
    """The modules of ours that a module imports when it runs, also inside of functions."""
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    running = [node for node in ast.walk(tree) if id(node) not in for_types]
    for node in running:
        if isinstance(node, ast.ImportFrom | ast.Import):
            yield from (target for _, target in arrows(ast.Module([node], [])))


def rings(targets: Callable[[ast.Module], Iterable[str]]) -> list[list[str]]:
    """The modules of each ring of imports, if `targets` gives the imports of a module."""
    trees = {
        ".".join(file.with_suffix("").parts).removesuffix(".__init__"): tree
        for file, tree in sources()
    }
    graph = networkx.DiGraph()
    for mine, tree in trees.items():
        graph.add_edges_from(
            (mine, other) for other in targets(tree) if other in trees and other != mine
        )
    assert graph.number_of_edges() > len(trees)
    found = networkx.strongly_connected_components(graph)
    return [sorted(ring) for ring in found if len(ring) > 1]


def test_no_modules_import_each_other_in_a_ring() -> None:
    assert not rings(loaded)


def test_modules_that_know_each_other_for_types_are_few_and_of_one_room() -> None:
    """A room is read from the bottom up, if no large part of it is known only as a whole."""
    for ring in rings(lambda tree: (target for _, target in arrows(tree))):
        room, *others = {room_of((*module.split("."), "module.py")) for module in ring}
        assert not others, ring
        assert len(ring) <= KNOWN_AS_A_WHOLE.get(room, RING_MAX), ring


@pytest.mark.parametrize(
    ("statement", "ours_max"),
    [("import activedb", 2), ("from activedb import seq, event", 90), ("import activedb.cli", 3)],
)
def test_import_loads_few_modules(statement: str, ours_max: int) -> None:
    program = f"{statement}\nimport sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    ours = [name for name in loaded if name.startswith("activedb")]
    assert len(ours) <= ours_max, ours
    assert not [name for name in HEAVY if name in loaded]


def test_lazy_names_are_those_that_type_checkers_see() -> None:
    import activedb

    (block,) = [
        node
        for node in ast.parse((ROOT / "activedb" / "__init__.py").read_text("utf-8")).body
        if isinstance(node, ast.If)
    ]
    seen = {
        alias.name: statement.module
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert seen == activedb._HOME_OF
    assert sorted(seen) == activedb.__all__
    assert {*activedb.__all__, "__version__"} <= set(dir(activedb))
    assert activedb.errors.ActiveDBError.__module__ == "activedb.errors"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        activedb.nothing  # noqa: B018
