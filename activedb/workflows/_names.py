"""Name validation for workflows, streams and programs."""

from __future__ import annotations

from typing import Any

from activedb.errors import WorkflowError
from activedb.store.sql import is_storable

__all__ = ["checked"]

_NAME_MAX = 100  # characters of the columns
_SIGNS = "#>/'"  # separators in ids and names of runs


def checked(name: Any, what: str) -> str:
    """Return `name` if it is valid.

    Raises
    ------
    WorkflowError
        If it is not a string, empty, too long, or contains a separator of ids.
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
