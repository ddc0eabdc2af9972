"""Bad input: one s-transaction aborts, or one event is refused; the others are as without it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pytest

from activedb.errors import AccessError, DefinitionError
from activedb.events import Occurrence
from activedb.scheduling import (
    REMOVED,
    Abort,
    Access,
    Outcome,
    Program,
    ProgramRun,
    Ref,
    Results,
    SerialOrder,
    SharedTable,
    View,
)
from tests.scheduling.events import event

Function = Callable[[View, Mapping[str, Any]], Any]


class Shop:
    """A program with one bad s-transaction between good ones."""

    def __init__(self) -> None:
        self.accounts = SharedTable("accounts", key=int, initial=100, history=10e-6)
        self.names = SharedTable("names", key=str, initial="")
        self.foreign = SharedTable("foreign")
        self.program = Program("shop", [self.accounts, self.names])

        @self.program.on("ADD")
        def add(e: Mapping[str, Any], access: Access) -> None:
            access.write(self.accounts[e["account"]], operator.add, e["amount"])

        self.run = ProgramRun(self.program, SerialOrder())

    def feed_around(self, bad: Occurrence) -> Results:
        """Feed it between two deposits on account 1; they are not touched by it."""
        before = event("ADD", 10, account=1, amount=1)
        after = event("ADD", 30, account=1, amount=2)
        results = self.run.feed([after, bad, before], 100)
        good = [t.outcome for t in results.transactions if t.type == "ADD"]
        assert good == [Outcome((101,)), Outcome((103,))]
        assert self.run.state.of(self.accounts).newest() == {1: 103}
        assert self.run.state.of(self.names).newest() == {}
        return results

    def aborted(self) -> Outcome:
        """The outcome of the bad one, an event BAD."""
        results = self.feed_around(event("BAD", 20, account=1))
        (bad,) = [t for t in results.transactions if t.type == "BAD"]
        assert results.refused == []
        assert bad.outcome is not None
        assert bad.outcome.results == ()
        return bad.outcome

    def refused(self, bad: Occurrence | None = None) -> str:
        """The reason why the bad event is refused."""
        bad = event("BAD", 20, account=1) if bad is None else bad
        (refusal,) = self.feed_around(bad).refused
        assert refusal.event is bad
        return refusal.reason


@pytest.fixture
def shop() -> Shop:
    return Shop()


# -- accesses outside the declared sets ----------------------------------------------------------


def _breaches(shop: Shop) -> list[tuple[list[Ref], list[Ref], Function]]:
    accounts, names = shop.accounts, shop.names
    return [
        ([], [], lambda t, e: t.read(accounts[1])),
        ([accounts[2]], [], lambda t, e: t.read(accounts[1])),
        ([names.range()], [], lambda t, e: t.read(accounts[1])),
        ([accounts.range(2, 5)], [], lambda t, e: t.read(accounts[5])),
        ([accounts.range(2, 5)], [], lambda t, e: t.read(accounts.range(2, 6))),
        ([accounts.range(2, 5)], [], lambda t, e: t.read(accounts.range(None, 4))),
        ([accounts[1], accounts[2]], [], lambda t, e: t.read(accounts.range(1, 3))),
        ([accounts[1]], [], lambda t, e: t.read(accounts[1].window(1e-6))),
        ([accounts[1].window(2e-6)], [], lambda t, e: t.read(accounts[1].window(3e-6))),
        ([accounts[1].window(2e-6)], [], lambda t, e: t.read(accounts[1])),
        ([accounts[1]], [], lambda t, e: t.write(accounts[1], 5)),
        ([], [accounts[2]], lambda t, e: t.write(accounts[1], 5)),
        ([], [accounts.range(2)], lambda t, e: t.write(accounts[1], REMOVED)),
        ([], [accounts[1]], lambda t, e: t.write(accounts.computed(abs, 2), 5)),
        ([], [accounts.range()], lambda t, e: t.read(accounts.computed(abs, reads=(names["a"],)))),
        ([accounts[1]], [], lambda t, e: t.read(shop.foreign[1])),
        ([], [accounts.range()], lambda t, e: t.write(accounts.range(1, 2), 5)),
    ]


@pytest.mark.parametrize("number", range(17))
def test_body_that_accesses_what_it_did_not_declare_aborts(shop: Shop, number: int) -> None:
    reads, writes, function = _breaches(shop)[number]

    def body(t: View, e: Mapping[str, Any]) -> None:
        for ref in writes:
            if isinstance(ref.key, int):
                t.write(ref, 0)
        function(t, e)

    shop.program.transaction("BAD", reads=lambda e: reads, writes=lambda e: writes)(body)
    outcome = shop.aborted()
    assert isinstance(outcome.error, AccessError)
    assert outcome.reason is not None
    assert "declared" in outcome.reason or "one key at a time" in outcome.reason


def test_body_that_goes_on_after_a_breach_keeps_what_it_declared(shop: Shop) -> None:
    @shop.program.transaction("BAD", reads=lambda e: [shop.accounts[1]])
    def body(t: View, e: Mapping[str, Any]) -> Any:
        try:
            return t.read(shop.accounts[2])
        except AccessError:
            return t.read(shop.accounts[1])

    results = shop.feed_around(event("BAD", 20))
    assert results.transactions[1].outcome == Outcome((101,))


# -- functions that raise ------------------------------------------------------------------------


def _raise(*given: Any) -> Any:
    raise LookupError("out of stock")


def _abort(*given: Any) -> Any:
    raise Abort("sold out")


def _nothing(*given: Any) -> Any:
    raise LookupError


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_raise, "LookupError: out of stock"),
        (_abort, "sold out"),
        (_nothing, "LookupError"),
        (lambda value: None, "accounts[2] was not written: the function gave None"),
        (lambda: 1, "TypeError: "),
    ],
)
def test_write_whose_function_fails_aborts_with_all_of_its_s_transaction(
    shop: Shop, function: Callable[..., Any], reason: str
) -> None:
    @shop.program.on("BAD")
    def bad(e: Mapping[str, Any], access: Access) -> None:
        access.write(shop.accounts[1], operator.neg)
        access.write(shop.accounts[2], function)
        access.write(shop.names["a"], str.upper)

    outcome = shop.aborted()
    assert outcome.reason is not None
    assert outcome.reason.startswith(reason)


@pytest.mark.parametrize("function", [_raise, _abort, _nothing])
def test_body_that_raises_aborts_with_all_it_wrote(shop: Shop, function: Function) -> None:
    @shop.program.transaction("BAD", writes=lambda e: [shop.accounts[1]])
    def bad(t: View, e: Mapping[str, Any]) -> None:
        t.write(shop.accounts[1], 7)
        function(t, e)

    assert shop.aborted().error is not None


def test_body_that_calls_abort_aborts_for_its_reason(shop: Shop) -> None:
    @shop.program.transaction("BAD")
    def bad(t: View, e: Mapping[str, Any]) -> None:
        t.write(shop.accounts[1], 7)
        t.abort("not today")

    assert shop.aborted().reason == "not today"


@pytest.mark.parametrize("how", ["key", "read", "range"])
def test_read_whose_functions_fail_aborts(shop: Shop, how: str) -> None:
    @shop.program.on("BAD")
    def bad(e: Mapping[str, Any], access: Access) -> None:
        access.write(shop.accounts[1], operator.neg)
        if how == "key":
            access.read(shop.accounts.computed(_raise))
        elif how == "read":
            access.read(shop.accounts[1], function=_raise)
        else:
            access.read(shop.accounts.range("a", "b"))

    assert shop.aborted().reason is not None


def test_s_transaction_with_several_failures_has_the_reason_of_the_first(shop: Shop) -> None:
    @shop.program.on("BAD")
    def bad(e: Mapping[str, Any], access: Access) -> None:
        access.write(shop.accounts[1], operator.neg)
        access.write(shop.accounts[1], _abort)
        access.write(shop.accounts[2], _raise)

    assert shop.aborted().reason == "sold out"


# -- keys and values -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["text", 1.0, True, None, [1]])
def test_access_with_a_key_of_the_wrong_type_is_refused(shop: Shop, key: Any) -> None:
    reason = shop.refused(event("ADD", 20, account=key, amount=5))
    told = f"AccessError: {key!r} is not a key of table accounts: its keys are of type int"
    assert reason == told


@pytest.mark.parametrize("declared", [True, False])
def test_body_with_a_key_of_the_wrong_type_is_refused_or_aborts(shop: Shop, declared: bool) -> None:
    bad_key = shop.accounts["text"]
    writes = [bad_key] if declared else [shop.accounts.range()]

    @shop.program.transaction("BAD", writes=lambda e: writes)
    def bad(t: View, e: Mapping[str, Any]) -> None:
        t.write(bad_key, 5)

    reason = shop.refused() if declared else shop.aborted().reason
    assert reason == "AccessError: 'text' is not a key of table accounts: its keys are of type int"


def test_computed_key_of_the_wrong_type_aborts(shop: Shop) -> None:
    @shop.program.on("BAD")
    def bad(e: Mapping[str, Any], access: Access) -> None:
        access.write(shop.accounts[1], operator.neg)
        access.write(shop.accounts.computed(str, reads=(shop.accounts[1],)), operator.neg)

    reason = shop.aborted().reason
    assert reason == "AccessError: '101' is not a key of table accounts: its keys are of type int"


def test_key_that_cannot_be_hashed_is_refused(shop: Shop) -> None:
    table = SharedTable("any")
    shop.program.tables = (*shop.program.tables, table)

    @shop.program.on("BAD")
    def bad(e: Mapping[str, Any], access: Access) -> None:
        access.read(table[[1]])

    shop.run = ProgramRun(shop.program, SerialOrder())
    assert shop.refused() == "AccessError: [1] is not a key of table any: it cannot be hashed"


@pytest.mark.parametrize("key", [-1, 3, True, "1", 1.0])
def test_key_outside_a_sized_table_is_refused(key: Any) -> None:
    table = SharedTable("seats", initial=0, size=3)
    with pytest.raises(AccessError, match="whole numbers from 0 to 2"):
        table.check_key(key)


def test_value_that_is_no_number_in_a_sized_table_aborts() -> None:
    seats = SharedTable("seats", initial=0, size=3)
    program = Program("theatre", [seats])

    @program.on("BOOK")
    def book(e: Mapping[str, Any], access: Access) -> None:
        access.write(seats[e["seat"]], lambda value, given: given, e["value"])

    run = ProgramRun(program, SerialOrder())
    values: list[Any] = ["text", REMOVED, 2.5]
    events = [event("BOOK", n, seat=n, value=value) for n, value in enumerate(values)]
    results = run.feed(events, 10)
    reasons = [t.outcome and t.outcome.reason for t in results.transactions]
    assert reasons == [
        "AccessError: 'text' is not a value of table seats: its values are numbers",
        None,
        None,
    ]
    assert run.state.of(seats).newest() == {2: 2.5}


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (7, 7.0),
        (True, 1.0),
        (2**53 + 1, float(2**53)),
        ("12", None),
        (Decimal("1.5"), None),
        (10**400, None),
    ],
)
def test_value_of_a_sized_table_is_kept_as_a_float_or_refused(
    value: Any, kept: float | None
) -> None:
    seats = SharedTable("seats", initial=0, size=3)
    if kept is None:
        with pytest.raises(AccessError, match="its values are numbers"):
            seats.check_value(value)
    else:
        assert seats.check_value(value) == kept
        assert type(seats.check_value(value)) is float


@pytest.mark.parametrize("how", ["plain", "computed", "both"])
def test_s_transaction_that_writes_a_key_twice_aborts(shop: Shop, how: str) -> None:
    plain, computed = shop.accounts[1], shop.accounts.computed(lambda: 1)

    @shop.program.on("BAD")
    def bad(e: Mapping[str, Any], access: Access) -> None:
        access.write(computed if how == "computed" else plain, operator.neg)
        access.write(shop.accounts[2], operator.neg)
        access.write(plain if how == "plain" else computed, operator.neg)

    reason = shop.aborted().reason
    assert reason is not None
    assert "accounts[1] is written twice by one s-transaction" in reason


def test_operations_and_a_body_that_write_one_key_abort(shop: Shop) -> None:
    @shop.program.on("BAD")
    def bad(e: Mapping[str, Any], access: Access) -> None:
        access.write(shop.accounts[1], operator.neg)
        access.body(lambda t, e: t.write(shop.accounts[1], 3), e, [], [shop.accounts[1]])

    assert "written twice" in (shop.aborted().reason or "")


# -- events --------------------------------------------------------------------------------------


def test_event_older_than_the_last_punctuation_is_refused(shop: Shop) -> None:
    shop.run.feed([event("ADD", 50, account=3, amount=1)], 60)
    late, on_time = event("ADD", 59, account=3, amount=7), event("ADD", 60, account=3, amount=2)
    results = shop.run.feed([late, on_time], 61)
    assert [(r.event, r.reason) for r in results.refused] == [
        (late, "it came too late: its time is before the punctuation 60")
    ]
    assert shop.run.state.of(shop.accounts).newest() == {3: 103}


def test_event_of_an_unknown_type_is_refused(shop: Shop) -> None:
    assert shop.refused() == "program shop has no state access for it, only for ADD"


def test_event_without_a_parameter_is_refused(shop: Shop) -> None:
    assert shop.refused(event("ADD", 20, account=1)) == "it lacks 'amount'"


def test_event_that_pre_processing_fails_on_is_refused(shop: Shop) -> None:
    @shop.program.pre_process
    def pre_process(type_: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if params["amount"] == 13:
            raise ValueError("unlucky")
        return params

    assert shop.refused(event("ADD", 20, account=1, amount=13)) == "ValueError: unlucky"


def test_event_whose_state_access_raises_is_refused(shop: Shop) -> None:
    @shop.program.on("BAD")
    def bad(e: Mapping[str, Any], access: Access) -> None:
        access.write(shop.accounts[1], operator.neg)
        raise ZeroDivisionError

    assert shop.refused().startswith("ZeroDivisionError")


def _bad_accesses(shop: Shop) -> list[tuple[str, Callable[[Access], None]]]:
    accounts = shop.accounts
    return [
        ("foreign is not one of its tables", lambda a: a.read(shop.foreign[1])),
        (
            "foreign is not one of its tables",
            lambda a: a.read(accounts.computed(abs, reads=(shop.foreign[1],))),
        ),
        (
            "foreign is not one of its tables",
            lambda a: a.write(accounts[1], max, reads=(shop.foreign.range(),)),
        ),
        ("give it a longer history", lambda a: a.read(accounts[1].window(1))),
        ("longer than 0 seconds", lambda a: a.read(accounts[1].window(0))),
        ("a microsecond or more", lambda a: a.read(accounts[1].window(1e-9))),
        ("a range has no window", lambda a: a.read(accounts.range().window(1e-6))),
        ("READ takes the keys to read", lambda a: a.read()),
        ("is written accounts[7]", lambda a: a.read(accounts)),
        ("is written accounts[7]", lambda a: a.write(1, abs)),
        ("is written accounts[7]", lambda a: a.write(accounts[1], abs, reads=(1,))),
        ("is read, not written", lambda a: a.write(accounts.range(), abs)),
        ("is read, not written", lambda a: a.write(accounts[1].window(1e-6), abs)),
        ("takes a function", lambda a: a.write(accounts[1], 5)),
        ("is written accounts[7]", lambda a: a.body(_raise, {}, [1], [])),
        ("is read, not written", lambda a: a.body(_raise, {}, [], [accounts[1].window(1e-6)])),
        ("not a key of table accounts", lambda a: a.read(accounts[1], accounts["a"])),
        (
            "not a key of table accounts",
            lambda a: a.read(shop.names.computed(str, reads=(accounts["a"],))),
        ),
    ]


@pytest.mark.parametrize("number", range(18))
def test_event_whose_operations_cannot_be_is_refused(shop: Shop, number: int) -> None:
    reason, operation = _bad_accesses(shop)[number]
    shop.program.on("BAD")(lambda e, access: operation(access))
    assert reason in shop.refused()


# -- definitions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "define",
    [
        lambda: SharedTable(""),
        lambda: SharedTable(5),  # type: ignore[arg-type]
        lambda: SharedTable("t", history=-1),
        lambda: SharedTable("t", history=float("nan")),
        lambda: SharedTable("t", history=float("inf")),
        lambda: SharedTable("t", history=1)[1].window(float("inf")),
        lambda: SharedTable("t", history=True),
        lambda: SharedTable("t", size=0),
        lambda: SharedTable("t", size=True),
        lambda: SharedTable("t", size=3, initial="a"),
        lambda: SharedTable("t", size=3, key=str, initial=0),
        lambda: Program("", []),
        lambda: Program("p", [1]),  # type: ignore[list-item]
        lambda: ProgramRun(Program("p", [SharedTable("t"), SharedTable("t")]), SerialOrder()),
        lambda: Program("p", []).on(""),
        lambda: Program("p", []).on(3),  # type: ignore[arg-type]
    ],
)
def test_definition_that_cannot_be_is_refused(define: Callable[[], Any]) -> None:
    with pytest.raises(DefinitionError):
        result = define()
        result(lambda e, access: None)


def test_second_state_access_for_a_type_is_refused(shop: Shop) -> None:
    with pytest.raises(DefinitionError, match="has a state access for ADD already"):
        shop.program.transaction("ADD")(lambda t, e: None)


def test_access_declared_without_a_list_is_refused() -> None:
    table = SharedTable("unkeyed")
    access = Access()
    with pytest.raises(DefinitionError, match=r"written \[accounts\[7\]\]"):
        access.write(table[1], lambda value: value, reads=table[2])  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"written \[accounts\[7\]\]"):
        access.body(lambda t, e: 1, {}, table[1], ())  # type: ignore[arg-type]
    assert not access.operations


def test_key_that_does_not_compare_with_the_declared_range_is_refused() -> None:
    table = SharedTable("unkeyed")
    view = View(lambda ref: None, (table.range(1, 5),), ())
    with pytest.raises(AccessError):
        view.read(table["a"])
