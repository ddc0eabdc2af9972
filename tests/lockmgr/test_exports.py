from __future__ import annotations

import pkgutil
from importlib import import_module

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
