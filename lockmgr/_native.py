"""Compiler hints for classes that Python itself ignores. This module is not compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_settings):
        """Return a decorator that changes nothing: without the compiler, the hint has no effect."""
        return lambda cls: cls


__all__ = ["mypyc_attr"]
