"""Strands of a scenario: what a thread plays, and what it reports.

A *strand* is a thread's part: it plays a top-level transaction, or a spawned child, with the
subtransactions that it opens on its own thread. Between two steps it waits for the next one. It
reports all that happens to the stage.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from activedb import State
from activedb.errors import (
    ActiveDBError,
    ConnectionLost,
    ConstraintViolation,
    LockNotAvailable,
    StatementCancelled,
    TransactionError,
    TransactionStateError,
)
from tests.nodes import node_of
from tests.patience import PATIENCE_S
from tests.scenarios.operations import VERBS, Operation, called, perform
from tests.scenarios.watched import WatchedPool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from sqlalchemy import Table

    import activedb as adb
    from activedb import Transaction
    from tests.scenarios.stage import Stage

__all__ = ["Step", "Strand", "top_of"]


LIMIT_S = 2 * PATIENCE_S
"""Limits of time are over when the stage lets time pass: never before, on the slowest machine."""


class OnPurposeError(Exception):
    """Error that a transaction raises on request."""


class CurtainError(BaseException):
    """Exception that ends the strands of a scenario that is over."""


@dataclass
class Step:
    """A line of a scenario that some transaction plays."""

    name: str
    words: list[str]

    @property
    def verb(self) -> str:
        """Name of what to do."""
        return self.words[0]

    @property
    def timeout(self) -> dict[str, float]:
        """The limit of time of ``begin within a limit``, as it is given to activedb."""
        return {"timeout": LIMIT_S} if self.words[1:] == ["within", "a", "limit"] else {}


def top_of(name: str) -> str:
    """``T1`` for ``T1.2.1``."""
    return name.split(".")[0]


def _ends_the_block(error: BaseException) -> bool:
    """Return whether a program of a scenario lets an error end the transaction that raised it."""
    if isinstance(error, LockNotAvailable | TransactionStateError):
        return False
    return isinstance(
        error, TransactionError | ConstraintViolation | ConnectionLost | StatementCancelled
    )


@dataclass(eq=False)
class Strand:
    """A thread's part; `root` is the first transaction on it."""

    stage: Stage
    root: str
    db: adb.Database
    tables: Mapping[str, Table]
    is_retried: bool
    inbox: SimpleQueue[Step | None] = field(default_factory=SimpleQueue)
    current: Step | None = None
    backlog: deque[Step] = field(default_factory=deque)
    open: list[str] = field(default_factory=list)
    ended: bool = False
    thread: int = 0
    error: BaseException | None = None

    # -- on the thread -----------------------------------------------------------------------

    def live(self, again: bool) -> None:
        """Play a top-level transaction, then whatever is still asked of it."""
        self.thread = threading.get_ident()
        try:
            with self._at_work():
                self._live(again)
        except BaseException as error:
            self.stage.broken = error

    def _live(self, again: bool) -> None:
        assert self.current is not None
        limit = self.current.timeout
        try:
            if again:
                run = self.db.with_timeout(**limit).run if limit else self.db.run
                run(self._attempt)
            else:
                with self.db.transaction(timeout=limit.get("timeout")) as t:
                    self._play(self.root, t)
        except CurtainError:
            return
        except BaseException as error:
            self._end(self.root, error)
        else:
            self._end(self.root, None)
        while (step := self.inbox.get()) is not None:
            self._operate(step)

    def watch(self, call: Callable[[], Any]) -> Any:
        """Make the call in which a spawned child is played, tries and all; tell how it ends."""
        self.thread = threading.get_ident()
        try:
            with self._at_work():
                result = call()
        except CurtainError:
            raise OnPurposeError from None
        except BaseException as error:
            self.ended = True
            self._end(self.root, error)
            raise
        self.ended = True
        self._end(self.root, None)
        return result

    def _at_work(self) -> AbstractContextManager[None]:
        return self.stage.ground.playing(top_of(self.root))

    def _attempt(self, t: Transaction) -> None:
        """One try of the root."""
        self._play(self.root, t)

    def _play(self, name: str, t: Transaction) -> None:
        """Play the steps of one transaction until it is to commit or fails."""
        self._begin(name, t)
        while True:
            step = self.inbox.get()
            if step is None:
                raise CurtainError
            match step.verb:
                case "commit" if step.name == name:
                    return
                case "abort" if step.name == name:
                    t.abort()
                case "fails" if step.name == name:
                    raise OnPurposeError
                case "begin":
                    self._subtransaction(step, t)
                case "spawn":
                    self._spawn(step, t)
                case "result":
                    self._result(step.name)
                case _:
                    self._operate(step)

    def _subtransaction(self, step: Step, t: Transaction) -> None:
        name = step.name
        try:
            with t.subtransaction(**step.timeout) as s:
                self._play(name, s)
        except Exception as error:
            if self.is_retried and _ends_the_block(error):
                self.stage.happened(name, "abort")
                self.error = error
                raise
            self._end(name, error)
        else:
            self._end(name, None)

    def _spawn(self, step: Step, t: Transaction) -> None:
        name = step.name
        pool = self.db._forest.pool
        assert isinstance(pool, WatchedPool)
        retried = self.stage.settings.get("retries_max", 0) > 0
        strand = Strand(self.stage, name, self.db, self.tables, retried)
        strand.current = Step(name, ["spawned"])
        try:
            with pool.wrapping(strand.watch):
                spawn = t.with_timeout(**step.timeout).spawn if step.timeout else t.spawn
                self.stage.children[name] = spawn(strand._attempt)
        except Exception as error:
            self._finish(called(error))
            return
        self.stage.add(strand)
        self._finish("ok")

    def _result(self, name: str) -> None:
        try:
            self.stage.children[name].result()
        except Exception as error:
            self._finish(_told(error))
        else:
            self._finish("ok")

    def _operate(self, step: Step) -> None:
        """Do something to rows, or to a transaction that has ended or is not the innermost."""
        name = step.name if step.verb != "begin" else step.name.rpartition(".")[0]
        t = self.stage.nodes[name]
        live = t.state is State.ACTIVE
        if step.verb not in VERBS:
            assert step.verb in ("commit", "abort", "begin"), f"not a step: {step}"
            misuse: dict[str, Callable[[], object]] = {
                "begin": t.subtransaction,
                "commit": node_of(t).commit,
                "abort": t.abort,
            }
            self._finish(self._refused(misuse[step.verb]))
            return
        operation = Operation.read(step.words)
        try:
            outcome = perform(operation, t, self.tables)
        except Exception as error:
            if _ends_the_block(error) and live:
                self.error = error
                raise
            outcome = _told(error)
            if outcome in ("row exists", "row not found"):
                self.stage.happened(step.name, operation, outcome)
        else:
            assert live, "an ended transaction still works"
            self.stage.happened(step.name, operation, outcome)
        self._finish(outcome)

    def _refused(self, call: Callable[[], object]) -> str:
        """Make a call that a transaction has to refuse."""
        try:
            call()
        except Exception as error:
            return _told(error)
        raise AssertionError("an ended transaction still works")

    # -- what is told ------------------------------------------------------------------------

    def _begin(self, name: str, t: Transaction) -> None:
        again = name in self.stage.nodes and name == self.root
        self.open.append(name)
        self.stage.began(name, t, again=again)
        if again:
            self.open[:] = [name]
            reason = "refused" if self.error is None else called(self.error)
            self._finish(f"{reason}, {name} begins again")
        else:
            self._finish("ok")
        self.error = None

    def _end(self, name: str, error: BaseException | None) -> None:
        t = self.stage.nodes.get(name)
        if name in self.open:
            del self.open[self.open.index(name) :]
        step = self.current
        assert step is not None
        if t is None:  # it could not even begin
            assert error is not None
            self._finish(called(error))
            return
        committed = t.state is State.COMMITTED
        if not committed:
            self.stage.happened(name, "abort")
        if committed or (step.verb in ("abort", "fails") and step.name == name):
            outcome = "ok" if error is None or not committed else called(error)
        else:
            outcome = f"{'' if error is None else _told(error) + ', '}{name} aborted"
        self._finish(outcome)

    def _finish(self, outcome: str) -> None:
        step = self.current
        assert step is not None
        self.stage.finished(self, step, outcome)


def _told(error: BaseException) -> str:
    if isinstance(error, OnPurposeError):
        return "its error"
    if not isinstance(error, ActiveDBError):
        raise error
    return called(error)
