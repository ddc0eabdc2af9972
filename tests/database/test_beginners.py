"""Beginners' mistakes: each is reported in one clear line of a typed error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, String, Table, insert, select

import activedb as adb
from activedb.errors import (
    ActiveDBError,
    BadEvent,
    DefinitionError,
    InvalidRow,
    PatternError,
    RuleFailed,
    StoreError,
    UnknownColumn,
)
from coupling import Coupling

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Transaction

NEAR = r"has no column 'balanec'.* it has id, balance, owner; did you mean 'balance'\?"


@pytest.fixture
def db(db: adb.Database) -> adb.Database:
    """A database with one account, and a table that is declared and not created."""
    Table(
        "accounts",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("balance", Integer),
        Column("owner", String),
    )
    db.create_all()
    Table("absent", db.metadata, Column("id", Integer, primary_key=True))
    db.run(lambda t: t.insert(accounts(db), {"id": 1, "balance": 10}))
    return db


def accounts(db: adb.Database) -> Any:
    return db.metadata.tables["accounts"]


def absent(db: adb.Database) -> Any:
    return db.metadata.tables["absent"]


def nothing(t: Transaction, o: Any) -> None:
    """Do nothing."""


def in_rule(db: adb.Database, do: Any = nothing, **parts: Any) -> None:
    db.rule(**{"on": adb.updated(accounts(db)), "name": "r", **parts})(do)
    db.run(lambda t: t.update(accounts(db), 1, balance=11))


# The mistake, the class of the error, what it says.
MISTAKES: dict[str, tuple[Callable[[adb.Database], object], type[ActiveDBError], str]] = {
    "insert a list": (
        lambda db: db.run(lambda t: t.insert(accounts(db), [{"id": 2}])),  # type: ignore[arg-type]
        InvalidRow,
        r"table accounts: insert\(\) takes one row, a mapping of columns to values, not list; for "
        r"several rows call it for each, or t.execute\(insert\(table\), rows\)",
    ),
    "insert nothing": (
        lambda db: db.run(lambda t: t.insert(accounts(db), None)),  # type: ignore[arg-type]
        InvalidRow,
        "not NoneType",
    ),
    "insert a misspelt column": (
        lambda db: db.run(lambda t: t.insert(accounts(db), {"id": 2, "balanec": 1})),
        UnknownColumn,
        f"table accounts {NEAR}",
    ),
    "update a misspelt column": (
        lambda db: db.run(lambda t: t.update(accounts(db), 1, balanec=1)),
        UnknownColumn,
        f"table accounts {NEAR}",
    ),
    "update with a dict": (
        lambda db: db.run(lambda t: t.update(accounts(db), 1, {"balance": 1})),
        InvalidRow,
        r"update\(\) takes the new values by the names of their columns",
    ),
    "read a misspelt column": (
        lambda db: db.run(lambda t: t.get(accounts(db), 1)["balanec"]),  # type: ignore[index]
        UnknownColumn,
        f"the row {NEAR}",
    ),
    "read a misspelt column of many": (
        lambda db: db.run(lambda t: t.get_many(accounts(db), [1])[1]["balanec"]),  # type: ignore[index]
        UnknownColumn,
        f"the row {NEAR}",
    ),
    "use a misspelt column of what was inserted": (
        lambda db: db.run(lambda t: t.insert(accounts(db), {"id": 2})["balanec"]),
        UnknownColumn,
        f"the row {NEAR}",
    ),
    "use a misspelt column of what was updated": (
        lambda db: db.run(lambda t: t.update(accounts(db), 1, balance=2)["balanec"]),
        UnknownColumn,
        f"the row {NEAR}",
    ),
    "listen to a misspelt column": (
        lambda db: adb.updated(accounts(db), "balanec"),
        PatternError,
        "table accounts has no column 'balanec': name one of id, balance, owner; did you mean "
        r"'balance'\?",
    ),
    "filter by a misspelt column": (
        lambda db: in_rule(db, on=adb.updated(accounts(db), where=lambda o: o.new["balanec"] > 1)),
        UnknownColumn,
        f"the row {NEAR}",
    ),
    "filter by a misspelt attribute": (
        lambda db: in_rule(db, on=adb.updated(accounts(db), where=adb.attr("balanec") > 1)),
        BadEvent,
        "has no attribute 'balanec'; it has 'id', 'balance', 'owner'",
    ),
    "a condition on a misspelt column": (
        lambda db: in_rule(db, when=lambda t, o: o.old["balanec"] > 1),
        RuleFailed,
        f"rule r failed: the row {NEAR}",
    ),
    "use a table that was not created": (
        lambda db: db.run(lambda t: t.get(absent(db), 1)),
        StoreError,
        r"create the declared tables that are missing with db.create_all\(\)",
    ),
    "insert into a table that was not created": (
        lambda db: db.run(lambda t: t.insert(absent(db), {"id": 1})),
        StoreError,
        r"db.create_all\(\)",
    ),
    "query a table that was not created": (
        lambda db: db.run(lambda t: t.query(select(absent(db)))),
        StoreError,
        r"db.create_all\(\)",
    ),
    "execute on a table that was not created": (
        lambda db: db.run(lambda t: t.execute(insert(absent(db)), [{"id": 1}])),
        StoreError,
        r"db.create_all\(\)",
    ),
    "rule without parentheses": (
        lambda db: db.rule(nothing),
        DefinitionError,
        r"write @db.rule\(on=…\) above the function",
    ),
    "run of no function": (
        lambda db: db.run(None),  # type: ignore[arg-type]
        DefinitionError,
        r"run\(\) takes a function \(t, …\)",
    ),
    "a table's name for a table": (
        lambda db: db.run(lambda t: t.insert("accounts", {"id": 1})),
        DefinitionError,
        "'accounts' is neither a SQLAlchemy Table nor a class",
    ),
    "a text for a number": (
        lambda db: db.run(lambda t: t.get(accounts(db), "1")),
        InvalidRow,
        "table accounts: column id takes",
    ),
    "a name for an event": (
        lambda db: db.rule(on="E", name="x")(nothing),
        DefinitionError,
        "on= takes an event expression such as event",
    ),
    "a misspelt mode": (
        lambda db: db.rule(on=adb.event("E"), coupling="detachd", name="x")(nothing),
        DefinitionError,
        "coupling='detachd' is not one of",
    ),
    "a misspelt setting": (
        lambda db: adb.connect("memory://", thread=3),
        ActiveDBError,
        "unknown setting 'thread' in an argument; did you mean 'threads'",
    ),
    "a misspelt rule": (
        lambda db: (
            db.rule(on=adb.event("E"), name="alarm")(nothing),
            db.rules["alram"],
        ),
        DefinitionError,
        "there is no rule named 'alram'; did you mean 'alarm'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_told_in_one_line_of_a_typed_error(db: adb.Database, mistake: str) -> None:
    make, kind, said = MISTAKES[mistake]
    with pytest.raises(kind, match=said) as told:
        make(db)
    assert isinstance(told.value, kind)
    assert "\n" not in str(told.value)


def test_error_of_other_libraries_in_a_rule_is_told_with_its_type(db: adb.Database) -> None:
    empty: dict[str, int] = {}

    def action(t: Transaction, o: Any) -> None:
        empty["balance"]

    with pytest.raises(RuleFailed, match=r"rule r failed: KeyError: 'balance'"):
        in_rule(db, do=action)


def test_unknown_column_is_a_key_error_too_and_get_gives_none(db: adb.Database) -> None:
    row = db.run(lambda t: t.get(accounts(db), 1))
    assert row is not None
    with pytest.raises(KeyError):
        row["balanec"]
    assert row.get("balanec") is None
    assert "balanec" not in row
    assert {**row} == dict(row) == {"id": 1, "balance": 10, "owner": None}


def test_docstring_of_rule_lists_every_mode() -> None:
    documented = adb.RuleOptions.__doc__ or ""
    (listed,) = [
        line for line in documented.splitlines() if line.strip().startswith("coupling : {")
    ]
    names = [name.strip(' "') for name in listed.partition("{")[2].rstrip("}").split(",")]
    assert set(names) == {str(mode) for mode in Coupling}
    text = documented[documented.index(listed) :]
    assert all(f"({mode})" in text for mode in Coupling)
