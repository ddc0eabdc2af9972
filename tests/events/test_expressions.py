from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from activedb.errors import BadEvent, PatternError
from activedb.events import (
    Detector,
    Expression,
    Occurrence,
    deleted,
    event,
    inserted,
    occurrence,
    seq,
    updated,
)

if TYPE_CHECKING:
    from collections.abc import Callable

A, B, C = event("A"), event("B"), event("C")
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


def takes(expression: Expression, o: Occurrence) -> bool:
    return Detector(expression).feed(o) == [o]


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (
            seq(event("EXIT"), ~event("SANITIZE"), event("ENTER")).same("worker").within(45),
            "SEQ(EXIT, !SANITIZE, ENTER) SAME worker WITHIN 45s",
        ),
        (event("TWEET", where=big, alias="t"), "TWEET AS t WHERE big"),
        (event("TWEET", where=partial(big)), "TWEET WHERE partial"),
        (inserted(accounts), "INSERT accounts"),
        (updated(accounts), "UPDATE accounts"),
        (updated(accounts, "balance", "owner"), "UPDATE accounts(balance, owner)"),
        (deleted(audits), "DELETE ledger.audits"),
        (seq(A).same("x", "y").same("x", "z"), "SEQ(A) SAME x, y, z"),
        (seq(A, B).where(big).where(big), "SEQ(A, B) WHERE big AND big"),
        (seq(A, B).within(0.25), "SEQ(A, B) WITHIN 0.25s"),
        (seq(A, B).within(timedelta(minutes=1, microseconds=1)), "SEQ(A, B) WITHIN 60.000001s"),
        (~event("B", where=lambda o: True), "!B WHERE <lambda>"),
    ],
)
def test_expression_repr_is_readable(expression: Expression, text: str) -> None:
    assert repr(expression) == text


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


def test_expression_methods_leave_the_original_as_it_was() -> None:
    original = seq(A, B)
    original.same("x").within(5).where(big)
    assert repr(original) == "SEQ(A, B)"
    assert original == seq(A, B)
    assert hash(original) == hash(seq(A, B))
    with pytest.raises(FrozenInstanceError):
        original.window_us = 5  # type: ignore[misc]  # the mistake under test


untyped: Any = None
seven: Any = 7
wrong: list[tuple[Callable[[], object], str]] = [
    (lambda: seq(), "a sequence needs parts"),
    (lambda: seq(~A), "a sequence of negations never occurs"),
    (lambda: seq(~A, ~B), "a sequence of negations never occurs"),
    (lambda: seq(A, ~B), "cannot end with !B.*end it with a positive event"),
    (lambda: ~~A, "!A is negated twice"),
    (lambda: ~seq(A, B), "negates a primitive event, not SEQ"),
    (lambda: seq(A, B, A), 'two parts of the sequence are called .A.*alias="first"'),
    (lambda: seq(A, event("B", alias="A")), "two parts of the sequence are called 'A'"),
    (lambda: seq(A, seq(B, C)), "a sequence cannot be a part of another"),
    (lambda: seq(A, untyped), "a part of a sequence is an expression"),
    (lambda: seq(A, not B, C), "negate with ~, not with `not`"),  # type: ignore[arg-type]
    (lambda: seq([A, B]), "a part of a sequence is an expression"),  # type: ignore[arg-type]
    (lambda: seq(A, B).same(), "at least one parameter name"),
    (lambda: seq(A, B).same(""), "takes parameter names, not ''"),
    (lambda: seq(A, B).same(["x"]), "takes parameter names"),  # type: ignore[arg-type]
    (lambda: seq(A, B).within(0), "at least a microsecond, not 0"),
    (lambda: seq(A, B).within(-1.5), "at least a microsecond"),
    (lambda: seq(A, B).within(1e-7), "at least a microsecond"),
    (lambda: seq(A, B).within(timedelta(0)), "at least a microsecond"),
    (lambda: seq(A, B).within(float("nan")), "a finite window"),
    (lambda: seq(A, B).within(float("inf")), "a finite window"),
    (lambda: seq(A, B).within(True), "takes seconds or a timedelta, not True"),
    (lambda: seq(A, B).within(Decimal(5)), "takes seconds"),  # type: ignore[arg-type]
    (lambda: seq(A, B).within(5).within(6), "has its window already"),
    (lambda: seq(A, B).where(untyped), "takes a function of the parts"),
    (lambda: A.same("x"), r"write seq\(A, …\).same\(\)"),
    (lambda: A.within(5), r"write seq\(A, …\).within\(\)"),
    (lambda: A.where(big), "event.*where=lambda"),
    (lambda: (~A).same("x"), "same"),
    (lambda: event(""), "takes the name of an event"),
    (lambda: event(untyped), "takes the name of an event"),
    (lambda: event("A", where=seven), "where takes a function"),
    (lambda: event("A", alias=""), "alias takes a non-empty string"),
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


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (~A, "!A alone never occurs"),
        (seq(~A, B), "starts with a negation.*within"),
        (untyped, "takes an event expression, such as"),
        ("EXIT", "takes an event expression, such as"),
    ],
)
def test_detector_for_an_incomplete_expression_is_refused(expression: Any, reason: str) -> None:
    with pytest.raises(PatternError, match=reason):
        Detector(expression)


def test_sequence_that_starts_with_a_negation_is_complete_with_a_window() -> None:
    expression = seq(~A, B)
    with pytest.raises(PatternError, match="within"):
        expression.check()
    expression.within(5).check()


def test_sequence_may_negate_an_event_several_times_and_one_of_its_own_parts() -> None:
    assert repr(seq(A, ~A, ~B, C, ~B, event("A", alias="again"))) == (
        "SEQ(A, !A, !B, C, !B, A AS again)"
    )


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
