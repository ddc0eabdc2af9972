"""The messages of pgoutput, parsed: written by an independent encoder, and damaged ones refused."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from activedb.errors import StoreError
from activedb.store.replication._pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    Note,
    Origin,
    Relation,
    RelationColumn,
    Truncate,
    Type,
    Update,
    lsn_text,
    parse,
)

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def time_of(moment: datetime) -> bytes:
    """A moment as microseconds since 2000."""
    return struct.pack("!q", (moment - EPOCH) // timedelta(microseconds=1))


def row(values: tuple[Any, ...]) -> bytes:
    """A row with its number of columns."""
    parts = [struct.pack("!h", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        else:
            parts.append(b"t" + struct.pack("!i", len(value)) + value)
    return b"".join(parts)


def encoded(message: Any) -> bytes:
    """A message as the manual's "Logical Replication Message Formats" lays it out."""
    match message:
        case Begin(lsn, moment, xid):
            return b"B" + struct.pack("!Q", lsn) + time_of(moment) + struct.pack("!I", xid)
        case Commit(lsn, end_lsn, moment):
            return b"C\0" + struct.pack("!QQ", lsn, end_lsn) + time_of(moment)
        case Origin(lsn, name):
            return b"O" + struct.pack("!Q", lsn) + name.encode() + b"\0"
        case Type(oid, schema, name):
            return b"Y" + struct.pack("!I", oid) + schema.encode() + b"\0" + name.encode() + b"\0"
        case Relation(oid, schema, name, identity, columns):
            head = struct.pack("!I", oid) + schema.encode() + b"\0" + name.encode() + b"\0"
            told = [
                bytes([column.is_key])
                + column.name.encode()
                + b"\0"
                + struct.pack("!Ii", column.type_oid, column.type_modifier)
                for column in columns
            ]
            return b"R" + head + identity.encode() + struct.pack("!h", len(told)) + b"".join(told)
        case Insert(relation, new):
            return b"I" + struct.pack("!I", relation) + b"N" + row(new)
        case Update(relation, old, is_whole, new):
            before = b"" if old is None else (b"O" if is_whole else b"K") + row(old)
            return b"U" + struct.pack("!I", relation) + before + b"N" + row(new)
        case Delete(relation, old, is_whole):
            return b"D" + struct.pack("!I", relation) + (b"O" if is_whole else b"K") + row(old)
        case Truncate(relations, cascades, restarts):
            flags = bytes([cascades + 2 * restarts])
            oids = struct.pack(f"!{len(relations)}I", *relations)
            return b"T" + struct.pack("!i", len(relations)) + flags + oids
        case Note(is_transactional, lsn, prefix, content):
            head = bytes([is_transactional]) + struct.pack("!Q", lsn) + prefix.encode() + b"\0"
            return b"M" + head + struct.pack("!i", len(content)) + content
    raise AssertionError(message)


def values(*, unchanged: bool) -> st.SearchStrategy[tuple[Any, ...]]:
    """Rows."""
    kinds = [st.none(), st.binary(max_size=20)] + ([st.just(UNCHANGED)] if unchanged else [])
    return st.lists(st.one_of(kinds), max_size=5).map(tuple)


numbers, places = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
moments = st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
columns = st.builds(RelationColumn, names, numbers, st.integers(-(2**31), 2**31 - 1), st.booleans())
updates = st.builds(
    lambda relation, old, is_whole, new: Update(relation, old, old is not None and is_whole, new),
    numbers,
    st.none() | values(unchanged=False),
    st.booleans(),
    values(unchanged=True),
)
messages = st.one_of(
    st.builds(Begin, places, moments, numbers),
    st.builds(Commit, places, places, moments),
    st.builds(Origin, places, names),
    st.builds(Type, numbers, names, names),
    st.builds(
        Relation, numbers, names, names, st.sampled_from("dnfi"), st.lists(columns).map(tuple)
    ),
    st.builds(Insert, numbers, values(unchanged=False)),
    updates,
    st.builds(Delete, numbers, values(unchanged=False), st.booleans()),
    st.builds(Truncate, st.lists(numbers).map(tuple), st.booleans(), st.booleans()),
    st.builds(Note, st.booleans(), places, names, st.binary()),
)


@given(messages)
def test_message_is_parsed_to_what_was_written(message: Any) -> None:
    assert parse(encoded(message)) == message


@given(messages, st.data())
def test_message_that_is_cut_off_or_too_long_is_refused(message: Any, data: st.DataObject) -> None:
    whole = encoded(message)
    with pytest.raises(StoreError):
        parse(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(StoreError):
        parse(whole + data.draw(st.binary(min_size=1, max_size=3)))


@given(st.binary(max_size=60))
@example(b"Y\0\0\0\5\0int9\0")
@example(b"I\0\0\0\0N\xff\xff")
def test_any_bytes_are_a_message_or_are_refused(data: bytes) -> None:
    try:
        message = parse(data)
    except StoreError:
        return
    flags = {b"C": (1, 2), b"R": (), b"T": (5, 6), b"M": (1, 2)}
    is_left_out = data[:1] == b"Y" and data[5:6] == b"\0"  # the schema, which has a name
    if data[:1] not in flags and not is_left_out:  # of flags only some bits mean something
        assert encoded(message) == data


def test_kind_of_a_later_version_of_the_protocol_is_named() -> None:
    with pytest.raises(StoreError, match="kind b'S'"):
        parse(b"S\0\0\0\1\1")
    with pytest.raises(StoreError, match="empty message"):
        parse(b"")


def test_messages_written_by_hand_are_parsed() -> None:
    begin = bytes.fromhex("42000000000197c3e00002f6a0bd8c1f80000002f3")
    assert parse(begin) == Begin(0x197C3E0, EPOCH + timedelta(microseconds=0x2F6A0BD8C1F80), 0x2F3)
    insert = bytes.fromhex("4900004e224e0003740000000132740000000232306e")
    assert parse(insert) == Insert(20002, (b"2", b"20", None))
    relation = bytes.fromhex(
        "5200004e227075626c6963006163636f756e747300640002016964000000001"
        "7ffffffff0062616c616e63650000000017ffffffff"
    )
    assert parse(relation) == Relation(
        20002,
        "public",
        "accounts",
        "d",
        (RelationColumn("id", 23, -1, True), RelationColumn("balance", 23, -1, False)),
    )


def test_schema_that_is_left_out_is_the_catalog() -> None:
    assert parse(b"Y\0\0\0\5\0int9\0") == Type(5, "pg_catalog", "int9")


def test_place_in_the_log_is_shown_as_the_server_shows_it() -> None:
    assert lsn_text(0x16B374D848) == "16/B374D848"
    assert lsn_text(0) == "0/0"
    assert lsn_text(2**64 - 1) == "FFFFFFFF/FFFFFFFF"
