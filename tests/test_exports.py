"""Every public name is exported where its package says, and exists."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

ROOTS = ("activedb", "coupling", "lockmgr", "pytest_activedb", "spark_bridge")
PACKAGES = [
    *ROOTS,
    *(
        module.name
        for root in ROOTS
        for module in pkgutil.walk_packages([root], f"{root}.")
        if module.ispkg
    ),
]


@pytest.mark.parametrize("package", PACKAGES)
def test_package_all_names_exist_sorted_and_once(package: str) -> None:
    if package == "spark_bridge":
        pytest.importorskip("pyspark", reason="no Spark")
    module = importlib.import_module(package)
    names = list(module.__all__)
    assert len(set(names)) == len(names)
    assert all(hasattr(module, name) for name in names)
    assert not any(name.startswith("_") for name in names)


def test_errors_every_class_is_in_the_tree_drawn_above_it() -> None:
    errors = importlib.import_module("activedb.errors")
    assert errors.__doc__ is not None
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.ActiveDBError)
        assert f" {name}" in errors.__doc__ or errors.__doc__.find(f"{name}\n") >= 0, name
