"""Read locks that announce a write, learned from deadlocks of transactions that upgrade them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from activedb.transactions._upgrades import ANNOUNCED_MIN
from lockmgr import Mode
from tests.databases import in_thread
from tests.nodes import node_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Transaction
    from tests.transactions.bank import Bank


def mode_of(bank: Bank, t: Transaction, key: int) -> Mode:
    """The mode in which a transaction holds a row."""
    return node_of(t).held[bank.accounts.name, (key,)]


class Upgrade:
    """Work that reads a row and then adds to it; the first two tries both read before they add."""

    def __init__(self, bank: Bank):
        self.bank = bank
        self.modes: list[Mode] = []
        self._read = threading.Barrier(2)
        self._first = [True, True]

    def __call__(self) -> None:
        def add(t: Transaction) -> None:
            row = t.get(self.bank.accounts, 1)
            assert row is not None
            self.modes.append(mode_of(self.bank, t, 1))
            if self._first:
                self._first.pop()
                self._read.wait()
            t.update(self.bank.accounts, 1, balance=row["balance"] + 1)

        self.bank.db.run(add)

    def meet(self) -> None:
        """Let two transactions be in a deadlock."""
        first, second = in_thread(self), in_thread(self)
        first.result()
        second.result()


def test_function_that_ended_in_a_deadlock_locks_for_writing_what_it_reads(bank: Bank) -> None:
    before = bank.committed()[1]
    assert before is not None
    add = Upgrade(bank)
    add.meet()
    assert bank.committed()[1] == before + 2
    assert add.modes == [Mode.S, Mode.S, Mode.X], "the victim's next try announces its write"
    for _ in range(ANNOUNCED_MIN + 1):
        add()
    assert add.modes[3:] == [Mode.X] * ANNOUNCED_MIN + [Mode.S]
    assert bank.committed()[1] == before + 3 + ANNOUNCED_MIN


def test_other_functions_read_as_before(bank: Bank) -> None:
    Upgrade(bank).meet()
    modes = []

    def look(t: Transaction) -> None:
        t.get(bank.accounts, 1)
        modes.append(mode_of(bank, t, 1))

    bank.db.run(look)
    assert modes == [Mode.S]


def test_functions_are_told_apart_by_their_code(bank: Bank) -> None:
    def lambdas() -> list[Callable[[Transaction], object]]:
        return [lambda t: t.get(bank.accounts, 1), lambda t: t.get(bank.accounts, 2)]

    first, second = lambdas()
    again = lambdas()[0]
    assert first.__code__ is again.__code__
    assert first.__code__ is not second.__code__
