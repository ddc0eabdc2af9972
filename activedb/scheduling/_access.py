"""Operations of an event, as its state access declares them; and the short form, one function."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from activedb.errors import AccessError, DefinitionError
from activedb.functions import LAZY_TYPES, checked_function, checked_result
from activedb.scheduling._operations import Abort, Effect, Operation, Read, Write
from activedb.scheduling._tables import REMOVED, Computed, Range, Ref, SharedTable, at_key
from activedb.values import copied

__all__ = ["Access", "ShortFormBody", "View"]


class View:
    """State at an s-transaction's timestamp, as seen by a function of the short form.

    The function sees its own writes, since its statements run one after the other; a window
    contains only the writes of other s-transactions.
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
        """Return the value of a key, a list for a window, or a dict for a range.

        Raises
        ------
        AccessError
            If the reference is outside the declared sets, or its key is invalid.
        """
        ref = self._with_key(ref)
        if not any(_covers(declared, ref) for declared in (*self._may_read, *self._may_write)):
            raise AccessError(f"{ref!r} is read, but not declared by its s-transaction")
        if ref.window_us is not None or not self._writes:
            return self._read(ref)
        if isinstance(ref.key, Range):
            return self._own_above(dict(self._read(ref)), ref)
        own = self._writes.get((ref.table.name, ref.key))
        if own is None:
            return self._read(ref)
        return copied(ref.table.initial if own[2] is REMOVED else own[2])

    def write(self, ref: Ref, value: Any) -> None:
        """Set the value of a key; `REMOVED` removes the key.

        Raises
        ------
        AccessError
            If the reference is outside the declared sets, or key or value is invalid for the table.
        """
        if ref.window_us is not None or isinstance(ref.key, Range):
            raise AccessError(f"{ref!r} is read, not written: one key at a time is written")
        ref = self._with_key(ref)
        if not any(_covers(declared, ref) for declared in self._may_write):
            raise AccessError(f"{ref!r} is written, but not declared by its s-transaction")
        kept = ref.table.check_value(value)
        self._writes[ref.table.name, ref.key] = (ref.table, ref.key, kept)

    def abort(self, reason: str) -> None:
        """Abort the s-transaction."""
        raise Abort(reason)

    def effect(self, result: Any) -> Effect:
        """Return the writes made so far together with a result."""
        return Effect(list(self._writes.values()), result)

    def _with_key(self, ref: Ref) -> Ref:
        """Return the reference with its key computed, within the declared reads, and checked."""
        if isinstance(ref.key, Range):
            return ref
        key = at_key(ref, self.read)
        return replace(ref, key=key) if isinstance(ref.key, Computed) else ref

    def _own_above(self, found: dict[Hashable, Any], ref: Ref) -> dict[Hashable, Any]:
        for table, key, value in self._writes.values():
            if table is ref.table and _is_within(ref.key, key):
                found[key] = copied(value)
        rising: list[Any] = sorted(found)  # a range has comparable keys
        return {key: found[key] for key in rising if found[key] is not REMOVED}


class ShortFormBody(Operation):
    """The only operation of a short form's s-transaction.

    Parameters
    ----------
    function : callable
        ``function(t, e)`` gets a `View` and the parameters; its return value is the result.
    params : mapping
    reads, writes : tuple of Ref
        Upper bounds on its accesses.
    """

    __slots__ = ("function", "params")

    def __init__(
        self,
        function: Callable[[View, Mapping[str, Any]], Any],
        params: Mapping[str, Any],
        reads: tuple[Ref, ...],
        writes: tuple[Ref, ...],
    ):
        super().__init__(writes, (*reads, *writes))
        self.function = function
        self.params = params

    def evaluate(self, read: Callable[[Ref], Any]) -> Effect:
        view = View(read, self.sources, self.targets)
        value = self.function(view, self.params)
        if value.__class__ in LAZY_TYPES:
            checked_result(value, "the function of a transaction")
        return view.effect(value)


def _covers(declared: Ref, ref: Ref) -> bool:
    """Return whether a declaration of `declared` permits an access to `ref`."""
    if declared.table is not ref.table:
        return False
    if declared.window_us is not None and (
        ref.window_us is None or ref.window_us > declared.window_us
    ):
        return False  # versions older than the declared window were not declared
    if ref.window_us is not None and declared.window_us is None and not declared.is_whole:
        return False
    if isinstance(declared.key, Range):
        low, high = declared.key.low, declared.key.high
        if isinstance(ref.key, Range):
            return (low is None or (ref.key.low is not None and low <= ref.key.low)) and (
                high is None or (ref.key.high is not None and ref.key.high <= high)
            )
        return _is_within(declared.key, ref.key)
    if declared.is_whole:
        return True
    return bool(declared.key == ref.key)


def _is_within(bounds: Range, key: Any) -> bool:
    try:
        is_high_enough = bounds.low is None or bounds.low <= key
        return bool(is_high_enough and (bounds.high is None or key < bounds.high))
    except TypeError:  # keys of several types
        return False


class Access:
    """Recorder of the operations of one s-transaction, passed to a program's state access.

    Recording reads and writes nothing. The operations run later, in an order that the scheduler
    chooses, with the results of the serial order.
    """

    __slots__ = ("operations",)

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def read(
        self, *sources: Ref, function: Callable[..., Any] | None = None, args: Any = ()
    ) -> None:
        """Record a READ; its result is a value, a tuple of several, or a function of them.

        Parameters
        ----------
        *sources : Ref
            A key, a window over a key, a range, or a computed key.
        function : callable, optional
            ``function(*values, *args)`` is the result.
        args : tuple, optional
        """
        _check_refs(sources)
        if not sources:
            raise DefinitionError("READ takes the keys to read, such as accounts[7]")
        if function is not None:
            checked_function(function, f"the function of a READ of table {sources[0].table.name}")
        self.operations.append(Read(sources, function, tuple(args)))

    def write(
        self,
        target: Ref,
        function: Callable[..., Any],
        *args: Any,
        reads: tuple[Ref, ...] | None = None,
    ) -> None:
        """Record a WRITE: `target` gets ``function(*values of reads, *args)``; None aborts.

        Parameters
        ----------
        target : Ref
            A key or a computed key.
        function : callable
            It may also raise `Abort`.
        *args : object
            Passed to the function after the values.
        reads : tuple of Ref, optional
            By default `target` alone.
        """
        if type(target) is not Ref:
            _check_refs((target,))
        if target.window_us is not None or isinstance(target.key, Range):
            raise DefinitionError(f"{target!r} is read, not written: one key at a time is written")
        if not callable(function):
            raise DefinitionError(f"WRITE of {target!r} takes a function, not {function!r}")
        # The text names only the table: a key may be a stand-in without a repr, and this is
        # a hot path.
        checked_function(function, f"the function of a WRITE of table {target.table.name}")
        sources: tuple[Ref, ...] = (target,)
        if reads is not None:
            sources = _refs(reads)
        self.operations.append(Write(target, sources, function, args))

    def body(
        self,
        function: Callable[[View, Mapping[str, Any]], Any],
        params: Mapping[str, Any],
        reads: Iterable[Ref],
        writes: Iterable[Ref],
    ) -> None:
        """Record the short form: a function that reads and writes within declared access sets."""
        may_read, may_write = _refs(reads), _refs(writes)
        for target in may_write:
            if target.window_us is not None:
                raise DefinitionError(f"{target!r} is read, not written: declare the key itself")
        self.operations.append(ShortFormBody(function, params, may_read, may_write))


def _refs(given: Iterable[Ref]) -> tuple[Ref, ...]:
    """Return several accesses as a tuple."""
    if isinstance(given, Ref) or not isinstance(given, Iterable):
        raise DefinitionError(f"reads and writes are written [accounts[7]], not {given!r}")
    refs = tuple(given)
    _check_refs(refs)
    return refs


def _check_refs(refs: Iterable[object]) -> None:
    for ref in refs:
        if not isinstance(ref, Ref):
            raise DefinitionError(f"an access is written accounts[7], not {ref!r}")
