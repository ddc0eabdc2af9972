"""Recording of computed keys when they are resolved."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from activedb.scheduling._operations import Operation, Read, Write
from activedb.scheduling._tables import Computed, Ref

__all__ = ["pinned", "same_values"]


class _Recorded:
    """Key function that repeats the key of its last call while its inputs are the same.

    So an operation that is redone accesses the same key as before, even if the function is random,
    unless the inputs of the key have changed (Mao et al., section 6.5.2).
    """

    __slots__ = ("__qualname__", "_function", "_inputs", "_key")

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._inputs: tuple[Any, ...] | None = None
        self._key: Hashable = None
        self.__qualname__ = getattr(function, "__qualname__", repr(function))

    def __call__(self, *inputs: Any) -> Any:
        if self._inputs is None or not same_values(inputs, self._inputs):
            self._key = self._function(*inputs)
            self._inputs = inputs
        return self._key


def pinned(operation: Operation) -> Operation:
    """Return the operation with its computed keys recorded when they are resolved."""
    for ref in operation.refs:
        if type(ref.key) is Computed:
            break
    else:
        return operation
    refs: dict[int, Ref] = {}
    if type(operation) is Write:
        return Write(
            _pinned(operation.targets[0], refs),
            tuple(_pinned(ref, refs) for ref in operation.direct),
            operation.function,
            operation.args,
        )
    if type(operation) is Read:
        direct = tuple(_pinned(ref, refs) for ref in operation.direct)
        return Read(direct, operation.function, operation.args)
    return operation  # other operations compute their keys themselves


def _pinned(ref: Ref, done: dict[int, Ref]) -> Ref:
    """Return `ref` with a recorded key; the same object for the same `ref`."""
    key = ref.key
    if type(key) is not Computed:
        return ref
    if id(ref) not in done:
        reads = tuple(_pinned(source, done) for source in key.reads)
        done[id(ref)] = Ref(
            ref.table, Computed(_Recorded(key.function), reads, key.args), ref.window_us
        )
    return done[id(ref)]


def same_values(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    """Return whether two rows of values read from a state are the same, without their ``==``.

    Immutable versions are the same objects while they exist; windows, ranges, lists, dicts and sets
    are compared by their elements; numbers and texts by their values. Two copies of any other
    object count as different.
    """
    return len(left) == len(right) and all(map(_same, left, right))


def _same(left: Any, right: Any) -> bool:
    if left is right:
        return True
    kind = type(left)
    if kind is not type(right):
        return False
    if kind is float:
        return bool(left.hex() == right.hex())  # distinguishes 0.0 from -0.0
    if kind in (int, str, bytes):
        return bool(left == right)
    if kind is list or kind is tuple:
        return same_values(tuple(left), tuple(right))
    if kind is set:  # in iteration order, which equal copies share
        return same_values(tuple(left), tuple(right))
    if kind is dict:
        return same_values(tuple(left), tuple(right)) and same_values(
            tuple(left.values()), tuple(right.values())
        )
    return False
