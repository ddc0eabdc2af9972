from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import activedb.events

MODULES = [module.name for module in pkgutil.iter_modules(activedb.events.__path__)]


def test_events_exports_are_what_all_says() -> None:
    for name in activedb.events.__all__:
        assert hasattr(activedb.events, name)
    assert list(activedb.events.__all__) == sorted(activedb.events.__all__)


def test_events_modules_are_private() -> None:
    assert MODULES
    assert all(name.startswith("_") for name in MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_events_docstring_examples_hold(name: str) -> None:
    module = importlib.import_module(f"activedb.events.{name}")
    assert doctest.testmod(module).failed == 0
