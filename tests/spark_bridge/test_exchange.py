from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from spark_bridge._run import Exchange, RefusedError
from tests.patience import PATIENCE_S


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
        threading.Event().wait(PATIENCE_S)

    def produce() -> None:
        if not while_applying:
            interrupt()
            assert stopping.wait(PATIENCE_S)
        try:
            exchange.offer(1)
        except RefusedError:
            refused.set()

    with pytest.raises(KeyboardInterrupt):
        exchange.run(produce, apply, stopping.set)
    assert refused.is_set()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at threads as Linux does")
def test_exchange_interrupt_that_does_not_end_the_wait_is_heeded_all_the_same() -> None:
    exchange: Exchange[int] = Exchange()
    stopping = threading.Event()
    caller = threading.current_thread()

    def switches() -> str:
        status = Path(f"/proc/self/task/{caller.native_id}/status").read_text()
        return status.partition("voluntary_ctxt_switches")[2]

    def produce() -> None:
        before = ""
        while before != (before := switches()):  # until the caller's thread has come to rest
            time.sleep(0.05)
        # The signal meets this thread, so the caller's goes on waiting, as it does when the signal
        # comes just before it begins to wait.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        assert stopping.wait(PATIENCE_S)

    with pytest.raises(KeyboardInterrupt):
        exchange.run(produce, lambda _: None, stopping.set)
    assert stopping.is_set()
