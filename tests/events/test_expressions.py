from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from activedb.errors import BadEvent, PatternError
from activedb.events import (
    Context,
    Detector,
    Disjunction,
    Expression,
    Kleene,
    Occurrence,
    Primitive,
    Selection,
    Skip,
    SkipTo,
    aborted,
    all_of,
    any_of,
    aperiodic,
    at,
    began,
    called,
    committing,
    cron,
    deleted,
    event,
    every,
    inserted,
    late,
    many,
    occurrence,
    optional,
    part,
    periodic,
    query,
    returned,
    seq,
    some_of,
    updated,
)

if TYPE_CHECKING:
    from collections.abc import Callable

A, B, C, N = event("A"), event("B"), event("C"), event("N")
accounts = Table(
    "accounts",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("balance", Integer),
    Column("owner", String),
)
audits = Table("audits", MetaData(), Column("id", Integer), schema="ledger")


class Base(DeclarativeBase):
    pass


class Worker(Base):
    __tablename__ = "workers"
    id: Mapped[int] = mapped_column(primary_key=True)
    # Shadows any attribute `name` that a table would have.
    name: Mapped[str]


class Named:
    name = "plain"


class Listed:
    name = "listed"
    c = ("id", "balance")


def big(o: Any) -> bool:
    return bool(o.params["x"] > 1)


def reads(t: Any, *_: Any) -> bool:
    return bool(t)


def takes(expression: Expression, o: Occurrence) -> bool:
    return Detector(expression).feed(o) == [o]


EXPRESSIONS: list[tuple[Expression, str]] = [
    (
        seq(event("EXIT"), ~event("SANITIZE"), event("ENTER")).same("worker").within(45),
        "SEQ(EXIT, !SANITIZE, ENTER) SAME worker WITHIN 45s",
    ),
    (event("TWEET", where=big, alias="t"), "TWEET AS t WHERE big"),
    (event("A", reading=reads), "A WHERE reads"),
    (event("A", big, reading=reads), "A WHERE big AND reads"),
    (A.named("z"), "A AS z"),
    (inserted(accounts), "INSERT accounts"),
    (updated(accounts), "UPDATE accounts"),
    (updated(accounts, "balance", "owner"), "UPDATE accounts(balance, owner)"),
    (deleted(audits), "DELETE ledger.audits"),
    (late("tweets"), "LATE tweets"),
    (called("Account.withdraw"), "CALL Account.withdraw"),
    (returned(big), "RETURN big"),
    (began(), "TRANSACTION begin"),
    (committing(big), "TRANSACTION commit WHERE big"),
    (aborted(), "TRANSACTION abort"),
    (at(datetime(2026, 1, 1, tzinfo=UTC)), "AT '2026-01-01T00:00:00+00:00'"),
    (every(90), "EVERY 90s"),
    (every(timedelta(hours=1), offset=60, alias="tick"), "EVERY 3600s OFFSET 60s AS tick"),
    (cron("*/5  * * * *"), "CRON '*/5 * * * *'"),
    (cron("0 3 * * *", "Europe/Vienna"), "CRON '0 3 * * *' ZONE 'Europe/Vienna'"),
    (A | B, "ANY(A, B)"),
    (any_of(A, seq(A, B)), "ANY(A, SEQ(A, B))"),
    (A & B, "ALL(A, B)"),
    (A & B & C, "ALL(A, B, C)"),
    (all_of(A, B).within(1) & C, "ALL(ALL(A, B) WITHIN 1s, C)"),
    (all_of(A, B).same("x").context("recent"), "ALL(A, B) SAME x CONTEXT recent"),
    (some_of(2, A, B, C), "SOME(2, A, B, C)"),
    (some_of(3, A, B, C), "ALL(A, B, C)"),
    (seq(A).same("x", "y").same("x", "z"), "SEQ(A) SAME (x, y, z)"),
    (seq(A, B).where(big).where(big), "SEQ(A, B) WHERE big AND big"),
    (seq(A, B).where(big).reading(reads), "SEQ(A, B) WHERE big AND reads"),
    (seq(A, B).within(0.25), "SEQ(A, B) WITHIN 0.25s"),
    (seq(A, B).within(timedelta(minutes=1, microseconds=1)), "SEQ(A, B) WITHIN 60.000001s"),
    (seq(A, B).gap(2), "SEQ(A, B) GAP 2s"),
    (seq(A, B).selecting("next"), "SEQ(A, B) SELECT next"),
    (seq(A, B).skipping("past_last"), "SEQ(A, B) SKIP past_last"),
    (
        seq(A, B).within(9).gap(2).selecting("strict").skipping("to_first", "B").context("recent"),
        "SEQ(A, B) WITHIN 9s GAP 2s SELECT strict SKIP to_first B CONTEXT recent",
    ),
    (seq(A, many(B), C), "SEQ(A, (B)+, C)"),
    (seq(A, B.many(0), C), "SEQ(A, (B)*, C)"),
    (seq(A, optional(B), C), "SEQ(A, (B)?, C)"),
    (seq(A, many(B, 2, 3), C), "SEQ(A, (B){2,3}, C)"),
    (seq(A, many(B, 2), C), "SEQ(A, (B){2,}, C)"),
    (seq(A, many(B, greedy=False), C), "SEQ(A, (B)+?, C)"),
    (seq(A, optional(B, greedy=False), C), "SEQ(A, (B)??, C)"),
    (seq(A, (B | C).many().named("bs"), A.named("z")), "SEQ(A, (ANY(B, C))+ AS bs, A AS z)"),
    (~event("B", where=lambda o: True), "!B WHERE <lambda>"),
    (seq(A, ~(B | C), N), "SEQ(A, !ANY(B, C), N)"),
    (A.after(3), "AFTER(3s, A)"),
    (seq(A, B).after(timedelta(milliseconds=500)), "AFTER(0.5s, SEQ(A, B))"),
    (periodic(A, 2, B), "PERIODIC(A, 2s, B)"),
    (
        periodic(A, 2, B, collected=True, alias="t").context("recent"),
        "PERIODIC*(A, 2s, B) AS t CONTEXT recent",
    ),
    (aperiodic(A, B, C), "SEQ(A, !C, B)"),
    (aperiodic(A, B, C, collected=True), "SEQ(A, (B)*, C) SELECT next SKIP to_next"),
    (seq(A, B).within(5).timed_out(), "TIMEOUT(SEQ(A, B) WITHIN 5s)"),
    (query("Q1", seq(A, B)), "OUTPUT Q1"),
]


@pytest.mark.parametrize(("expression", "text"), EXPRESSIONS)
def test_expression_repr_is_readable(expression: Expression, text: str) -> None:
    assert repr(expression) == text


def test_expression_repr_of_a_callable_without_a_name_is_its_type() -> None:
    assert repr(event("TWEET", where=partial(big))) == "TWEET WHERE partial"


def test_expressions_that_are_written_differently_are_different() -> None:
    assert len({expression for expression, _ in EXPRESSIONS}) == len(EXPRESSIONS) - 1
    assert some_of(3, A, B, C) == all_of(A, B, C)  # the two that are equal


@pytest.mark.parametrize(("expression", "text"), EXPRESSIONS)
def test_expressions_are_values(expression: Expression, text: str) -> None:
    twin = copy.deepcopy(expression)
    assert twin == expression
    assert hash(twin) == hash(expression)
    assert {expression: 1}[twin] == 1
    if "lambda" not in text:
        assert pickle.loads(pickle.dumps(expression)) == expression


@pytest.mark.parametrize(
    ("expression", "keys"),
    [
        (A, {("event", "A")}),
        (event("A", alias="first"), {("event", "A")}),
        (~A, {("event", "A")}),
        (inserted(accounts), {("insert", "accounts")}),
        (updated(accounts, "balance"), {("update", "accounts")}),
        (deleted(audits), {("delete", "ledger.audits")}),
        (inserted(Worker), {("insert", "workers")}),
        (deleted(Named()), {("delete", "plain")}),
        (late(Named()), {("late", "plain")}),
        (called(big), {("call", "big")}),
        (returned("big"), {("return", "big")}),
        (began(), {("transaction", "begin")}),
        (every(5), set()),
        (A | B, {("event", "A"), ("event", "B")}),
        (seq(A, many(B), every(5)), {("event", "A"), ("event", "B")}),
        (periodic(A, 1, B), {("event", "A"), ("event", "B")}),
        (A.after(1), {("event", "A")}),
        (query("Q", A), {("event", "A")}),
        (seq(A, ~B).within(1).timed_out(), {("event", "A"), ("event", "B")}),
        (
            seq(A, ~B, inserted(accounts)),
            {("event", "A"), ("event", "B"), ("insert", "accounts")},
        ),
    ],
)
def test_expression_keys_are_those_of_all_its_primitive_events(
    expression: Expression, keys: Any
) -> None:
    assert expression.keys == keys
    assert isinstance(expression.keys, frozenset)


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        (A, ("A",)),
        (A.named("a"), ("a",)),
        (~A, ()),
        (A | B | A.named("a"), ("A", "B", "a")),
        (seq(A, ~N, many(B), seq(C, A.named("z"))), ("A", "B", "C", "z")),
        (all_of(B, A), ("B", "A")),
        (seq(query("Q", seq(A, B)), A), ("Q", "A")),
        (A.after(1), ("A",)),
        (periodic(A, 1, B), ("A", "tick")),
        (periodic(A, 1, B, collected=True, alias="t"), ("A", "t", "B")),
        (seq(A, B).within(1).timed_out(), ("A", "B")),
        (every(5), ("EVERY 5s",)),
    ],
)
def test_expression_names_are_those_of_its_positive_parts(
    expression: Expression, names: tuple[str, ...]
) -> None:
    assert expression.names == names


@pytest.mark.parametrize(
    ("expression", "reach_us"),
    [
        (A, 0),
        (A | B, 0),
        (~A, 0),
        (many(A), None),
        (seq(A, B), None),
        (seq(A, B).within(2), 2_000_000),
        (seq(A, B).within(2) | all_of(A, B).within(3), 3_000_000),
        (seq(A, B).within(2) | all_of(A, B), None),
        (A.after(1), 1_000_000),
        (seq(A, B).within(2).after(1), 3_000_000),
        (seq(A, B).after(1), None),
        (periodic(A, 1, B), None),
        (seq(A, B).within(2).timed_out(), 2_000_000),
        (query("Q", seq(A, B).within(2)), 2_000_000),
    ],
)
def test_expression_reach_is_how_long_an_occurrence_lasts(
    expression: Expression, reach_us: int | None
) -> None:
    assert expression.reach_us == reach_us


@pytest.mark.parametrize("expression", [e for e, _ in EXPRESSIONS if not isinstance(e, Kleene)])
def test_expression_children_are_what_it_is_made_of(expression: Expression) -> None:
    below = frozenset().union(*(child.keys for child in expression.children))
    assert below == expression.keys or not expression.children


def test_expression_methods_leave_the_original_as_it_was() -> None:
    original = seq(A, B)
    original.same("x").within(5).where(big).gap(1).selecting("next").skipping("to_next")
    original.context("recent").reading(reads)
    assert repr(original) == "SEQ(A, B)"
    assert original == seq(A, B)
    with pytest.raises(FrozenInstanceError):
        original.window_us = 5  # type: ignore[misc]  # the mistake under test


def test_any_of_and_the_operator_make_the_same_each_part_once() -> None:
    assert any_of(A, B) == A | B
    assert any_of(A, A | B, B) == A | B
    assert any_of(A) == Disjunction((A,))
    assert A | seq(B) == any_of(A, seq(B))


def test_all_of_and_the_operator_make_the_same_and_take_plain_ones_apart() -> None:
    assert all_of(A, B) == A & B
    assert A & (B & C) == (A & B) & C == all_of(A, B, C)
    # What has a condition of its own stays together.
    assert len((all_of(A, B).same("x") & C).parts) == 2
    assert len((some_of(1, A, B) & C).parts) == 2


def test_optional_is_none_or_one() -> None:
    assert optional(A) == many(A, 0, 1) == A.many(0, 1)
    assert optional(A, greedy=False) == many(A, 0, 1, greedy=False)


def test_context_holds_in_the_parts_too() -> None:
    inner = seq(A, B)
    everything = seq(
        inner,
        all_of(C, N) | event("D"),
        ~event("E"),
        many(event("F")),
        event("G").after(1),
        periodic(event("H"), 1, event("I")),
        seq(event("J"), event("K")).within(1).timed_out(),
        query("Q", event("L")),
        query("R", seq(event("L"), event("M"))),
    ).context("recent")
    told = []

    def tell(expression: Expression) -> None:
        if hasattr(expression, "consumption"):
            told.append((type(expression).__name__, expression.consumption))
        for child in expression.children:
            tell(child)

    tell(everything)
    kinds = ["Sequence", "Sequence", "Conjunction", "Periodic", "Sequence", "Sequence"]
    assert told == [(kind, Context.RECENT) for kind in kinds]
    assert inner.consumption is Context.UNRESTRICTED
    assert repr((A | seq(B, C)).context("recent")) == "ANY(A, SEQ(B, C) CONTEXT recent)"
    assert repr(A.after(1).context("recent")) == "AFTER(1s, A)"


def test_choices_are_values_by_name() -> None:
    assert seq(A).context("cumulative").consumption is Context.CUMULATIVE
    assert seq(A).selecting("strict").selection is Selection.STRICT
    assert seq(A).skipping("to_last", "A").skip == Skip(SkipTo.LAST, "A")
    assert seq(A).skipping("none").skip == Skip()


untyped: Any = None
seven: Any = 7
sequence: Any = seq(A, B)
wrong: list[tuple[Callable[[], object], str]] = [
    # seq
    (lambda: seq(), "a sequence needs parts"),
    (lambda: seq(~A), "a sequence of negations never occurs: add an event that does occur"),
    (lambda: seq(~A, ~B), "a sequence of negations never occurs"),
    (lambda: seq(A, B, A), 'two parts of the sequence are called .A.*alias="first"'),
    (lambda: seq(A, event("B", alias="A")), "two parts of the sequence are called 'A'"),
    (lambda: seq(seq(A, B), many(A)), "two parts of the sequence are called 'A'"),
    (lambda: seq(A, untyped), r"a part of a sequence is an expression, event\(\"A\"\), not None"),
    (lambda: seq(A, not B, C), "no truth value: write & for and, . for or, ~ for not"),  # type: ignore[arg-type]
    (lambda: seq(A, False, C), "negate with ~, not with `not`"),  # type: ignore[arg-type]
    (lambda: seq([A, B]), "a part of a sequence is an expression"),  # type: ignore[arg-type]
    (lambda: A and B, "A has no truth value"),
    # negation
    (lambda: ~~A, "!A is negated twice: leave out both ~"),
    (lambda: ~seq(A, B), r"~ negates a primitive event, not SEQ\(A, B\): write seq"),
    (lambda: ~all_of(A, B), "~ negates a primitive event, not ALL"),
    (lambda: ~(A | seq(B, C)), "~ negates primitive events, not ANY.*negate each of them"),
    (lambda: ~many(A), r"~ negates a primitive event, not \(A\)\+: leave out many"),
    # disjunction, conjunction, any of n
    (lambda: any_of(), "any_of.. needs events"),
    (lambda: any_of("A"), r"any_of\(\) and . take events, such as event..A.., not 'A'"),  # type: ignore[arg-type]
    (lambda: A | "B", "take events"),
    (lambda: A | ~B, r"not !B \(write many\(\) and ~ inside seq\(\) only\)"),
    (lambda: ~A | B, "inside seq.. only"),
    (lambda: A | many(B), "inside seq.. only"),
    (lambda: all_of(), "all_of.. needs events"),
    (lambda: all_of("A", B), "all_of.. and & take events"),  # type: ignore[arg-type]
    (lambda: A & ~B, "inside seq.. only"),
    (lambda: A & A, r"two parts of ALL\(A, A\) are called 'A': tell them apart"),
    (lambda: some_of(3, A, B), "some_of.. takes how many of its 2 events must occur, not 3"),
    (lambda: some_of(0, A, B), "must occur, not 0"),
    (lambda: some_of(True, A, B), "must occur, not True"),
    (lambda: some_of(1.5, A, B), "must occur, not 1.5"),  # type: ignore[arg-type]
    (lambda: some_of(1, A, ~B), "an event is an expression such as event..A.., not !B"),
    (lambda: some_of(1, A, A), "are called 'A'"),
    (lambda: all_of(seq(A, ~N), B), "!N may stand at the end"),
    # Kleene
    (lambda: many(seq(A, B)), "many.. takes a primitive event or any_of.. some, not SEQ"),
    (lambda: many(A | seq(A, B)), "many.. takes a primitive event"),
    (lambda: many(~A), "many.. takes a primitive event"),
    (lambda: many(untyped), "many.. takes a primitive event"),
    (lambda: many(A, -1), "how many at least and at most, not -1 and None"),
    (lambda: many(A, 3, 2), "at least and at most, not 3 and 2"),
    (lambda: many(A, 0, 0), "at least and at most, not 0 and 0"),
    (lambda: many(A, True), "at least and at most, not True"),
    (lambda: many(A, 1, 2.5), "at least and at most, not 1 and 2.5"),  # type: ignore[arg-type]
    (lambda: many(A).named(""), "alias takes a non-empty string"),
    # conditions
    (lambda: seq(A, B).same(), "at least one parameter name"),
    (lambda: seq(A, B).same(""), "takes parameter names, not ''"),
    (lambda: seq(A, B).same(["x"]), "takes parameter names"),  # type: ignore[arg-type]
    (lambda: seq(A, B).within(0), "at least a microsecond, not 0"),
    (lambda: seq(A, B).within(-1.5), "at least a microsecond"),
    (lambda: seq(A, B).within(1e-7), "at least a microsecond"),
    (lambda: seq(A, B).within(timedelta(0)), "at least a microsecond"),
    (lambda: seq(A, B).within(float("nan")), "a finite time"),
    (lambda: seq(A, B).within(float("inf")), "a finite time"),
    (lambda: seq(A, B).within(True), r"within\(\) takes seconds or a timedelta, not True"),
    (lambda: seq(A, B).within(Decimal(5)), "takes seconds"),  # type: ignore[arg-type]
    (lambda: seq(A, B).within(5).within(6), "has its window already: call within.. once"),
    (lambda: seq(A, B).gap(5).gap(6), "has its gap already: call gap.. once"),
    (lambda: seq(A, B).gap(0), r"gap\(\) takes a finite time"),
    (lambda: seq(A, B).where(untyped), "takes a function of the parts, not None"),
    (
        lambda: seq(A, B).where(part("C").x > 1),
        "names the part 'C', which SEQ.*: write one of A, B",
    ),
    (lambda: seq(A, ~N, B).where(part("N").x > 1), "names the part 'N'"),
    (lambda: seq(A, B).reading(untyped), r"takes a function of \(t, parts\), not None"),
    (lambda: seq(A, B).context("latest"), "'latest' is not a context: write one of 'unrestricted'"),
    (lambda: seq(A, B).selecting("all"), "is not a selection strategy: write one of 'any', 'next'"),
    (lambda: seq(A, B).skipping("past"), "is not a skip strategy: write one of 'none'"),
    (lambda: seq(A, B).skipping("to_first"), "skip 'to_first' needs the name of a part"),
    (lambda: seq(A, B).skipping("to_next", "A"), "skip 'to_next' takes no part, not 'A'"),
    (lambda: periodic(A, 1, B).context("latest"), "'latest' is not a context"),
    # what only combinations have
    (lambda: A.same("x"), r"write seq\(A, …\).same\(\)"),
    (lambda: A.within(5), r"write seq\(A, …\).within\(\)"),
    (lambda: A.where(big), "event.*where=lambda"),
    (lambda: A.context("recent"), r"chooses among combinations of parts: write seq\(A, …\)"),
    (lambda: (~A).same("x"), "same"),
    (lambda: (A | B).within(3), "bounds the parts of a sequence"),
    (lambda: (A | B).same("x"), "relates the parts of a sequence"),
    # time
    (lambda: A.after(0), r"after\(\) takes a finite time"),
    (lambda: A.after("1"), r"after\(\) takes seconds"),  # type: ignore[arg-type]
    (lambda: periodic(A, 0, B), r"periodic\(\) takes a finite time"),
    (lambda: periodic(~A, 1, B), "an event is an expression"),
    (lambda: periodic(A, 1, untyped), "an event is an expression"),
    (lambda: periodic(A, 1, B, alias=""), "alias takes a non-empty string"),
    (lambda: periodic(A, 1, A, collected=True), "two parts of PERIODIC.* have one name"),
    (lambda: periodic(A, 1, B, alias="A"), "have one name: give one an alias"),
    (lambda: periodic(seq(~A, B), 1, C), "PERIODIC.*may stand at the start.*within"),
    (lambda: at(untyped), r"at\(\) takes a moment: .*of type NoneType"),
    (lambda: at(datetime(2026, 1, 1)), r"at\(\) takes a moment: .*is naive"),
    (lambda: at(1e13), r"at\(\) takes a moment"),
    (lambda: every(0), r"every\(\) takes a finite time"),
    (lambda: every(-1), r"every\(\) takes a finite time"),
    *[
        (partial(every, 60, offset=offset), r"every\(offset=…\) takes seconds")
        for offset in cast("tuple[Any, ...]", ("", [], {}, (), False, None))
    ],
    (lambda: every(5, offset=-1), r"every\(offset=…\) takes a finite time"),
    (lambda: cron("whenever"), "'whenever' is not a cron expression .*write minute, hour"),
    (lambda: cron("61 * * * *"), "is not a cron expression"),
    (lambda: cron(untyped), "is not a cron expression"),
    (lambda: cron("* * * * *", "Mars/Olympus"), "there is no time zone 'Mars/Olympus'"),
    (lambda: cron("* * * * *", ""), "there is no time zone ''"),
    (lambda: cron("* * * * *", untyped), "there is no time zone None"),
    # queries
    (lambda: query("", A), "alias takes a non-empty string"),
    (lambda: query("Q", ~A), "an event is an expression"),
    (lambda: query("Q", untyped), "an event is an expression"),
    (lambda: query("Q", seq(~A, B)), "may stand at the start"),
    (
        lambda: query("Q", seq(A, B), {"x": part("C").x}),
        "query Q: it returns 'x' of the part 'C', which its pattern does not have; write one of A",
    ),
    # primitive events
    (lambda: event(""), "takes the name of an event"),
    (lambda: event(untyped), "takes the name of an event"),
    (lambda: event("A", where=seven), "where takes a function of the occurrence, not 7"),
    (lambda: event("A", reading=seven), r"reading takes a function of \(t, o\), not 7"),
    (lambda: event("A", alias=""), "alias takes a non-empty string"),
    (lambda: A.named(""), "alias takes a non-empty string"),
    (lambda: late(""), r"late\(\) takes a stream or its name, not ''"),
    (lambda: late(7), r"late\(\) takes a stream"),
    (lambda: called(7), r"called\(\) takes a function or its qualified name, not 7"),  # type: ignore[arg-type]
    (lambda: returned(""), r"returned\(\) takes a function"),
    (lambda: inserted("accounts"), "takes a Table or a mapped class, not 'accounts'"),
    (lambda: deleted(None), r"deleted\(\) takes a Table"),
    (lambda: updated(accounts, "blance"), "no column 'blance': name one of id, balance, owner"),
    (lambda: updated(Worker, "nam"), "table workers has no column 'nam'"),
    (lambda: updated(Listed, "owner"), "table listed has no column 'owner'"),
    (lambda: updated(accounts, accounts.c.balance), "takes column names"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("write", "reason"), wrong)
def test_expression_without_meaning_is_refused_with_advice(
    write: Callable[[], object], reason: str
) -> None:
    with pytest.raises(PatternError, match=reason):
        write()


INCOMPLETE: list[tuple[Any, str]] = [
    (~A, r"!A alone never occurs: negate a part of a sequence, as in seq\(a, !A, c\)"),
    (many(A), r"\(A\)\+ alone has no end: make it a part of a sequence"),
    (seq(~A, B), r"!A may stand at the start of SEQ.*never decided without a window.*within"),
    (seq(A, ~B), r"!B may stand at the end of SEQ.*never decided without a window.*within"),
    (seq(optional(A), ~N, B), "!N may stand at the start"),
    (seq(A, ~N, many(B, 0, 3)), "!N may stand at the end"),
    (seq(A, seq(B, ~N)), "!N may stand at the end"),
    (seq(A, ~N) | B, "!N may stand at the end"),
    (seq(A, ~N).after(1), "AFTER.*!N may stand at the end"),
    (seq(A, many(B), C), r"\(B\)\+ has neither a bound nor a window.*give it a maximum"),
    (seq(A, many(B)).selecting("next"), "neither a bound nor a window"),
    (seq(A, many(B), optional(C)).selecting("next"), "neither a bound nor a window"),
    (seq(optional(A), many(B, 0, 2)), "could occur without any event: demand at least one"),
    (seq(optional(A), ~B).within(5), "could occur without any event"),
    (seq(A, many(B | C, 1, 2)), r"\(ANY\(B, C\)\)\{1,2\} is several kinds of events.*\.named"),
    (seq(A, B).skipping("to_last", "C"), "skips to the part 'C', which it does not have: .* A, B"),
    (seq(A, every(5)).same("x"), "EVERY 5s is a moment and has no parameters, so 'x' cannot"),
    (all_of(A, every(5)).same("x"), "EVERY 5s is a moment"),
    (seq(A, ~every(5), B).same("x"), "EVERY 5s is a moment"),
    (seq(A, many(every(5), 1, 2), B).same("x"), "EVERY 5s is a moment"),
    (seq(A, B | every(5)).same("x"), "EVERY 5s is a moment"),
    (seq(A, every(5).after(1)).same("x"), "EVERY 5s is a moment"),
    (seq(A, B).timed_out(), r"TIMEOUT\(SEQ\(A, B\)\) never occurs: give the sequence \.within"),
    (seq(A, ~B).within(5).timed_out(), "ends with a negation: .*it never times out"),
    (seq(~A, B).timed_out(), "may stand at the start"),
    (untyped, "takes an event expression, such as"),
    ("EXIT", "takes an event expression, such as"),
]


@pytest.mark.parametrize(("expression", "reason"), INCOMPLETE)
def test_detector_for_an_incomplete_expression_is_refused(expression: Any, reason: str) -> None:
    with pytest.raises(PatternError, match=reason):
        Detector(expression)


@pytest.mark.parametrize(
    "expression",
    [
        A,
        A | B,
        seq(~A, B).within(5),
        seq(A, ~B).within(5),
        seq(optional(A), ~N, B).within(5),
        seq(A, many(B), C).selecting("next"),
        seq(A, many(B), C).selecting("strict"),
        seq(A, many(B), C).within(5),
        seq(A, many(B, 1, 5), C),
        seq(A, many(B | C, 1, 2).named("bs")),
        seq(A, B).skipping("to_last", "B"),
        seq(seq(A, B), C).skipping("to_last", "B"),
        seq(A, B).within(5).timed_out(),
        seq(A, every(5)),
        seq(A, ~A, ~B, C, ~B, event("A", alias="again")),
        *(e for e, text in EXPRESSIONS if text.startswith(("ALL", "SOME", "PERIODIC", "AFTER"))),
    ],
)
def test_expression_that_can_stand_alone_passes_its_check(expression: Expression) -> None:
    expression.check()


def test_event_takes_occurrences_of_its_name_that_fulfil_its_predicate() -> None:
    assert takes(A, occurrence("A", timestamp=1))
    assert not takes(A, occurrence("B", timestamp=1))
    assert takes(event("A", where=big), occurrence("A", timestamp=1, x=2))
    assert not takes(event("A", where=big), occurrence("A", timestamp=1, x=1))


def test_event_does_not_take_a_data_change_on_a_table_of_its_name() -> None:
    change = Occurrence("accounts", 1, new={"id": 1})
    assert not takes(event("accounts"), change)
    assert not takes(inserted(accounts), occurrence("accounts", timestamp=1))


@pytest.mark.parametrize(
    ("old", "new", "taken"),
    [
        (None, {"id": 1}, [True, False, False]),
        ({"id": 1}, {"id": 1}, [False, True, False]),
        ({"id": 1}, None, [False, False, True]),
    ],
)
def test_data_changes_are_told_apart(old: Any, new: Any, taken: list[bool]) -> None:
    change = Occurrence("accounts", 1, old=old, new=new)
    expressions = [inserted(accounts), updated(accounts), deleted(accounts)]
    assert [takes(expression, change) for expression in expressions] == taken
    assert not any(takes(expression, change) for expression in [inserted(audits), updated(audits)])


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        (1, 2, True),
        (1, 1, False),
        (None, 1, True),
        (1, None, True),
        (None, None, False),
        (1, 1.0, False),
        (float("nan"), float("nan"), False),
        (float("nan"), 1.0, True),
        ([1], [1], False),
    ],
)
def test_updated_with_columns_takes_a_row_only_if_one_changed(
    old: Any, new: Any, changed: bool
) -> None:
    update = Occurrence(
        "accounts",
        1,
        old={"id": 1, "balance": old, "owner": "Ann"},
        new={"id": 1, "balance": new, "owner": "Ann"},
    )
    assert takes(updated(accounts, "balance"), update) is changed
    assert takes(updated(accounts, "owner", "balance"), update) is changed
    assert not takes(updated(accounts, "owner"), update)
    assert takes(updated(accounts), update)


def test_updated_with_a_column_missing_in_the_row_is_refused() -> None:
    with pytest.raises(BadEvent, match="no column 'balance' in its old or new row"):
        takes(updated(accounts, "balance"), Occurrence("accounts", 1, old={"id": 1}, new={}))


def test_data_change_predicate_sees_both_rows() -> None:
    falling = updated(accounts, where=lambda o: o.new["balance"] < o.old["balance"])
    assert takes(falling, Occurrence("accounts", 1, old={"balance": 2}, new={"balance": 1}))
    assert not takes(falling, Occurrence("accounts", 1, old={"balance": 1}, new={"balance": 2}))


def test_sequence_asks_each_part_for_its_name_once(monkeypatch: pytest.MonkeyPatch) -> None:
    depth = 60
    nested: Expression = event("A0")
    for number in range(1, depth):
        nested = seq(event(f"A{number}"), nested)
    asked: list[str] = []
    names = Primitive.names.fget  # type: ignore[attr-defined]  # a property

    def counted(self: Primitive) -> Any:
        asked.append(self.name)
        return names(self)

    monkeypatch.setattr(Primitive, "names", property(counted))
    made = seq(event(f"A{depth}"), nested)
    assert sorted(asked) == sorted(f"A{number}" for number in range(depth + 1))
    made.check()  # each level asks the parts below it
    assert len(asked) <= (depth + 1) * (depth + 4) / 2


def test_query_on_what_is_no_name_of_a_stream_is_refused() -> None:
    wrong: Any = 3
    with pytest.raises(PatternError, match="takes the name of a stream, not 3"):
        query("Q", A, stream=wrong)
