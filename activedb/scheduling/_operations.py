"""Operations, and the s-transactions that they are parts of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from activedb.errors import AccessError
from activedb.functions import LAZY_TYPES, checked_result, message_of
from activedb.scheduling._tables import Computed, Ref, SharedTable, at_key

if TYPE_CHECKING:
    from activedb.scheduling._program import Program

__all__ = [
    "Abort",
    "At",
    "Effect",
    "Operation",
    "Outcome",
    "Read",
    "STransaction",
    "Write",
    "Writes",
]


Writes = list[tuple[SharedTable, Hashable, Any]]
"""List of (table, key, new value)."""


class Abort(Exception):
    """Raised by a function of an operation to abort its s-transaction, with the given reason."""


class Effect(NamedTuple):
    """Effect of an operation: its writes, and the result passed to post-processing."""

    writes: Writes
    result: Any


class Operation(ABC):
    """One state access of an s-transaction (Mao et al., section 2.1.1): a vertex of the TPG.

    An operation reads the state just before its s-transaction, regardless of the other operations
    of that s-transaction. Its writes take effect at the s-transaction's timestamp.

    Attributes
    ----------
    targets : tuple of Ref
        References that it may write.
    sources : tuple of Ref
        References that it may read, including those that computed keys read.
    refs : tuple of Ref
        The targets, then the sources.
    computes_keys : bool
        Whether some keys are known only when it runs, and it is a READ or WRITE.
    """

    __slots__ = ("computes_keys", "refs", "sources", "targets")

    def __init__(self, targets: tuple[Ref, ...], sources: tuple[Ref, ...]):
        self.targets = targets
        self.sources = sources
        self.refs = targets + sources
        self.computes_keys = False

    @abstractmethod
    def evaluate(self, read: Callable[[Ref], Any]) -> Effect:
        """Run the operation and return its effect.

        Parameters
        ----------
        read : callable
            ``read(ref)`` gives the value of a source as of the s-transaction's timestamp.

        Raises
        ------
        Exception
            Any error that its functions raise; the s-transaction aborts then.
        """


class Read(Operation):
    """READ: the values of some sources, optionally combined by a function.

    Parameters
    ----------
    sources : tuple of Ref
    function : callable, optional
        ``function(*values, *args)`` is the result; without it, the value, or a tuple of several.
    args : tuple
    """

    __slots__ = ("args", "direct", "function")

    def __init__(
        self, sources: tuple[Ref, ...], function: Callable[..., Any] | None, args: tuple[Any, ...]
    ):
        super().__init__((), (*sources, *_of_keys(sources)))
        self.computes_keys = any(type(ref.key) is Computed for ref in sources)
        self.direct = sources
        self.function = function
        self.args = args

    def evaluate(self, read: Callable[[Ref], Any]) -> Effect:
        values = [read(source) for source in self.direct]
        if self.function is not None:
            value = self.function(*values, *self.args)
            if value.__class__ in LAZY_TYPES:
                checked_result(value, f"the function of a READ of {self.direct[0]!r}")
            return Effect([], value)
        return Effect([], values[0] if len(values) == 1 else tuple(values))


class Write(Operation):
    """WRITE: one key gets a value computed from the values of some sources.

    Parameters
    ----------
    target : Ref
    sources : tuple of Ref
    function : callable
        ``function(*values, *args)`` is the new value and the result; None aborts.
    args : tuple
    """

    __slots__ = ("args", "direct", "function")

    def __init__(
        self,
        target: Ref,
        sources: tuple[Ref, ...],
        function: Callable[..., Any],
        args: tuple[Any, ...],
    ):
        # Many are made: the fields of the base class are set here, without the calls.
        self.direct = sources
        self.refs = (target, *sources)
        self.computes_keys = False
        for ref in self.refs:
            if type(ref.key) is Computed:
                self.computes_keys = True
                sources = (*sources, *_of_keys(self.refs))
                self.refs = (target, *sources)
                break
        self.targets = (target,)
        self.sources = sources
        self.function = function
        self.args = args

    def evaluate(self, read: Callable[[Ref], Any]) -> Effect:
        target = self.targets[0]
        key = target.key
        if type(key) not in target.table.plain_keys:
            key = at_key(target, read)
        value = self.function(*map(read, self.direct), *self.args)
        if value.__class__ in LAZY_TYPES:
            checked_result(value, f"the function of a WRITE of {target!r}")
        if value is None:
            raise Abort(f"{target!r} was not written: the function gave None")
        kept = target.table.check_value(value)
        # The stored value is a copy, so the consumer of the result may modify the latter in
        # place.
        return Effect([(target.table, key, kept)], kept if target.table.size else value)


def check_distinct(writes: Writes) -> None:
    """Raise `AccessError` if an s-transaction writes a key twice."""
    seen: set[tuple[str, Hashable]] = set()
    for table, key, _ in writes:
        if (table.name, key) in seen:
            raise AccessError(
                f"{table.name}[{key!r}] is written twice by one s-transaction: each operation sees "
                "the state before it, so one of the two would be lost"
            )
        seen.add((table.name, key))


def _of_keys(refs: tuple[Ref, ...]) -> list[Ref]:
    """Return the references that the computed keys of `refs` read."""
    found: list[Ref] = []
    for ref in refs:
        if isinstance(ref.key, Computed):
            found += ref.key.reads
            found += _of_keys(ref.key.reads)
    return found


# -- s-transactions: all operations that one event triggers, and their outcome ---------------------


class At(NamedTuple):
    """Place of an s-transaction in the serial order: its timestamp, with ties broken.

    Attributes
    ----------
    us : int
        Event time, in microseconds since the epoch.
    id : str
        The event's id; empty if it has none.
    arrival : int
        Unique among the s-transactions of one state.
    """

    us: int
    id: str
    arrival: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of an s-transaction.

    Attributes
    ----------
    results : tuple
        If it committed, the result of each operation, in the order of definition; else empty.
    reason : str or None
        Reason of the abort; None if it committed.
    error : BaseException or None
        Exception of a function that caused the abort, if any.
    """

    results: tuple[Any, ...] = ()
    reason: str | None = None
    error: BaseException | None = None

    @property
    def committed(self) -> bool:
        """True if the s-transaction committed."""
        return self.reason is None

    @classmethod
    def of_error(cls, error: BaseException) -> Outcome:
        """Return the outcome of an s-transaction whose function raised `error`.

        Only the place of the traceback is kept, as a note: its frames refer to those of the
        scheduler, and these to all s-transactions of the batch.
        """
        name = type(error).__name__
        text = message_of(error)
        reason = text if name == "Abort" and text else f"{name}: {text}" if text else name
        _forget_frames(error)
        return cls(reason=reason, error=error)


class STransaction:
    """All state changes that one input event triggers (Wang et al., definition 7).

    Attributes
    ----------
    at : At
        Its place in the serial order.
    type : str
        The event's type.
    params : mapping
        The parameters, after pre-processing.
    operations : tuple of Operation
        Each sees the state just before `at`.
    program : Program or None
        Program whose state access has made the operations, except those of rules, from `type` and
        `params`.
    outcome : Outcome or None
        None until it has ended.
    """

    __slots__ = ("at", "operations", "outcome", "params", "program", "type")

    def __init__(
        self,
        at: At,
        type: str,
        params: Mapping[str, Any],
        operations: tuple[Operation, ...],
        program: Program | None = None,
    ):
        self.at = at
        self.type = type
        self.params = params
        self.operations = operations
        self.program = program
        self.outcome: Outcome | None = None

    def reads(self) -> Iterator[Ref]:
        """Yield the references that it may read."""
        for operation in self.operations:
            yield from operation.sources

    def writes(self) -> Iterator[Ref]:
        """Yield the references that it may write."""
        for operation in self.operations:
            yield from operation.targets

    def __repr__(self) -> str:
        return f"<STransaction {self.type} at {self.at.us}>"


def _forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error and of its causes; note where it was raised."""
    place = error.__traceback__
    if place is not None and not hasattr(error, "__notes__"):
        while place.tb_next is not None:
            place = place.tb_next
        code = place.tb_frame.f_code
        error.add_note(f"raised in {code.co_name}, {code.co_filename}, line {place.tb_lineno}")
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
