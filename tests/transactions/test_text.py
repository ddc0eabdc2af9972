"""SELECTs written as text see the sphere, lock what they read, or are refused before they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    Table,
    bindparam,
    column,
    func,
    literal_column,
    select,
    text,
)

import activedb as adb
from activedb.errors import InvalidRow, UnsupportedStatement
from tests.databases import PATIENCE_S, Place, in_thread, lock_waits, until
from tests.transactions.bank import Bank, open_bank

if TYPE_CHECKING:
    from sqlalchemy import TextClause


def rows(t: adb.Transaction, sql: str, **values: Any) -> list[Any]:
    return [tuple(row) for row in t.query(text(sql), values)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT id, balance FROM accounts ORDER BY id", [(1, 11), (3, 30)]),
        ("SELECT a.id FROM accounts AS a WHERE a.balance > :low ORDER BY a.id", [(1,), (3,)]),
        ("SELECT accounts.id FROM accounts WHERE accounts.id = 1", [(1,)]),
        ("select count(*) from ACCOUNTS Accounts", [(2,)]),
        ('SELECT count(*) FROM "accounts"', [(2,)]),
        ("SELECT x.id, y.id FROM accounts x JOIN accounts y ON x.id < y.id", [(1, 3)]),
        ("SELECT count(*), max(n.text) FROM accounts a LEFT JOIN notes n USING (id)", [(2, "n")]),
        ("SELECT (SELECT max(balance) FROM accounts WHERE id <> n.id) FROM notes n", [(30,)]),
        ("SELECT id FROM accounts WHERE id IN (SELECT id FROM notes)", [(1,)]),
        ("SELECT id FROM accounts EXCEPT SELECT id FROM notes", [(3,)]),
        ("WITH accounts AS (SELECT id FROM accounts WHERE id > 2) SELECT * FROM accounts", [(3,)]),
        (
            "WITH x AS (SELECT id FROM accounts), notes AS (SELECT id FROM x) "
            "SELECT count(*) FROM notes",
            [(2,)],
        ),
        (
            "WITH RECURSIVE walk(id) AS (SELECT min(id) FROM accounts UNION ALL "
            "SELECT id + 1 FROM walk WHERE id < 3) "
            "SELECT walk.id, balance FROM walk LEFT JOIN accounts USING (id) ORDER BY 1",
            [(1, 11), (2, None), (3, 30)],
        ),
        ("SELECT sum(balance) OVER (ORDER BY id) FROM accounts ORDER BY 1", [(11,), (41,)]),
        ("SELECT * FROM accounts ORDER BY id", [(1, 11, "it's 100% a:b"), (3, 30, None)]),
        ("SELECT id FROM accounts WHERE owner LIKE '%100%% a\\:b%'", [(1,)]),
        ("SELECT id /* FROM notes */ FROM accounts -- WHERE id = 3\nWHERE id < 3", [(1,)]),
        ("SELECT id FROM {schema}.accounts WHERE {schema}.accounts.id > 2", [(3,)]),
        ("SELECT 'accounts', id % 2 FROM accounts WHERE id = 3", [("accounts", 1)]),
        ("SELECT id FROM accounts WHERE id = 1 ;", [(1,)]),
    ],
)
def test_query_of_text_sees_the_sphere(bank: Bank, sql: str, expected: list[Any]) -> None:
    schema = bank.db._store.schema
    with bank.db.transaction() as t:
        t.update(bank.accounts, 1, balance=11, owner="it's 100% a:b")
        with t.subtransaction() as s:
            s.delete(bank.accounts, 2)
            s.insert(bank.accounts, {"id": 3, "balance": 30})
            s.insert(bank.notes, {"id": 1, "text": "n"})
        with t.subtransaction() as s:
            statement = sql.replace("{schema}", schema)
            values = {"low": 10} if ":low" in sql else {}
            assert rows(s, statement, **values) == expected
    with bank.db.transaction() as t:
        assert rows(t, statement, **values) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, owner, count(*) FROM accounts GROUP BY id",
        "SELECT a.id, max(n.id), a.owner FROM accounts a LEFT JOIN notes n ON true GROUP BY a.id",
        "SELECT accounts.* FROM accounts GROUP BY accounts.id HAVING accounts.balance > 5",
        'SELECT *, count(*) FROM accounts AS "A" GROUP BY "A".id, "A".balance',
        "SELECT n.id, count(a.id), (SELECT n.text) FROM notes n, accounts a GROUP BY n.id",
        "SELECT id, owner FROM {schema}.accounts GROUP BY {schema}.accounts.id ORDER BY balance",
        "SELECT id, owner FROM accounts GROUP BY 1",
        "SELECT count(*), (a.id) AS balance, owner FROM accounts a GROUP BY 2",
        "SELECT owner, a.id AS x FROM accounts a GROUP BY x HAVING balance > 5",
        'SELECT owner, id AS "X y" FROM accounts GROUP BY "X y", balance',
        "SELECT id, owner FROM accounts GROUP BY (id)",
        "SELECT id AS x, owner, balance FROM accounts GROUP BY ((x)), (2)",
        "SELECT 5 AS x, id AS id, owner FROM accounts GROUP BY 2, x",
        "SELECT n.id AS x, (SELECT a.owner) FROM accounts a, notes n GROUP BY x, a.id",
    ],
)
def test_query_grouped_by_the_key_may_name_the_other_columns(bank: Bank, sql: str) -> None:
    statement = sql.replace("{schema}", bank.db._store.schema)
    with bank.db.transaction() as t:
        t.update(bank.accounts, 1, owner="ann")
        t.insert(bank.accounts, {"id": 3, "owner": "ann", "balance": 30})
        t.insert(bank.notes, {"id": 1, "text": "x"})
        seen = sorted(map(repr, t.query(text(statement))))
        assert seen
    with bank.db.transaction() as t:
        assert sorted(map(repr, t.query(text(statement)))) == seen


def test_query_grouped_by_a_row_may_name_the_other_columns(there: Place) -> None:
    """SQLite refuses it."""
    bank = open_bank(there.open(), {1: 10, 2: 20})
    grouped = text("SELECT a.id, owner, n.text FROM accounts a, notes n GROUP BY (1, n.id), n.text")
    with bank.db.transaction() as t:
        t.insert(bank.notes, {"id": 1, "text": "x"})
        t.update(bank.accounts, 1, owner="ann")
        assert sorted(t.query(grouped)) == [(1, "ann", "x"), (2, None, "x")]


def test_query_of_text_takes_parameters_bound_or_beside(bank: Bank) -> None:
    sql = "SELECT id FROM accounts WHERE id > :y AND :z = :z"
    typed = text("SELECT id, owner FROM accounts").columns(column("id", Integer), column("owner"))
    with bank.db.transaction() as t:
        t.insert(bank.accounts, {"id": 3})
        assert t.query(text(sql).bindparams(y=2, z="'"), {"y": 1}) == [(2,), (3,)]
        assert t.query(text(sql), {"y": 2, "z": None}) == []
        assert len(t.query(typed)) == 3
        chosen = text("SELECT id FROM accounts WHERE id IN :ids ORDER BY id")
        chosen = chosen.bindparams(bindparam("ids", expanding=True))
        assert t.query(chosen, {"ids": [3, 1]}) == [(1,), (3,)]
        assert t.query(chosen, {"ids": []}) == []
        assert len(t.query(chosen, {"ids": list(range(2_000))})) == 3
        assert t.query(select(typed.subquery("q").c.id).where(column("id") > 2)) == [(3,)]


def test_query_with_fragments_of_text_sees_the_sphere(bank: Bank) -> None:
    a = bank.accounts
    with bank.db.transaction() as t:
        t.insert(a, {"id": 3, "balance": 30})
        assert t.query(select(text("max(balance)")).select_from(text("accounts"))) == [(30,)]
        counted: Any = literal_column("(SELECT count(*) FROM accounts)")
        assert t.query(select(counted)) == [(3,)]
        assert t.query(select(a.c.id).where(text("id IN (SELECT max(id) FROM accounts)"))) == [(3,)]


def test_query_of_text_locks_the_tables_it_reads(bank: Bank) -> None:
    with bank.db.transaction() as t:
        rows(t, "SELECT 1 FROM accounts WHERE EXISTS (SELECT 1 FROM notes)")
        waits = lock_waits(bank.db)
        writing = in_thread(bank.db.run, lambda s: s.insert(bank.notes, {"id": 9, "text": "x"}))
        until(lambda: lock_waits(bank.db) > waits)
        assert rows(t, "SELECT count(*) FROM notes") == [(0,)]
    writing.result(PATIENCE_S)


def test_query_of_a_fragment_locks_the_table_it_names(bank: Bank) -> None:
    with bank.db.transaction() as t:
        t.query(select(text("count(*)")).select_from(text("notes")))
        waits = lock_waits(bank.db)
        writing = in_thread(bank.db.run, lambda s: s.insert(bank.notes, {"id": 9, "text": "x"}))
        until(lambda: lock_waits(bank.db) > waits)
    writing.result(PATIENCE_S)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT * FROM unknown", "unknown, which is not known here.*declare it"),
        ("SELECT * FROM elsewhere.accounts", "elsewhere.accounts, which is not known"),
        ("INSERT INTO accounts (id) VALUES (7)", "use execute"),
        ("DELETE FROM accounts", "use execute"),
        ("SELECT 1; DELETE FROM accounts", "one SELECT"),
        ("SELECT id INTO copied FROM accounts", "INTO"),
        ("SELECT * FROM accounts FOR UPDATE", "with_for_update"),
        ("SELECT", "one SELECT|understood|cannot run"),
        ("DROP TABLE accounts", "one SELECT"),
        ("WITH activedb_seen_1 AS (SELECT 1) SELECT * FROM activedb_seen_1", "kept for activedb"),
        ("SELECT * FROM activedb_ledger", "not known here"),
    ],
)
def test_query_of_text_that_is_refused_runs_nothing_and_spares_the_transaction(
    bank: Bank, sql: str, reason: str
) -> None:
    with bank.db.transaction() as t:
        t.update(bank.accounts, 1, balance=11)
        if sql != "SELECT":
            with pytest.raises(UnsupportedStatement, match=reason):
                t.query(text(sql))
        t.update(bank.accounts, 2, balance=22)
    assert bank.committed() == {1: 11, 2: 22}


def test_query_of_text_of_the_servers_own_columns_is_refused(bank: Bank) -> None:
    name = "rowid" if bank.db._store.engine.dialect.name == "sqlite" else "ctid"
    with bank.db.transaction() as t:
        with pytest.raises(UnsupportedStatement, match=f"system column {name}"):
            t.query(text(f"SELECT {name} FROM accounts"))
        t.update(bank.accounts, 1, balance=11)


def test_query_of_text_without_a_parameters_value_raises_and_spares_the_transaction(
    bank: Bank,
) -> None:
    with bank.db.transaction() as t:
        with pytest.raises(InvalidRow, match="'y'"):
            t.query(text("SELECT id FROM accounts WHERE id = :y"))
        with pytest.raises(UnsupportedStatement, match=r"sqlalchemy\.text"):
            t.query("SELECT id FROM accounts")
        t.update(bank.accounts, 1, balance=11)
    assert bank.committed() == {1: 11, 2: 20}


def test_query_of_a_view_is_refused(bank: Bank) -> None:
    view = Table("rich", MetaData(), Column("id", Integer, primary_key=True))
    with bank.db._store.short() as connection:
        connection.execute(text("CREATE VIEW rich AS SELECT id FROM accounts WHERE balance > 10"))
    with bank.db.transaction() as t:
        with pytest.raises(UnsupportedStatement, match=r"not a table.*write out its SELECT"):
            t.query(select(view))
        with pytest.raises(UnsupportedStatement, match=r"not a table|not known"):
            t.query(text("SELECT * FROM rich"))
        t.update(bank.accounts, 1, balance=11)
    assert bank.committed() == {1: 11, 2: 20}


def test_query_of_text_names_a_table_that_was_used_before(where: Place) -> None:
    bank = open_bank(where.open(), {1: 10})
    db = where.open() if not where.is_memory else bank.db
    elsewhere = Table("accounts", MetaData(), *[c._copy() for c in bank.accounts.columns])
    with db.transaction() as t:
        if not where.is_memory:
            with pytest.raises(UnsupportedStatement, match="not known here"):
                t.query(text("SELECT id FROM accounts"))
        assert t.get(elsewhere, 1) is not None
        t.update(elsewhere, 1, balance=7)
        assert rows(t, "SELECT balance FROM accounts") == [(7,)]


def test_query_of_text_star_is_the_declared_columns_in_their_order(where: Place) -> None:
    db = where.open()
    with db._store.short() as connection:
        connection.execute(
            text("CREATE TABLE wide (b integer, extra text, id integer primary key)")
        )
        connection.execute(text("INSERT INTO wide VALUES (5, 'x', 1)"))
    wide = Table("wide", db.metadata, Column("id", Integer, primary_key=True), Column("b", Integer))
    with db.transaction() as t:
        assert rows(t, "SELECT * FROM wide") == [(1, 5)]
        t.update(wide, 1, b=6)
        assert rows(t, "SELECT * FROM wide") == [(1, 6)]
        assert rows(t, "SELECT w.* FROM wide w NATURAL JOIN wide v") == [(1, 6)]


def test_query_without_tables_runs_functions_of_the_server(bank: Bank) -> None:
    statement: Any = select(func.abs(-3))
    with bank.db.transaction() as t:
        assert t.query(statement) == [(3,)]
        if bank.db._store.is_shared:
            assert len(t.query(select(func.pg_sleep(0)))) == 1
            assert t.query(text("SELECT count(*) > 0 FROM pg_catalog.pg_class")) == [(True,)]
            with pytest.raises(UnsupportedStatement, match=r"write pg_catalog\.pg_class"):
                t.query(text("SELECT * FROM pg_class"))


def _declare_twins(db: adb.Database) -> tuple[Table, Table]:
    with db._store.short() as connection:
        connection.execute(text("CREATE SCHEMA IF NOT EXISTS twin_schema"))
    one = Table("twins", db.metadata, Column("id", Integer, primary_key=True), Column("n", Integer))
    two = Table(
        "twins",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("n", Integer),
        schema="twin_schema",
    )
    db.create_all()
    return one, two


def test_query_of_two_tables_of_one_name_in_two_schemas_sees_both(where: Place) -> None:
    if where.is_memory:
        pytest.skip("the memory twin has one schema")
    db = where.open()
    one, two = _declare_twins(db)
    try:
        joined = select(one.c.n, two.c.n).where(one.c.id == two.c.id)
        written: TextClause = text(
            f"SELECT {db._store.schema}.twins.n, twin_schema.twins.n "
            f"FROM {db._store.schema}.twins JOIN twin_schema.twins "
            f"ON {db._store.schema}.twins.id = twin_schema.twins.id"
        )
        with db.transaction() as t:
            t.insert(two, {"id": 1, "n": 2})
            assert t.query(joined) == []
            assert t.query(select(two.c.n)) == [(2,)]
            t.insert(one, {"id": 1, "n": 1})
            assert t.query(written) == [(1, 2)]
            assert t.query(joined) == [(1, 2)]
            with pytest.raises(UnsupportedStatement, match="give each an alias"):
                t.query(text("SELECT twins.n FROM twins, twin_schema.twins"))
            a, b = one.alias("a"), two.alias("b")
            assert t.query(select(a.c.n, b.c.n).where(a.c.id == b.c.id)) == [(1, 2)]
        with db.transaction() as t:
            assert t.query(written) == [(1, 2)]
    finally:
        with db._store.short() as connection:
            connection.execute(text("DROP SCHEMA twin_schema CASCADE"))
