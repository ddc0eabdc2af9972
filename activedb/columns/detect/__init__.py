"""Detection of patterns in columns of events, compiled. See README.md."""

from __future__ import annotations

from activedb.errors import ConfigurationError

try:
    import numpy  # noqa: F401
    import pyarrow  # noqa: F401
except ModuleNotFoundError as missing:
    raise ConfigurationError(
        f"columns of events need {missing.name}: pip install '.[columnar]'"
    ) from missing

from activedb.columns.detect._detector import (
    ColumnarDetector,
    EventFilter,
)
from activedb.columns.detect._matches import Matches
from activedb.columns.detect._plan import supports

__all__ = [
    "ColumnarDetector",
    "EventFilter",
    "Matches",
    "supports",
]
