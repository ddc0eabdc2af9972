"""Restarts: each call is made until it succeeds, with growing pauses, whatever it raises."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from activedb.clock import SimulatedClock
from activedb.config import Settings
from activedb.errors import ConnectionLost, Deadlock
from activedb.firing._restarts import Restarts
from tests.databases import until
from tests.ledger import EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def clock() -> SimulatedClock:
    """A clock that only the test moves."""
    return SimulatedClock(EPOCH)


@pytest.fixture
def restarts(clock: SimulatedClock) -> Iterator[Restarts]:
    """Restarts with pauses of 1, 2, 4 and then 8 s at most."""
    settings = Settings(restart_pause_ms=1_000, restart_pause_ms_max=8_000)
    made = Restarts(clock, settings, lambda: None)
    yield made
    made.close()


class Failing:
    """A call that raises these errors, one after the other, and succeeds then."""

    def __init__(self, *errors: Exception):
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)


ERRORS = (ConnectionLost("away"), Deadlock("as told"), ZeroDivisionError("a defect"))


def test_call_that_raises_is_made_again_until_it_succeeds(
    restarts: Restarts, clock: SimulatedClock
) -> None:
    call = Failing(*ERRORS)
    restarts.later("a", call, 0, "as told")
    for number in range(len(ERRORS) + 1):
        until(lambda: clock.waiting)
        assert call.calls == number
        assert list(restarts.waiting()) == ["a"]
        clock.advance(min(2**number, 8))  # the longest that this pause may be
        until(lambda calls=number + 1: call.calls == calls)  # type: ignore[misc]
    until(lambda: not restarts.waiting())


def test_call_that_raises_waits_with_its_error_as_the_reason(restarts: Restarts) -> None:
    restarts.later("a", Failing(*ERRORS), 0, "as told")
    for error in ERRORS:
        assert restarts.call_all() == 1
        assert restarts.waiting() == {"a": f"{type(error).__name__}: {error}"}
    assert restarts.call_all() == 1
    assert restarts.waiting() == {}


def test_call_that_raises_gives_way_to_a_newer_one_of_its_name(restarts: Restarts) -> None:
    newer = Failing()

    def call() -> None:
        restarts.later("a", newer, 0, "newer")
        raise ConnectionLost("away")

    restarts.later("a", call, 0, "older")
    restarts.call_all()
    assert restarts.waiting() == {"a": "newer"}
    restarts.call_all()
    assert newer.calls == 1
    assert restarts.waiting() == {}


def test_call_that_raises_after_the_close_is_dropped(restarts: Restarts) -> None:
    call = Failing(*ERRORS)

    def closing() -> None:
        restarts.close()
        call()

    restarts.later("a", closing, 0, "as told")
    restarts.call_all()
    assert restarts.waiting() == {}
