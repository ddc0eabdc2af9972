"""Rules without an event, triggered by any change of the tables that the condition reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from activedb.errors import DefinitionError
from activedb.events import Expression, Primitive, any_of
from activedb.rules._declared import Declared, Part

__all__ = ["FindReads", "event_of_reads"]

FindReads: TypeAlias = Callable[[Any, Mapping[str, Any]], Iterable[Part] | str]
"""Function from condition and params to its reads, or to the reason why they are unknown."""


def event_of_reads(
    rule: str,
    when: Any,
    params: Any,
    declared: Declared,
    find_reads: FindReads | None,
) -> Expression:
    """Return the event of a rule whose author has left it out.

    It is each insert into, and delete from, the tables that the condition reads, and each update
    of the columns that it reads, or of any column of a table whose rows it reads whole.

    Parameters
    ----------
    declared : Declared
        Declared reads, which take precedence.
    find_reads : callable, optional
        Called if no reads are declared.

    Raises
    ------
    DefinitionError
        If there is no condition, or its reads are unknown.
    """
    if when is None:
        raise DefinitionError(
            f"rule {rule}: without on= it needs a condition, when=, which is evaluated when what "
            f"it reads changes"
        )
    reads: Iterable[Part] | str | None = declared.reads
    if reads is None and find_reads is not None and callable(when):
        reads = find_reads(when, params if isinstance(params, Mapping) else {})
    if reads is None or isinstance(reads, str):
        why = f" ({reads})" if isinstance(reads, str) else ""
        raise DefinitionError(
            f"rule {rule}: without on= it must be known what the condition reads, and its source "
            f"does not tell{why}; write reads=[table, …], or on="
        )
    columns: dict[str, set[str | None]] = {}
    for _, table, column in reads:
        columns.setdefault(table, set()).add(column)
    if not columns:
        raise DefinitionError(
            f"rule {rule}: the condition reads no table, so nothing would ever trigger the rule; "
            f"write on=, or reads=[table, …]"
        )
    parts = []
    for table, read in sorted(columns.items()):
        narrowed = () if None in read else tuple(sorted(c for c in read if c is not None))
        parts += [
            Primitive(("insert", table), (), None, None),
            Primitive(("update", table), narrowed, None, None),
            Primitive(("delete", table), (), None, None),
        ]
    return any_of(*parts)
