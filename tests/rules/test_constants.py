"""Rules that demand constants are asked about the events that have them: nothing else changes."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import activedb as adb
from activedb.errors import BadEvent, PatternError, UncertainOrder
from activedb.events import AccuracyInterval, Occurrence, all_of, any_of, event, many, query, seq
from activedb.events.terms import Comparison, Literal, attr
from activedb.rules import Catalog, RegisteredRule, Rule, Sharing

if TYPE_CHECKING:
    from activedb import Database, Expression, Transaction

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
TEXTS: list[Any] = ["a", "b", "c", ""]
NUMBERS: list[Any] = [0, 1, 1.0, True, 2, Decimal(1), Decimal("2.5")]
OTHERS: list[Any] = [float("nan"), Decimal("nan"), b"a", None]
ODD: list[Any] = [*TEXTS, *NUMBERS, *OTHERS, -0.0, Decimal("snan"), [], adb.clock, object()]
MISSING = object()


@dataclass(frozen=True)
class Plan:
    """Values that one example draws from; the rest is drawn densely, by a seed.

    Attributes
    ----------
    constants : list
        Constants with which the attribute s is compared; x is compared with numbers.
    values : list
        Values that attributes of events have now and then.
    is_exact : bool
        Whether all timestamps are exact.
    """

    constants: list[Any]
    values: list[Any]
    is_exact: bool
    seed: int


PLANS = st.builds(
    Plan,
    st.one_of(
        *(
            st.lists(st.sampled_from(constants), min_size=1, max_size=4)
            for constants in (TEXTS, TEXTS, NUMBERS, [*TEXTS, *NUMBERS, *OTHERS])
        )
    ),
    st.lists(st.sampled_from([*ODD, MISSING]), max_size=2),
    st.booleans(),
    st.integers(0, 2**32),
)


class Writer:
    """Writer of rules, some of which demand constants."""

    def __init__(self, plan: Plan):
        self.constants = plan.constants
        self.chance = Random(plan.seed)
        self.number = 0

    def equality(self) -> Any:
        if self.chance.randrange(3):
            return attr("s") == self.chance.choice(self.constants)
        return attr("x") == self.chance.choice(NUMBERS)

    def predicate(self) -> Any:
        kind = self.chance.randrange(18)
        if kind == 0:
            return lambda o: o.us % 2_000_000 == 0
        if kind == 1:
            return attr("y") > 0
        if kind == 2:
            return self.equality() | (attr("y") == 1)
        if kind == 3:
            return (attr("y") > 0) & self.equality()
        if kind < 8:
            return self.equality() & self.equality()
        if kind < 11:
            return self.equality() & (attr("y") > 0)
        return self.equality()

    def primitive(self) -> Any:
        self.number += 1
        alias = f"p{self.number}"
        if self.chance.randrange(30) == 0:
            return event(self.chance.choice("TU"), alias=alias)
        return event(self.chance.choice("TU"), where=self.predicate(), alias=alias)

    def sequence(self) -> Any:
        chance = self.chance
        parts = [self.primitive() for _ in range(chance.randint(2, 3))]
        if chance.randrange(3) == 0:
            parts.insert(chance.randint(0, len(parts)), ~self.primitive())
        if chance.randrange(4) == 0:
            parts.insert(1, many(self.primitive(), 0, 2))
        found = seq(*parts).within(chance.choice([2, 5]))
        if chance.randrange(4) == 0:
            found = found.same("x")
        if chance.randrange(3):
            return found
        found = found.selecting(chance.choice(["any", "next", "strict"]))
        return found.context(chance.choice(["unrestricted", "chronicle"]))

    def expression(self) -> Expression:
        kinds: list[Any] = [
            self.primitive,
            self.primitive,
            self.sequence,
            self.sequence,
            lambda: any_of(self.primitive(), self.primitive()),
            lambda: all_of(self.primitive(), self.primitive()).within(4),
            lambda: seq(self.sequence(), self.primitive()).within(9),
            lambda: query(f"q{self.number}", self.sequence()),
        ]
        if self.chance.randrange(4) == 0:
            kinds += [lambda: self.sequence().after(2), lambda: self.sequence().timed_out()] * 4
        while True:
            found: Expression = self.chance.choice(kinds)()
            with suppress(PatternError):  # not every sequence can time out
                found.check()
                return found

    def rules(self) -> list[Rule]:
        policies = ["raise", "raise", "raise", "certain", "possible"]
        expressions = [self.expression() for _ in range(8)]
        return [
            rule_of(f"r{number}", on, self.chance.choice(policies))
            for number, on in enumerate([*expressions, *expressions[:2]])
        ]


def rule_of(name: str, on: Expression, on_uncertain: str = "raise") -> Rule:
    return Rule.define(
        lambda t, o: None,
        on=on,
        when=None,
        coupling="immediate",
        priority=None,
        on_abort="rule",
        name=name,
        on_uncertain=on_uncertain,
    )


def catalog_of(rules: list[Rule], *, shares: bool) -> Catalog:
    catalog, sharing = Catalog(), Sharing() if shares else None
    for rule in rules:
        entry = RegisteredRule.of(rule, version=1, enabled=True, fingerprint="", sharing=sharing)
        assert catalog.add_committed(entry)
    return catalog


def fed(catalog: Catalog, o: Occurrence, *, finds: bool) -> list[tuple[str, Any]]:
    """Return what one event triggers, as an open database does: nothing, if one rule fails."""
    found: list[tuple[str, Any]] = []
    kept: list[Any] = []
    for subscription in catalog.concerned_by(o) if finds else catalog.listening_to(o.key):
        name = subscription.rule.name
        try:
            matches, is_kept, *_ = subscription.feed_kept(o)
        except (BadEvent, UncertainOrder, TypeError) as error:
            for each in reversed(kept):
                each.withdraw(o)
            return [(name, str(error))]
        kept += [subscription] if is_kept else []
        found += [(name, (match.us, dict(match.parts))) for match in matches]
    return found


def occurrences(plan: Plan) -> list[Occurrence]:
    chance, found = Random(plan.seed + 1), []
    second = 0.0
    for _ in range(40):
        second += chance.choice([0, 0.5, 1])
        params = {"s": chance.choice([*plan.constants, "a"]), "x": chance.choice(NUMBERS)}
        params["y"] = chance.randrange(3)
        for name in "sxy":
            if plan.values and chance.randrange(8) == 0:
                params[name] = chance.choice(plan.values)
        params = {name: value for name, value in params.items() if value is not MISSING}
        us = int(second * 1_000_000)
        is_exact = plan.is_exact or chance.randrange(10) > 0
        when = second if is_exact else AccuracyInterval(us, us - 400_000, us + 400_000)
        found.append(Occurrence(chance.choice("TU"), when, params))
    return found


def advanced(entry: RegisteredRule, us: int) -> Any:
    try:
        return [match.us for match in entry.subscription.advance(us).matches]
    except (BadEvent, UncertainOrder, TypeError) as error:
        return str(error)


@pytest.mark.long
@settings(max_examples=40 * SCALE, deadline=None)
@given(PLANS, st.booleans())
def test_rules_found_by_their_constants_do_what_all_do(plan: Plan, shares: bool) -> None:
    rules = Writer(plan).rules()
    found, brute = (catalog_of(rules, shares=shares) for _ in range(2))
    for o in occurrences(plan):
        assert fed(found, o, finds=True) == fed(brute, o, finds=False)
        for ours, theirs in zip(found.entries(), brute.entries(), strict=True):
            assert (ours.partials, ours.subscription.due_us) == (
                theirs.partials,
                theirs.subscription.due_us,
            )
            if ours.subscription.is_timed and o.us % 3_000_000 == 0:
                assert advanced(ours, o.low_us) == advanced(theirs, o.low_us)


def asked(catalog: Catalog, **params: Any) -> str:
    """Return the names of rules that are asked about a T with these parameters."""
    o = Occurrence("T", 1, params)
    return " ".join(subscription.rule.name for subscription in catalog.concerned_by(o))


def tick(constant: Any) -> Any:
    return event("T", where=attr("s") == constant, alias=f"t{constant}")


def test_event_is_shown_to_rules_with_its_constants_and_to_those_without() -> None:
    last = event("U")
    rules = {
        "a": tick("a"),
        "a, too": event("T", where=(attr("s") == "a") & (attr("y") > 0)),
        "function": event("T", where=lambda o: False),
        "pair of b": seq(tick("b"), last).within(5),
        "a without b": seq(tick("a"), ~tick("b"), last).within(5),
        "mirrored": event("T", where=Comparison("=", Literal("c"), attr("s"))),
        "not first": event("T", where=(attr("y") > 0) & (attr("s") == "a")),
        "strict": seq(tick("a"), last).selecting("strict"),
        "chronicle": seq(tick("a"), last).context("chronicle").within(5),
        "in time": seq(tick("a"), last).within(5).timed_out(),
        "any": seq(tick("a"), event("T", alias="any")).within(5),
    }
    catalog = catalog_of([rule_of(name, on) for name, on in rules.items()], shares=False)
    others = "not first strict chronicle in time any"
    assert asked(catalog, s="a", y=1) == f"a a, too function a without b {others}"
    assert asked(catalog, s="b", y=1) == f"function pair of b a without b {others}"
    assert asked(catalog, s="c", y=1) == f"function mirrored {others}"
    assert asked(catalog, s="d", y=1) == f"function {others}"
    for odd in ({}, {"s": None}, {"s": 1}, {"s": ["a"]}, {"y": 1}):
        assert asked(catalog, **odd) == " ".join(rules), odd
    at = AccuracyInterval(1, 0, 2)
    assert len(catalog.concerned_by(Occurrence("T", at, {"s": "d"}))) == len(rules)
    assert len(catalog.concerned_by(Occurrence("U", 1, {}))) == 5


def test_numbers_are_one_kind_and_equal_as_python_says() -> None:
    names = {"one": 1, "true": True, "float": 1.0, "exact": Decimal(1), "half": 0.5, "big": 2**53}
    catalog = catalog_of([rule_of(name, tick(value)) for name, value in names.items()], shares=True)
    for one in (1, 1.0, True, Decimal("1.00")):
        assert asked(catalog, s=one) == "one true float exact"
    assert asked(catalog, s=Decimal("0.5")) == "half"
    assert asked(catalog, s=float(2**53)) == "big"
    for other in (2**53 + 1, float("nan"), Decimal("nan"), -0.0):
        assert asked(catalog, s=other) == ""
    assert asked(catalog, s=Decimal("snan")) == asked(catalog, s="1") == " ".join(names)


def test_several_leading_constants_are_looked_up_together() -> None:
    venue = attr("v") == "x"
    rules = [
        rule_of(f"{symbol}", event("T", where=venue & (attr("s") == symbol))) for symbol in "abc"
    ]
    rules.append(rule_of("venue", event("T", where=venue)))
    catalog = catalog_of(rules, shares=False)
    assert asked(catalog, v="x", s="b") == "b venue"
    assert asked(catalog, v="x", s="d") == "venue"
    assert asked(catalog, v="y", s="b") == ""
    assert asked(catalog, v="x") == "a b c venue"


def test_null_and_a_missing_attribute_behind_it_fail_as_before() -> None:
    rules = [
        rule_of(symbol, event("T", where=(attr("s") == symbol) & (attr("y") > 0)))
        for symbol in "ab"
    ]
    catalog = catalog_of(rules, shares=False)
    o = Occurrence("T", 1, {"s": None})
    ((name, said),) = fed(catalog, o, finds=True)
    assert (name, said) == fed(catalog, o, finds=False)[0]
    assert "has no attribute 'y'" in said


def test_rule_shares_with_one_that_is_shown_other_events() -> None:
    pair = seq(tick("a"), tick("b")).within(9)
    rules = [
        rule_of("filed", seq(pair, event("U"))),
        rule_of("unfiled", seq(pair, event("T", alias="any"))),
        rule_of("filed, too", seq(pair, event("V"))),
    ]
    sharing = Sharing()
    catalog = Catalog()
    for rule in rules:
        catalog.add_committed(
            RegisteredRule.of(rule, version=1, enabled=True, fingerprint="", sharing=sharing)
        )
    fed_ = [Occurrence("T", second, {"s": symbol}) for second, symbol in enumerate("adbd")]
    made = [
        (s.rule.name, o.us // 1_000_000)
        for o in (*fed_, Occurrence("U", 8), Occurrence("V", 8))
        for s in catalog.concerned_by(o)
        for _ in s.feed(o)
    ]
    assert made == [("unfiled", 3), ("filed", 8), ("filed, too", 8)]
    assert sharing.network.shared == 1


def test_transaction_sees_rules_by_constants_as_its_drafts_have_them() -> None:
    ran: list[str] = []

    def note(t: Transaction, o: Any) -> None:
        ran.append(f"{o.params['s']}{o.params.get('n', '')}")

    def raised(db: Database, symbol: str) -> list[str]:
        ran.clear()
        db.signal("T", s=symbol)
        return list(ran)

    with adb.connect("memory://") as db:
        for symbol in "abc":
            db.rule(on=tick(symbol), name=symbol)(note)
        assert raised(db, "b") == ["b"]
        with db.transaction() as t:
            db.rules.disable("b")
            db.rules.create(note, on=tick("d"), name="d")
            assert [raised(db, symbol) for symbol in "bd"] == [[], ["d"]]
            t.abort()
        assert [raised(db, symbol) for symbol in "bd"] == [["b"], []]
        with db.transaction():
            db.rules.create(note, on=tick("d"), name="d")
            db.rules.delete("a")
            with db.rules.ignoring("c"):
                assert [raised(db, symbol) for symbol in "abcd"] == [[], ["b"], [], ["d"]]
        assert [raised(db, symbol) for symbol in "abcd"] == [[], ["b"], ["c"], ["d"]]
        db.rules.create(note, on=tick("b"), name="b again", priority=2)
        assert raised(db, "b") == ["b", "b"]
