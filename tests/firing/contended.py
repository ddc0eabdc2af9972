"""Contended work with rules in all modes that run by themselves, and what must come of it.

As a program, ``-m tests.firing.contended '{"url": …, "seed": …, "point": …, "commit": …}'``, it is
killed with SIGKILL at a point of a commit.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from sqlalchemy import select, text

import activedb as adb
from activedb.errors import (
    ActiveDBError,
    ConnectionLost,
    Deadlock,
    LockTimeout,
    SerializationConflict,
)
from tests.databases import PATIENCE_S, in_thread
from tests.ledger import open_ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Occurrence, Transaction
    from tests.ledger import Ledger

MODES = ("detached", "sequential", "causal", "exclusive")
SYSTEMIC = (Deadlock, LockTimeout, SerializationConflict, ConnectionLost)
KEYS = (1, 2, 3)
THREADS = 3
SETTINGS: dict[str, Any] = {
    "threads": 6,
    "restart_pause_ms": 1,
    "restart_pause_ms_max": 20,
    "reconnect_pause_ms": 1,
    "reconnect_pause_ms_max": 20,
}


class Contended:
    """Works that change balances, each to a value of its own, and rules that log the changes.

    Attributes
    ----------
    surely_raised : list of set of int
        By work, the values whose changes rules have heard of, in any of its tries.
    """

    def __init__(self, db: adb.Database, seed: int, *, faults: float):
        self.chance = random.Random(seed)
        self.ledger: Ledger = open_ledger(db)
        self._faults = faults
        self._fresh = itertools.count(100)
        self._latch = threading.Lock()
        self._failed: Counter[tuple[str, int]] = Counter()
        self.surely_raised: list[set[int]] = []
        self.ended = 0
        for mode in MODES:
            self._define(mode)

    def fill(self) -> None:
        """Insert the rows that all contend for."""
        with self.ledger.db.transaction() as t:
            for key in KEYS:
                t.insert(self.ledger.accounts, {"id": key, "balance": 0})
            t.insert(self.ledger.facts, {"name": "hot", "value": 0})

    def _define(self, mode: str) -> None:
        ledger = self.ledger

        @ledger.db.rule(on=adb.updated(ledger.accounts), coupling=mode, name=mode)
        def rule(t: Transaction, o: Occurrence) -> None:
            value = o.new["balance"]
            for key in self.draw(lambda chance: chance.sample(KEYS, 2)):
                t.get(ledger.accounts, key)
            hot = t.get(ledger.facts, "hot")["value"]  # type: ignore[index]
            ledger.write(t, f"{mode} {value}")
            t.update(ledger.facts, "hot", value=hot + 1)
            if value % 7 == 0:
                raise ValueError("never of use")
            self._fail_maybe(mode, value)

    def draw(self, how: Callable[[random.Random], Any]) -> Any:
        with self._latch:
            return how(self.chance)

    def _fail_maybe(self, mode: str, value: int) -> None:
        with self._latch:
            is_bad = self._failed[mode, value] < 4 and self.chance.random() < self._faults
            error = self.chance.choice(SYSTEMIC)
            self._failed[mode, value] += is_bad
        if is_bad:
            raise error("as told")

    def work(self, raised: set[int], number: int) -> Callable[[Transaction], None]:
        ledger = self.ledger
        fails = self.draw(lambda chance: chance.random() < 0.3)

        def work(t: Transaction) -> None:
            for key in self.draw(lambda chance: chance.sample(KEYS, chance.randint(1, 2))):
                value = next(self._fresh)
                t.update(ledger.accounts, key, balance=value)
                raised.add(value)
                t.insert(ledger.facts, {"name": f"value {value}", "value": value})
            if fails:
                raise ZeroDivisionError
            self._fail_maybe("work", number)

        return work

    def run(self, works: int) -> None:
        """Do `works` works on a few threads; some may fail for good."""

        def loop(first: int) -> None:
            for number in range(first, works, THREADS):
                raised: set[int] = set()
                with self._latch:
                    self.surely_raised.append(raised)
                with contextlib.suppress(ActiveDBError, ZeroDivisionError):
                    self.ledger.db.run(self.work(raised, number))
                with self._latch:
                    self.ended += 1

        for call in [in_thread(loop, first) for first in range(THREADS)]:
            call.result(PATIENCE_S)

    def check(self) -> None:
        """Hold what has committed against what rules have logged, and what became a letter."""
        ledger = self.ledger
        with ledger.db.transaction() as t:
            facts = {row.name: row.value for row in t.query(select(ledger.facts))}
            lines = Counter(row.text for row in t.query(select(ledger.log)))
        committed = {value for name, value in facts.items() if name != "hot"}
        letters = Counter(
            f"{letter.source.removeprefix('rule ')} {letter.payload['new']['balance']}"
            for letter in ledger.db.dead_letters.list(kind="rule")
        )
        ended = lines + letters
        assert facts["hot"] == lines.total()
        assert not [line for line, count in ended.items() if count != 1]
        for value in committed:
            got = {mode for mode in MODES if ended[f"{mode} {value}"]}
            assert got == {"detached", "sequential", "causal"}, value
        allowed = {f"{mode} {value}" for value in committed for mode in MODES}
        for line in ended.keys() - allowed:
            assert line.split()[0] in ("detached", "exclusive"), line
        for raised in self.surely_raised:
            if not raised & committed:
                for value in raised:
                    assert ended[f"exclusive {value}"] == 1, value
            for value in raised:
                assert ended[f"detached {value}"] == 1, value


class Killer:
    """Killer of sessions of a database, in random order, while work goes on."""

    def __init__(self, url: str, seed: int):
        self._url = url
        self._chance = random.Random(seed)
        self.killed = 0

    def run(self, contended: Contended, times: int, works: int) -> None:
        """Kill `times` times, spread over the works; stop when none are left."""
        from sqlalchemy import create_engine

        engine = create_engine(self._url)
        others = text(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        pause = threading.Event()
        try:
            for number in range(times):
                while contended.ended < min(number * works // times, works - 1):
                    pause.wait(0.002)
                with engine.begin() as connection:
                    found = sorted(connection.scalars(others))
                    victims = self._chance.sample(found, min(len(found), 2))
                    for victim in victims:
                        connection.execute(text("SELECT pg_terminate_backend(:p)"), {"p": victim})
                        self.killed += 1
        finally:
            engine.dispose()


def main(given: dict[str, Any]) -> None:
    """Work until a point of a commit, and be killed there."""
    left, latch = [given["commit"]], threading.Lock()

    def trigger(point: str) -> None:
        if point == given["point"]:
            with latch:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

    with adb.connect(given["url"], **SETTINGS) as db:
        contended = Contended(db, given["seed"], faults=0.2)
        contended.fill()
        print("ready", flush=True)
        sys.stdin.readline()
        db._store.trigger = trigger
        contended.run(100_000)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
