"""Terms: what they are, and the values that they have."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activedb.errors import BadEvent, PatternError
from activedb.events import Occurrence, attr, event, occurrence, part, seq
from activedb.events.terms import (
    Aggregate,
    And,
    Attribute,
    Comparison,
    Literal,
    Term,
)


def happened(**params: Any) -> Occurrence:
    return occurrence("B", timestamp=1, **params)


PARTS: dict[str, Any] = {
    "A": happened(x=3, place="hall", nothing=None),
    "B": (happened(x=1), happened(x=None), happened(x=5)),
    "E": (),
}
A, B, E = part("A"), part("B"), part("E")


def value(term: Term) -> Any:
    return term.evaluate(PARTS)


# -- structure ---------------------------------------------------------------------------------


def test_term_equality_is_structural_and_itself_a_term() -> None:
    assert isinstance(A.x == B.x, Comparison)
    assert bool((A.x + 1 > 2) == (A.x + 1 > 2))
    assert not bool((A.x + 1 > 2) == (A.x + 1 >= 2))
    assert bool((A.x == 1) != (A.x == 2))
    assert ((A.x == 1),) == ((A.x == 1),)
    assert {A.x: "one"}[part("A").x] == "one"
    assert A.x != object()


@pytest.mark.parametrize(
    "pair", [(1, 1.0), (1, True), (0.0, -0.0), (Decimal("1.0"), Decimal("1.00")), ("1", 1)]
)
def test_literal_equal_values_written_otherwise_are_other_terms(pair: tuple[Any, Any]) -> None:
    left, right = map(Literal, pair)
    assert not left.same_as(right)


def test_term_used_as_truth_value_is_refused() -> None:
    with pytest.raises(PatternError, match="& for and"):
        bool(A.x > 3)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))]
)
def test_term_copied_after_use_is_equal_and_works(copied: Any) -> None:
    term = (A.x > 2) & ~(A.place == "room")
    assert term(PARTS)
    again = copied(term)
    assert again.same_as(term)
    assert hash(again) == hash(term)
    assert again(PARTS)


def test_term_names_its_parts_and_aggregates() -> None:
    term = (A.x > B.x.sum()) & (E.count() < 3) & (B.x > B.x.prev())
    assert term.part_names == {"A", "B", "E"}
    assert term.aggregated == {"B", "E"}
    assert term.uses_prev
    assert not (A.x > B.x).aggregated
    assert (B.x.first() == B.x.last()).aggregated == {"B"}
    assert not term.is_reading
    assert attr("x").part_names == frozenset()


def test_and_of_several_is_one_and() -> None:
    term = (A.x > 1) & (A.x > 2) & (A.x > 3)
    assert isinstance(term, And)
    assert len(term.conditions) == 3


@pytest.mark.parametrize("wrong", [[1], {}, object(), len, 1j, Decimal("sNaN"), Decimal("-sNaN7")])
def test_literal_of_another_type_is_refused(wrong: Any) -> None:
    with pytest.raises(PatternError, match="a term takes"):
        Literal(wrong)


@pytest.mark.parametrize("of", [Literal, lambda value: A.x == value, lambda value: A.x - value])
def test_integer_that_python_does_not_write_is_refused(of: Any) -> None:
    with pytest.raises(PatternError, match="integers of as many digits as Python writes"):
        of(-(10**5_000))
    assert str(10**4_000) in repr(of(10**4_000))


def test_aggregate_of_the_event_itself_is_refused() -> None:
    with pytest.raises(PatternError, match="Kleene part"):
        attr("x").sum()
    with pytest.raises(PatternError, match="not an aggregate"):
        Aggregate("median", "B", "x")


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (part("A")["HCW-ID"] == 7, "A.HCW-ID = 7"),
        (part("my part")["the attribute"] == 7, '"my part"."the attribute" = 7'),
        (attr("HCW-ID") == "it's", "\"HCW-ID\" = 'it''s'"),
        (attr("select") > -3, '"select" > -3'),
        (-attr("x") - -(attr("y") - 1), "-x - -(y - 1)"),
        ((attr("a") + 1) * 2 - 3 / attr("b"), "(a + 1) * 2 - 3 / b"),
        (attr("a") - (attr("b") - attr("c")), "a - (b - c)"),
        (~attr("a").is_null(), "a IS NOT NULL"),
        (~(attr("a").in_([1, 2.5, None])), "a NOT IN (1, 2.5, NULL)"),
        (~(attr("a").like("x%") | attr("b")), "NOT (a LIKE 'x%' OR b)"),
        ((attr("a") | attr("b")) & attr("c").between(1, 2), "(a OR b) AND c BETWEEN 1 AND 2"),
        ((attr("a") == attr("b")) == True, "(a = b) = TRUE"),  # noqa: E712
        (part("B").x.sum() > part("B").count(), "SUM(B.x) > COUNT(B)"),
        (part("a").old("x") < attr("x", old=True), "OLD(a.x) < OLD(x)"),
        (
            attr("t") + timedelta(minutes=1.5) < datetime(2026, 1, 2, tzinfo=UTC),
            "t + INTERVAL '90s' < TIMESTAMP '2026-01-02T00:00:00+00:00'",
        ),
        (attr("d") == date(2026, 1, 2), "d = DATE '2026-01-02'"),
        (attr("b") == b"\x00\xff", "b = X'00ff'"),
        (attr("b") == Decimal("1.50"), "b = DECIMAL '1.50'"),
        (attr("b") == float("inf"), "b = FLOAT 'inf'"),
    ],
)
def test_term_repr_is_its_text(term: Term, text: str) -> None:
    assert repr(term) == text


# -- attributes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (A.x, 3),
        (A.nothing, None),
        (B.x, 5),
        (B.x.first(), 1),
        (B.x.last(), 5),
        (B.x.prev(), None),
        (B.x.sum(), 6),
        (B.x.avg(), 3.0),
        (B.x.min(), 1),
        (B.x.max(), 5),
        (B.x.count(), 2),
        (B.count(), 3),
        (A.x.sum(), 3),
        (A.count(), 1),
        (E.x, None),
        (E.x.first(), None),
        (E.x.prev(), None),
        (E.x.sum(), None),
        (E.x.avg(), None),
        (E.x.max(), None),
        (E.x.count(), 0),
        (E.count(), 0),
        (part("missing").x, None),
        (part("missing").count(), 0),
    ],
)
def test_attribute_and_aggregate_values(term: Term, expected: Any) -> None:
    found = value(term)
    assert found == expected
    assert type(found) is type(expected)


def test_attribute_that_the_event_lacks_is_a_bad_event_naming_both() -> None:
    with pytest.raises(BadEvent, match=r"event 'B' at 1 has no attribute 'y'; it has 'x', 'place'"):
        value(A.y)
    with pytest.raises(BadEvent, match="no attribute 'y'"):
        value(B.y.sum())
    with pytest.raises(BadEvent, match="no attribute 'y'"):
        (attr("y") > 3)(happened(x=1))


def test_attribute_of_the_event_itself_needs_one() -> None:
    assert (attr("x") == 3)(PARTS["A"])
    with pytest.raises(PatternError, match="the event itself"):
        (attr("x") == 3)(PARTS)


def test_attribute_old_is_that_of_the_row_before() -> None:
    update = Occurrence("t", 1, old={"x": 1}, new={"x": 2})
    assert (attr("x", old=True) < attr("x"))(update)
    assert (part("u").old("x") == 1)({"u": update})
    with pytest.raises(BadEvent, match="no old row"):
        (attr("x", old=True) == 1)(happened(x=1))


def test_term_of_a_composite_event_sees_its_parts_and_parameters() -> None:
    composite = Occurrence("Q", 3, {"total": 8}, parts=PARTS)
    assert ((attr("total") == 8) & (A.x == 3))(composite)


# -- values ------------------------------------------------------------------------------------

BIG = 2**53 + 1


@pytest.mark.parametrize(
    ("left", "operator", "right", "expected"),
    [
        (1, "=", 1.0, True),
        (BIG, "=", float(BIG), False),
        (BIG, ">", float(BIG), True),
        (Decimal("0.1"), "<", 0.1, True),
        (Decimal("1.50"), "=", Decimal("1.5"), True),
        (True, "=", 1, True),
        (float("nan"), "=", float("nan"), False),
        (float("nan"), "!=", 1.0, True),
        ("a", "<", "b", True),
        (None, "=", None, None),
        (1, "<", None, None),
        (None, "!=", 1, None),
        (date(2026, 1, 1), "<", date(2026, 1, 2), True),
    ],
)
def test_comparison_is_exact_and_null_is_unknown(
    left: Any, operator: str, right: Any, expected: Any
) -> None:
    assert Comparison(operator, Literal(left), Literal(right)).evaluate({}) is expected
    o = happened(a=left, b=right)
    assert Comparison(operator, attr("a"), attr("b")).evaluate({}, o) is expected
    parts = {"P": o, "K": (o, o)}
    assert Comparison(operator, part("P").a, part("K").b).evaluate(parts) is expected


@pytest.mark.parametrize("operator", ["=", "!=", "<", ">="])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, "1"),
        ("a", None.__class__),
        (date(2026, 1, 1), 3),
        (datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)),
        (b"a", "a"),
        ((1, 2), 3),
        (Decimal("sNaN"), 1),
    ],
)
def test_comparison_of_types_that_do_not_compare_is_a_bad_event(
    left: Any, operator: str, right: Any
) -> None:
    term = Comparison(operator, part("P").a, part("P").b)
    with pytest.raises(BadEvent, match=r"P\.a = .* and P\.b = .* do not compare"):
        term.evaluate({"P": happened(a=left, b=right)})


@pytest.mark.parametrize(
    ("left", "operator", "right", "expected"),
    [
        (7, "/", 2, 3),
        (-7, "/", 2, -3),
        (7, "/", -2, -3),
        (-7, "%", 2, -1),
        (7, "%", -2, 1),
        (-7.5, "%", 2, -1.5),
        (7, "/", 2.0, 3.5),
        (2**70, "+", 1, 2**70 + 1),
        (Decimal(10) ** 40, "+", 1, Decimal(10) ** 40 + 0),
        (Decimal(1), "/", 3, Decimal("0." + "3" * 38)),
        (None, "+", 1, None),
        (1, "*", None, None),
        (datetime(2026, 1, 2), "-", datetime(2026, 1, 1), timedelta(days=1)),
        (date(2026, 1, 1), "+", timedelta(days=1), date(2026, 1, 2)),
    ],
)
def test_arithmetic_is_exact_and_as_in_sql(
    left: Any, operator: str, right: Any, expected: Any
) -> None:
    from activedb.events.terms import Arithmetic

    found = Arithmetic(operator, attr("a"), attr("b")).evaluate({}, happened(a=left, b=right))
    if left == Decimal(10) ** 40:
        assert found == Decimal("1" + "0" * 39 + "1")
    else:
        assert found == expected
        assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("left", "operator", "right"),
    [
        (1, "/", 0),
        (1.0, "/", 0.0),
        (1.0, "%", 0.0),
        (1, "%", 0),
        (Decimal(1), "/", 0),
        ("a", "+", "b"),
        ("%s", "%", 3),
        ("a", "*", 3),
        (True, "+", 1),
        (Decimal(1), "+", 1.0),
        (BIG, "+", 1.0),
        (1.0, "*", 10**400),
        ([1], "+", [2]),
    ],
)
def test_arithmetic_without_exact_meaning_is_a_bad_event(
    left: Any, operator: str, right: Any
) -> None:
    from activedb.events.terms import Arithmetic

    with pytest.raises(BadEvent):
        Arithmetic(operator, attr("a"), attr("b")).evaluate({}, happened(a=left, b=right))


def test_negative_of_text_is_a_bad_event() -> None:
    assert (-attr("a")).evaluate({}, happened(a=3)) == -3
    assert (-attr("a")).evaluate({}, happened(a=None)) is None
    with pytest.raises(BadEvent, match="no negative"):
        (-attr("a")).evaluate({}, happened(a="x"))


def test_sum_and_mean_of_what_does_not_add_is_a_bad_event() -> None:
    for wrong in (["a"], [1, "a"], [Decimal(1), 1.0], [True], [date(2026, 1, 1)]):
        parts = {"B": tuple(happened(x=x) for x in wrong)}
        with pytest.raises(BadEvent, match=r"SUM\(B\.x\)"):
            B.x.sum().evaluate(parts)
    with pytest.raises(BadEvent, match=r"MAX\(B\.x\)"):
        B.x.max().evaluate({"B": (happened(x=1), happened(x="a"))})


DECIMALS = st.one_of(
    st.builds(
        lambda digits, exponent: Decimal(f"{digits}E{exponent}"),
        st.integers(-(10**38) + 1, 10**38 - 1),
        st.integers(-30, 30),
    ),
    st.sampled_from([Decimal("Infinity"), Decimal("-Infinity")]),
)
NAN, INFINITE = float("nan"), float("inf")


def aggregate(function: str, values: list[Any]) -> Any:
    return Aggregate(function, "B", "x").evaluate({"B": tuple(happened(x=x) for x in values)})


@pytest.mark.parametrize("function", ["sum", "avg", "min", "max"])
@given(
    amount=st.one_of(
        st.integers(-(2**53), 2**53), st.floats(allow_nan=False), DECIMALS, st.timedeltas()
    ),
    digits=st.integers(1, 50),
)
def test_aggregate_of_one_value_is_the_value(function: str, amount: Any, digits: int) -> None:
    with localcontext(prec=digits):
        found = aggregate(function, [amount])
    assert found == amount
    assert type(found) is (float if function == "avg" and type(amount) is int else type(amount))


@given(st.lists(DECIMALS.filter(Decimal.is_finite), min_size=1, max_size=5), st.integers(1, 50))
def test_mean_of_decimals_is_the_quotient_whatever_the_context(
    values: list[Decimal], digits: int
) -> None:
    with localcontext(prec=digits):
        found = aggregate("avg", values)
    assert found == (attr("sum") / len(values)).evaluate({}, happened(sum=aggregate("sum", values)))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([INFINITE], INFINITE),
        ([1.0, -INFINITE], -INFINITE),
        ([-INFINITE, 1], -INFINITE),
        ([INFINITE, -INFINITE], NAN),
        ([1.0, NAN], NAN),
        ([Decimal("Infinity"), Decimal(1)], Decimal("Infinity")),
    ],
)
def test_sum_and_mean_with_infinities_are_those_of_arithmetic(
    values: list[Any], expected: Any
) -> None:
    for order in (values, values[::-1]):
        for function in ("sum", "avg"):
            assert aggregate(function, order) == pytest.approx(expected, nan_ok=True)


@given(st.data())
def test_least_and_greatest_do_not_depend_on_order_and_nan_is_the_greatest(
    data: st.DataObject,
) -> None:
    numbers = st.one_of(st.integers(), st.floats(), DECIMALS, st.just(Decimal("NaN")))
    values = data.draw(st.lists(numbers, min_size=1, max_size=6))
    ordered = sorted(value for value in values if value == value)
    ordered += [value for value in values if value != value]
    for order in (values, data.draw(st.permutations(values))):
        for function, expected in (("min", ordered[0]), ("max", ordered[-1])):
            found = aggregate(function, order)
            assert found == expected or (found != found and expected != expected)


@pytest.mark.parametrize("function", ["min", "max"])
@pytest.mark.parametrize("values", [["a", NAN], [NAN, "a"], [1.0, NAN, date(2026, 1, 1)]])
def test_least_and_greatest_of_nan_and_what_is_no_number_is_a_bad_event(
    function: str, values: list[Any]
) -> None:
    with pytest.raises(BadEvent, match="cannot be computed"):
        aggregate(function, values)


def test_mean_of_integers_is_the_nearest_float() -> None:
    parts = {"B": tuple(happened(x=x) for x in (BIG, BIG, 0))}
    assert B.x.avg().evaluate(parts) == (2 * BIG) / 3


@pytest.mark.parametrize(
    ("text", "pattern", "expected"),
    [
        ("hall 7", "hall %", True),
        ("Hall 7", "hall %", False),
        ("a", "_", True),
        ("", "_", False),
        ("a\nb", "a%b", True),
        ("100%", r"100\%", True),
        ("1000", r"100\%", False),
        ("a.c", "a.c", True),
        ("abc", "a.c", False),
        (None, "x", None),
        ("x", None, None),
    ],
)
def test_like_matches_the_whole_text(text: Any, pattern: Any, expected: Any) -> None:
    assert attr("a").like(pattern).evaluate({}, happened(a=text)) is expected


def naive_like(text: str, pattern: str) -> bool:
    """Match by trying every text that each ``%`` may stand for."""
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(naive_like(text[n:], pattern[1:]) for n in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and naive_like(text[1:], pattern[1:])


@given(st.text("ab\n", max_size=8), st.text("ab%_", max_size=8))
def test_like_matches_as_a_naive_matcher_does(text: str, pattern: str) -> None:
    found = attr("a").like(pattern).evaluate({}, happened(a=text))
    assert found is naive_like(text, pattern)


def test_like_with_many_gaps_takes_no_exponential_time() -> None:
    pattern = "%a" * 20 + "%b"
    assert attr("a").like(pattern).evaluate({}, happened(a="a" * 200)) is False
    assert attr("a").like(pattern).evaluate({}, happened(a="a" * 200 + "b")) is True


@pytest.mark.parametrize("number", [3, 3.5, Decimal("1234567890123456789012345678.91"), BIG, -7])
def test_negative_is_the_difference_from_zero(number: Any) -> None:
    assert (-attr("x") == 0 - attr("x"))(happened(x=number))
    negative = -attr("x")
    assert (-negative == attr("x"))(happened(x=number))


@pytest.mark.parametrize("value", [True, "a", date(2026, 1, 1)])
def test_negative_of_what_is_no_number_or_duration_is_a_bad_event(value: Any) -> None:
    with pytest.raises(BadEvent, match="has no negative"):
        (-attr("x")).evaluate({}, happened(x=value))
    assert (-attr("x")).evaluate({}, happened(x=timedelta(1))) == timedelta(-1)


def test_attribute_of_a_part_that_is_missing_is_null_in_each_comparison() -> None:
    for missing in (None, ()):
        for condition in (A.x == B.x, A.x == B.x + 0, B.x > A.x):
            assert condition.evaluate({"A": missing, "B": happened(x=1)}) is None


@pytest.mark.parametrize(("text", "pattern"), [(3, "3"), ("a", "a\\")])
def test_like_of_what_is_no_text_or_pattern_is_a_bad_event(text: Any, pattern: str) -> None:
    with pytest.raises(BadEvent):
        attr("a").like(pattern).evaluate({}, happened(a=text))


@pytest.mark.parametrize("condition", [attr("x") & True, attr("x") | False, ~attr("x")])
def test_condition_that_is_no_truth_value_is_a_bad_event(condition: Term) -> None:
    with pytest.raises(BadEvent, match="write a comparison"):
        condition(happened(x=1))
    with pytest.raises(BadEvent, match="write a comparison"):
        attr("x")(happened(x=1))


def test_in_needs_choices_and_compares_each() -> None:
    with pytest.raises(PatternError, match="at least one"):
        attr("x").in_([])
    with pytest.raises(PatternError, match="an iterable of values"):
        attr("x").in_("abc")
    with pytest.raises(BadEvent, match="do not compare"):
        attr("x").in_(["a"])(happened(x=1))


# -- in patterns -------------------------------------------------------------------------------


def test_pattern_with_terms_compares_and_prints_by_them() -> None:
    def pattern() -> Any:
        return seq(event("A", where=attr("x") > 1), event("B")).where(A.x < B.x).within(5)

    assert pattern() == pattern()
    assert hash(pattern()) == hash(pattern())
    assert repr(pattern()) == "SEQ(A WHERE x > 1, B) WHERE A.x < B.x WITHIN 5s"
    with pytest.raises(PatternError, match="about one event"):
        seq(event("A"), event("B")).where(attr("x") == 1)
    with pytest.raises(PatternError, match="about parts"):
        event("A", where=A.x == 1)
    with pytest.raises(PatternError, match="'C'"):
        seq(event("A"), event("B")).where(part("C").x == Attribute("A", "x"))
