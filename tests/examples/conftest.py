"""Examples as modules on a memory database, and their tables as plain rows."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Table, select

import activedb as adb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def load_example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Return a function that imports an example afresh, with its tables created in memory."""
    monkeypatch.setenv("ACTIVEDB_URL", "memory://")
    loaded: list[ModuleType] = []

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, _EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        loaded.append(module)
        module.db.create_all()
        return module

    yield load
    for module in loaded:
        module.db.close()


@pytest.fixture
def rows_of() -> Callable[..., dict[str, list[tuple[Any, ...]]]]:
    """Return a function that reads tables: name to rows, sorted, values in column order."""

    def read(db: adb.Database, *tables: Table) -> dict[str, list[tuple[Any, ...]]]:
        db.wait_idle()
        rows = {}
        with db.transaction() as t:
            for table in tables:
                rows[table.name] = sorted(tuple(row) for row in t.query(select(table)))
        return rows

    return read
