"""The short form: one function that reads and writes, with declared access sets."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from activedb.errors import AccessError
from activedb.scheduling._operations import Abort, Effect, Operation
from activedb.scheduling._tables import Range, Ref, SharedTable, at_key

__all__ = ["Body", "View"]


class View:
    """What a function of the short form sees: the state at its s-transaction's timestamp.

    It sees its own writes, as its statements run one after the other.
    """

    __slots__ = ("_may_read", "_may_write", "_read", "_writes")

    def __init__(
        self, read: Callable[[Ref], Any], may_read: tuple[Ref, ...], may_write: tuple[Ref, ...]
    ):
        self._read = read
        self._may_read = may_read
        self._may_write = may_write
        self._writes: dict[tuple[str, Hashable], tuple[SharedTable, Hashable, Any]] = {}

    def read(self, ref: Ref) -> Any:
        """The value of a key, a list of a window, a dict of a range.

        Raises
        ------
        AccessError
            If it is outside the declared sets, or cannot be a key.
        """
        if not any(_covers(declared, ref) for declared in (*self._may_read, *self._may_write)):
            raise AccessError(f"{ref!r} is read, but not among what its s-transaction declared")
        if ref.window_us is None and not ref.is_whole:
            own = self._writes.get((ref.table.name, ref.key))
            if own is not None:
                return own[2]
        return self._read(ref)

    def write(self, ref: Ref, value: Any) -> None:
        """Give a key a value; `REMOVED` takes it away.

        Raises
        ------
        AccessError
            If it is outside the declared sets, or cannot be a key or a value of the table.
        """
        key = at_key(ref, self._read)
        if not any(_covers(declared, ref) for declared in self._may_write):
            raise AccessError(f"{ref!r} is written, but not among what its s-transaction declared")
        if ref.window_us is not None or isinstance(ref.key, Range):
            raise AccessError(f"{ref!r} is read, not written: one key at a time is written")
        ref.table.check_value(value)
        self._writes[ref.table.name, key] = (ref.table, key, value)

    def abort(self, reason: str) -> None:
        """Abort the s-transaction."""
        raise Abort(reason)

    def effect(self, result: Any) -> Effect:
        """What was written so far, and a result."""
        return Effect(list(self._writes.values()), result)


class Body(Operation):
    """The one operation of a short form's s-transaction.

    Parameters
    ----------
    function : callable
        ``function(t, e)``: a `View` and the parameters; what it returns is the result.
    params : mapping
    reads, writes : tuple of Ref
        What it may access at most.
    """

    __slots__ = ("function", "params")

    def __init__(
        self,
        function: Callable[[View, Mapping[str, Any]], Any],
        params: Mapping[str, Any],
        reads: tuple[Ref, ...],
        writes: tuple[Ref, ...],
    ):
        self.targets = writes
        self.sources = (*reads, *writes)
        self.function = function
        self.params = params

    def evaluate(self, read: Callable[[Ref], Any]) -> Effect:
        view = View(read, self.sources, self.targets)
        return view.effect(self.function(view, self.params))


def _covers(declared: Ref, ref: Ref) -> bool:
    """Whether who declared one may access the other."""
    if declared.table is not ref.table:
        return False
    if declared.window_us is not None and (ref.window_us or 0) > declared.window_us:
        return False
    if ref.window_us is not None and declared.window_us is None and not declared.is_whole:
        return False
    if isinstance(declared.key, Range):
        low, high = declared.key.low, declared.key.high
        if isinstance(ref.key, Range):
            return (low is None or (ref.key.low is not None and low <= ref.key.low)) and (
                high is None or (ref.key.high is not None and ref.key.high <= high)
            )
        if ref.is_whole:
            return low is None and high is None
        return (low is None or low <= ref.key) and (high is None or ref.key < high)
    if declared.is_whole:
        return True
    return bool(declared.key == ref.key)
