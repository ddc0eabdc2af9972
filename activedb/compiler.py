"""numba's compiler, as all kernels here are compiled."""

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
    """Whether numba is installed."""
    return njit is not None


def check_compiler(what: str, instead: str) -> None:
    """Raise `ConfigurationError` unless numba is installed.

    Parameters
    ----------
    what : str
        What is compiled.
    instead : str
        What does without it.
    """
    if not has_compiler():
        raise ConfigurationError(
            f"{what} is compiled by numba, which is not installed: pip install "
            f"'activedb[columnar]', or use {instead}, which does without it"
        )


def jit(function: F) -> F:
    """Compile on the first call; the code runs without the interpreter's lock, and is kept."""
    if njit is None:
        return function  # never called: see check_compiler
    _forget_old_code_once(Path(function.__code__.co_filename).parent)
    compiled: F
    try:
        compiled = njit(nogil=True, cache=True)(function)
    except RuntimeError:  # there is no folder that it may write to
        compiled = njit(nogil=True)(function)
    return compiled


def forget_old_code(folder: Path) -> None:
    """Remove code that was compiled before one of the files in a folder was changed.

    numba looks at the file of a function alone, but a kernel has those of others in it that it
    calls.
    """
    with suppress(OSError):
        changed_ns = max((file.stat().st_mtime_ns for file in folder.glob("*.py")), default=0)
        for index in (folder / "__pycache__").glob("*.nbi"):
            if index.stat().st_mtime_ns < changed_ns:
                index.unlink(missing_ok=True)


_forget_old_code_once = cache(forget_old_code)
