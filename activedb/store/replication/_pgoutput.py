"""Messages of `pgoutput`, PostgreSQL's own logical decoding plugin, protocol version 1.

The parser turns bytes into messages: see "Logical Replication Message Formats" in the
PostgreSQL manual.

A value arrives as the text of its type; psycopg loads it like a column of that type, and the
declared column converts it as SQLAlchemy would. Values that the server has not sent are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from psycopg.adapt import Transformer
from psycopg.pq import Format
from sqlalchemy import Connection

from activedb.errors import InvalidRow, StoreError
from activedb.functions import typed_text
from activedb.store.sql import Row, TableSpec

__all__ = [
    "UNCHANGED",
    "Begin",
    "ChangeConverter",
    "Commit",
    "Delete",
    "Insert",
    "Message",
    "Note",
    "Origin",
    "Relation",
    "RelationColumn",
    "Truncate",
    "Type",
    "Unchanged",
    "Update",
    "Value",
    "lsn_text",
    "parse",
]


_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class Unchanged(Enum):
    """Placeholder for a long value that an update left unchanged, and that is not sent."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED

Value: TypeAlias = bytes | Literal[Unchanged.UNCHANGED] | None
"""Value in its text format; None is NULL."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Start of a committed transaction; its changes follow.

    Attributes
    ----------
    lsn : int
        Position of its commit in the server's log.
    committed_at : datetime
        In UTC, to the microsecond.
    xid : int
    """

    lsn: int
    committed_at: datetime
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """End of a transaction.

    Attributes
    ----------
    lsn, end_lsn : int
        Start and end of its commit in the server's log.
    committed_at : datetime
    """

    lsn: int
    end_lsn: int
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a replicated transaction: position `lsn` in the log of the server `name`."""

    lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """Column as the server has it; `is_key`: it is part of the replica identity."""

    name: str
    type_oid: int
    type_modifier: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """Definition of a table, sent before its first change.

    Attributes
    ----------
    oid : int
        Number by which changes refer to the table.
    schema, name : str
    identity : str
        Its replica identity: ``d`` (primary key), ``n`` (nothing), ``f`` (full), ``i`` (an index).
    columns : tuple of RelationColumn
    """

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Type:
    """Type that is not built in."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    """New row; values by column."""

    relation: int
    new: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Update:
    """Row before and after an update.

    Attributes
    ----------
    relation : int
    old : tuple of Value or None
        None if it is not sent, because the row's identity has not changed.
    is_whole : bool
        True if `old` is the whole row; otherwise everything but the identity is NULL in it.
    new : tuple of Value
    """

    relation: int
    old: tuple[Value, ...] | None
    is_whole: bool
    new: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """Deleted row; see `Update` for `is_whole`."""

    relation: int
    old: tuple[Value, ...]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncation of tables.

    `cascades` and `restarts` are the statement's options CASCADE and RESTART IDENTITY.
    """

    relations: tuple[int, ...]
    cascades: bool
    restarts: bool


@dataclass(frozen=True, slots=True)
class Note:
    """Message written into the log with ``pg_logical_emit_message``."""

    is_transactional: bool
    lsn: int
    prefix: str
    content: bytes


Message: TypeAlias = (
    Begin | Commit | Origin | Relation | Type | Insert | Update | Delete | Truncate | Note
)


def parse(data: bytes) -> Message:
    """Parse one message; O(its length).

    Raises
    ------
    StoreError
        If it is not a message of version 1, or is truncated.
    """
    if not data:
        raise StoreError("an empty message came from pgoutput")
    kind = data[:1]
    read = _READERS.get(kind)
    if read is None:
        raise StoreError(
            f"pgoutput sent a message of kind {kind!r}, which version 1 of its protocol does not "
            f"have"
        )
    reader = _MessageReader(data)
    try:
        message = read(reader)
    except (struct.error, ValueError, OverflowError) as error:
        raise StoreError(f"a message of kind {kind!r} from pgoutput is damaged: {error}") from error
    if reader.position != len(data):
        raise StoreError(
            f"a message of kind {kind!r} from pgoutput is {len(data)} bytes long, and "
            f"{reader.position} were expected"
        )
    return message


def lsn_text(lsn: int) -> str:
    """Return a position in the server's log in the server's notation: ``16/B374D848``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


class _MessageReader:
    """Reader of one message, from its second byte on."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes):
        self.data = data
        self.position = 1

    def number(self, form: struct.Struct) -> int:
        (value,) = form.unpack_from(self.data, self.position)
        self.position += form.size
        return int(value)

    def count(self, form: struct.Struct) -> int:
        count = self.number(form)
        if count < 0:
            raise ValueError(f"{count} is no number of parts")
        return count

    def time(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self.number(_INT64))

    def string(self) -> str:
        return self.until_nul().decode()

    def until_nul(self) -> bytes:
        end = self.data.index(b"\0", self.position)
        found = self.data[self.position : end]
        self.position = end + 1
        return found

    def take(self, length: int) -> bytes:
        end = self.position + length
        if length < 0 or end > len(self.data):
            raise ValueError(f"{length} bytes announced, {len(self.data) - self.position} left")
        found = self.data[self.position : end]
        self.position = end
        return found

    def mark(self, known: bytes) -> bytes:
        found = self.take(1)
        if found not in (known[i : i + 1] for i in range(len(known))):
            raise ValueError(f"{found!r} is not one of {known!r}")
        return found

    def row(self) -> tuple[Value, ...]:
        return tuple([self._value() for _ in range(self.count(_INT16))])

    def _value(self) -> Value:
        kind = self.mark(b"nut")
        if kind == b"n":
            return None
        return UNCHANGED if kind == b"u" else self.take(self.number(_INT32))


_INT8, _INT16 = struct.Struct("!B"), struct.Struct("!h")
_INT32, _UINT32 = struct.Struct("!i"), struct.Struct("!I")
_INT64, _UINT64 = struct.Struct("!q"), struct.Struct("!Q")


def _begin(r: _MessageReader) -> Begin:
    return Begin(r.number(_UINT64), r.time(), r.number(_UINT32))


def _commit(r: _MessageReader) -> Commit:
    r.number(_INT8)  # flags, currently unused
    return Commit(r.number(_UINT64), r.number(_UINT64), r.time())


def _origin(r: _MessageReader) -> Origin:
    return Origin(r.number(_UINT64), r.string())


def _relation(r: _MessageReader) -> Relation:
    oid, schema, name = r.number(_UINT32), r.string() or "pg_catalog", r.string()
    identity = r.take(1).decode()
    columns = []
    for _ in range(r.count(_INT16)):
        flags, column = r.number(_INT8), r.string()
        columns.append(
            RelationColumn(column, r.number(_UINT32), r.number(_INT32), is_key=bool(flags & 1))
        )
    return Relation(oid, schema, name, identity, tuple(columns))


def _type(r: _MessageReader) -> Type:
    return Type(r.number(_UINT32), r.string() or "pg_catalog", r.string())


def _insert(r: _MessageReader) -> Insert:
    relation = r.number(_UINT32)
    r.mark(b"N")
    return Insert(relation, r.row())


def _update(r: _MessageReader) -> Update:
    relation, kind = r.number(_UINT32), r.mark(b"KON")
    old = None
    if kind != b"N":
        old = r.row()
        r.mark(b"N")
    return Update(relation, old, kind == b"O", r.row())


def _delete(r: _MessageReader) -> Delete:
    relation, kind = r.number(_UINT32), r.mark(b"KO")
    return Delete(relation, r.row(), kind == b"O")


def _truncate(r: _MessageReader) -> Truncate:
    count, flags = r.count(_INT32), r.number(_INT8)
    relations = tuple([r.number(_UINT32) for _ in range(count)])
    return Truncate(relations, cascades=bool(flags & 1), restarts=bool(flags & 2))


def _note(r: _MessageReader) -> Note:
    flags, lsn, prefix = r.number(_INT8), r.number(_UINT64), r.string()
    return Note(bool(flags & 1), lsn, prefix, r.take(r.number(_INT32)))


_READERS: dict[bytes, Callable[[_MessageReader], Message]] = {
    b"B": _begin,
    b"C": _commit,
    b"O": _origin,
    b"R": _relation,
    b"Y": _type,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
    b"M": _note,
}


# -- conversion of rows from logical decoding to the values that the same rows have when queried ---


_Load = Callable[[Value], Any]


class ChangeConverter:
    """Converter of one table's changes to rows.

    Its methods raise `InvalidRow` if a value cannot be held in Python, or an old row is not as
    complete as the table sends them.

    Parameters
    ----------
    spec : TableSpec
    relation : Relation
        The server's definition of the table when the changes were made.
    connection : sqlalchemy.Connection
        Connection to the same server; its driver knows the types.

    Raises
    ------
    StoreError
        If the server's table lacks a column of the key.
    """

    def __init__(self, spec: TableSpec, relation: Relation, connection: Connection):
        self.spec = spec
        self._is_whole = relation.identity == "f"
        driver: Any = connection.connection.driver_connection
        transformer, dialect = Transformer(driver), connection.dialect
        declared = {str(column.name): column for column in spec.table.columns}
        self._columns: list[tuple[int, str, bool, _Load]] = []
        for place, column in enumerate(relation.columns):
            if column.name not in declared:
                continue
            load = transformer.get_loader(column.type_oid, Format.TEXT).load
            kind = declared[column.name].type.dialect_impl(dialect)
            process = kind.result_processor(dialect, column.type_oid)
            conversion = _conversion(f"{spec.name}.{column.name}", load, process)
            self._columns.append((place, column.name, column.is_key, conversion))
        found = {name for _, name, _, _ in self._columns}
        # The server does not send generated columns.
        self._computed = dict.fromkeys(
            name for name, c in declared.items() if c.computed is not None and name not in found
        )
        if not found >= set(spec.key_columns):
            raise StoreError(
                f"table {spec.name} has no column {', '.join(set(spec.key_columns) - found)} at "
                f"the server, or did not have it when a change to be followed was made"
            )

    def whole(self, values: Sequence[Value]) -> Row:
        """Return the row with these values, without those that were not sent. O(columns)."""
        row = {
            name: load(values[place])
            for place, name, _, load in self._columns
            if values[place] is not UNCHANGED
        }
        return self._shown(row)

    def key_alone(self, values: Sequence[Value]) -> Row:
        """Return the key columns of a row of which only the key was sent."""
        return MappingProxyType(
            {name: load(values[place]) for place, name, is_key, load in self._columns if is_key}
        )

    def of_update(self, change: Update) -> tuple[Row, Row]:
        """Return the row before an update and the row after it.

        Long values that the update left unchanged are taken from the old row, if it is sent whole.
        """
        new, old = change.new, change.old
        if old is None:
            if self._is_whole:
                raise InvalidRow(
                    f"table {self.spec.name} sends whole old rows, and the partition of a changed "
                    f"row does not: ALTER TABLE that partition REPLICA IDENTITY FULL"
                )
            return self.key_alone(new), self.whole(new)
        if not change.is_whole:
            return self.key_alone(old), self.whole(new)
        filled = [o if n is UNCHANGED else n for o, n in zip(old, new, strict=True)]
        return self.whole(old), self.whole(filled)

    def _shown(self, row: dict[str, Any]) -> Row:
        row |= self._computed
        if list(row) == self._order(row):
            return MappingProxyType(row)
        return MappingProxyType({name: row[name] for name in self._order(row)})

    def _order(self, row: dict[str, Any]) -> list[str]:
        return [str(c.name) for c in self.spec.table.columns if c.name in row]


def _conversion(
    name: str, load: Callable[[Any], Any], process: Callable[[Any], Any] | None
) -> _Load:
    """Return the conversion of a column's values from their text; it raises `InvalidRow`."""

    def read(value: Any) -> Any:
        try:
            loaded = None if value is None else load(value)
            return loaded if process is None else process(loaded)
        except Exception as error:  # of the driver, or of a type of the user's
            raise InvalidRow(
                f"{name} is {value!r} in a changed row, which cannot be read: {typed_text(error)}"
            ) from error

    return read
