"""A task: s-transactions that nothing outside of it touches, and the state that they need."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from activedb.scheduling._carried import Packed, loads, packed
from activedb.scheduling._s_transactions import Outcome, STransaction
from activedb.scheduling._scheduler import Scheduler
from activedb.scheduling._state import State
from activedb.scheduling.partitioned._needs import StatePart, load
from activedb.scheduling.partitioned._sending import Accesses, Sent, received, said

__all__ = ["Done", "Failed", "Raised", "SentOutcome", "Task", "dumped", "run_task"]

_KEPT_MAX = 16
_idle: dict[bytes, Scheduler] = {}
"""Schedulers of this process by what they were sent as: they go on with what they have learned."""
_read: dict[bytes, Accesses] = {}
"""State accesses by what they were sent as."""


class Task(NamedTuple):
    """What is to be run.

    Attributes
    ----------
    scheduler : bytes
        Pickled: who runs it.
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
    """An `Outcome`, whose error may be one that cannot be pickled."""

    results: tuple[Any, ...]
    reason: str | None
    error: Packed | None


class Done(NamedTuple):
    """What has come of a task.

    Attributes
    ----------
    outcomes : list of SentOutcome
        In the order of the s-transactions.
    versions : list of tuple
        Versions that were written: the number of the table, the key, the number of the
        s-transaction, and the value.
    seconds : float
        How long it took.
    """

    outcomes: list[SentOutcome]
    versions: list[tuple[int, Hashable, int, Any]]
    seconds: float


class Raised(NamedTuple):
    """What is no `Exception` came out of a function."""

    error: Packed


class Failed(NamedTuple):
    """It cannot be read where it was to run, or what came of it cannot be sent back.

    Attributes
    ----------
    number : int or None
        Of the s-transaction whose results cannot be sent; None: all of the task.
    what, reason : str
    """

    number: int | None
    what: str
    reason: str


def run_task(payload: bytes, dumps: Callable[[Any], bytes]) -> bytes:
    """Run a task, pickled, in this process.

    It changes nothing here, so it may be run again.

    Parameters
    ----------
    payload : bytes
        A `Task`.
    dumps : callable
        As that of the `TaskRunner`.

    Returns
    -------
    bytes
        `Done`, `Raised` or `Failed`, pickled.
    """
    try:
        task: Task = loads(payload)
        # Another task may come meanwhile, on another thread: it gets its own.
        scheduler = _taken(_idle, task.scheduler)
        accesses = _taken(_read, task.accesses)
        transactions = [received(sent, accesses) for sent in task.transactions]
        state = load(task.part)
    except Exception as error:  # whatever modules that it names raise, or that they are missing
        return pickle.dumps(Failed(None, "what is sent cannot be read there", said(error)))
    try:
        done = _run(transactions, state, scheduler, dumps)
    except BaseException as error:
        return pickle.dumps(Raised(packed(error, dumps)))
    _keep(_idle, task.scheduler, scheduler)
    _keep(_read, task.accesses, accesses)
    try:
        return dumps(done)
    except Exception:  # a result, or an error, that pickle cannot have: it says which
        return pickle.dumps(_failed(done, dumps))


def dumped(value: Any, dumps: Callable[[Any], bytes]) -> str | None:
    """Why a value cannot be pickled; None: it can."""
    try:
        dumps(value)
    except Exception as error:  # pickle raises what the value's class raises
        return said(error)
    return None


def _taken(kept: dict[bytes, Any], sent: bytes) -> Any:
    """What was read before; else it is read now."""
    found = kept.pop(sent, None)
    return loads(sent) if found is None else found


def _keep(kept: dict[bytes, Any], sent: bytes, value: Any) -> None:
    """Keep what was read for the next task that has it, and not for ever."""
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
    """Which of all that has come of a task cannot be pickled."""
    for number, outcome in enumerate(done.outcomes):
        reason = dumped(outcome.results, dumps)
        if reason is not None:
            return Failed(number, "its results cannot be sent back", reason)
    for _, key, number, value in done.versions:
        reason = dumped((key, value), dumps)
        if reason is not None:
            return Failed(number, f"what it writes for key {key!r} cannot be sent back", reason)
    return Failed(None, "what has come of it cannot be sent back", "together it cannot be pickled")
