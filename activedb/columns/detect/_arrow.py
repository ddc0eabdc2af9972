"""pyarrow, as far as types are concerned: it has none."""

from __future__ import annotations

from typing import Any

import pyarrow
import pyarrow.compute

__all__ = ["pa", "pc"]

pa: Any = pyarrow
pc: Any = pyarrow.compute
