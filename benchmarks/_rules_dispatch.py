"""Events raised while few or many rules are registered, of which one listens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

import activedb
from benchmarks._nested_parts import Figure, p50, times_in_turn
from benchmarks._nested_rows import Server

__all__ = ["Dispatch"]

_ROUNDS = 15


class Dispatch:
    """One run: transactions of `events` events each, over databases with more and more rules.

    One rule listens, immediate and without a condition, and runs for each event in a
    subtransaction; each of the others listens to an event that is never raised.
    ``dispatch_flatness`` is (max - min) / median of the rates of one run.
    """

    def __init__(self, server: Server, registered: Sequence[int], events: int):
        self._events = events
        self._opened = ExitStack()
        with ExitStack() as opened:
            self._calls = {count: self._define(server, count, opened) for count in registered}
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Close the databases."""
        self._opened.close()

    def __call__(self) -> dict[str, Figure]:
        """Do one run."""
        times = times_in_turn(list(self._calls.values()), _ROUNDS)
        rates = {
            count: self._events / p50(taken)
            for count, taken in zip(self._calls, times, strict=True)
        }
        figures = {
            f"dispatch_per_s_{count}_rules": Figure(rate, "events/s")
            for count, rate in rates.items()
        }
        flatness = (max(rates.values()) - min(rates.values())) / p50(list(rates.values()))
        figures["dispatch_flatness"] = Figure(flatness, "ratio", smaller_is_better=True)
        return figures

    def _define(self, server: Server, count: int, opened: ExitStack) -> Callable[[int], None]:
        """Open a database with `count` rules; return a function that runs one transaction."""
        db = opened.enter_context(closing(server.database(threads=4)))
        heard: list[int] = []

        def hear(t: activedb.Transaction, o: activedb.Occurrence) -> None:
            heard.append(o.params["number"])

        # All databases keep the versions of their rules in one table: names must differ.
        with db.transaction():  # one for all; otherwise each definition would have its own
            for number in range(count - 1):
                unheard = activedb.event(f"UNHEARD {number}")
                db.rule(on=unheard, name=f"unheard {number} of {count}")(hear)
            db.rule(on=activedb.event("HEARD"), name=f"heard of {count}")(hear)

        def raise_events(number: int) -> None:
            with db.transaction():
                for event in range(self._events):
                    db.signal("HEARD", number=event)
            assert heard == list(range(self._events))
            heard.clear()

        return raise_events
