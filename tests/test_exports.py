"""Every public name is exported where its package says, and exists."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
import re

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


@pytest.mark.parametrize("name", importlib.import_module("activedb.errors").__all__)
def test_error_of_a_message_alone_is_whole_and_so_are_its_copies(name: str) -> None:
    kind = getattr(importlib.import_module("activedb.errors"), name)
    error = kind("as it is")
    for each in (error, error.again(), copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(each) is kind
        assert str(each) == "as it is"
        assert vars(each) == vars(error)
    _, _, attributes = (kind.__doc__ or "").partition("    Attributes\n")
    for line in re.findall(r"^    ([\w, ]+) : ", attributes, re.MULTILINE):
        assert all(hasattr(error, attribute) for attribute in line.split(", ")), line


def test_error_for_a_cycle_or_for_what_is_left_is_copied_with_its_message() -> None:
    errors = importlib.import_module("activedb.errors")
    for error in (errors.WorkflowCycle.of(["p", "q"]), errors.FiringsLeft.of({"a": "runs"})):
        for each in (error.again(), pickle.loads(pickle.dumps(error))):
            assert str(each) == str(error)
            assert vars(each) == vars(error)
