"""Loader for ``examples/streams``, which is not a package: its files import each other."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["STREAMS", "load"]

STREAMS = Path(__file__).resolve().parents[1] / "examples" / "streams"


def load(name: str) -> ModuleType:
    """Return a file of the folder as a module, as its neighbours see it.

    Parameters
    ----------
    name : str
        Name of the module, such as ``"streaming_ledger"``.
    """
    if str(STREAMS) not in sys.path:
        sys.path.insert(0, str(STREAMS))
    return importlib.import_module(name)
