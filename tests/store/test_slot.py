"""Replication slots: made, read, advanced and dropped; rows as they are read; what is refused."""

from __future__ import annotations

import contextlib
import datetime
import enum
import gc
import os
import secrets
import uuid
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import ServerCursor
from psycopg.pq import ExecStatus, PGconn
from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Boolean,
    Column,
    Computed,
    Date,
    DateTime,
    Double,
    Enum,
    Float,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    Numeric,
    PickleType,
    String,
    Table,
    Text,
    Time,
    TypeDecorator,
    Uuid,
    insert,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DBAPIError

from activedb.config import Settings
from activedb.errors import ConfigurationError, ConnectionLost, LockTimeout, StoreError
from activedb.store.replication import ChangeConverter
from activedb.store.replication._pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    Note,
    Relation,
    Truncate,
    Update,
)
from activedb.store.session import Store, open_store
from activedb.store.sql import Tables
from tests.changes.following import Somebody, somebody
from tests.databases import LOCK_TIMEOUT_MS, PATIENCE_S, in_thread, until
from tests.histories.processes import Server
from tests.servers import fresh_database, plain_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from activedb.store.replication import Slot


@contextlib.contextmanager
def opened(url: str, **settings: Any) -> Iterator[Store]:
    """Yield a store with activedb's tables, and one for things."""
    metadata = MetaData()
    key = Column("id", Integer, primary_key=True)
    Table("things", metadata, key, Column("name", Text), Column("long", Text))
    store = open_store(metadata, Settings.load(url=url, **settings))
    try:
        store.create_all()
        yield store
    finally:
        store.close()


@pytest.fixture
def server(database_url: str) -> Iterator[Store]:
    """A store on a database of its own."""
    with opened(database_url) as store:
        yield store


@pytest.fixture
def other(database_url: str) -> Iterator[Somebody]:
    """A program without activedb, on the same database."""
    with somebody(database_url) as program:
        yield program


@contextlib.contextmanager
def slot_of(store: Store, *tables: Table, name: str = "", **options: Any) -> Iterator[Slot]:
    """Yield an open slot; of the things by default."""
    slot = store.slot(name or f"s{secrets.token_hex(5)}")
    specs = [Tables().spec(table) for table in tables or [store.metadata.tables["things"]]]
    slot.open(specs, **options)
    try:
        yield slot
    finally:
        slot.close()
        slot.drop()


def told(slot: Slot) -> list[Any]:
    """Return all that a slot reports at this moment."""
    with slot.peek(100_000) as peeked:
        return list(peeked.messages)


def advance(slot: Slot) -> None:
    """Let the server forget what it has told."""
    with slot.peek(1) as peeked:
        head_lsn = peeked.head_lsn
    slot.advance(head_lsn)


def rows_told(slot: Slot, table: Table) -> list[tuple[Any, Any]]:
    """Return rows before and after, of the changes to one table that a slot reports."""
    found: list[tuple[Any, Any]] = []
    spec, rows = Tables().spec(table), None
    for message in told(slot):
        if isinstance(message, Relation):
            rows = ChangeConverter(spec, message, slot.connection)
        elif isinstance(message, Insert):
            assert rows is not None
            found.append((None, dict(rows.whole(message.new))))
        elif isinstance(message, Update):
            assert rows is not None
            old, new = rows.of_update(message)
            found.append((dict(old), dict(new)))
        elif isinstance(message, Delete):
            assert rows is not None
            whole = rows.whole if message.is_whole else rows.key_alone
            found.append((dict(whole(message.old)), None))
    return found


SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))


# -- reading and advancing ---------------------------------------------------------------------


def test_slot_tells_committed_transactions_until_it_is_advanced(
    server: Store, other: Somebody
) -> None:
    things = server.metadata.tables["things"]
    with slot_of(server) as slot:
        assert told(slot) == []
        other.run("INSERT INTO things VALUES (1, 'a')", "DELETE FROM things")
        with pytest.raises(ZeroDivisionError), other.transaction() as connection:
            connection.execute(text("INSERT INTO things VALUES (2, 'b')"))
            raise ZeroDivisionError
        other.run("INSERT INTO things VALUES (3, 'c')")
        messages = told(slot)
        assert told(slot) == messages
        kinds = [type(m) for m in messages if not isinstance(m, Relation)]
        assert kinds == [Begin, Insert, Delete, Commit, Begin, Insert, Commit]
        first, second = (m for m in messages if isinstance(m, Commit))
        slot.advance(first.end_lsn)
        assert rows_told(slot, things) == [(None, {"id": 3, "name": "c", "long": None})]
        slot.advance(second.end_lsn)
        slot.advance(first.end_lsn)  # not back
        assert told(slot) == []


def test_commit_times_are_those_of_the_server_to_the_microsecond(server: Store) -> None:
    with slot_of(server) as slot, server.short() as connection:
        connection.execute(text("INSERT INTO things VALUES (1, 'a')"))
        began = connection.scalar(text("SELECT clock_timestamp()"))
        connection.commit()
        with server.short() as after:
            ended = after.scalar(text("SELECT clock_timestamp()"))
        begin, commit = (m for m in told(slot) if isinstance(m, Begin | Commit))
        assert isinstance(begin, Begin)
        assert isinstance(commit, Commit)
        assert begin.committed_at == commit.committed_at
        assert began < begin.committed_at < ended
        assert begin.lsn == commit.lsn < commit.end_lsn


def test_peek_begins_no_other_transaction_after_its_limit(server: Store, other: Somebody) -> None:
    with slot_of(server) as slot:
        for n in range(5):
            other.run(f"INSERT INTO things SELECT n FROM generate_series({10 * n}, {10 * n + 8}) n")
        with slot.peek(15) as peeked:
            messages = list(peeked.messages)
        assert sum(isinstance(m, Commit) for m in messages) == 2
        assert sum(isinstance(m, Insert) for m in messages) == 18


def test_peek_that_is_left_early_can_be_made_again(server: Store, other: Somebody) -> None:
    with slot_of(server) as slot:
        other.run("INSERT INTO things SELECT n FROM generate_series(1, 5000) n")
        with pytest.raises(ZeroDivisionError), slot.peek(10) as peeked:
            next(peeked.messages)
            raise ZeroDivisionError
        assert sum(isinstance(m, Insert) for m in told(slot)) == 5_000


@pytest.mark.parametrize("how", ["read on", "left early"])
def test_nothing_is_left_open_of_a_peek_whose_connection_is_cut(
    server: Store, other: Somebody, how: str
) -> None:
    with slot_of(server) as slot:
        other.run("INSERT INTO things SELECT n FROM generate_series(1, 5000) n")
        with contextlib.suppress(ConnectionLost), slot.peek(10) as peeked:
            next(peeked.messages)
            number = slot.connection.scalar(text("SELECT pg_backend_pid()"))
            driver = slot.connection.connection.driver_connection
            other.run(f"SELECT pg_terminate_backend({number}, 10000)")
            # Neither those of other tests, nor proxies of what is gone, which have no class.
            cursors = [x for x in gc.get_objects() if issubclass(type(x), ServerCursor)]
            cursors = [each for each in cursors if each.connection is driver]
            if how == "read on":
                list(peeked.messages)
    assert cursors
    assert all(each.closed for each in cursors)


@pytest.mark.long
def test_cursor_is_closed_if_the_connection_is_lost_as_it_is_opened(
    server: Store, other: Somebody
) -> None:
    """SQLAlchemy leaves it to the driver, which warns of a cursor that was never closed."""
    gc.collect()  # what other tests have left would warn, too
    with slot_of(server) as slot, warnings.catch_warnings(record=True, action="always") as warned:
        with pytest.raises(DBAPIError, match="connection"), slot.connection.begin():
            number = slot.connection.scalar(text("SELECT pg_backend_pid()"))
            other.run(f"SELECT pg_terminate_backend({number}, 10000)")
            slot.connection.execute(text("SELECT 1"), execution_options={"stream_results": True})
        gc.collect()
    assert [str(each.message) for each in warned] == []


def test_connection_that_is_lost_as_a_peek_ends_is_not_used_again(
    server: Store, other: Somebody
) -> None:
    """The driver would open another one, which has neither the lock nor a transaction."""
    with slot_of(server) as slot:
        other.run("INSERT INTO things SELECT n FROM generate_series(1, 5000) n")
        with slot.peek(10) as peeked:
            next(peeked.messages)
            number = slot.connection.scalar(text("SELECT pg_backend_pid()"))
            other.run(f"SELECT pg_terminate_backend({number}, 10000)")
        for _ in range(2):
            with pytest.raises(ConnectionLost, match="lost"), slot.peek(10):
                pass
            with pytest.raises(ConnectionLost, match="lost"):
                slot.advance(slot.confirmed + 1)


def test_slot_goes_on_where_it_was_recorded_to_be(server: Store, other: Somebody) -> None:
    name = f"s{secrets.token_hex(5)}"
    spec = Tables().spec(server.metadata.tables["things"])
    first = server.slot(name)
    first.open([spec])
    began = first.lsn
    assert began > 0
    other.run("INSERT INTO things VALUES (1)")
    (commit,) = (m for m in told(first) if isinstance(m, Commit))
    with server.short() as connection:
        first.record(connection, commit.end_lsn)
    first.recorded(commit.end_lsn)
    first.close()
    with slot_of(server, name=name) as again:
        assert again.lsn == commit.end_lsn
        assert began <= again.confirmed <= commit.lsn
        assert told(again)  # which is for the follower to pass by
        first.lsn = began
        with (
            pytest.raises(ConfigurationError, match="followed by another program"),
            server.short() as connection,
        ):
            first.record(connection, commit.end_lsn)


def test_tables_of_a_slot_change_when_it_is_opened_again(server: Store, other: Somebody) -> None:
    other.run("CREATE TABLE more (id int PRIMARY KEY)")
    more = Table("more", MetaData(), Column("id", Integer, primary_key=True))
    things = server.metadata.tables["things"]
    name = f"s{secrets.token_hex(5)}"
    slot = server.slot(name)
    slot.open([Tables().spec(things)])
    slot.close()
    with slot_of(server, more, name=name) as slot:
        other.run("INSERT INTO things VALUES (1)", "INSERT INTO more VALUES (2)")
        assert rows_told(slot, more) == [(None, {"id": 2})]
        marked = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'activedb_mark_%' AND tgrelid ="
        assert other.value(f"{marked} 'things'::regclass") == 0
        assert other.value(f"{marked} 'more'::regclass") == 2
        with slot_of(server, more, things):
            assert other.value(f"{marked} 'things'::regclass") == 2
        assert other.value(f"{marked} 'things'::regclass") == 0
        assert other.value(f"{marked} 'more'::regclass") == 2


def test_tables_with_strange_names_and_partitions_are_followed(
    server: Store, other: Somebody
) -> None:
    metadata = MetaData()
    strange = Table(
        'a "b" %s; x',
        metadata,
        Column("the key", Integer, primary_key=True),
        Column('v"%', Text),
        schema='Sch"ema %',
    )
    parted = Table("parted", metadata, Column("id", Integer, primary_key=True))
    with server.short() as connection:
        connection.exec_driver_sql('CREATE SCHEMA "Sch""ema %%"', {})
        strange.create(connection)
        connection.execute(text("CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY HASH (id)"))
        for n in range(2):
            part = f"FOR VALUES WITH (MODULUS 2, REMAINDER {n})"
            connection.execute(text(f"CREATE TABLE part{n} PARTITION OF parted {part}"))
    with slot_of(server, strange, parted, whole=True) as slot:
        with server.short() as connection:
            connection.execute(insert(strange), [{"the key": 1, 'v"%': "ü"}])
        assert rows_told(slot, strange) == [(None, {"the key": 1, 'v"%': "ü"})]
        advance(slot)
        other.run(
            "INSERT INTO parted VALUES (1), (2), (3)", "INSERT INTO part0 SELECT 4 WHERE false"
        )
        assert rows_told(slot, parted) == [(None, {"id": n}) for n in (1, 2, 3)]


# -- rows --------------------------------------------------------------------------------------


class Colour(enum.Enum):
    """An enum of Python's."""

    RED = 1
    BLUE = 2


class Shouted(TypeDecorator[str]):
    """A type that is another one in Python."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else value.lower()

    def process_result_value(self, value: Any, dialect: Any) -> str | None:
        return None if value is None else str(value).upper()


_ALL = MetaData()
EVERYTHING = Table(
    "everything",
    _ALL,
    Column("id", Integer, primary_key=True),
    Column("big", BigInteger),
    Column("flag", Boolean),
    Column("real", Float(24)),
    Column("double", Double),
    Column("amount", Numeric(12, 3)),
    Column("free", Numeric),
    Column("word", String(40)),
    Column("prose", Text),
    Column("bytes", LargeBinary),
    Column("day", Date),
    Column("clock", Time),
    Column("plain", DateTime),
    Column("instant", DateTime(timezone=True)),
    Column("span", Interval),
    Column("mark", Uuid),
    Column("json", JSON),
    Column("jsonb", JSONB),
    Column("colour", Enum(Colour)),
    Column("numbers", ARRAY(Integer)),
    Column("words", ARRAY(Text)),
    Column("shouted", Shouted),
    Column("pickled", PickleType),
    Column("twice", Integer, Computed("id * 2", persisted=True)),
)
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
instants = st.datetimes(datetime.datetime(1000, 1, 1), datetime.datetime(3000, 1, 1))
everything = st.fixed_dictionaries(
    {},
    optional={
        "big": st.integers(-(2**63), 2**63 - 1),
        "flag": st.booleans(),
        "real": st.floats(width=32),
        "double": st.floats(),
        "amount": st.decimals(-999_999, 999_999, places=3),
        "free": st.decimals(-(10**20), 10**20, allow_nan=False, places=7),
        "word": words,
        "prose": words,
        "bytes": st.binary(max_size=30),
        "day": st.dates(),
        "clock": st.times(),
        "plain": instants,
        "instant": instants.map(lambda x: x.replace(tzinfo=datetime.UTC)),
        "span": st.timedeltas(datetime.timedelta(-9_999), datetime.timedelta(9_999)),
        "mark": st.uuids(),
        "json": json_values,
        "jsonb": json_values,
        "colour": st.sampled_from(Colour),
        "numbers": st.lists(st.none() | st.integers(-9, 9), max_size=3),
        "words": st.lists(st.none() | words, max_size=3),
        "shouted": st.sampled_from(["A", "B"]),
        "pickled": st.sampled_from([{"a": (1, 2)}, [uuid.UUID(int=1)]]),
    },
)


@pytest.fixture(scope="module")
def everything_followed(postgres_url: str) -> Iterator[tuple[Store, Slot]]:
    """Yield a slot that reports a table with columns of all types."""
    with fresh_database(postgres_url) as url, opened(url) as store:
        with store.short() as connection:
            _ALL.create_all(connection)
        with slot_of(store, EVERYTHING, whole=True) as slot:
            yield store, slot


@settings(max_examples=15 * SCALE)
@given(st.lists(everything, min_size=1, max_size=4), st.lists(everything, max_size=2))
def test_rows_told_equal_the_rows_as_they_are_read(
    everything_followed: tuple[Store, Slot], rows: list[dict[str, Any]], news: list[dict[str, Any]]
) -> None:
    store, slot = everything_followed
    key = EVERYTHING.c.id

    def read(connection: Any) -> list[dict[str, Any]]:
        found = connection.execute(select(EVERYTHING).order_by(key))
        return [dict(row) for row in found.mappings()]

    expected: list[tuple[Any, Any]] = []
    with store.short() as connection:
        for number, row in enumerate(rows):
            connection.execute(insert(EVERYTHING), {"id": number, **row})
        before = read(connection)
        expected += [(None, row) for row in before]
        for number, values in enumerate(news):
            changed = update(EVERYTHING).where(key == number).values(**values or {"flag": None})
            connection.execute(changed)
        after = read(connection)
        expected += list(zip(before, after, strict=True))[: len(news)]
        for row in after:
            connection.execute(EVERYTHING.delete().where(key == row["id"]))
            expected.append((row, None))
    found = rows_told(slot, EVERYTHING)
    advance(slot)
    assert repr(found) == repr(expected)  # NaN is unlike itself


def test_long_values_that_an_update_leaves_are_those_of_before_if_these_are_sent(
    server: Store, other: Somebody
) -> None:
    things = server.metadata.tables["things"]
    long = "".join(secrets.token_hex(50) for _ in range(400))
    other.run("INSERT INTO things VALUES (1, 'a', :long)", long=long)
    with slot_of(server) as slot:
        other.run("UPDATE things SET name = 'b'")
        assert rows_told(slot, things) == [({"id": 1}, {"id": 1, "name": "b"})]
    with slot_of(server, whole=True) as slot:
        other.run("UPDATE things SET name = 'c'")
        row = {"id": 1, "name": "b", "long": long}
        assert rows_told(slot, things) == [(row, {**row, "name": "c"})]


def test_old_rows_have_what_the_replica_identity_says(server: Store, other: Somebody) -> None:
    things = server.metadata.tables["things"]
    changes = (
        "INSERT INTO things VALUES (1, 'a')",
        "UPDATE things SET name = 'b'",
        "UPDATE things SET id = 2",
        "DELETE FROM things",
    )

    def olds() -> list[Any]:
        with slot_of(server) as slot:
            assert slot.tables[0].identified_by == expected_columns
            other.run(*changes)
            return [old for old, _ in rows_told(slot, things)]

    expected_columns: tuple[str, ...] = ("id",)
    assert olds() == [None, {"id": 1}, {"id": 1}, {"id": 2}]
    other.run(
        "ALTER TABLE things ALTER name SET NOT NULL",
        "CREATE UNIQUE INDEX by_name ON things (name)",
        "ALTER TABLE things REPLICA IDENTITY USING INDEX by_name",
    )
    expected_columns = ("name",)
    assert olds() == [None, {"name": "a"}, {"name": "b"}, {"name": "b"}]
    other.run("ALTER TABLE things REPLICA IDENTITY FULL")
    expected_columns = ()
    whole = [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}, {"id": 2, "name": "b"}]
    assert olds() == [None, *({**row, "long": None} for row in whole)]


def test_columns_added_later_are_left_out_until_they_are_declared(
    server: Store, other: Somebody
) -> None:
    things = server.metadata.tables["things"]
    with slot_of(server) as slot:
        other.run("INSERT INTO things VALUES (1, 'a')")
        other.run("ALTER TABLE things ADD extra int, DROP long")
        other.run("INSERT INTO things VALUES (2, 'b', 3)")
        assert rows_told(slot, things) == [
            (None, {"id": 1, "name": "a", "long": None}),
            (None, {"id": 2, "name": "b"}),
        ]


def test_table_without_its_key_at_the_server_is_refused(server: Store, other: Somebody) -> None:
    with slot_of(server) as slot:
        other.run("ALTER TABLE things DROP id", "ALTER TABLE things REPLICA IDENTITY FULL")
        other.run("INSERT INTO things VALUES ('a')")
        with pytest.raises(StoreError, match="has no column id at the server"):
            rows_told(slot, server.metadata.tables["things"])


# -- marks -------------------------------------------------------------------------------------


def test_marks_surround_what_a_session_with_the_setting_writes(
    server: Store, other: Somebody
) -> None:
    other.run(
        "CREATE TABLE parts (id int PRIMARY KEY, thing int REFERENCES things ON DELETE CASCADE)",
        "INSERT INTO things VALUES (1), (2)",
        "INSERT INTO parts VALUES (7, 1)",
    )
    parts = Table("parts", MetaData(), Column("id", Integer, primary_key=True))
    with slot_of(server, server.metadata.tables["things"], parts) as slot:
        other.run(
            "INSERT INTO things VALUES (3)",
            "SET LOCAL activedb.raised = 'rules'",
            "DELETE FROM things WHERE id = 1",
            "SET LOCAL activedb.raised = ''",
            "DELETE FROM things WHERE id = 2",
            "TRUNCATE parts",
        )
        said = [
            m.content.decode() if isinstance(m, Note) else type(m)
            for m in told(slot)
            if not isinstance(m, Relation)
        ]
        assert all(m.prefix == slot.mark_prefix for m in told(slot) if isinstance(m, Note))
    # The cascade is the server's own; what it queues is done with the statement around it.
    cascade = ["", Delete, ""]
    assert said == [Begin, Insert, "rules", Delete, *cascade, "", Delete, Truncate, Commit]


def test_marks_are_written_nowhere_when_nobody_follows(server: Store, other: Somebody) -> None:
    assert other.value("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal") == 0
    with slot_of(server):
        assert other.value("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal") == 2
    assert other.value("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal") == 0


# -- refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "Upper", "a-b", "ü", "x" * 64, "a b", 'a"', None, 5])
def test_slot_with_a_name_the_server_does_not_take_is_refused(server: Store, name: Any) -> None:
    with pytest.raises(ConfigurationError, match="a slot is named with at most 63"):
        server.slot(name)


def test_slot_in_memory_is_refused() -> None:
    with opened("memory://") as store, pytest.raises(ConfigurationError, match="nothing to follow"):
        store.slot("activedb")


def test_missing_table_and_table_without_identity_are_refused(
    server: Store, other: Somebody
) -> None:
    nowhere = Table("nowhere", MetaData(), Column("id", Integer, primary_key=True))
    with pytest.raises(ConfigurationError, match="no table nowhere at the server"):
        slot_of(server, nowhere).__enter__()
    for change in ("DROP CONSTRAINT things_pkey", "REPLICA IDENTITY NOTHING"):
        other.run(f"ALTER TABLE things {change}")
        with pytest.raises(ConfigurationError, match="would refuse every update"):
            slot_of(server).__enter__()
    assert other.value("SELECT count(*) FROM activedb_followers") == 0
    assert other.value("SELECT count(*) FROM pg_publication") == 0
    with slot_of(server, whole=True) as slot:
        assert slot.tables[0].is_whole


def test_table_with_columns_computed_when_read_is_followed_by_its_key_alone(
    server: Store, other: Somebody
) -> None:
    other.run(
        "CREATE TABLE sums (id int PRIMARY KEY, n int, v int GENERATED ALWAYS AS (n) VIRTUAL)"
    )
    key, n = Column("id", Integer, primary_key=True), Column("n", Integer)
    sums = Table("sums", MetaData(), key, n, Column("v", Integer, Computed("n")))
    with pytest.raises(ConfigurationError, match="columns that are computed when they are read"):
        slot_of(server, sums, whole=True).__enter__()
    with slot_of(server, sums) as slot:
        other.run("INSERT INTO sums VALUES (1, 2)", "UPDATE sums SET n = 3", "DELETE FROM sums")
        one = {"id": 1, "n": 2, "v": None}
        assert rows_told(slot, sums) == [
            (None, one),
            ({"id": 1}, {**one, "n": 3}),
            ({"id": 1}, None),
        ]


def test_slot_of_somebody_else_is_refused_and_left_alone(
    server: Store, other: Somebody, postgres_url: str
) -> None:
    mine, theirs = f"s{secrets.token_hex(5)}", f"s{secrets.token_hex(5)}"
    other.run(f"SELECT pg_create_logical_replication_slot('{mine}', 'pgoutput')")
    for call in (lambda s: slot_of(server, name=s).__enter__(), lambda s: server.slot(s).drop()):
        with pytest.raises(ConfigurationError, match=r"is not this database's of activedb"):
            call(mine)
    with (
        fresh_database(postgres_url) as url,
        opened(url) as elsewhere,
        slot_of(elsewhere, name=theirs),
        pytest.raises(ConfigurationError, match=f"slot {theirs} of database test_"),
    ):
        slot_of(server, name=theirs).__enter__()
    other.run(f"CREATE PUBLICATION {theirs}")
    with pytest.raises(ConfigurationError, match=r"a publication .* that is not activedb's"):
        slot_of(server, name=theirs).__enter__()
    assert other.value("SELECT count(*) FROM pg_replication_slots WHERE slot_name = :n", n=mine)


@pytest.mark.parametrize("lost", ["slot", "publication", "another"])
def test_slot_that_somebody_has_dropped_is_refused_until_it_is_given_up(
    server: Store, other: Somebody, lost: str
) -> None:
    name = f"s{secrets.token_hex(5)}"
    spec = Tables().spec(server.metadata.tables["things"])
    slot = server.slot(name)
    slot.open([spec])
    slot.close()
    if lost == "publication":
        other.run(f"DROP PUBLICATION {name}")
    else:
        other.run(f"SELECT pg_drop_replication_slot('{name}')")
    if lost == "another":
        other.run(f"SELECT pg_create_physical_replication_slot('{name}')")
    with pytest.raises(ConfigurationError, match=r"has been dropped|is not the one"):
        slot.open([spec])
    if lost == "another":
        other.run(f"SELECT pg_drop_replication_slot('{name}')")
    assert slot.drop()
    assert not slot.drop()
    with slot_of(server, name=name) as anew:
        other.run("INSERT INTO things VALUES (1)")
        assert len(told(anew)) == 4


def test_slot_whose_making_was_cut_off_is_made_when_it_is_opened_again(
    server: Store, other: Somebody
) -> None:
    name = f"s{secrets.token_hex(5)}"
    spec = Tables().spec(server.metadata.tables["things"])
    slot = server.slot(name)
    slot.open([spec])
    slot.close()
    other.run("UPDATE activedb_followers SET lsn = NULL")
    with slot_of(server, name=name) as again:  # made, and not recorded
        assert again.lsn == again.confirmed > 0
        again.close()
        other.run("UPDATE activedb_followers SET lsn = NULL")
        other.run(f"SELECT pg_drop_replication_slot('{name}')")
        again.open([spec])  # not made
        assert again.lsn == again.confirmed > 0


def test_slot_is_refused_after_the_server_was_restored_from_a_backup(
    server: Store, other: Somebody
) -> None:
    name = f"s{secrets.token_hex(5)}"
    with slot_of(server, name=name) as slot:
        slot.close()
        other.run("UPDATE activedb_followers SET lsn = lsn + 1000000000000")
        with pytest.raises(ConfigurationError, match="restored from a backup"):
            slot.open([Tables().spec(server.metadata.tables["things"])])


def test_second_follower_is_refused_as_long_as_the_first_is_there(
    server: Store, database_url: str
) -> None:
    name = f"s{secrets.token_hex(5)}"
    with opened(database_url) as second, slot_of(server, name=name) as slot:
        with pytest.raises(ConfigurationError, match="is being followed already"):
            slot_of(second, name=name).__enter__()
        with pytest.raises(ConfigurationError, match="is being followed already"):
            second.slot(name).drop()
        slot.close()
        with slot_of(second, name=name):
            pass


def test_somebody_who_reads_the_slot_without_activedb_is_named(
    server: Store, other: Somebody, database_url: str
) -> None:
    url = make_url(database_url)
    place = f"host={url.query['host']} port={url.query['port']} user={url.username}"
    with slot_of(server) as slot:
        reader = PGconn.connect(f"{place} dbname={url.database} replication=database".encode())
        try:
            options = f"(proto_version '1', publication_names '{slot.name}')"
            began = reader.exec_(
                f"START_REPLICATION SLOT {slot.name} LOGICAL 0/0 {options}".encode()
            )
            assert began.status == ExecStatus.COPY_BOTH
            other.run("INSERT INTO things VALUES (1)")
            with pytest.raises(ConfigurationError, match="another program reads the slot"):
                told(slot)
        finally:
            reader.finish()
        active = "SELECT active FROM pg_replication_slots WHERE slot_name = :name"
        until(lambda: not other.value(active, name=slot.name))


def test_opening_waits_for_transactions_that_had_begun_before(
    server: Store, other: Somebody, database_url: str
) -> None:
    things = server.metadata.tables["things"]
    name = f"s{secrets.token_hex(5)}"
    is_opening = text(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND "
        "((classid::bigint << 32) | objid::bigint) = :number"
    )

    def number_of_openers() -> Any:
        with server.short() as connection:
            return connection.scalar(is_opening, {"number": server.slot(name)._number})

    with (
        opened(database_url, lock_timeout_ms=200) as hasty,
        opened(database_url, lock_timeout_ms=LOCK_TIMEOUT_MS) as patient,
        other.transaction() as old,
    ):
        old.execute(text("SELECT 1"))
        with pytest.raises(LockTimeout, match="stay open that began before"):
            slot_of(hasty, name=name).__enter__()
        slot = patient.slot(name)
        opening = in_thread(slot.open, [Tables().spec(things)])
        until(lambda: opening.done() or number_of_openers())
        assert not opening.done()
        old.execute(text("INSERT INTO things VALUES (1)"))
        old.commit()
        opening.result(PATIENCE_S)
        slot.close()
    with slot_of(server, name=name) as again:
        assert told(again) == []


def test_server_without_logical_decoding_is_refused(plain_postgres_url: str) -> None:
    with (
        fresh_database(plain_postgres_url) as url,
        opened(url) as store,
        pytest.raises(ConfigurationError, match=r"wal_level is replica.*ALTER SYSTEM"),
    ):
        slot_of(store).__enter__()


@pytest.mark.long
def test_plain_server_with_logical_decoding_is_followed_and_says_what_it_refuses() -> None:
    settings = ("wal_level=logical", "max_replication_slots=2", "max_slot_wal_keep_size=1MB")
    with (
        plain_server(*settings) as server_url,
        fresh_database(server_url) as url,
        opened(url) as store,
        somebody(url) as other,
        slot_of(store) as slot,
    ):
        things = store.metadata.tables["things"]
        other.run("INSERT INTO things VALUES (1, 'a')")
        assert rows_told(slot, things) == [(None, {"id": 1, "name": "a", "long": None})]
        with slot_of(store), pytest.raises(ConfigurationError, match="no room for another"):
            slot_of(store).__enter__()
        for _ in range(4):
            other.run("INSERT INTO things SELECT coalesce(max(id), 0) + 1 FROM things")
            other.value("SELECT pg_switch_wal()")
        Server(url).run("CHECKPOINT")
        lost = "SELECT bool_or(wal_status = 'lost') FROM pg_replication_slots"
        until(lambda: other.value(lost))
        with pytest.raises(ConfigurationError, match="cannot be read any more"):
            told(slot)
        slot.close()
        with pytest.raises(ConfigurationError, match="unused for so long"):
            slot.open([Tables().spec(things)])


def test_role_without_the_rights_is_told_which(server: Store, database_url: str) -> None:
    role = f"r{secrets.token_hex(5)}"
    with somebody(database_url) as root:
        root.run(
            f"CREATE ROLE {role} LOGIN",
            f"GRANT ALL ON SCHEMA public TO {role}",
            f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}",
        )
        try:
            theirs = make_url(database_url).set(username=role)
            with opened(theirs.render_as_string()) as store:
                with pytest.raises(ConfigurationError, match=f"ALTER ROLE {role} REPLICATION"):
                    slot_of(store).__enter__()
                root.run(f"ALTER ROLE {role} REPLICATION")
                with pytest.raises(ConfigurationError, match="the role lacks a right"):
                    slot_of(store).__enter__()
        finally:
            root.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


# -- the embedded server -----------------------------------------------------------------------


@pytest.mark.long
def test_data_of_an_older_release_can_be_followed_after_a_restart() -> None:
    from activedb.store.server import EmbeddedServer
    from tests.servers import temporary_folder

    with temporary_folder() as folder:
        with EmbeddedServer.start(folder) as first, opened(first.url):
            configuration = first.home / "data" / "postgresql.conf"
            assert "wal_level = logical" not in configuration.read_text()
        with (
            EmbeddedServer.start(folder) as second,
            opened(second.url) as store,
            somebody(second.url) as other,
            slot_of(store) as slot,
        ):
            assert other.value("SHOW wal_level") == "logical"
            other.run("INSERT INTO things VALUES (1)")
            assert len(told(slot)) == 4
