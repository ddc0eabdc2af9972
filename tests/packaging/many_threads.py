"""Many threads on one lock manager, which must not rely on one lock of the interpreter.

Run by itself, with the Python that is to be tested; it needs the standard library and lockmgr only.
Each thread moves amounts between accounts, under locks and in nested transactions, from a seed.
Balances are read and written in two steps, so that nothing but the locks protects them. A lost
update, a broken invariant of the lock table or a thread that never ends is an error.
"""

from __future__ import annotations

import faulthandler
import itertools
import random
import sys
import threading
import time

from lockmgr import Deadlock, LockManager, Mode, VerifyingLockTable
from tests.patience import PATIENCE_S

THREADS = 8
ACCOUNTS = 6


class Bank:
    """Accounts that nothing but locks protects."""

    def __init__(self, seed: int):
        self.locks = LockManager(VerifyingLockTable())
        self.balances = [100] * ACCOUNTS
        self.errors: list[BaseException] = []
        self.victims = [0] * THREADS
        self._seed = seed
        self._tids = itertools.count(1)
        self._next = threading.Lock()

    def run(self, transfers: int) -> None:
        """Run them on all threads; raises what one of them has raised."""
        threads = [
            threading.Thread(target=self._serve, args=(number, transfers), daemon=True)
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            if thread.is_alive():
                faulthandler.dump_traceback()
                raise SystemExit(f"a thread hangs:\n{self.locks.dump()}")
        if self.errors:
            raise self.errors[0]

    def _serve(self, number: int, transfers: int) -> None:
        draw = random.Random(self._seed * THREADS + number)
        try:
            for _ in range(transfers):
                source, target = draw.sample(range(ACCOUNTS), 2)
                while not self._transfer(source, target, draw.randrange(10)):
                    self.victims[number] += 1
        except BaseException as error:
            self.errors.append(error)

    def _tid(self) -> int:
        with self._next:
            return next(self._tids)

    def _transfer(self, source: int, target: int, amount: int) -> bool:
        """Move an amount, each side in a child; False: a deadlock's victim, undone."""
        top, moved = self._tid(), []
        self.locks.begin(top)
        try:
            for account, change in ((source, -amount), (target, amount)):
                child = self._tid()
                self.locks.begin(child, top)
                try:
                    self.locks.acquire(child, ("accounts", account), Mode.X)
                except Deadlock:
                    self.locks.abort(child)
                    raise
                before = self.balances[account]
                moved.append((account, before))
                time.sleep(0)  # lets another thread go on, which without locks would be a loss
                self.balances[account] = before + change
                self.locks.commit(child)
        except Deadlock:
            for account, before in reversed(moved):
                self.balances[account] = before
            self.locks.abort(top)
            return False
        self.locks.commit(top)
        return True


def main() -> None:
    """Run, check, and tell whether this Python has one lock around everything."""
    seed, transfers = int(sys.argv[1]), int(sys.argv[2])
    sys.setswitchinterval(1e-6)  # with such a lock: hand it over as often as it can be
    bank = Bank(seed)
    bank.run(transfers)
    assert sum(bank.balances) == 100 * ACCOUNTS, bank.balances
    assert bank.locks.dump() == "empty", bank.locks.dump()
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"{'one lock' if has_lock else 'free'}, {sum(bank.victims)} victims")


if __name__ == "__main__":
    main()
