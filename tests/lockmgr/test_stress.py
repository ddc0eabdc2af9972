"""Many real threads at once: a bank whose money nothing but the locks protects.

Nested transactions move money between accounts, some of which are in great demand. A transaction
that aborts reverses its own movements. A victim of a deadlock is begun again by itself, a few
times, before its parent gives up too. In the end all threads have ended, no lock is left, and all
money is where the committed movements have brought it.
"""

from __future__ import annotations

import faulthandler
import itertools
import random
import threading
from collections import Counter
from functools import partial
from typing import NamedTuple

import pytest

from lockmgr import Deadlock, LockManager, LockTable, LockTimeout, Mode, WaitCancelled
from tests.drawing import SCALE, Worlds
from tests.lockmgr.faults import SilentAbort
from tests.patience import PATIENCE_S

TELLERS = 40
HELPERS = 24
ACCOUNTS = 1_000
BRANCHES = 50
OPENING = 100
TRANSACTIONS = 400 * SCALE
DEPTH_MAX = 8
ATTEMPTS_MAX = 4

BANK = ("accounts",)
DEMAND = list(itertools.accumulate(rank**-0.8 for rank in range(1, ACCOUNTS + 1)))
"""Cumulative weights by Zipf's law: the first ten accounts get nearly a quarter of the demand."""


class GivesUp(Exception):
    """A transaction aborts of its own accord, or because a child of it could not be saved."""


class Movement(NamedTuple):
    """Money that went from one account to another."""

    source: int
    target: int
    amount: int


class Bank:
    """Accounts; tellers, each a thread with transactions to run; helpers, threads for children."""

    def __init__(
        self, manager: LockManager, seed: int, *, rough: bool, stall_s: float = PATIENCE_S
    ):
        self.manager = manager
        self.balances = [OPENING] * ACCOUNTS
        self.committed: list[Movement] = []
        self.seen: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self._stall_s = stall_s
        self._rough = rough
        self._timeouts_s = (None, None, None, 0, 0.001, 0.02) if rough else (None,)
        self._tids = itertools.count(1)
        self._orders = iter([f"{seed} {order}" for order in range(TRANSACTIONS)])
        self._open: set[int] = set()
        self._free_helpers = threading.BoundedSemaphore(HELPERS)

    def run(self) -> None:
        """Run all transactions; fail if nothing ends for too long."""
        tellers = [
            threading.Thread(target=self._serve, name=f"teller {number}", daemon=True)
            for number in range(TELLERS)
        ]
        for teller in tellers:
            teller.start()
        for teller in tellers:
            while teller.is_alive():
                ended = self.seen["ended"]
                teller.join(self._stall_s)
                if teller.is_alive() and self.seen["ended"] == ended:
                    faulthandler.dump_traceback(2)
                    self.errors.append(AssertionError(f"stalled:\n{self.manager.dump()}"))
                    for tid in sorted(self._open):
                        self.manager.cancel(tid)
        if self.errors:
            raise self.errors[0]
        assert not {"teller", "helper"} & {t.name.split()[0] for t in threading.enumerate()}

    def check(self) -> None:
        """Check that no money is lost and nothing else is left, once all threads have ended."""
        expected = [OPENING] * ACCOUNTS
        for source, target, amount in self.committed:
            expected[source] -= amount
            expected[target] += amount
        assert self.balances == expected
        assert self.manager.dump() == "empty"
        assert not self.manager._table._transactions
        assert not self.manager._table._entries
        assert not self.manager._sleepers
        assert not self.manager._cancelled

    # -- transactions ------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            for order in self._orders:
                if self.errors:
                    break
                self._run(None, 0, random.Random(order), self.committed)
        except BaseException as error:
            self.errors.append(error)

    def _help(
        self, parent: int, depth: int, draw: random.Random, movements: list[Movement]
    ) -> None:
        try:
            self._run(parent, depth, draw, movements)
        except BaseException as error:
            self.errors.append(error)
        finally:
            self._free_helpers.release()

    def _run(
        self,
        parent: int | None,
        depth: int,
        draw: random.Random,
        movements: list[Movement],
        *,
        inline: bool = False,
    ) -> bool:
        """Run a transaction until it commits, if it ever does; then `movements` are with it."""
        for _ in range(ATTEMPTS_MAX):
            tid = next(self._tids)
            self.manager.begin(tid, parent, inline=inline)
            self._open.add(tid)
            own: list[Movement] = []
            try:
                self._act(tid, depth, draw, own)
            except (Deadlock, LockTimeout, WaitCancelled, GivesUp) as error:
                self.seen[type(error).__name__] += 1
                for source, target, amount in reversed(own):
                    self.balances[source] += amount
                    self.balances[target] -= amount
                self.manager.abort(tid)
                if isinstance(error, WaitCancelled | GivesUp):
                    return False
            else:
                movements += own
                self.manager.commit(tid)
                self.seen[f"committed at depth {depth}"] += 1
                return True
            finally:
                self._open.discard(tid)
                self.seen["ended"] += 1
        return False

    def _act(self, tid: int, depth: int, draw: random.Random, own: list[Movement]) -> None:
        for _ in range(draw.randint(1, 3)):
            action = draw.random()
            if action < 0.4:
                self._move(tid, draw, own)
            elif action < 0.6:
                self._read(tid, draw)
            elif action < 0.62:
                self._scan(tid, draw)
            elif depth < DEPTH_MAX:
                self._nest(tid, depth, draw, own)
            if self._rough and draw.random() < 0.01:
                self.manager.cancel(draw.choice(tuple(self._open)))
        if draw.random() < 0.05:
            raise GivesUp

    def _move(self, tid: int, draw: random.Random, own: list[Movement]) -> None:
        source, target = self._accounts(draw)
        self._acquire(tid, source, Mode.X, draw)
        before = self.balances[source]
        self._acquire(tid, target, Mode.X, draw)
        there = self.balances[target]
        movement = Movement(source, target, draw.randint(1, 9))
        assert self.balances[source] == before, f"account {source} changed under an exclusive lock"
        self.balances[source] = before - movement.amount
        self.balances[target] = there + movement.amount
        own.append(movement)

    def _read(self, tid: int, draw: random.Random) -> None:
        one, other = self._accounts(draw)
        self._acquire(tid, one, Mode.S, draw)
        before = self.balances[one]
        self._acquire(tid, other, Mode.S, draw)
        assert self.balances[one] == before, f"account {one} changed under a shared lock"

    def _scan(self, tid: int, draw: random.Random) -> None:
        self.manager.acquire(tid, BANK, Mode.S, draw.choice(self._timeouts_s))
        assert sum(self.balances) == ACCOUNTS * OPENING, "money is under way under a scan"
        self.seen["scans"] += 1

    def _nest(self, tid: int, depth: int, draw: random.Random, own: list[Movement]) -> None:
        """Run children, on helpers while there are any, else on this thread."""
        self.manager.offer(tid)
        helpers = []
        try:
            for _ in range(draw.choice((1, 1, 1, 2))):
                child = random.Random(draw.random())
                if self._free_helpers.acquire(blocking=False):
                    help_ = partial(self._help, tid, depth + 1, child, own)
                    helpers.append(
                        threading.Thread(target=help_, name=f"helper of {tid}", daemon=True)
                    )
                    helpers[-1].start()
                elif not self._run(tid, depth + 1, child, own, inline=True):
                    raise GivesUp
        finally:
            for helper in helpers:
                helper.join()

    def _accounts(self, draw: random.Random) -> tuple[int, int]:
        one, other = draw.choices(range(ACCOUNTS), cum_weights=DEMAND, k=2)
        return one, other if other != one else (one + 1) % ACCOUNTS

    def _acquire(self, tid: int, account: int, mode: Mode, draw: random.Random) -> None:
        path = (*BANK, account % BRANCHES, account)
        self.manager.acquire(tid, path, mode, draw.choice(self._timeouts_s))
        assert self.manager.holds(tid, path, mode)


@pytest.mark.long
@pytest.mark.parametrize(
    ("victim", "escalate_at", "rough"),
    [
        ("requester", None, False),
        ("blocker", None, False),
        ("youngest", None, False),
        ("smallest hierarchy", None, False),
        ("least work", None, False),
        ("requester", 2, False),
        ("requester", None, True),
        ("youngest", 2, True),
    ],
)
def test_bank_many_threads_lose_no_money_and_leave_nothing(
    victim: str, escalate_at: int | None, rough: bool
) -> None:
    """Forty tellers and up to twenty-four helpers; rough: with timeouts and cancellations."""
    wanted = {f"committed at depth {DEPTH_MAX}": 1, "scans": 1, "GivesUp": 1, "Deadlock": 1}
    wanted |= {"waits": TELLERS}
    if escalate_at is not None:
        wanted |= {"escalations": 1}
    if rough:
        wanted |= {"LockTimeout": 1, "WaitCancelled": 1}
    # How often they meet is up to the threads.
    worlds = Worlds(1, victim, escalate_at, rough, **wanted)
    for chance in worlds:
        seed = chance.getrandbits(32)
        bank = Bank(LockManager(LockTable(victim, escalate_at)), seed, rough=rough)
        try:
            bank.run()
            bank.check()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        counters = bank.manager.counters
        print(seed, counters, dict(bank.seen))
        worlds.met += bank.seen
        worlds.met.update(waits=counters.waits, escalations=counters.escalations)
        assert escalate_at is not None or not counters.escalations


def test_bank_table_that_forgets_to_wake_stalls_and_is_told_of() -> None:
    bank = Bank(LockManager(SilentAbort()), seed=0, rough=False, stall_s=1.0)
    with pytest.raises(AssertionError, match=r"stalled:\n(.*\n)*accounts"):
        bank.run()
