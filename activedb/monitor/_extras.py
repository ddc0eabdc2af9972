"""Optional dependencies, imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

from activedb.errors import ConfigurationError

__all__ = ["needed"]


def needed(module: str, what: str) -> Any:
    """Import a module of the extra ``otel``.

    Parameters
    ----------
    module : str
    what : str
        The feature that needs the module, for the error message: ``"metrics need"``.

    Raises
    ------
    ConfigurationError
        If the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        name = (missing.name or module).partition(".")[0].replace("_", "-")
        raise ConfigurationError(
            f"{what} {name}, which is not installed: pip install '.[otel]'"
        ) from missing
