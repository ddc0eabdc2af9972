"""Messages of `pgoutput`, PostgreSQL's own logical decoding plugin, protocol version 1.

This is only a parser, from bytes to messages. See "Logical Replication Message Formats" in the
PostgreSQL manual. Values stay in their types' text format, as sent; `_changed_rows` converts them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, Literal, TypeAlias

from activedb.errors import StoreError

__all__ = [
    "UNCHANGED",
    "Begin",
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
    """Truncation of tables."""

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
    reader = _Reader(data)
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


class _Reader:
    """Reader of one message, from its second byte on."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes):
        self.data = data
        self.position = 1

    def number(self, form: struct.Struct) -> int:
        (value,) = form.unpack_from(self.data, self.position)
        self.position += form.size
        return int(value)

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
            raise ValueError(f"{found!r} is none of {known!r}")
        return found

    def row(self) -> tuple[Value, ...]:
        return tuple([self._value() for _ in range(self.number(_INT16))])

    def _value(self) -> Value:
        kind = self.mark(b"nut")
        if kind == b"n":
            return None
        return UNCHANGED if kind == b"u" else self.take(self.number(_INT32))


_INT8, _INT16 = struct.Struct("!B"), struct.Struct("!h")
_INT32, _UINT32 = struct.Struct("!i"), struct.Struct("!I")
_INT64, _UINT64 = struct.Struct("!q"), struct.Struct("!Q")


def _begin(r: _Reader) -> Begin:
    return Begin(r.number(_UINT64), r.time(), r.number(_UINT32))


def _commit(r: _Reader) -> Commit:
    r.number(_INT8)  # flags, currently unused
    return Commit(r.number(_UINT64), r.number(_UINT64), r.time())


def _origin(r: _Reader) -> Origin:
    return Origin(r.number(_UINT64), r.string())


def _relation(r: _Reader) -> Relation:
    oid, schema, name = r.number(_UINT32), r.string() or "pg_catalog", r.string()
    identity = r.take(1).decode()
    columns = []
    for _ in range(r.number(_INT16)):
        flags, column = r.number(_INT8), r.string()
        columns.append(
            RelationColumn(column, r.number(_UINT32), r.number(_INT32), is_key=bool(flags & 1))
        )
    return Relation(oid, schema, name, identity, tuple(columns))


def _type(r: _Reader) -> Type:
    return Type(r.number(_UINT32), r.string() or "pg_catalog", r.string())


def _insert(r: _Reader) -> Insert:
    relation = r.number(_UINT32)
    r.mark(b"N")
    return Insert(relation, r.row())


def _update(r: _Reader) -> Update:
    relation, kind = r.number(_UINT32), r.mark(b"KON")
    old = None
    if kind != b"N":
        old = r.row()
        r.mark(b"N")
    return Update(relation, old, kind == b"O", r.row())


def _delete(r: _Reader) -> Delete:
    relation, kind = r.number(_UINT32), r.mark(b"KO")
    return Delete(relation, r.row(), kind == b"O")


def _truncate(r: _Reader) -> Truncate:
    count, flags = r.number(_INT32), r.number(_INT8)
    relations = tuple([r.number(_UINT32) for _ in range(count)])
    return Truncate(relations, cascades=bool(flags & 1), restarts=bool(flags & 2))


def _note(r: _Reader) -> Note:
    flags, lsn, prefix = r.number(_INT8), r.number(_UINT64), r.string()
    return Note(bool(flags & 1), lsn, prefix, r.take(r.number(_INT32)))


_READERS: dict[bytes, Callable[[_Reader], Message]] = {
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
