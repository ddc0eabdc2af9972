"""Row values by column, with an error that lists the columns when a name is unknown."""

from __future__ import annotations

from typing import Any

from activedb.errors import UnknownColumn
from activedb.spelling import nearest

__all__ = ["NamedValues"]


class NamedValues(dict[str, Any]):
    """Dictionary whose missing keys are misspelt columns."""

    __slots__ = ()

    def __missing__(self, name: Any) -> Any:
        raise UnknownColumn(
            f"the row has no column {name!r}; it has {', '.join(self)}{nearest(name, self)}"
        )
