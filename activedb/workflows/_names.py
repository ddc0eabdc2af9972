"""Names of workflows, streams and programs, and of what is in messages."""

from __future__ import annotations

from typing import Any

from activedb.errors import WorkflowError
from activedb.store.sql import is_storable

__all__ = ["checked"]

_NAME_MAX = 100  # characters of the columns
_SIGNS = "#>/'"  # that ids and names of runs are made with


def checked(name: Any, what: str) -> str:
    """The name of something, if it is one.

    Raises
    ------
    WorkflowError
        If it is no text, empty, too long, or has signs in it of which ids are made.
    """
    if not isinstance(name, str) or not name or len(name) > _NAME_MAX or not is_storable(name):
        raise WorkflowError(
            f"the name of a {what} is a text of 1 to {_NAME_MAX} characters that a database can "
            f"keep, not {name!r}"
        )
    if any(sign in name for sign in _SIGNS):
        raise WorkflowError(
            f"the name of a {what} has none of {' '.join(_SIGNS)} in it, as ids do: {name!r}"
        )
    return name
