"""Tellers move money between accounts: ``python -m tests.histories.teller '{"url": …}'``.

Half of what they read, they ask for by queries: by key, by the owner, by a range, and as a sum.

Every transfer leaves a note in its own transaction, so the notes say what each balance must be.
A log says what was tried and what was reported; its lines go out at once::

    try NAME          before a transfer is begun
    done NAME         it was reported as committed
    failed NAME       it was reported as not committed
    off WHAT          a sum that was not what it had to be
    sum N             so many sums have been right
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select, update

import activedb as adb
from activedb.errors import (
    ConnectionLost,
    Deadlock,
    LockTimeout,
    SerializationConflict,
    TransactionAborted,
)
from tests.databases import in_thread
from tests.patience import PATIENCE_S
from tests.transactions.bank import Bank, open_bank

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Transaction

ACCOUNTS = 6
BALANCE = 100_000  # cents
TOTAL = ACCOUNTS * BALANCE
OWNERS = ("even", "odd")
THREADS = 3


class Overdrawn(Exception):
    """Error that a leg of a transfer raises, and that the transfer catches."""


class Teller:
    """Client that makes transfers on one database, each in some style of nesting."""

    def __init__(self, bank: Bank, log: Callable[[str], object], name: str, seed: int):
        self._bank = bank
        self._log = log
        self._name = name
        self._chance = random.Random(seed)
        self._latch = threading.Lock()

    def work(self, transfers: int) -> None:
        for number in range(transfers):
            name = f"{self._name}.{number}"
            self._log(f"try {name}")
            with self._latch:
                seed = self._chance.randrange(2**32)
            try:
                self._bank.db.run(self.transfer, name, seed)
            except (TransactionAborted, Deadlock, LockTimeout, SerializationConflict):
                self._log(f"failed {name}")
            except ConnectionLost as error:
                if error.committed is False:
                    self._log(f"failed {name}")
            else:
                self._log(f"done {name}")

    def audit(self, stop: threading.Event) -> None:
        """Scan the accounts again and again, in a child and in its parent."""
        right = 0
        has_looked = False
        while not (stop.wait(0.01) and has_looked):
            try:
                sums = self._bank.db.run(lambda t: [t.spawn(self.total).result(), self.total(t)])
            except (Deadlock, LockTimeout, SerializationConflict, ConnectionLost):
                continue  # it has seen nothing
            has_looked = True
            if sums == [TOTAL, TOTAL]:
                right += 1
                self._log(f"sum {right}")
            else:
                self._log(f"off {sums} in a scan")

    def total(self, t: Transaction) -> int:
        """Return the sum of all balances, added up from one question or from several."""
        c = self._bank.accounts.c
        total = select(func.sum(c.balance))
        questions = (
            [total],
            [total.where(c.owner == "odd"), total.where(c.owner == "even")],
            [total.where(c.id < 2), total.where(c.id >= 2)],
            [total.where(c.balance < BALANCE), total.where(c.balance >= BALANCE)],
        )
        with self._latch:
            asked = self._chance.choice(questions)
        return sum(t.query(question)[0][0] or 0 for question in asked)

    def transfer(self, t: Transaction, name: str, seed: int) -> None:
        """Move an amount, with children that fail on the way; tried again, it does the same."""
        chance = random.Random(seed)
        source, target = chance.sample(range(ACCOUNTS), 2)
        amount = chance.randint(1, 9_999)
        for _ in range(chance.randint(0, 2)):
            self._fail(t, chance)
        style = chance.choice(("spawn", "block", "deep", "execute", "scan"))
        if style == "spawn":
            legs = [t.spawn(self._add, source, -amount), t.spawn(self._add, target, amount)]
            for leg in legs:
                leg.result()
        elif style == "block":
            for account, more in ((source, -amount), (target, amount)):
                with t.subtransaction() as s:
                    self._add(s, account, more)
        elif style == "deep":
            with t.subtransaction() as s:
                self._add(s, source, -amount)
                with s.subtransaction() as r:
                    r.spawn(self._add, target, amount)
                    self._fail(r, chance)
        elif style == "execute":
            accounts = self._bank.accounts
            less = update(accounts).where(accounts.c.id == source)
            assert t.execute(less.values(balance=accounts.c.balance - amount)) == 1
            t.spawn(self._add, target, amount).result()
        else:
            with t.subtransaction() as s:
                self._add(s, source, -amount)
                if (seen := self.total(s)) != TOTAL - amount:
                    self._log(f"off {seen} beneath a transfer of {amount}")
            self._add(t, target, amount)
            if (seen := self.total(t)) != TOTAL:
                self._log(f"off {seen} after a transfer of {amount}")
        t.insert(self._bank.notes, {"text": f"{name} {source} {target} {amount}"})
        if chance.random() < 0.1:
            t.abort("the customer has changed their mind")

    def _fail(self, t: Transaction, chance: random.Random) -> None:
        """Run a child that changes balances, itself and through a child, and fails."""
        accounts, how = (
            chance.sample(range(ACCOUNTS), 2),
            chance.choice(("abort", "raise", "spawn")),
        )

        def spoil(s: Transaction) -> None:
            with s.subtransaction() as r:
                self._add(r, accounts[0], 1_000_000)
            s.insert(self._bank.notes, {"text": "spoilt 0 1 1"})
            self._add(s, accounts[1], -5)
            raise Overdrawn

        if how == "abort":
            with t.subtransaction() as s:
                self._add(s, accounts[0], 77)
                s.abort()
            return
        try:
            if how == "spawn":
                t.spawn(spoil).result()
            else:
                with t.subtransaction() as s:
                    spoil(s)
        except Overdrawn:
            return
        raise AssertionError("the child's error did not reach its parent")

    def _add(self, t: Transaction, account: int, amount: int) -> None:
        balance = self._balance(t, account, amount % 8)
        t.update(self._bank.accounts, account, balance=balance + amount)

    def _balance(self, t: Transaction, account: int, how: int) -> int:
        """Return the balance of an account, asked for in one of eight ways."""
        c = self._bank.accounts.c
        balance = select(c.balance)
        match how:
            case 0 | 1 | 2 | 3:
                row = t.get(self._bank.accounts, account, for_update=how > 0)
                assert row is not None
                return int(row["balance"])
            case 4:
                found = t.query(balance.where(c.id == account))
            case 5:
                mine = t.query(select(c.id, c.balance).where(c.owner == OWNERS[account % 2]))
                found = [(row.balance,) for row in mine if row.id == account]
            case 6:
                found = t.query(balance.where(c.id >= account, c.id <= account))
            case _:
                found = t.query(balance.where(c.id == account).with_for_update())
        ((found_balance,),) = found
        return int(found_balance)


def opened(db: adb.Database) -> Bank:
    """Return the bank with its accounts; the first process that comes fills them in."""
    bank = open_bank(db, dict.fromkeys(range(ACCOUNTS), BALANCE))
    with db.transaction() as t:
        for account in range(ACCOUNTS):
            t.update(bank.accounts, account, owner=OWNERS[account % 2])
    return bank


def work(bank: Bank, log: Callable[[str], object], name: str, seed: int, transfers: int) -> None:
    """Several tellers and an auditor, each on a thread, until all transfers are made."""
    teller = Teller(bank, log, name, seed)
    stop = threading.Event()
    auditor = in_thread(teller.audit, stop)
    workers = [
        in_thread(Teller(bank, log, f"{name}{letter}", seed + number).work, transfers)
        for number, letter in enumerate("abc"[:THREADS])
    ]
    try:
        for worker in workers:
            worker.result(PATIENCE_S)
    finally:
        stop.set()
    auditor.result(PATIENCE_S)


def main(given: dict[str, Any]) -> None:
    log = os.open(Path(given["log"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with adb.connect(given["url"], lock_timeout_ms=2_000, isolation=given["isolation"]) as db:
        bank = open_bank(db)
        print("ready", flush=True)
        sys.stdin.readline()
        write = lambda line: os.write(log, f"{line}\n".encode())  # noqa: E731
        work(bank, write, given["name"], given["seed"], given["transfers"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
