"""Registry of programs over shared tables: their streams, outputs, and stored tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from activedb.errors import AccessError, DefinitionError
from activedb.events import decode_params, encode_params
from activedb.rules import Rule
from activedb.scheduling import (
    LWM,
    REMOVED,
    S2PL,
    SEI,
    TPG,
    At,
    Program,
    Scheduler,
    SerialOrder,
    SharedState,
    SharedTable,
    Versions,
)
from activedb.spelling import did_you_mean
from activedb.store.journals import ProgramJournal
from activedb.store.sql import Key, KeyedValues, Row, TableSpec, is_storable
from activedb.streams._declaration import StreamDeclaration
from activedb.transactions import Forest, TransactionNode, lock_table, read_locked, write_rows
from activedb.values import same_values
from lockmgr import Mode

__all__ = [
    "PROGRAMS_MAX",
    "Defined",
    "InColumns",
    "Output",
    "ProgramTable",
    "Programs",
    "ProgramsOfStream",
    "check_row",
    "take_tables",
]


_BEFORE_ALL = At(-(2**62), "", 0)
"""Place of versions from before the first s-transaction."""


def take_tables(
    forest: Forest, specs: Sequence[TableSpec], writer: str, load: Callable[[], None]
) -> None:
    """Take ownership of tables for this process, run `load`, and bar other writers.

    Raises
    ------
    TableOwned
        If another process uses one of them.
    DefinitionError
        If the server itself changes rows of one of them, or `load` raises it.
    """

    def take(t: TransactionNode) -> None:
        for spec in specs:
            lock_table(t, spec, Mode.X)  # until current writers have ended
            forest.store.ownership.own(spec, loads=False)
        load()
        for spec in specs:
            forest.writers[spec] = writer

    forest.run(take)


class ProgramTable:
    """Shared table, with the database table that stores the newest values of its keys.

    A table with a history also has its recent versions in activedb's own table.

    Attributes
    ----------
    shared : SharedTable
    kept : KeyedValues
    """

    def __init__(self, shared: SharedTable, kept: KeyedValues):
        self.shared = shared
        self.kept = kept

    def load(self, state: SharedState, journal: ProgramJournal) -> None:
        """Build the versions from committed rows; O(rows + versions).

        Raises
        ------
        DefinitionError
            If a row is not a valid key and value of the shared table.
        """
        versions = state.of(self.shared)
        newest: dict[Any, tuple[At, Any]] = {}
        for key, at, value in self._recent(journal) if self.shared.history_us else ():
            versions.write(key, at, value)
            newest[key] = max((at, value), newest.get(key, (at, value)), key=itemgetter(0))
        # The rows are authoritative: they may have been repaired while no process owned the table.
        for row in journal.rows(self.kept.spec):
            key, value = self.kept.pair(row)
            check_row(self.shared, self.kept, key, value)
            at, known = newest.pop(key, (_BEFORE_ALL, REMOVED))
            if known is REMOVED or not same_values((known,), (value,)):
                versions.write(key, at, value)
        for key, (at, known) in newest.items():
            if known is not REMOVED:
                versions.write(key, at, REMOVED)

    def _recent(self, journal: ProgramJournal) -> Iterator[tuple[Any, At, Any]]:
        """Yield keys, places and values of the stored versions."""
        name = self.kept.spec.name
        for record in journal.versions(name):
            key = decode_params(json.loads(record["key"]))["key"]
            value = REMOVED if record["removed"] else decode_params(record["value"])["value"]
            at = At(record["us"], "", record["arrival"])
            yield tuple(key) if isinstance(key, list) else key, at, value
        for data in journal.columns.versions(name):  # written in columns: NumPy exists
            from activedb.columns.program import ColumnVersions

            yield from ColumnVersions.of_bytes(data).each()

    def records(self, versions: Versions, since: At) -> Iterator[Mapping[str, Any]]:
        """Yield the records to store for the versions written at or after a place.

        Raises
        ------
        BadEvent
            If a key or a value cannot be stored.
        """
        if not self.shared.history_us:
            return
        for key, found in versions.since(since).items():
            plain = list(key) if isinstance(key, tuple) else key
            text = json.dumps(encode_params({"key": plain}))
            for at, value in found:
                is_removed = value is REMOVED
                yield {
                    "name": self.kept.spec.name,
                    "us": at.us,
                    "arrival": at.arrival,
                    "key": text,
                    "value": None if is_removed else encode_params({"value": value}),
                    "removed": is_removed,
                }

    def rows(self, versions: Versions, since: At) -> dict[Key, Row | None]:
        """Return the newest rows of the keys written at or after a place; None for removed keys.

        Raises
        ------
        InvalidRow
            If the table cannot store a key or a value.
        """
        spec = self.kept.spec
        found: dict[Key, Row | None] = {}
        for key, places in versions.since(since).items():
            value = places[-1][1]
            found[spec.key(key)] = None if value is REMOVED else self.kept.row(key, value)
        return found

    def write(self, t: TransactionNode, rows: Mapping[Key, Row | None]) -> None:
        """Write rows in a transaction, with a constant number of steps."""
        spec = self.kept.spec
        lock_table(t, spec, Mode.X)  # one table lock instead of row locks
        old = read_locked(t, spec, list(rows), to_write=True)
        changed = [(key, old[key], new) for key, new in rows.items() if _differ(old[key], new)]
        write_rows(t, spec, changed)


def _differ(old: Row | None, new: Row | None) -> bool:
    if old != new or old is None or new is None:
        return old != new
    return not same_values(tuple([old[name] for name in new]), tuple(new.values()))  # 1 == True


def check_row(shared: SharedTable, kept: KeyedValues, key: Any, value: Any) -> None:
    """Raise `DefinitionError` if a row is not a valid key and value of the shared table."""
    try:
        shared.check_key(key)
        shared.check_value(value)
    except AccessError as error:
        raise DefinitionError(
            f"table {kept.spec.name} has a row that {shared.name} cannot have: {error}"
        ) from error


# -- outputs of programs as stored in the database -------------------------------------------------


@dataclass(frozen=True, slots=True)
class Output:
    """Output of one s-transaction of a program.

    Attributes
    ----------
    us, arrival : int
        Its place in the serial order: its timestamp, in microseconds since the epoch, and a unique
        number.
    id, type : str
        Id and type of its event; None and `scheduling.MOMENT` if time alone has triggered it.
    value : object
        Result of post-processing; None: no result.
    reason : str or None
        Reason why the s-transaction aborted; None: it committed.
    """

    us: int
    arrival: int
    id: str | None
    type: str
    value: Any = None
    reason: str | None = None

    @property
    def committed(self) -> bool:
        """True if the s-transaction committed."""
        return self.reason is None

    def record(self, program: str) -> dict[str, Any]:
        """Return the output as a row; `restore` is the inverse.

        Raises
        ------
        BadEvent
            If the value cannot be stored in a database.
        """
        return {
            "program": program,
            "us": self.us,
            "arrival": self.arrival,
            "event_id": self.id,
            "type": self.type,
            "output": None if self.value is None else encode_params({"output": self.value}),
            "reason": self.reason,
        }

    @classmethod
    def restore(cls, record: Mapping[str, Any]) -> Output:
        """Return the output that `record` was made from."""
        value = record["output"]
        return cls(
            us=record["us"],
            arrival=record["arrival"],
            id=record["event_id"],
            type=record["type"],
            value=None if value is None else decode_params(value)["output"],
            reason=record["reason"],
        )


# -- registry of programs over shared tables: their streams, and where their tables are stored -----


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
            raise DefinitionError(
                f"{program!r} is not a program: make one with Program(name, tables)"
            )
        name = program.name
        if len(name) > _NAME_MAX or not is_storable(name):
            raise DefinitionError(
                f"{name!r} is not a name for a durable program: at most {_NAME_MAX} characters "
                "that a database can keep"
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
                    f"program {name}: tables names {shared!r}, which is not one of its tables"
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
            f"{given!r} is not a scheduler: give its name, or an object of its class"
        )
    return given
