"""Operations: what an s-transaction consists of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

from activedb.errors import AccessError
from activedb.functions import LAZY_TYPES, checked_result
from activedb.scheduling._tables import Computed, Ref, SharedTable, at_key

__all__ = ["Abort", "Effect", "Operation", "Read", "Write", "Writes"]

Writes = list[tuple[SharedTable, Hashable, Any]]
"""Tables, keys and new values."""


class Abort(Exception):
    """Raised by a function of an operation: its s-transaction aborts, for the reason given."""


class Effect(NamedTuple):
    """What an operation has made: what it writes, and the result that goes to post-processing."""

    writes: Writes
    result: Any


class Operation(ABC):
    """One state access of an s-transaction (Mao et al., section 2.1.1): a vertex of the TPG.

    All that it reads it sees as it was just before its s-transaction, whatever the other operations
    of that do; what it writes takes effect at the s-transaction's timestamp.

    Attributes
    ----------
    targets : tuple of Ref
        What it may write.
    sources : tuple of Ref
        What it may read; those of computed keys too.
    """

    __slots__ = ("sources", "targets")

    targets: tuple[Ref, ...]
    sources: tuple[Ref, ...]

    @abstractmethod
    def evaluate(self, read: Callable[[Ref], Any]) -> Effect:
        """Run it.

        Parameters
        ----------
        read : callable
            ``read(ref)`` gives the value of a source as of the s-transaction's timestamp.

        Raises
        ------
        Exception
            Whatever its functions raise; the s-transaction aborts then.
        """

    def refs(self) -> Iterator[Ref]:
        """Targets, then sources."""
        yield from self.targets
        yield from self.sources


class Read(Operation):
    """READ: the values of some sources, perhaps folded by a function.

    Parameters
    ----------
    sources : tuple of Ref
    function : callable, optional
        ``function(*values, *args)`` is the result; without it the value, or a tuple of several.
    args : tuple
    """

    __slots__ = ("args", "direct", "function")

    def __init__(
        self, sources: tuple[Ref, ...], function: Callable[..., Any] | None, args: tuple[Any, ...]
    ):
        self.targets = ()
        self.direct = sources
        self.sources = (*sources, *_of_keys(sources))
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
    """WRITE: one key gets the value that a function makes of the values of some sources.

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
        self.targets = (target,)
        self.direct = sources
        self.sources = (*sources, *_of_keys((target, *sources)))
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
        # The value that is kept is a copy, so whoever gets the result may change that in place.
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


def _of_keys(refs: tuple[Ref, ...]) -> Iterator[Ref]:
    """What the computed keys of some references read."""
    for ref in refs:
        if isinstance(ref.key, Computed):
            yield from ref.key.reads
            yield from _of_keys(ref.key.reads)
