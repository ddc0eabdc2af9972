"""Random terms, expressions, queries and rules that have a text."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from activedb.errors import PatternError
from activedb.events import (
    Expression,
    Kleene,
    Primitive,
    all_of,
    any_of,
    at,
    began,
    called,
    cron,
    event,
    every,
    late,
    many,
    periodic,
    query,
    returned,
    seq,
    some_of,
)
from activedb.events.terms import (
    Aggregate,
    And,
    Arithmetic,
    Attribute,
    Between,
    Comparison,
    In,
    IsNull,
    Like,
    Literal,
    Negative,
    Not,
    Or,
    Term,
)

__all__ = ["NAMES", "expressions", "queries", "terms"]

NAMES = st.one_of(
    st.sampled_from(
        ["A", "b", "EXIT", "HCW-ID", "select", "NEW", "old", "count", "SKIP", "with space"]
    ),
    # SQL ends at such words, which are names after a dot and in quotes.
    st.sampled_from(["end", "END", "case", "week-end", "x-case-y", "case-when", "when", "begin"]),
    st.text(min_size=1, max_size=5),
    st.from_regex(r"\A[a-zA-Z_][\w-]{0,5}\Z"),
)
TIMES = st.integers(1, 10**13).map(lambda us: timedelta(microseconds=us))
LITERALS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.decimals().filter(lambda number: not number.is_snan()),
    st.text(max_size=6),
    st.binary(max_size=4),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.dates(),
    st.times(),
    st.timedeltas(),
).map(Literal)
FUNCTIONS = st.sampled_from(["first", "last", "prev", "count", "sum", "avg", "min", "max"])


def terms(parts: Any, *, of_one: bool = False, depth: int = 3) -> st.SearchStrategy[Term]:
    """Terms over parts with these names; `of_one`: over attributes of the event itself."""
    if of_one:
        references: Any = st.builds(Attribute, st.none(), NAMES, st.booleans())
    else:
        named = st.sampled_from(tuple(parts)) if not isinstance(parts, st.SearchStrategy) else parts
        references = st.one_of(
            st.builds(Attribute, named, NAMES, st.booleans()),
            st.builds(Aggregate, FUNCTIONS, named, NAMES, st.booleans()),
            st.builds(Aggregate, st.just("count"), named, st.none()),
        )
    plain = st.one_of(references, LITERALS)
    return st.recursive(plain, _compound, max_leaves=2**depth)


def _compound(inner: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(
        st.builds(Comparison, st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), inner, inner),
        st.builds(Arithmetic, st.sampled_from("+-*/%"), inner, inner),
        st.builds(Negative, inner),
        st.builds(And, several),
        st.builds(Or, several),
        st.builds(Not, inner),
        st.builds(IsNull, inner),
        st.builds(In, inner, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(Between, inner, inner, inner),
        st.builds(Like, inner, inner),
    )


@st.composite
def primitives(draw: st.DrawFn) -> Primitive:
    """A primitive event, of a stream or a clock or another kind."""
    kind = draw(st.sampled_from(["event"] * 6 + ["late", "clock", "call", "rows", "transaction"]))
    if kind == "clock":
        made = draw(
            st.one_of(
                st.datetimes(timezones=st.just(UTC)).map(at),
                st.builds(every, TIMES, TIMES),
                st.sampled_from(["UTC", "Europe/Berlin"]).map(lambda z: cron("*/5 * * * *", z)),
            )
        )
    elif kind == "transaction":
        made = began()
    elif kind == "rows":
        change = draw(st.sampled_from(["insert", "update", "delete"]))
        columns = draw(st.lists(NAMES, max_size=2, unique=True)) if change == "update" else []
        made = Primitive((change, draw(NAMES)), tuple(columns))
    else:
        makers: dict[str, Callable[[str], Primitive]] = {"event": event, "late": late}
        made = draw(NAMES.map(makers.get(kind, called)))
        made = returned(made.key[1]) if kind == "call" and draw(st.booleans()) else made
    if kind not in ("clock", "transaction") and draw(st.booleans()):
        made = Primitive(made.key, made.columns, draw(terms((), of_one=True, depth=2)), made.alias)
    return made.named(draw(NAMES)) if draw(st.booleans()) else made


@st.composite
def kleenes(draw: st.DrawFn) -> Kleene:
    """Several of a primitive event, or of one of two."""
    operand: Any = draw(primitives())
    if draw(st.booleans()):
        operand = any_of(operand, draw(primitives()))
    least = draw(st.integers(0, 3))
    most = draw(st.one_of(st.none(), st.integers(max(least, 1), 5)))
    made = many(operand, least, most, greedy=draw(st.booleans()))
    return made.named(draw(NAMES)) if len(operand.names) > 1 or draw(st.booleans()) else made


@st.composite
def combinations(draw: st.DrawFn, inner: st.SearchStrategy[Expression]) -> Expression:
    """A sequence or conjunction with any clauses."""
    made: Any
    if draw(st.booleans()):
        negated = primitives().map(lambda p: ~p)
        parts = draw(st.lists(st.one_of(inner, kleenes(), negated), min_size=1, max_size=4))
        made = seq(*parts)
        if draw(st.booleans()):
            made = made.selecting(draw(st.sampled_from(["any", "next", "strict"])))
        if draw(st.booleans()):
            made = made.gap(draw(TIMES))
        skip = draw(st.sampled_from(["none", "to_next", "past_last", "to_first", "to_last"]))
        at_part = (draw(st.sampled_from(made.names)),) if skip in ("to_first", "to_last") else ()
        made = made.skipping(skip, *at_part)
    else:
        parts = draw(st.lists(inner, min_size=1, max_size=3))
        made = all_of(*parts) if draw(st.booleans()) else some_of(1, *parts)
    for name in draw(st.lists(NAMES, max_size=2)):
        made = made.same(name)
    for _ in range(draw(st.integers(0, 2))):
        made = made.where(draw(terms(made.names, depth=2)))
    if draw(st.booleans()):
        made = made.within(draw(TIMES))
    if draw(st.booleans()):
        made = made.context(draw(st.sampled_from(["recent", "chronicle", "cumulative"])))
    assert isinstance(made, Expression)
    return made


def _composites(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return st.one_of(
        combinations(inner),
        combinations(inner),
        st.builds(lambda a, b: any_of(a, b), inner, inner),
        st.builds(lambda e, time: e.after(time), inner, TIMES),
        st.builds(
            lambda a, time, b, collected, alias: periodic(
                a, time, b, collected=collected, alias=alias
            ),
            inner,
            TIMES,
            inner,
            st.booleans(),
            st.sampled_from(["tick", "beat", "a tick"]),
        ),
    )


@st.composite
def expressions(draw: st.DrawFn) -> Expression:
    """An expression that has a text; not all of them can stand on their own."""
    strategy = st.recursive(primitives(), _composites, max_leaves=5)
    try:
        return draw(strategy)
    except PatternError:  # two parts of one name, say
        return draw(primitives())


@st.composite
def queries(draw: st.DrawFn) -> Any:
    """A query."""
    pattern = draw(expressions())
    returns = {}
    if draw(st.booleans()):
        names = pattern.names
        for name in draw(st.lists(NAMES, max_size=3, unique=True)):
            returns[name] = draw(terms(names, depth=1)) if names else Literal(Decimal(1))
    stream = draw(st.one_of(st.none(), NAMES))
    try:
        return query(draw(NAMES), pattern, returns, stream=stream)
    except PatternError:
        return query(draw(NAMES), event("A"), stream=stream)
