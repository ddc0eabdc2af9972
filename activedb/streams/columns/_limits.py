"""Requirements on a program, its tables and its stream for processing in columns."""

from __future__ import annotations

from collections.abc import Iterable

from activedb.columns.program import supports
from activedb.errors import DefinitionError
from activedb.scheduling import Program
from activedb.store.sql import KeyedValues
from activedb.streams._declaration import StreamDeclaration

__all__ = ["check_in_columns"]

_INSTEAD = 'give it another scheduler, such as "serial" or "tpg"'


def check_in_columns(
    program: Program, stream: StreamDeclaration, tables: Iterable[KeyedValues], *, is_alone: bool
) -> None:
    """Raise `DefinitionError` if a program cannot run durably in columns.

    Parameters
    ----------
    tables : iterable of KeyedValues
        Storage of the tables' rows; each holds floats.
    is_alone : bool
        Whether the stream has no other program.
    """

    def refuse(why: str) -> None:
        raise DefinitionError(f"program {program.name} cannot run in columns: {why}; {_INSTEAD}")

    if not is_alone:
        refuse(f"stream {stream.name} has another program, and in columns there is one")
    if stream.membership is not None:
        refuse(f"stream {stream.name} has producers, whose events come one by one")
    if stream.accuracy is not None:
        refuse(f"the timestamps of stream {stream.name} are intervals")
    why = supports(program)
    if why is not None:
        raise DefinitionError(f"{why.removesuffix('; a ProgramRun can run it')}; {_INSTEAD}")
    for kept in tables:
        if not kept.has_number_key:
            refuse(f"the key of table {kept.spec.name} is not one column of type Integer")
