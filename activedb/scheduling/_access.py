"""Collection of an event's operations: the object passed to a state access."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from activedb.errors import DefinitionError
from activedb.functions import checked_function
from activedb.scheduling._body import Body, View
from activedb.scheduling._operations import Operation, Read, Write
from activedb.scheduling._tables import Range, Ref

__all__ = ["Access"]


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
        for source in sources:
            _check_ref(source)
        if not sources:
            raise DefinitionError("READ takes what is to be read, such as accounts[7]")
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
        _check_ref(target)
        if target.window_us is not None or isinstance(target.key, Range):
            raise DefinitionError(f"{target!r} is read, not written: one key at a time is written")
        if not callable(function):
            raise DefinitionError(f"WRITE of {target!r} takes a function, not {function!r}")
        # The text names only the table: a key may be a stand-in without a repr, and this is
        # a hot path.
        checked_function(function, f"the function of a WRITE of table {target.table.name}")
        sources: tuple[Ref, ...] = (target,)
        if reads is not None:
            sources = tuple(reads)
            for source in sources:
                _check_ref(source)
        self.operations.append(Write(target, sources, function, args))

    def body(
        self,
        function: Callable[[View, Mapping[str, Any]], Any],
        params: Mapping[str, Any],
        reads: Iterable[Ref],
        writes: Iterable[Ref],
    ) -> None:
        """Record the short form: a function that reads and writes within declared access sets."""
        may_read, may_write = tuple(reads), tuple(writes)
        for ref in (*may_read, *may_write):
            _check_ref(ref)
        for target in may_write:
            if target.window_us is not None:
                raise DefinitionError(f"{target!r} is read, not written: declare the key itself")
        self.operations.append(Body(function, params, may_read, may_write))


def _check_ref(ref: object) -> None:
    if not isinstance(ref, Ref):
        raise DefinitionError(f"what is accessed is written accounts[7], and is not {ref!r}")
