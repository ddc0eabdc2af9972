"""Optional numba compiler, with the options used for all kernels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from activedb.errors import ConfigurationError

njit: Any
try:
    from numba import njit
except ModuleNotFoundError:
    njit = None

__all__ = ["check_compiler", "forget_old_code", "has_compiler", "jit"]

F = TypeVar("F", bound=Callable[..., Any])


def has_compiler() -> bool:
    """Return whether numba is installed."""
    return njit is not None


def check_compiler(what: str, instead: str) -> None:
    """Raise `ConfigurationError` unless numba is installed.

    Parameters
    ----------
    what : str
        The part that is compiled.
    instead : str
        The alternative that needs no compiler.
    """
    if not has_compiler():
        raise ConfigurationError(
            f"{what} is compiled by numba, which is not installed: pip install "
            f"'.[columnar]', or use {instead}, which does without it"
        )


def jit(function: F) -> F:
    """Compile on the first call; the machine code releases the GIL, and is cached on disk."""
    if njit is None:
        return function  # never called: see check_compiler
    _forget_old_code_once(Path(function.__code__.co_filename).parent)
    compiled: F
    try:
        compiled = njit(nogil=True, cache=True)(function)
    except RuntimeError:  # there is no writable cache folder
        compiled = njit(nogil=True)(function)
    return compiled


def forget_old_code(folder: Path) -> None:
    """Remove cached code that is older than one of the files in a folder.

    numba checks only the file of a function, but a kernel also contains code of functions in other
    files that it calls.
    """
    with suppress(OSError):
        changed_ns = max((file.stat().st_mtime_ns for file in folder.glob("*.py")), default=0)
        for index in (folder / "__pycache__").glob("*.nbi"):
            if index.stat().st_mtime_ns < changed_ns:
                index.unlink(missing_ok=True)


_forget_old_code_once = cache(forget_old_code)
