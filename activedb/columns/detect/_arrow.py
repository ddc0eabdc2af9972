"""Untyped aliases of pyarrow, which ships no type information."""

from __future__ import annotations

from typing import Any

import pyarrow
import pyarrow.compute

__all__ = ["pa", "pc"]

pa: Any = pyarrow
pc: Any = pyarrow.compute
