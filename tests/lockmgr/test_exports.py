from __future__ import annotations

import ast
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import lockmgr


def test_exports_every_public_name_is_listed_once_and_found() -> None:
    assert sorted(set(lockmgr.__all__)) == lockmgr.__all__
    assert all(hasattr(lockmgr, name) for name in lockmgr.__all__)


def test_exports_every_module_is_private() -> None:
    assert all(module.name.startswith("_") for module in pkgutil.iter_modules(lockmgr.__path__))


def test_exports_each_public_name_comes_from_one_module() -> None:
    sources = [import_module(f"lockmgr.{m.name}") for m in pkgutil.iter_modules(lockmgr.__path__)]
    for name in lockmgr.__all__:
        assert sum(name in module.__all__ for module in sources) == 1, name


REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("package", ["activedb", "spark_bridge", "pytest_activedb"])
def test_classes_have_no_subclasses_outside(package: str) -> None:
    """Python may not subclass compiled ones; an instance of such a class is refused when made."""
    found = []
    for path in sorted((REPOSITORY / package).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lockmgr")
            for alias in node.names
            if alias.name not in ("LockTable", "VerifyingLockTable")
        }
        found += [
            f"{path.relative_to(REPOSITORY)}: {node.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            and any(isinstance(base, ast.Name) and base.id in imported for base in node.bases)
        ]
    assert found == []
