"""Values that can be changed in place: a reader that changes one changes only its own copy."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import JSON, Column, Integer, Table, select, update
from sqlalchemy.types import TypeDecorator

import activedb as adb
from activedb.errors import SerializationConflict
from tests.databases import place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Dialect

    from activedb import Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger

leaves = st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=2)
nested = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=8,
)
documents = (
    st.lists(nested, max_size=3)
    | st.dictionaries(st.text("ab", max_size=2), nested, max_size=3)
    | st.tuples(st.lists(leaves, max_size=2), nested)
)


@dataclass
class Basket:
    """An object that an application's own column type makes of JSON."""

    items: list[Any] = field(default_factory=list)


class Baskets(TypeDecorator[Basket]):
    impl = JSON
    cache_ok = True

    def process_bind_param(self, value: Basket | None, dialect: Dialect) -> Any:
        return None if value is None else value.items

    def process_result_value(self, value: Any, dialect: Dialect) -> Basket | None:
        return None if value is None else Basket(value)


@dataclass(frozen=True)
class Shelf:
    db: adb.Database
    docs: Table

    def committed(self, key: int) -> Any:
        with self.db.transaction() as t:
            (row,) = t.query(select(self.docs).where(self.docs.c.id == key))
            return row.doc, row.basket


def open_shelf(db: adb.Database, *, owned: bool = False) -> Shelf:
    docs = Table(
        "docs",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("number", Integer),
        Column("doc", JSON),
        Column("basket", Baskets),
    )
    db.create_all()
    if owned:
        db.admin.own(docs)
    return Shelf(db, docs)


@pytest.fixture(scope="module", params=["memory", "postgres", "owned"])
def shelf(request: pytest.FixtureRequest) -> Iterator[Shelf]:
    is_memory = request.param == "memory"
    url = None if is_memory else request.getfixturevalue("postgres_url")
    with place(url) as where:
        yield open_shelf(where.open(), owned=request.param == "owned")


def spoil(value: Any) -> None:
    """Change everything in a value that can be changed, from the inside out."""
    if isinstance(value, Basket):
        spoil(value.items)
        value.items = ["spoilt"]
    elif isinstance(value, list):
        for item in value:
            spoil(item)
        value.append("spoilt")
    elif isinstance(value, tuple):
        for item in value:
            spoil(item)
    elif isinstance(value, dict):
        for item in value.values():
            spoil(item)
        value["spoilt"] = True


def plain(value: Any) -> Any:
    """Return a value as JSON gives it back, whose tuples are lists."""
    if isinstance(value, Basket):
        return plain(value.items)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def spoil_row(row: Any) -> None:
    spoil(row["doc"] if not hasattr(row, "doc") else row.doc)
    spoil(row["basket"] if not hasattr(row, "basket") else row.basket)


WAYS = ("insert", "update", "get", "get_many", "query", "for_update", "returning", "given")


@pytest.mark.long
@given(
    document=documents,
    second=documents,
    ways=st.lists(st.tuples(st.sampled_from(WAYS), st.integers(0, 3)), max_size=8),
    keeps=st.booleans(),
)
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_rows_changed_in_place_stay_as_they_were_written(
    shelf: Shelf,
    document: Any,
    second: Any,
    ways: list[tuple[str, int]],
    keeps: bool,
) -> None:
    """Stored rows are unchanged in any nesting, however read, before and after the commit."""
    docs = shelf.docs
    with shelf.db.transaction() as t:
        for row in t.query(select(docs.c.id)):
            t.delete(docs, row.id)
    expected = copy.deepcopy((document, second))
    values = {"doc": copy.deepcopy(document), "basket": Basket([copy.deepcopy(second)])}

    def check(row: Any) -> None:
        doc, basket = (row.doc, row.basket) if hasattr(row, "doc") else (row["doc"], row["basket"])
        assert plain(doc) == plain(expected[0])
        assert plain(basket) == [plain(expected[1])]

    def look(t: Transaction) -> None:
        row = t.get(docs, 1)
        check(row)
        check(t.query(select(docs))[0])

    def read(t: Transaction, way: str, depth: int) -> None:
        if depth:
            with t.subtransaction() as s:
                read(s, way, depth - 1)
            look(t)
            return
        if way == "insert":
            row = t.insert(docs, {"id": 2, **values})
            spoil_row(row)
            check(t.get(docs, 2))
            t.delete(docs, 2)
        elif way == "update":
            spoil_row(t.update(docs, 1, number=depth))
        elif way == "get":
            spoil_row(t.get(docs, 1))
        elif way == "get_many":
            spoil_row(t.get_many(docs, [1])[1])
        elif way == "query":
            spoil_row(t.query(select(docs))[0])
        elif way == "for_update":
            spoil_row(t.get(docs, 1, for_update=True))
        elif way == "returning":
            changed = update(docs).where(docs.c.id == 1).values(number=7)
            spoil_row(t.execute(changed.returning(docs.c.doc, docs.c.basket))[0])
        else:
            t.insert(docs, {"id": 3, **(own := copy.deepcopy(values))})
            spoil_row(own)
            check(t.get(docs, 3))
            t.delete(docs, 3)
        look(t)

    with shelf.db.transaction() as t:
        t.insert(docs, {"id": 1, **values})
        for way, depth in ways if keeps else ():
            read(t, way, depth)
    with shelf.db.transaction() as t:
        for way, depth in ways:
            read(t, way, depth)
    doc, basket = shelf.committed(1)
    assert plain(doc) == plain(expected[0])
    assert plain(basket) == [plain(expected[1])]


# -- occurrences ---------------------------------------------------------------------------------

MODES = ("immediate", "deferred", "detached", "causal", "sequential", "exclusive")


def spoil_occurrence(o: Occurrence) -> None:
    for values in (o.params, o.old, o.new):
        for value in () if values is None else values.values():
            spoil(value)
    for part in o.constituents:
        spoil_occurrence(part)


class Seen:
    """Record of what conditions and actions were given, before they change it."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def __call__(self, o: Occurrence) -> None:
        rows = [(p.params, p.old, p.new) for p in (o.constituents or (o,))]
        self.values.append([[plain(dict(v or {}).get("doc")) for v in row] for row in rows])
        spoil_occurrence(o)


def watch(db: adb.Database, on: Any, coupling: str, **more: Any) -> Seen:
    """Define two rules on an event, which see it in their conditions and their actions."""
    seen = Seen()

    def condition(t: Transaction, o: Occurrence) -> bool:
        seen(o)
        return True

    for number in range(2):

        @db.rule(on=on, when=condition, coupling=coupling, name=f"r{number}", **more)
        def action(t: Transaction, o: Occurrence) -> None:
            seen(o)

    return seen


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["row", "signal", "statement"])
def test_every_rule_sees_an_occurrence_as_it_was(where: Place, mode: str, kind: str) -> None:
    shelf = open_shelf(where.open())
    given = {"a": [1, {"b": []}]}
    is_signal = kind == "signal"
    seen = watch(shelf.db, adb.event("E") if is_signal else adb.inserted(shelf.docs), mode)
    returned: list[Any] = []
    with shelf.db.transaction() as t:
        if is_signal:
            shelf.db.signal("E", doc=given)
            assert given == {"a": [1, {"b": []}]}
            spoil(given)  # a list that its program goes on with
        elif kind == "row":
            returned.append(t.insert(shelf.docs, {"id": 1, "doc": given}))
        else:
            t.execute(shelf.docs.insert(), [{"id": 1, "doc": given}])
        spoil(given)
        if mode == "exclusive":
            t.abort()
    shelf.db.wait_idle()
    doc = {"a": [1, {"b": []}]}
    expected = [[doc, None, None if is_signal else doc]]
    assert seen.values == [expected] * 4
    assert [plain(row["doc"]) for row in returned] == [doc] * len(returned)
    if not is_signal and mode != "exclusive":
        assert shelf.committed(1)[0] == doc
    assert shelf.db.dead_letters.list() == []


def test_members_of_a_set_and_parts_of_a_match_are_as_they_were(where: Place) -> None:
    shelf = open_shelf(where.open())
    sets = watch(shelf.db, adb.inserted(shelf.docs), "immediate", set_oriented=True)
    parts: list[Any] = []

    @shelf.db.rule(on=adb.event("A"))
    def first(t: Transaction, o: Occurrence) -> None:
        spoil_occurrence(o)

    for number in range(2):

        @shelf.db.rule(on=adb.seq(adb.event("A"), adb.event("B")), name=f"pair{number}")
        def pair(t: Transaction, o: Occurrence) -> None:
            parts.append([plain(p.params["doc"]) for p in o.constituents])
            spoil_occurrence(o)

    with shelf.db.transaction() as t:
        t.execute(shelf.docs.insert(), [{"id": n, "doc": [n]} for n in (1, 2)])
    assert sets.values == [[[[1], None, [1]], [[2], None, [2]]]] * 4
    given: list[Any] = [1]
    shelf.db.signal("A", doc=given)
    spoil(given)
    shelf.db.signal("B", doc=[2])
    assert parts == [[[1], [2]]] * 2


@pytest.mark.parametrize("mode", ["detached", "causal", "sequential", "exclusive"])
def test_try_of_a_firing_sees_what_the_one_before_has_changed_as_it_was(
    where: Place, mode: str
) -> None:
    shelf = open_shelf(where.open())
    seen: list[Any] = []

    @shelf.db.rule(on=adb.event("E"), coupling=mode)
    def rule(t: Transaction, o: Occurrence) -> None:
        seen.append(plain(o.params["doc"]))
        spoil_occurrence(o)
        if len(seen) < 3:
            raise SerializationConflict("as told")

    with shelf.db.transaction() as t:
        shelf.db.signal("E", doc=[{"a": [1]}])
        if mode == "exclusive":
            t.abort()
    shelf.db.wait_idle()
    assert seen == [[{"a": [1]}]] * 3


def test_objects_among_parameters_are_the_ones_that_were_given(ledger: Ledger) -> None:
    thing, found = object(), []

    @ledger.db.rule(on=adb.event("E"))
    def rule(t: Transaction, o: Occurrence) -> None:
        found.extend([o.params["thing"], *o.params["things"]])

    ledger.db.signal("E", thing=thing, things=[thing])
    assert all(each is thing for each in found)
    assert len(found) == 2
