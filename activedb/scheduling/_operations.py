"""Operations: the parts of an s-transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from activedb.errors import AccessError
from activedb.functions import LAZY_TYPES, checked_result
from activedb.scheduling._tables import Computed, Ref, SharedTable, at_key

__all__ = ["Abort", "Effect", "Operation", "Read", "Write", "Writes"]

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
    """

    __slots__ = ("refs", "sources", "targets")

    def __init__(self, targets: tuple[Ref, ...], sources: tuple[Ref, ...]):
        self.targets = targets
        self.sources = sources
        self.refs = targets + sources

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
        super().__init__((target,), (*sources, *_of_keys((target, *sources))))
        self.direct = sources
        self.function = function
        self.args = args

    def evaluate(self, read: Callable[[Ref], Any]) -> Effect:
        target = self.targets[0]
        key = at_key(target, read)
        value = self.function(*[read(source) for source in self.direct], *self.args)
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
