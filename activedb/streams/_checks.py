"""Argument checks common to several declarations."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType

from activedb.errors import DefinitionError

__all__ = ["require_count", "require_options", "require_seconds", "require_text"]


def require_text(what: str, value: object) -> None:
    """Check that a value is a non-blank text."""
    if not isinstance(value, str) or not value.strip():
        raise DefinitionError(f"{what} must be a text that is not empty, not {value!r}")


def require_count(what: str, value: object, least: int = 1) -> None:
    """Check that a value is an integer and at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise DefinitionError(f"{what} must be a whole number, not {value!r}")
    if value < least:
        raise DefinitionError(f"{what} must be at least {least}, not {value}")


def require_seconds(what: str, value: object) -> None:
    """Check that a value is a positive number of seconds, or a positive timedelta."""
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise DefinitionError(f"{what} must be seconds or a timedelta, not {value!r}")
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not 0 < seconds < float("inf"):
        raise DefinitionError(f"{what} must be positive, not {value!r}")


def require_options(options: Mapping[str, str]) -> Mapping[str, str]:
    """Check that names and values are texts; return a read-only copy."""
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise DefinitionError(f"option {name!r} must be text, not {value!r}")
    return MappingProxyType(dict(options))
