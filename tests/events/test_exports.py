from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import activedb.events

MODULES = [
    module.name.removeprefix("activedb.events.")
    for module in pkgutil.walk_packages(activedb.events.__path__, "activedb.events.")
]
# Packages within, by the names that they have in the words of the package's users.
PACKAGES = {"detection", "terms"}


def test_events_exports_are_what_all_says() -> None:
    for name in activedb.events.__all__:
        assert hasattr(activedb.events, name)
    names = list(activedb.events.__all__)
    assert names == sorted(names, key=lambda name: (not name.isupper(), name))  # constants first


def test_events_modules_are_private() -> None:
    assert MODULES
    for name in MODULES:
        *packages, module = name.split(".")
        assert set(packages) <= PACKAGES
        assert module.startswith("_") or module in PACKAGES


def test_events_names_are_exported_in_one_place() -> None:
    for name in activedb.events.__all__:
        home = getattr(getattr(activedb.events, name), "__module__", "activedb.events")
        assert home.startswith(("activedb.events", "typing", "types")), name


@pytest.mark.parametrize("name", MODULES)
def test_events_docstring_examples_hold(name: str) -> None:
    module = importlib.import_module(f"activedb.events.{name}")
    assert doctest.testmod(module).failed == 0
