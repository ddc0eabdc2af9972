"""Layout of a program: the columns, tables and indices its operations take keys and values from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from activedb.errors import DefinitionError
from activedb.scheduling import (
    Computed,
    NotTraceable,
    Parameter,
    Program,
    Range,
    Read,
    Ref,
    SharedTable,
    Write,
    traced,
)

__all__ = ["KeyUse", "ProgramLayout", "Template", "supports"]

Template = Read | Write

_OPERATIONS_MAX = 1000


@dataclass(frozen=True, slots=True)
class KeyUse:
    """Parameter that some event types use as a key of tables of one size."""

    name: str
    table: SharedTable
    codes: tuple[int, ...]


class ProgramLayout:
    """Program as templates over columns.

    Parameters
    ----------
    program : Program

    Attributes
    ----------
    templates : tuple of tuple of (Read or Write)
        Operations per event type, in the order of ``program.types``, with a `Parameter` wherever an
        event's own value goes.
    tables : tuple of SharedTable
        Tables of the program.
    columns : tuple of (str, bool)
        Parameters that templates take, and whether as a key. Keys are converted to integers;
        arguments keep their type.
    needs : tuple of tuple of str
        Parameters that an event of each type must have, in the order in which it is asked for them.
    key_uses : tuple of KeyUse
        Parameters used as keys.
    widths : tuple of int
        Number of result values per event type.

    Raises
    ------
    DefinitionError
        If the program cannot run in columns; the message gives the reason.
    """

    def __init__(self, program: Program):
        self.program = program
        self.tables = program.tables
        if program.rules:
            raise _refused(program, "it has rules")
        if program.pre_processes:
            raise _refused(program, "it pre-processes events one by one")
        for table in self.tables:
            if table.size is None:
                raise _refused(program, f"table {table.name} has no size")
        templates, needs = [], []
        for type_ in program.types:
            try:
                operations, needed = traced(program, type_)
            except NotTraceable as error:
                raise _refused(program, f"of the state access for {type_}, {error}") from error
            for operation in operations:
                assert isinstance(operation, Read | Write)
                _check(program, operation)
            if len(operations) > _OPERATIONS_MAX:
                raise _refused(program, f"{type_} has more than {_OPERATIONS_MAX} operations")
            templates.append(operations)
            needs.append(needed)
        self.templates: tuple[tuple[Template, ...], ...] = tuple(templates)  # type: ignore[arg-type]
        taken = [list(_columns(operations)) for operations in self.templates]
        self.needs = tuple(needs)
        self.columns = tuple(dict.fromkeys(column for columns in taken for column in columns))
        self.key_uses = tuple(self._key_uses())
        self.widths = tuple(sum(map(width, operations)) for operations in self.templates)

    def number(self, table: SharedTable) -> int:
        """Return the index of a table."""
        return self.tables.index(table)

    @property
    def has_history(self) -> bool:
        """True if versions are kept for windows."""
        return any(table.history_us for table in self.tables)

    def _key_uses(self) -> list[KeyUse]:
        found: dict[tuple[str, int | None], tuple[SharedTable, dict[int, None]]] = {}
        for code, operations in enumerate(self.templates):
            for ref in refs_of(operations):
                if isinstance(ref.key, Parameter):
                    use = found.setdefault((ref.key.name, ref.table.size), (ref.table, {}))
                    use[1][code] = None
        return [KeyUse(name, table, tuple(codes)) for (name, _), (table, codes) in found.items()]


def supports(program: Program) -> str | None:
    """Return why a program cannot run in columns; None if it can.

    A program that cannot is left to a `ProgramRun`, with any scheduler.
    """
    try:
        ProgramLayout(program)
    except DefinitionError as error:
        return str(error)
    return None


def width(operation: Template) -> int:
    """Return the number of values in an operation's result: a plain READ returns one per key."""
    plain = isinstance(operation, Read) and operation.function is None
    return len(operation.direct) if plain else 1


def refs_of(operations: tuple[Template, ...]) -> list[Ref]:
    """Return all references accessed, including the reads of computed keys."""
    return [ref for operation in operations for ref in operation.refs]


def _columns(operations: tuple[Template, ...]) -> Iterator[tuple[str, bool]]:
    """Yield the names of the parameters that operations take, and whether as a key."""
    for operation in operations:
        keys = [ref.key for ref in operation.refs]
        yield from ((key.name, True) for key in keys if isinstance(key, Parameter))
        for taker in (operation, *keys):
            if isinstance(taker, Read | Write | Computed):
                yield from ((arg.name, False) for arg in taker.args if isinstance(arg, Parameter))


def _check(program: Program, operation: Template) -> None:
    for ref in operation.refs:
        if isinstance(ref.key, Range):
            raise _refused(program, f"it accesses {ref.table.name} by a range")
        if isinstance(ref.key, Computed) and any(r.is_whole for r in ref.key.reads):
            raise _refused(program, "a computed key depends on a computed key")
        if ref.window_us is not None and isinstance(operation, Read) and not operation.function:
            raise _refused(
                program, f"a window of {ref.table.name} is read without a function that folds it"
            )


def _refused(program: Program, why: str) -> DefinitionError:
    return DefinitionError(
        f"program {program.name} cannot run in columns: {why}; a ProgramRun can run it"
    )
