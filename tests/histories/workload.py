"""Random programs of nested transactions over lists, run and recorded."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

from activedb.errors import (
    ConnectionLost,
    Deadlock,
    LockTimeout,
    SerializationConflict,
    TransactionAborted,
    TransactionError,
)
from tests.histories.history import Outcome, Recorder

if TYPE_CHECKING:
    from activedb import Child, Database, Transaction
    from tests.histories.lists import Lists

DEPTH_MAX = 3
KEYS = "abc"
TRANSACTIONS_PER_KEY = 10  # then come new lists, so that reads stay short


class Boom(Exception):
    """Error that a program raises on purpose."""


@dataclass(frozen=True)
class Operation:
    verb: Literal["read", "append"]
    key: str


@dataclass(frozen=True)
class Nested:
    """A child to run.

    Attributes
    ----------
    style : str
        ``block`` on this thread; ``spawn`` and go on; ``joined``: spawn and wait.
    is_caught : bool
        Whether its parent goes on when it fails.
    """

    program: Program
    style: Literal["block", "spawn", "joined"]
    is_caught: bool


Step: TypeAlias = Operation | Nested
Settle: TypeAlias = Callable[[], None]


@dataclass(frozen=True)
class Program:
    """Steps of one transaction.

    Attributes
    ----------
    seed : int
        For what is left to chance while it runs.
    joins : bool
        Whether it asks its spawned children for their results, or leaves them to the commit.
    """

    steps: list[Step]
    fate: Literal["commit", "abort", "raise"]
    seed: int
    joins: bool


def random_program(chance: random.Random, keys: list[str], depth: int = 0) -> Program:
    """A tree of operations and children; deeper nodes abort more often than the top."""
    steps: list[Step] = []
    for _ in range(chance.randint(1, 4 if depth == 0 else 3)):
        if depth < DEPTH_MAX - 1 and chance.random() < (0.6, 0.3)[depth]:
            inner = random_program(chance, keys, depth + 1)
            style = chance.choice(("block", "spawn", "spawn", "joined"))
            steps.append(Nested(inner, style, chance.random() < 0.85))  # type: ignore[arg-type]
        else:
            verb = chance.choice(("read", "append"))
            steps.append(Operation(verb, chance.choice(keys)))  # type: ignore[arg-type]
    bad = 0.05 if depth == 0 else 0.3
    fate = chance.choice(("abort", "raise")) if chance.random() < bad else "commit"
    return Program(steps, fate, chance.randrange(2**32), chance.random() < 0.7)  # type: ignore[arg-type]


class Client:
    """Client that runs programs on a database and records what they see.

    Parameters
    ----------
    name : str
        Distinguishes its transactions from those of other clients.
    first_value : int
        Its values count up from there; those of all clients must differ.
    """

    def __init__(self, db: Database, lists: Lists, recorder: Recorder, name: str, first_value: int):
        self._db = db
        self._lists = lists
        self._recorder = recorder
        self._name = name
        self._numbers = itertools.count(1)
        self._values = itertools.count(first_value)
        self._latch = threading.Lock()
        self.committed = 0

    def work(self, seed: int, transactions: int) -> None:
        """Run `transactions` random programs, one after the other."""
        chance = random.Random(seed)
        for number in range(transactions):
            keys = [f"{key}{number // TRANSACTIONS_PER_KEY}" for key in KEYS]
            self.run(random_program(chance, keys), in_block=chance.random() < 0.2)

    def run(self, program: Program, *, in_block: bool = False) -> Outcome:
        """Run one program as a top-level transaction: by ``db.run``, or in a ``with`` block."""
        names: list[str] = []
        unasked: list[Settle] = []

        def attempt(t: Transaction) -> None:
            if names:  # it is retried, so the try before was rolled back
                self._recorder.end(names[-1], Outcome.ABORTED)
            names.append(f"{self._name}{self._next(self._numbers)}")
            unasked[:] = self._body(t, program, names[-1], None)

        outcome = Outcome.ABORTED
        try:
            if in_block:
                returned = False
                with self._db.transaction() as t:
                    attempt(t)
                    returned = True
            else:
                self._db.run(attempt)
                returned = True
            if returned:
                outcome = Outcome.COMMITTED
        except (Boom, TransactionAborted, Deadlock, LockTimeout, SerializationConflict):
            pass
        except ConnectionLost as error:
            if error.committed is not False:
                outcome = Outcome.UNKNOWN
        if outcome is not Outcome.UNKNOWN:
            self._end(names[-1], outcome, unasked)
        self.committed += outcome is Outcome.COMMITTED
        return outcome

    def _body(
        self, t: Transaction, program: Program, name: str, parent: str | None
    ) -> list[Settle]:
        """Run a transaction up to its commit; return the children it has not asked for results."""
        self._recorder.begin(name, parent)
        spawned: list[tuple[Nested, Callable[[], None], Settle]] = []
        chance = random.Random(program.seed)
        try:
            for number, step in enumerate(program.steps, 1):
                if isinstance(step, Operation):
                    self._operate(t, step, name, chance)
                    continue
                inner = f"{name}.{number}"
                if step.style == "block":
                    self._caught(step, partial(self._block, t, step, inner, name))
                    continue
                ask, settle = self._spawn(t, step, inner, name)
                if step.style == "joined":
                    self._caught(step, ask)
                else:
                    spawned.append((step, ask, settle))
            if program.joins:
                for step, ask, _ in spawned:
                    self._caught(step, ask)
                spawned.clear()
            if program.fate == "abort":
                t.abort("as the program says")
            if program.fate == "raise":
                raise Boom(name)
        except BaseException:
            self._recorder.end(name, Outcome.ABORTED)
            raise
        self._recorder.committing(name)
        return [settle for _, _, settle in spawned]

    def _operate(self, t: Transaction, step: Operation, name: str, chance: random.Random) -> None:
        since = self._recorder.now()
        if step.verb == "read":
            seen = self._lists.read(t, step.key, chance)
            self._recorder.read(name, step.key, seen, since, scan=self._lists.is_scan)
            return
        value = self._next(self._values)
        self._recorder.append(name, step.key, value)
        before = self._lists.append(t, step.key, value, chance)
        if before is not None:
            self._recorder.read(name, step.key, before, since, scan=self._lists.is_scan)
        self._recorder.appended(value)

    def _block(self, t: Transaction, step: Nested, name: str, parent: str) -> None:
        unasked: list[Settle] = []
        returned = False
        try:
            with t.subtransaction() as s:
                unasked = self._body(s, step.program, name, parent)
                returned = True
        except BaseException:
            if returned:
                self._recorder.end(name, Outcome.ABORTED)
            raise
        if returned:
            self._end(name, Outcome.COMMITTED, unasked)

    def _spawn(
        self, t: Transaction, step: Nested, name: str, parent: str
    ) -> tuple[Callable[[], None], Settle]:
        """Spawn a child; returns how to ask for its result, and how to note that it committed."""
        names: list[str] = []
        unasked: list[Settle] = []

        def child(s: Transaction) -> None:
            if names:
                self._recorder.end(names[-1], Outcome.ABORTED)
            names.append(name + "'" * len(names))
            unasked[:] = self._body(s, step.program, names[-1], parent)

        handle: Child[None] = t.spawn(child)

        def ask() -> None:
            try:
                handle.result()
            except BaseException:
                if names:
                    self._recorder.end(names[-1], Outcome.ABORTED)
                raise
            settle()

        def settle() -> None:
            self._end(names[-1], Outcome.COMMITTED, unasked)

        return ask, settle

    def _caught(self, step: Nested, call: Callable[[], None]) -> None:
        try:
            call()
        except (Boom, TransactionError):
            # Also a deadlock, or worse: the transaction goes on, and may not get far.
            if not step.is_caught:
                raise

    def _end(self, name: str, outcome: Outcome, unasked: list[Settle]) -> None:
        """Note an end; children that were not asked have committed if their parent has."""
        if outcome is Outcome.COMMITTED:
            for settle in unasked:
                settle()
        self._recorder.end(name, outcome)

    def _next(self, numbers: itertools.count[int]) -> int:
        with self._latch:
            return next(numbers)
