"""Every public name is exported where its package says, and exists."""

from __future__ import annotations

import importlib

import pytest

PACKAGES = (
    "activedb",
    "activedb.analysis",
    "activedb.batches",
    "activedb.cli",
    "activedb.clock",
    "activedb.columnar",
    "activedb.demo",
    "activedb.engine",
    "activedb.engine.workflows",
    "activedb.engine.columns",
    "activedb.errors",
    "activedb.events",
    "activedb.events.terms",
    "activedb.language",
    "activedb.rules",
    "activedb.scheduling",
    "activedb.scheduling.compiled",
    "activedb.scheduling.locking",
    "activedb.scheduling.partitioned",
    "activedb.scheduling.tpg",
    "activedb.store",
    "activedb.streams",
    "activedb.testing",
    "activedb.transactions",
    "coupling",
    "coupling.acta",
    "lockmgr",
    "pytest_activedb",
    "spark_bridge",
)


@pytest.mark.parametrize("package", PACKAGES)
def test_package_all_names_exist_sorted_and_once(package: str) -> None:
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
