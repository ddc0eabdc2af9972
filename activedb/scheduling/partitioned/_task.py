"""Task: s-transactions independent of all others, with the state that they need.

An operation contains functions, and functions outside modules are slow to pickle. So operations are
not sent if they can be created again: by their program's state access, from the parameters. The
state accesses are sent with each task as one pickle, which a process reads only once.
"""

from __future__ import annotations

import pickle
import time
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from activedb.errors import DefinitionError
from activedb.functions import message_of, typed_text
from activedb.scheduling._access import Access
from activedb.scheduling._operations import At, Outcome, STransaction
from activedb.scheduling._program import Program
from activedb.scheduling._rules import Reactions
from activedb.scheduling._scheduler import Scheduler
from activedb.scheduling._state import SharedState, Versions
from activedb.scheduling._tables import Range, Ref, SharedTable

__all__ = [
    "INSTEAD",
    "Accesses",
    "Failed",
    "PickledError",
    "RaisedError",
    "RemoteError",
    "Sent",
    "SentOutcome",
    "SentPrograms",
    "SortedKeys",
    "StatePart",
    "Task",
    "TaskResult",
    "dumped",
    "load",
    "loads",
    "named",
    "packed",
    "part_of",
    "received",
    "restored",
    "run_task",
]


_ORDERED = (int, str, bytes)


class SortedKeys:
    """Keys of a table, with lookup by range.

    Parameters
    ----------
    table : SharedTable
    keys : iterable of hashable
    """

    def __init__(self, table: SharedTable, keys: Iterable[Hashable]):
        self._kind = table.key
        self._keys: list[Any] = list(keys)
        # Keys of other types may have no order, or raise when compared.
        self._has_order = self._kind in _ORDERED and all(
            type(key) is self._kind for key in self._keys
        )
        if self._has_order:
            self._keys.sort()

    def within(self, bounds: Range) -> list[Any]:
        """Return the keys that a read of the range may access; all if unordered. O(log n)."""
        low, high = bounds.low, bounds.high
        if not self._has_order or any(
            bound is not None and type(bound) is not self._kind for bound in (low, high)
        ):
            return self._keys
        first = 0 if low is None else bisect_left(self._keys, low)
        last = len(self._keys) if high is None else bisect_left(self._keys, high)
        return self._keys[first:last]


# -- part of a state that some s-transactions may read ---------------------------------------------


StatePart = list[tuple[SharedTable, list[tuple[Hashable, tuple[tuple[At, Any], ...]]]]]
"""Per table, its keys with their versions, oldest first."""


class _Needed:
    """Versions needed of a table: keys, each with a place and time to start from, and ranges."""

    __slots__ = ("everything", "keys", "ranges", "whole")

    def __init__(self) -> None:
        self.keys: dict[Hashable, tuple[At, int]] = {}
        self.ranges: list[Range] = []
        self.everything = False
        self.whole: tuple[At, int] | None = None  # start of the versions needed for ranges and all

    def add(self, ref: Ref, at: At) -> None:
        """Add a reference of an s-transaction; REQUIRES: they come in the serial order."""
        if not ref.is_whole:
            since_us = at.us if ref.window_us is None else at.us - ref.window_us
            try:
                before = self.keys.get(ref.key)
            except Exception:
                return  # an invalid key, which is never read
            if before is None or since_us < before[1]:
                self.keys[ref.key] = (at if before is None else before[0], since_us)
            return
        # A read of an unknown key may also read any window over it.
        window_us = ref.table.history_us if ref.window_us is None else ref.window_us
        first, since_us = (at, at.us) if self.whole is None else self.whole
        self.whole = first, min(since_us, at.us - window_us)
        if isinstance(ref.key, Range):
            self.ranges.append(ref.key)
        else:
            self.everything = True

    def of(self, versions: Versions) -> list[tuple[Hashable, tuple[tuple[At, Any], ...]]]:
        """Return the versions that are needed."""
        keys = dict(self.keys)
        if self.whole is not None:
            first, since_us = self.whole
            for key in self._of_whole(versions):
                known = keys.get(key)
                keys[key] = (
                    self.whole if known is None else (min(known[0], first), min(known[1], since_us))
                )
        found = [(key, versions.needed(key, *since)) for key, since in keys.items()]
        return [(key, those) for key, those in found if those]

    def _of_whole(self, versions: Versions) -> list[Hashable]:
        there = versions.keys()
        if self.everything:
            return there
        in_order = SortedKeys(versions.table, there)
        return list(dict.fromkeys(key for each in self.ranges for key in in_order.within(each)))


def part_of(state: SharedState, transactions: Sequence[STransaction]) -> StatePart:
    """Return the versions that s-transactions may read, for all tables; some may have none.

    O(references + length of the result); if a range or a computed key is read, also O(keys) of its
    table.

    Parameters
    ----------
    state : SharedState
    transactions : sequence of STransaction
        In the serial order.
    """
    needed: dict[SharedTable, _Needed] = {}
    for transaction in transactions:
        for ref in transaction.reads():
            of_table = needed.get(ref.table)
            if of_table is None:
                of_table = needed[ref.table] = _Needed()
            of_table.add(ref, transaction.at)
    return [
        (versions.table, needed[versions.table].of(versions) if versions.table in needed else [])
        for versions in state
    ]


def load(part: StatePart) -> SharedState:
    """Build a state from a part."""
    state = SharedState(table for table, _ in part)
    for table, keys in part:
        versions = state.of(table)
        for key, those in keys:
            for at, value in those:
                versions.write(key, at, value)
    return state


# -- serialisation of s-transactions for other processes -------------------------------------------


INSTEAD = "or run it in one process (scale_out off)"

_StateAccess: TypeAlias = Callable[[Mapping[str, Any], Access], object]
Accesses: TypeAlias = list[dict[str, _StateAccess]]
"""State accesses of each program, by event type."""

Sent: TypeAlias = tuple[Any, ...]
"""``(us, id, arrival, type, parameters, are they read-only, program number or operations)``."""


class SentPrograms:
    """Programs whose s-transactions are sent, by number.

    Parameters
    ----------
    dumps : callable
        As in `TaskRunner`.

    Attributes
    ----------
    pickled : bytes
        Their state accesses, `Accesses`.
    """

    def __init__(self, dumps: Callable[[Any], bytes]):
        self.pickled = pickle.dumps([])
        self._dumps = dumps
        self._numbers: dict[Program, int] = {}
        self._types: list[tuple[str, ...]] = []

    def number(self, program: Program) -> int:
        """Return the number of a program; pickle a program that is new or has new types.

        Raises
        ------
        DefinitionError
            If one of its state accesses cannot be pickled.
        """
        number = self._numbers.get(program)
        if number is None:
            number = self._numbers[program] = len(self._numbers)
            self._types.append(())
        if self._types[number] != program.types:
            self._types[number] = program.types
            self._pickle()
        return number

    def send(self, transaction: STransaction) -> Sent:
        """Return the values of an s-transaction to pickle; may register its program (`number`)."""
        params, operations, program = (
            transaction.params,
            transaction.operations,
            transaction.program,
        )
        is_read_only = type(params) is MappingProxyType
        made_by: Any = operations
        if program is not None and not (operations and type(operations[-1]) is Reactions):
            made_by = self.number(program)
        given = dict(params) if is_read_only else params
        return (*transaction.at, transaction.type, given, is_read_only, made_by)

    def _pickle(self) -> None:
        accesses = [{type_: p.access(type_) for type_ in p.types} for p in self._numbers]
        try:
            self.pickled = self._dumps(accesses)
        except Exception as error:
            for program, of_program in zip(self._numbers, accesses, strict=True):
                for type_, access in of_program.items():
                    self._check(program, type_, access)
            raise DefinitionError(
                f"state accesses cannot be pickled: {typed_text(error)}"
            ) from error

    def _check(self, program: Program, type_: str, access: _StateAccess) -> None:
        try:
            self._dumps(access)
        except Exception as error:
            raise DefinitionError(
                f"program {program.name}: the state access for {type_} cannot be sent to other "
                f"processes ({typed_text(error)}): use only values that can be pickled, {INSTEAD}"
            ) from error


def received(sent: Sent, accesses: Accesses) -> STransaction:
    """Rebuild an s-transaction in the other process."""
    us, id_, arrival, type_, params, is_read_only, made_by = sent
    if is_read_only:
        params = MappingProxyType(params)
    if isinstance(made_by, int):
        access = Access()
        accesses[made_by][type_](params, access)
        made_by = tuple(access.operations)
    return STransaction(At(us, id_, arrival), type_, params, made_by)


def named(transaction: STransaction) -> str:
    """Return the name of an s-transaction in error messages."""
    of = "" if transaction.program is None else f"program {transaction.program.name}, "
    return f"{of}s-transactions of type {transaction.type}"


# -- task: s-transactions independent of all others, with the state that they need -----------------


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


class TaskResult(NamedTuple):
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
        `TaskResult`, `RaisedError` or `Failed`, pickled.
    """
    try:
        task: Task = loads(payload)
        # A concurrent task on another thread gets a scheduler of its own.
        scheduler = _taken(_idle, task.scheduler)
        accesses = _taken(_read, task.accesses)
        transactions = [received(sent, accesses) for sent in task.transactions]
        state = load(task.part)
    except Exception as error:  # modules that it names are missing or raise
        return pickle.dumps(Failed(None, "what is sent cannot be read there", typed_text(error)))
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
        return typed_text(error)
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
    state: SharedState,
    scheduler: Scheduler,
    dumps: Callable[[Any], bytes],
) -> TaskResult:
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
    return TaskResult([_sent(t.outcome, dumps) for t in transactions], versions, seconds)


def _sent(outcome: Outcome | None, dumps: Callable[[Any], bytes]) -> SentOutcome:
    assert outcome is not None
    error = None if outcome.error is None else packed(outcome.error, dumps)
    return SentOutcome(outcome.results, outcome.reason, error)


def _failed(done: TaskResult, dumps: Callable[[Any], bytes]) -> Failed:
    """Return which part of a task's result cannot be pickled."""
    for number, outcome in enumerate(done.outcomes):
        reason = dumped(outcome.results, dumps)
        if reason is not None:
            return Failed(number, "its results cannot be sent back", reason)
    for _, key, number, value in done.versions:
        reason = dumped((key, value), dumps)
        if reason is not None:
            return Failed(number, f"what it writes for key {key!r} cannot be sent back", reason)
    return Failed(None, "its results cannot be sent back", "together it cannot be pickled")


# -- transfer between processes: pickles, and the errors in them -----------------------------------

_CHAIN_MAX = 16
"""Maximum length of a chain of causes that is transferred with an error."""


class RemoteError(Exception):
    """Substitute for an error that cannot be pickled.

    It has the error's text; its actual class is a subclass with the name of the error's class.
    """


class PickledError(NamedTuple):
    """Error as plain values, which can always be pickled.

    Attributes
    ----------
    data : bytes or None
        The pickled error; None if it cannot be pickled.
    name, text : str
        Name of its class, and its text.
    notes : list of str
    cause, context : PickledError or None
    is_explicit : bool
        Whether it was raised from its cause, so that the context is not displayed.
    """

    data: bytes | None
    name: str
    text: str
    notes: list[str]
    cause: Any
    context: Any
    is_explicit: bool


def loads(data: bytes) -> Any:
    """Unpickle data that this program has pickled, in this process or another of its own."""
    return pickle.loads(data)  # noqa: S301  # data of this program only, transferred by Spark


def packed(
    error: BaseException, dumps: Callable[[Any], bytes] = pickle.dumps, left: int = _CHAIN_MAX
) -> PickledError:
    """Return an error, with its causes and contexts, as plain values to send."""
    cause, context = (
        None if each is None or left == 0 else packed(each, dumps, left - 1)
        for each in (error.__cause__, error.__context__)
    )
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    return PickledError(
        _dumped(error, dumps),
        type(error).__name__,
        message_of(error),
        notes,
        cause,
        context,
        error.__suppress_context__,
    )


def restored(sent: PickledError) -> BaseException:
    """Return the error: of its original class if possible, else a `RemoteError` of that name."""
    error = _loaded(sent)
    if error is None:
        error = type(sent.name, (RemoteError,), {})(sent.text)
    if not hasattr(error, "__notes__"):
        for note in sent.notes:
            error.add_note(note)
    error.__cause__ = None if sent.cause is None else restored(sent.cause)
    error.__context__ = None if sent.context is None else restored(sent.context)
    error.__suppress_context__ = sent.is_explicit
    return error


def _dumped(error: BaseException, dumps: Callable[[Any], bytes]) -> bytes | None:
    """Return the pickled error; None if it does not survive a round trip, as for some classes."""
    try:
        data = dumps(error)
        again = loads(data)
        is_same = type(again).__name__ == type(error).__name__ and str(again) == str(error)
    except Exception:  # user-defined classes may raise anything
        return None
    return data if is_same else None


def _loaded(sent: PickledError) -> BaseException | None:
    if sent.data is None:
        return None
    try:
        error = loads(sent.data)
    except Exception:  # its class may not be importable in this process
        return None
    return error if isinstance(error, BaseException) else None
