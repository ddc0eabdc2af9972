"""Mistakes in a rule or a stream are reported where it is defined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import DefinitionError, PatternError, RuleSignatureError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ledger import Ledger


def good(t: adb.Transaction, o: adb.Occurrence) -> None:
    pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coupling": "eventually"}, "coupling='eventually' is not one of 'immediate', 'deferred'"),
        ({"on_abort": "all"}, "on_abort='all' is not one of"),
        ({"priority": "high"}, "priority takes an integer, not 'high'"),
        ({"priority": True}, "priority takes an integer"),
        ({"on": "EXIT"}, "on= takes an event expression"),
        ({"on": ~adb.event("A")}, "negat|on="),
    ],
)
def test_rule_with_a_meaningless_option_is_refused(
    ledger: Ledger, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((DefinitionError, PatternError), match=message):
        ledger.db.rule(**{"on": adb.event("A"), **options})(good)
    ledger.db.rule(on=adb.event("A"))(good)


@pytest.mark.parametrize(
    "function",
    [lambda t: None, lambda: None, lambda t, o, more: None, lambda t, *, o: None],
)
@pytest.mark.parametrize("place", ["action", "when"])
def test_rule_function_with_the_wrong_signature_is_refused(
    ledger: Ledger, function: Callable[..., Any], place: str
) -> None:
    action: Any = function if place == "action" else good
    when = function if place == "when" else None
    with pytest.raises(RuleSignatureError, match=r"rule r: .* \(t, o\)"):
        ledger.db.rule(on=adb.event("A"), when=when, name="r")(action)


@pytest.mark.parametrize(
    "function", [lambda t, o, more=1: None, lambda *args: None, lambda t, o, **more: None, max]
)
def test_rule_function_that_can_be_called_is_accepted(
    ledger: Ledger, function: Callable[..., Any]
) -> None:
    assert ledger.db.rule(on=adb.event("A"), name="r")(function) is function


def test_rule_name_is_taken_once(ledger: Ledger) -> None:
    ledger.db.rule(on=adb.event("A"))(good)
    with pytest.raises(DefinitionError, match="there is a rule named 'good' already"):
        ledger.db.rule(on=adb.event("B"))(good)
    ledger.db.rule(on=adb.event("B"), name="other")(good)


def test_rule_of_a_lambda_needs_a_name(ledger: Ledger) -> None:
    with pytest.raises(DefinitionError, match="give the rule a name"):
        ledger.db.rule(on=adb.event("A"))(lambda t, o: None)


def test_rule_that_is_not_callable_is_refused(ledger: Ledger) -> None:
    with pytest.raises(RuleSignatureError, match="is not a function"):
        ledger.db.rule(on=adb.event("A"), name="r")(3)  # type: ignore[type-var]  # misuse on purpose


def test_stream_name_is_taken_once(ledger: Ledger) -> None:
    ledger.db.stream("s", type="k", timestamp="t", types={"A": ()})
    with pytest.raises(DefinitionError, match="there is a stream named 's' already"):
        ledger.db.stream("s", type="k", timestamp="t", types={"A": ()})
