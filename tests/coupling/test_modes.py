from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import coupling
from coupling import Coupling


@pytest.mark.parametrize(
    ("mode", "is_child", "starts_at_event"),
    [("immediate", True, True), ("deferred", True, False), ("detached", False, True)],
)
def test_coupling_mode_means_what_the_table_says(
    mode: str, is_child: bool, starts_at_event: bool
) -> None:
    assert Coupling(mode).is_child is is_child
    assert Coupling(mode).starts_at_event is starts_at_event


def test_coupling_modes_are_those_of_the_table_and_no_others() -> None:
    assert [str(mode) for mode in Coupling] == ["immediate", "deferred", "detached"]
    with pytest.raises(ValueError, match="eventually"):
        Coupling("eventually")


def test_coupling_exports_exist_and_are_sorted() -> None:
    assert coupling.__all__ == sorted(coupling.__all__)
    assert all(hasattr(coupling, name) for name in coupling.__all__)


def test_coupling_package_imports_the_standard_library_only() -> None:
    folder = Path(coupling.__file__).parent
    imported = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").split(".")[0])
    assert imported - {"coupling"} <= sys.stdlib_module_names
