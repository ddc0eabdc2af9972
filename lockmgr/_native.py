"""What the compiler is told about a class, and Python need not know. Not compiled itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_settings):
        """Change nothing: there is no compiler."""
        return lambda cls: cls


__all__ = ["mypyc_attr"]
