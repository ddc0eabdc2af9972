"""The base of a hierarchy, against a copy that is taken where a mark is set."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Column, Integer, MetaData, Table

from activedb.store.sql import TableSpec
from activedb.transactions._base import Base

SPECS = [
    TableSpec(Table(name, MetaData(), Column("id", Integer, primary_key=True))) for name in "ab"
]
KEYS = [(n,) for n in range(4)]
ROWS = st.sampled_from([None, {"id": 1}, {"id": 2}])

specs = st.sampled_from(SPECS)
keys = st.lists(st.sampled_from(KEYS), unique=True)
notes = st.one_of(
    st.tuples(
        st.just("fetched"), specs, st.dictionaries(st.sampled_from(KEYS), ROWS), st.booleans()
    ),
    st.tuples(st.just("guarded"), specs, keys | st.none(), st.booleans()),
    st.tuples(st.just("locked"), specs),
)


def note(base: Base, step: tuple[Any, ...]) -> None:
    match step:
        case ("fetched", spec, rows, exclusive):
            base.of(spec).fetched(rows, exclusive=exclusive)
        case ("guarded", spec, some, exclusive):
            base.guarded(spec, some, exclusive=exclusive or some is None)
        case ("locked", spec):
            base.locked(spec)


def told(base: Base) -> list[Any]:
    """Return all that a base reports."""
    return [
        (
            dict(base.of(spec).rows),
            base.of(spec).unread(KEYS, exclusive=False),
            base.of(spec).unread(KEYS, exclusive=True),
            base.unguarded(spec, KEYS, exclusive=False),
            base.unguarded(spec, KEYS, exclusive=True),
            dict(base.of(spec).guards),
            base.is_locked(spec),
            base.absent(but={}).get(spec, []),
            [base.of(spec).is_absent(key) for key in KEYS],
        )
        for spec in SPECS
    ]


@given(st.lists(notes), st.lists(notes), st.lists(notes))
@settings(deadline=None)
def test_going_back_leaves_what_was_known_at_the_mark(
    before: list[Any], inside: list[Any], after: list[Any]
) -> None:
    base = Base()
    for step in before:
        note(base, step)
    known = copy.deepcopy(told(base))
    base.mark()
    for step in inside:
        note(base, step)
    base.go_back()
    base.drop_mark()
    assert told(base) == known
    kept = Base()
    for step in before + after:
        note(kept, step)
    base.mark()
    for step in after:
        note(base, step)
    base.drop_mark()
    assert told(base) == told(kept)


def test_rows_known_to_be_absent_are_looked_for_again_unless_they_were_inserted() -> None:
    spec, other = SPECS
    base = Base()
    base.of(spec).fetched({(1,): None, (2,): None, (3,): {"id": 3}}, exclusive=False)
    base.of(other).fetched({(1,): {"id": 1}}, exclusive=False)
    assert base.absent(but={spec: {(1,): None, (2,): {"id": 2}}}) == {spec: [(1,)]}
    assert base.of(spec).unread(KEYS, exclusive=True) == [(0,), (3,)]
    base.of(spec).fetched({(3,): {"id": 3}}, exclusive=True)
    assert base.of(spec).unread(KEYS, exclusive=True) == [(0,)]


def test_forgetting_rows_keeps_what_is_locked_unless_the_locks_are_gone() -> None:
    spec = SPECS[0]
    base = Base()
    base.of(spec).fetched({(1,): None}, exclusive=True)
    base.guarded(spec, [(1,)], exclusive=True)
    base.locked(spec)
    base.forget(locks=False)
    assert base.of(spec).unread([(1,)], exclusive=False) == [(1,)]
    assert base.absent(but={}) == {}
    assert base.is_locked(spec)
    assert base.unguarded(spec, [(1,)], exclusive=True) == []
    base.forget(locks=True)
    assert not base.is_locked(spec)
    assert base.unguarded(spec, [(1,)], exclusive=True) == [(1,)]
