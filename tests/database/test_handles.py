"""The handles of a database: earlier names say what has taken their place; options are one set."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, get_type_hints

import pytest

import activedb as adb
from activedb.database._database import _MOVED
from activedb.firing import DeadLetters
from activedb.rules import Rule
from activedb.streams import StreamDeclaration, StreamOptions, StreamRun


@pytest.mark.parametrize("name", _MOVED)
def test_earlier_name_says_what_has_taken_its_place(db: adb.Database, name: str) -> None:
    with pytest.raises(AttributeError, match=f"db.{name} is now ") as caught:
        getattr(db, name)
    path = str(caught.value).partition(" is now ")[2].partition("(")[0].split(".")
    owner = {"db": db, "stream": db.stream("s", type="k", timestamp="t", types={"A": ()})}[path[0]]
    for part in path[1:]:
        if part == "producers":
            assert isinstance(inspect.getattr_static(type(owner), part), property)
        else:
            owner = getattr(owner, part)
    assert callable(owner) or owner is None or isinstance(owner, adb.Stream | StreamRun)


def test_unknown_name_suggests_a_near_one(db: adb.Database) -> None:
    with pytest.raises(AttributeError, match=r"no 'signals'; did you mean 'signal'"):
        db.signals  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"no 'frobnicate'; there are 'admin', "):
        db.frobnicate  # type: ignore[attr-defined]  # noqa: B018


def test_dead_letters_are_listed_not_called(db: adb.Database) -> None:
    assert isinstance(db.dead_letters, DeadLetters)
    with pytest.raises(TypeError, match=r"now db\.dead_letters\.list"):
        db.dead_letters()


def test_producers_of_rows_have_a_name_of_their_own(db: adb.Database) -> None:
    with pytest.raises(adb.errors.DefinitionError, match="called expected_producers="):
        db.stream(  # type: ignore[call-arg]
            "s", type="k", timestamp="t", types={}, producer="p", producers=("a",)
        )


def test_streams_are_found_by_name(db: adb.Database) -> None:
    first, second = (db.stream(n, type="k", timestamp="t", types={"A": ()}) for n in ("a", "b"))
    assert list(db.streams) == [first, second]
    assert len(db.streams) == 2
    assert "a" in db.streams
    assert db.streams["b"] is second
    with pytest.raises(adb.errors.DefinitionError, match="no stream 'bb'; did you mean 'b'"):
        db.streams["bb"]


def test_declaration_of_a_stream_is_a_value_without_a_database(db: adb.Database) -> None:
    stream = db.stream("s", type="k", timestamp="t", types={"A": ("x",)}, columns=False)
    varied = dataclasses.replace(stream.declaration, timestamp="u")
    assert type(varied) is adb.StreamDeclaration
    assert varied == adb.StreamDeclaration("s", type="k", timestamp="u", types={"A": ("x",)})


def test_options_of_a_rule_are_those_that_its_definition_takes() -> None:
    taken = inspect.signature(Rule.define).parameters.keys() - {"action", "declared", "find_reads"}
    assert get_type_hints(adb.RuleOptions).keys() == taken


def test_option_that_does_not_exist_is_refused(db: adb.Database) -> None:
    said = "rule: there is no option 'partial_max'; did you mean 'partials_max'"
    with pytest.raises(adb.errors.DefinitionError, match=said):
        db.rule(on=adb.event("A"), partial_max=3)  # type: ignore[call-arg]
    with pytest.raises(adb.errors.DefinitionError, match=r"rule r: there is no option 'onn'"):
        db.rules.create(lambda t, o: None, name="r", onn=3)  # type: ignore[call-arg]


def test_options_of_a_stream_are_the_fields_of_its_declaration() -> None:
    fields = {each.name for each in dataclasses.fields(StreamDeclaration)} - {"name"}
    assert set(StreamOptions.__annotations__) == fields


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"type": "k", "timestamp": "t"}, r"stream 's': types= is missing"),
        (
            {"types": {}, "delai": 1},
            r"there is no option 'delai'; did you mean 'delay'",
        ),
    ],
)
def test_wrong_options_of_a_stream_are_refused_with_the_right_ones(
    db: adb.Database, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(adb.errors.DefinitionError, match=said):
        db.stream("s", **options)
    assert "s" not in db.streams


def test_transaction_shows_what_users_call(db: adb.Database) -> None:
    with db.transaction() as t:
        assert [name for name in dir(t) if not name.startswith("_")] == [
            *("abort", "cancel", "delete", "execute", "get", "get_many", "id", "insert"),
            *("is_rollback_only", "join", "parent", "path", "query", "rule", "spawn", "state"),
            *("subtransaction", "timestamp", "update", "with_timeout"),
        ]
        with t.subtransaction() as s:
            assert s.parent == t
            assert hash(s.parent) == hash(t)
            assert s != t
            assert repr(s) == f"<transaction {s.id} {s.path} active>"
        assert t.parent is None
        with pytest.raises(AttributeError, match=r"no 'exeute'; did you mean 'execute'"):
            t.exeute  # type: ignore[attr-defined]  # noqa: B018
        with pytest.raises(AttributeError, match="commits at the end of its block"):
            t.commit()  # type: ignore[attr-defined]
