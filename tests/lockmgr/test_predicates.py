"""PredicateIndex against brute force: which rows they cover, and how they are found by rows."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockmgr import InRange, NullTest, OneOf, Predicate
from lockmgr._predicates import PredicateIndex
from tests.lockmgr.model import satisfies

VALUES = st.integers(0, 3)
CONDITIONS = st.one_of(
    st.builds(OneOf, st.sampled_from("xy"), st.lists(VALUES, min_size=1, max_size=2)),
    st.builds(
        InRange,
        st.sampled_from("xy"),
        VALUES,
        st.none() | VALUES,
        with_low=st.booleans(),
        with_high=st.booleans(),
    ),
    st.builds(InRange, st.sampled_from("xy"), high=VALUES, with_high=st.booleans()),
    st.builds(NullTest, st.sampled_from("xy"), negated=st.booleans()),
)
PREDICATES = st.builds(Predicate, st.lists(CONDITIONS, min_size=1, max_size=3))
ROWS = st.fixed_dictionaries({"x": st.none() | VALUES, "y": st.none() | VALUES})


@given(PREDICATES, ROWS)
def test_predicate_covers_the_rows_that_satisfy_its_text(predicate: Predicate, row: Any) -> None:
    assert predicate.covers(row) == satisfies(row, predicate)


@given(st.lists(PREDICATES, max_size=6), st.lists(PREDICATES, max_size=6), st.lists(ROWS))
def test_predicates_are_found_by_the_rows_that_they_cover(
    kept: list[Predicate], removed: list[Predicate], rows: list[Any]
) -> None:
    predicates = PredicateIndex()
    for predicate in dict.fromkeys([*kept, *removed]):
        predicates.add(predicate)
    for predicate in dict.fromkeys(removed):
        if predicate not in kept:
            predicates.remove(predicate)
    brute = {p for p in kept if any(p.covers(row) for row in rows)}
    assert set(predicates.covering(rows)) == brute
    assert set(predicates.covering(None)) == set(kept)
    assert bool(predicates) == bool(kept)


def test_predicate_of_the_same_conditions_is_the_same_in_any_order() -> None:
    one, two = OneOf("x", [1]), InRange("y", high=5)
    assert Predicate([one, two]) == Predicate([two, one])
    assert hash(Predicate([one, two])) == hash(Predicate([two, one]))
    assert Predicate([one]) != Predicate([two])
    assert Predicate([OneOf("x", [1])]) != Predicate([OneOf("x", [True])])
    assert repr(Predicate([two, one])) == "{x = 1 and y <= 5}"


@pytest.mark.parametrize("value", [None, 1.5, True, "1", object()])
def test_predicate_covers_values_of_unknown_meaning_but_not_null(value: object) -> None:
    for condition in OneOf("x", [2]), InRange("x", 5):
        assert Predicate([condition]).covers({"x": value}) == (value is not None)
        assert Predicate([condition]).covers({})
    predicates = PredicateIndex()
    predicates.add(Predicate([OneOf("x", [2])]))
    assert list(predicates.covering([{"x": value}])) == (
        [] if value is None else [Predicate([OneOf("x", [2])])]
    )
    assert list(predicates.covering([{}]))


@pytest.mark.parametrize("value", [None, 0, "", float("nan"), object()])
def test_null_is_told_from_every_value(value: object) -> None:
    null, some = NullTest("x"), NullTest("x", negated=True)
    assert Predicate([null]).covers({"x": value}) == (value is None)
    assert Predicate([some]).covers({"x": value}) == (value is not None)
    assert Predicate([null]).covers({})
    assert Predicate([some]).covers({})
    assert Predicate([null]) != Predicate([some])
    assert repr(Predicate([null, OneOf("y", [1])])) == "{x is null and y = 1}"
    assert repr(Predicate([some])) == "{x is not null}"


def test_decimal_that_is_no_number_may_be_anywhere() -> None:
    for condition in InRange("x", Decimal(1)), InRange("x", high=Decimal(1)):
        assert Predicate([condition]).covers({"x": Decimal("NaN")})


def test_predicate_without_a_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match="x: needs values of one type"):
        OneOf("x", [])
    with pytest.raises(ValueError, match="x: needs values of one type"):
        OneOf("x", [1, date(2026, 1, 1)])
    with pytest.raises(ValueError, match="x: needs a bound, or two of one type"):
        InRange("x")
    with pytest.raises(ValueError, match="x: needs a bound, or two of one type"):
        InRange("x", 1, "2")
    with pytest.raises(ValueError, match="a predicate needs a condition"):
        Predicate([])
