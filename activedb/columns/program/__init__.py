"""Programs over columns of events and dense tables, compiled where numba can. See README.md."""

from __future__ import annotations

from activedb.errors import ConfigurationError

try:
    import numpy  # noqa: F401
except ModuleNotFoundError as missing:
    raise ConfigurationError(
        f"programs over columns need {missing.name}: pip install '.[columnar]'"
    ) from missing

from activedb.columns.program._layout import supports
from activedb.columns.program._results import ColumnRefusal, ColumnResults
from activedb.columns.program._run import ColumnRun
from activedb.columns.program._state import ColumnState, ColumnVersions

__all__ = [
    "ColumnRefusal",
    "ColumnResults",
    "ColumnRun",
    "ColumnState",
    "ColumnVersions",
    "supports",
]
