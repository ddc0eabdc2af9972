"""Examples in docstrings run, and give what is written below them."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("activedb", "coupling", "lockmgr", "spark_bridge")
FILES = sorted(file for name in PACKAGES for file in (ROOT / name).rglob("*.py"))
MODULES = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in FILES
    if ">>> " in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_a_module_run(module: str) -> None:
    failed, attempted = doctest.testmod(importlib.import_module(module.removesuffix(".__init__")))
    assert attempted
    assert not failed
