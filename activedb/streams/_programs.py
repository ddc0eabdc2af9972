"""Registry of programs over shared tables: their streams, and where their tables are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from activedb.errors import DefinitionError
from activedb.rules import Rule
from activedb.scheduling import (
    LWM,
    S2PL,
    SEI,
    TPG,
    Program,
    Scheduler,
    SerialOrder,
    SharedTable,
)
from activedb.spelling import did_you_mean
from activedb.store.sql import KeyedValues, TableSpec, is_storable
from activedb.streams._declaration import StreamDeclaration

__all__ = ["PROGRAMS_MAX", "Defined", "InColumns", "Programs", "ProgramsOfStream"]

PROGRAMS_MAX = 64
"""Maximum number of programs of one stream; bounds the numbers of places in its serial order."""
_NAME_MAX = 200


class InColumns(SerialOrder):
    """Serial order of a program in columns; parts that cannot run in columns run row by row."""

    name = "columns"


_SCHEDULERS: dict[str, Callable[[], Scheduler]] = {
    each.name: each for each in (SerialOrder, SEI, S2PL, LWM, TPG, InColumns)
}


@dataclass(frozen=True, slots=True)
class Defined:
    """Program of a stream.

    Attributes
    ----------
    program : Program
    outputs : TableSpec or None
        Table for its outputs; None: activedb's own table.
    """

    program: Program
    outputs: TableSpec | None


@dataclass(slots=True)
class ProgramsOfStream:
    """Programs of one stream, run by one scheduler in one serial order.

    Attributes
    ----------
    programs : list of Defined
        In the order of definition.
    scheduler : Scheduler
    types : tuple of str
        Event types of the stream.
    tables : dict of SharedTable to KeyedValues
        Storage of each table's rows.
    """

    scheduler: Scheduler
    types: tuple[str, ...]
    programs: list[Defined] = field(default_factory=list)
    tables: dict[SharedTable, KeyedValues] = field(default_factory=dict)


class Programs:
    """All programs of a database, by stream.

    Parameters
    ----------
    spec : callable
        Returns the specification of a mapped class or Table.
    rules : iterable of Rule
        Defined rules.
    check_in_columns : callable ``(program, stream, kept, is_alone)``
        Checks that a program can run in columns.
    """

    def __init__(
        self,
        spec: Callable[[Any], TableSpec],
        rules: Iterable[Rule],
        check_in_columns: Callable[
            [Program, StreamDeclaration, Iterable[KeyedValues], bool], object
        ],
    ):
        self._spec = spec
        self._rules = rules
        self._check_in_columns = check_in_columns
        self._of: dict[str, ProgramsOfStream] = {}

    def of(self, stream: str) -> ProgramsOfStream | None:
        """Return the programs of a stream; None if it has none."""
        return self._of.get(stream)

    def stream_of(self, program: str) -> str:
        """Return the name of the stream that the named program runs on.

        Raises
        ------
        DefinitionError
            If there is no such program.
        """
        names = {d.program.name: stream for stream, of in self._of.items() for d in of.programs}
        if program not in names:
            raise DefinitionError(
                f"there is no program {program!r}; {did_you_mean(program, names)}"
            )
        return names[program]

    def check_rule(self, rule: Rule) -> None:
        """Raise `DefinitionError` if a rule listens to events that stay in columns."""
        for stream, of in self._of.items():
            if isinstance(of.scheduler, InColumns):
                _check_hears(rule, _unheard(stream, of.types, of.tables.values()))

    def define(
        self,
        program: Program,
        stream: StreamDeclaration,
        *,
        tables: Mapping[SharedTable, Any],
        scheduler: str | Scheduler | None,
        outputs: Any,
    ) -> None:
        """Register a program on a stream; see `Stream.program`."""
        if not isinstance(program, Program):
            raise DefinitionError(f"{program!r} is no program: make one with Program(name, tables)")
        name = program.name
        if len(name) > _NAME_MAX or not is_storable(name):
            raise DefinitionError(
                f"{name!r} is no name for a durable program: at most {_NAME_MAX} characters that a "
                "database can keep"
            )
        if any(name == d.program.name for of in self._of.values() for d in of.programs):
            raise DefinitionError(f"there is a program named {name!r} already")
        if not program.types and not program.rules:
            raise DefinitionError(
                f"program {name} takes no events yet: define its state accesses first, with "
                "@program.on(type), or its rules"
            )
        heard = {e for rule in program.rules for kind, e in rule.expression.keys if kind == "event"}
        for type_ in (*program.types, *sorted(heard)):
            if type_ not in stream.types:
                raise DefinitionError(
                    f"program {name} takes events {type_!r}, which stream {stream.name} does not "
                    f"have; {did_you_mean(type_, stream.types)}"
                )
        known = self._of.get(stream.name)
        chosen = _scheduler(scheduler, known)
        if stream.columns and not isinstance(chosen, InColumns):
            raise DefinitionError(
                f"program {name}: stream {stream.name} is processed in columns (columns=True), and "
                f"the scheduler {chosen.name!r} takes its events one by one: give the program "
                'scheduler="columns", or leave out columns=True'
            )
        if known is not None and chosen is not known.scheduler:
            raise DefinitionError(
                f"program {name}: the programs of stream {stream.name} run in one serial order, by "
                f"the scheduler that the first of them was given ({known.scheduler.name}): leave "
                "scheduler out"
            )
        if known is not None and len(known.programs) == PROGRAMS_MAX:
            raise DefinitionError(f"stream {stream.name} has {PROGRAMS_MAX} programs already")
        kept = self._kept(program, stream.name, tables)
        spec = None if outputs is None else self._spec(outputs)
        if spec is not None and spec in {k.spec for k in (*self._all_kept(), *kept.values())}:
            raise DefinitionError(
                f"program {name}: {spec.name} has the rows of a shared table; outputs take a table "
                "of their own"
            )
        if isinstance(chosen, InColumns):
            self._check_in_columns(program, stream, kept.values(), known is None)
            unheard = _unheard(stream.name, stream.types, kept.values())
            for rule in self._rules:
                _check_hears(rule, unheard)
        of = self._of.setdefault(stream.name, ProgramsOfStream(chosen, tuple(stream.types)))
        of.programs.append(Defined(program, spec))
        of.tables |= kept

    def _kept(
        self, program: Program, stream: str, tables: Mapping[SharedTable, Any]
    ) -> dict[SharedTable, KeyedValues]:
        """Return where the rows of a program's new tables are stored."""
        name = program.name
        for shared in tables:
            if shared not in program.tables:
                raise DefinitionError(
                    f"program {name}: tables names {shared!r}, which is none of its tables"
                )
        found: dict[SharedTable, KeyedValues] = {}
        before = self._of[stream].tables if stream in self._of else {}
        for shared in program.tables:
            given = tables.get(shared)
            if shared in before:
                if given is not None and self._spec(given) is not before[shared].spec:
                    raise DefinitionError(
                        f"program {name}: the rows of {shared.name} are in "
                        f"{before[shared].spec.name}, as another program says"
                    )
                continue
            if given is None:
                raise DefinitionError(
                    f"program {name}: say where the rows of {shared.name} are kept: "
                    f"tables={{{shared.name}: <mapped class or Table>}}"
                )
            found[shared] = kept = KeyedValues(self._spec(given))
            if shared.size is not None and not kept.holds_floats:
                raise DefinitionError(
                    f"program {name}: {shared.name} has a size, so its values are floats: give "
                    f"{kept.spec.name} one column of type Float beside its key"
                )
        self._check_apart(name, stream, found)
        return found

    def _check_apart(self, name: str, stream: str, found: dict[SharedTable, KeyedValues]) -> None:
        """Raise if a shared table, or a table of rows, would be used twice."""
        specs = [kept.spec for kept in (*self._all_kept(), *found.values())]
        names = [shared.name for shared in (*self._shared(stream), *found)]
        for shared, kept in found.items():
            if specs.count(kept.spec) > 1:
                raise DefinitionError(
                    f"program {name}: {kept.spec.name} would have the rows of two shared tables"
                )
            if names.count(shared.name) > 1:
                raise DefinitionError(f"program {name}: two shared tables are called {shared.name}")
            if any(shared in of.tables for of in self._of.values()):
                raise DefinitionError(
                    f"program {name}: {shared.name} is shared by programs of another stream, and "
                    "two streams have no common order"
                )

    def _all_kept(self) -> list[KeyedValues]:
        return [kept for of in self._of.values() for kept in of.tables.values()]

    def _shared(self, stream: str) -> list[SharedTable]:
        return [*self._of[stream].tables] if stream in self._of else []


def _unheard(
    stream: str, types: Iterable[str], tables: Iterable[KeyedValues]
) -> dict[tuple[str, str], str]:
    """Return keys and descriptions of events that rules cannot receive, as they stay in columns."""
    found = {("event", type_): f"events {type_} of stream {stream}" for type_ in types}
    found["late", stream] = f"late events of stream {stream}"
    for kept in tables:
        rows = f"changes of table {kept.spec.name} by the program of stream {stream}"
        found |= {(kind, kept.spec.name): rows for kind in ("insert", "update", "delete")}
    return found


def _check_hears(rule: Rule, unheard: Mapping[tuple[str, str], str]) -> None:
    for key in sorted(rule.on.keys):
        if key in unheard:
            raise DefinitionError(
                f'rule {rule.name}: {unheard[key]} are processed in columns (scheduler="columns"), '
                "where no rule sees them one by one: give the program another scheduler, or leave "
                "the rule out"
            )


def _scheduler(given: str | Scheduler | None, known: ProgramsOfStream | None) -> Scheduler:
    """Return the requested scheduler: a new one for a name, the stream's own for None."""
    if given is None:
        return SerialOrder() if known is None else known.scheduler
    if isinstance(given, str):
        if given not in _SCHEDULERS:
            raise DefinitionError(
                f"there is no scheduler {given!r}; {did_you_mean(given, _SCHEDULERS)}"
            )
        return known.scheduler if known and known.scheduler.name == given else _SCHEDULERS[given]()
    if not all(callable(getattr(given, method, None)) for method in ("add", "run")):
        raise DefinitionError(
            f"{given!r} is no scheduler: give its name, or an object of its class"
        )
    return given
