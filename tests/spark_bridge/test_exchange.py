from __future__ import annotations

import signal
import threading

import pytest

from spark_bridge._exchange import Exchange, RefusedError


def nothing() -> None:
    """Stop a producer that ends by itself."""


def test_exchange_offers_are_applied_in_order_on_the_callers_thread() -> None:
    exchange: Exchange[int] = Exchange()
    applied: list[tuple[int, int]] = []

    def produce() -> None:
        for number in range(3):
            exchange.offer(number)
            assert applied[-1][0] == number  # offer returns only after it was applied

    exchange.run(produce, lambda n: applied.append((n, threading.get_ident())), nothing)
    assert applied == [(n, threading.get_ident()) for n in range(3)]


def test_exchange_apply_raises_same_exception_leaves_and_offer_is_refused() -> None:
    exchange: Exchange[int] = Exchange()
    error = ValueError("no")
    refused: list[int] = []

    def apply(number: int) -> None:
        raise error

    def produce() -> None:
        for number in range(2):
            try:
                exchange.offer(number)
            except RefusedError:
                refused.append(number)

    with pytest.raises(ValueError, match="no") as raised:
        exchange.run(produce, apply, nothing)
    assert raised.value is error
    assert refused == [0, 1]


def test_exchange_producer_raises_same_exception_leaves() -> None:
    exchange: Exchange[int] = Exchange()
    error = OSError("gone")

    def produce() -> None:
        exchange.offer(1)
        raise error

    applied: list[int] = []
    with pytest.raises(OSError, match="gone") as raised:
        exchange.run(produce, applied.append, nothing)
    assert raised.value is error
    assert applied == [1]


@pytest.mark.parametrize("while_applying", [False, True])
def test_exchange_interrupt_stops_the_producer_and_leaves(while_applying: bool) -> None:
    exchange: Exchange[int] = Exchange()
    stopping = threading.Event()
    refused = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        signal.pthread_kill(main, signal.SIGINT)

    def apply(number: int) -> None:
        interrupt()
        threading.Event().wait(60)

    def produce() -> None:
        if not while_applying:
            interrupt()
            assert stopping.wait(60)
        try:
            exchange.offer(1)
        except RefusedError:
            refused.set()

    with pytest.raises(KeyboardInterrupt):
        exchange.run(produce, apply, stopping.set)
    assert refused.is_set()
