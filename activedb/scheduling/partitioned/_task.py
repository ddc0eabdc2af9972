"""Task: s-transactions independent of all others, with the state that they need."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from activedb.scheduling._carried import PickledError, loads, packed
from activedb.scheduling._s_transactions import Outcome, STransaction
from activedb.scheduling._scheduler import Scheduler
from activedb.scheduling._state import State
from activedb.scheduling.partitioned._needs import StatePart, load
from activedb.scheduling.partitioned._sending import Accesses, Sent, received, said

__all__ = ["Done", "Failed", "RaisedError", "SentOutcome", "Task", "dumped", "run_task"]

_KEPT_MAX = 16
_idle: dict[bytes, Scheduler] = {}
"""Idle schedulers of this process, by their pickles: they reuse what they have learned."""
_read: dict[bytes, Accesses] = {}
"""State accesses, by their pickles."""


class Task(NamedTuple):
    """Input of a task.

    Attributes
    ----------
    scheduler : bytes
        Pickle of the scheduler that runs it.
    accesses : bytes
        Pickled `Accesses`.
    part : StatePart
    transactions : list of Sent
        In the serial order.
    """

    scheduler: bytes
    accesses: bytes
    part: StatePart
    transactions: list[Sent]


class SentOutcome(NamedTuple):
    """`Outcome` in a form that can be pickled even if its error cannot."""

    results: tuple[Any, ...]
    reason: str | None
    error: PickledError | None


class Done(NamedTuple):
    """Result of a task.

    Attributes
    ----------
    outcomes : list of SentOutcome
        In the order of the s-transactions.
    versions : list of tuple
        Versions that were written: the number of the table, the key, the number of the
        s-transaction, and the value.
    seconds : float
        Duration of the run.
    """

    outcomes: list[SentOutcome]
    versions: list[tuple[int, Hashable, int, Any]]
    seconds: float


class RaisedError(NamedTuple):
    """Answer if a function raised something other than an `Exception`."""

    error: PickledError


class Failed(NamedTuple):
    """Answer if a task cannot be read in its process, or its result cannot be sent back.

    Attributes
    ----------
    number : int or None
        Number of the s-transaction whose results cannot be sent; None if it is the whole task.
    what, reason : str
    """

    number: int | None
    what: str
    reason: str


def run_task(payload: bytes, dumps: Callable[[Any], bytes]) -> bytes:
    """Run a pickled task in this process.

    It changes no state of this process, so it may be run again.

    Parameters
    ----------
    payload : bytes
        A `Task`.
    dumps : callable
        As in `TaskRunner`.

    Returns
    -------
    bytes
        `Done`, `RaisedError` or `Failed`, pickled.
    """
    try:
        task: Task = loads(payload)
        # A concurrent task on another thread gets a scheduler of its own.
        scheduler = _taken(_idle, task.scheduler)
        accesses = _taken(_read, task.accesses)
        transactions = [received(sent, accesses) for sent in task.transactions]
        state = load(task.part)
    except Exception as error:  # modules that it names are missing or raise
        return pickle.dumps(Failed(None, "what is sent cannot be read there", said(error)))
    try:
        done = _run(transactions, state, scheduler, dumps)
    except BaseException as error:
        return pickle.dumps(RaisedError(packed(error, dumps)))
    _keep(_idle, task.scheduler, scheduler)
    _keep(_read, task.accesses, accesses)
    try:
        return dumps(done)
    except Exception:  # a result or an error cannot be pickled: report which
        return pickle.dumps(_failed(done, dumps))


def dumped(value: Any, dumps: Callable[[Any], bytes]) -> str | None:
    """Return why a value cannot be pickled; None if it can."""
    try:
        dumps(value)
    except Exception as error:  # the value's class may raise anything
        return said(error)
    return None


def _taken(kept: dict[bytes, Any], sent: bytes) -> Any:
    """Remove and return the cached object for a pickle; unpickle it if there is none."""
    found = kept.pop(sent, None)
    return loads(sent) if found is None else found


def _keep(kept: dict[bytes, Any], sent: bytes, value: Any) -> None:
    """Cache an unpickled object for the next task with the same pickle, up to a limit."""
    kept[sent] = value
    if len(kept) > _KEPT_MAX:
        del kept[next(iter(kept))]


def _run(
    transactions: list[STransaction],
    state: State,
    scheduler: Scheduler,
    dumps: Callable[[Any], bytes],
) -> Done:
    began_s = time.perf_counter()
    for transaction in transactions:
        scheduler.add(transaction)
    scheduler.run(state)
    seconds = time.perf_counter() - began_s
    numbers = {t.at: number for number, t in enumerate(transactions)}
    first = transactions[0].at
    versions = [
        (table, key, numbers[at], value)
        for table, of_table in enumerate(state)
        for key, those in of_table.since(first).items()
        for at, value in those
        if at in numbers
    ]
    return Done([_sent(t.outcome, dumps) for t in transactions], versions, seconds)


def _sent(outcome: Outcome | None, dumps: Callable[[Any], bytes]) -> SentOutcome:
    assert outcome is not None
    error = None if outcome.error is None else packed(outcome.error, dumps)
    return SentOutcome(outcome.results, outcome.reason, error)


def _failed(done: Done, dumps: Callable[[Any], bytes]) -> Failed:
    """Return which part of a task's result cannot be pickled."""
    for number, outcome in enumerate(done.outcomes):
        reason = dumped(outcome.results, dumps)
        if reason is not None:
            return Failed(number, "its results cannot be sent back", reason)
    for _, key, number, value in done.versions:
        reason = dumped((key, value), dumps)
        if reason is not None:
            return Failed(number, f"what it writes for key {key!r} cannot be sent back", reason)
    return Failed(None, "what has come of it cannot be sent back", "together it cannot be pickled")
