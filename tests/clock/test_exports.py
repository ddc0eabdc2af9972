from __future__ import annotations

import pkgutil

import activedb.clock


def test_clock_exports_are_what_all_says() -> None:
    names = list(activedb.clock.__all__)
    assert names == sorted(set(names))
    assert all(hasattr(activedb.clock, name) for name in names)


def test_clock_modules_are_private() -> None:
    modules = [module.name for module in pkgutil.iter_modules(activedb.clock.__path__)]
    assert modules
    assert all(name.startswith("_") for name in modules)
