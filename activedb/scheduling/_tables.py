"""Shared tables, and the references through which operations access them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final, final
from uuid import uuid4
from weakref import WeakValueDictionary

from activedb.errors import AccessError, DefinitionError
from activedb.functions import typed_text
from activedb.values import IMMUTABLE, copied

__all__ = ["REMOVED", "Computed", "Parameter", "Range", "Ref", "SharedTable", "at_key"]


@final
class _Removed:
    """Type of `REMOVED`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "REMOVED"

    def __reduce__(self) -> str:
        return "REMOVED"  # unpickled by name, so that each process has a single instance


REMOVED: Final = _Removed()
"""Written instead of a value: the key has its table's initial value again, and is in no range."""


_HASHABLE: frozenset[type] = frozenset((int, str, bytes, float, bool, type(None)))

_known: WeakValueDictionary[str, SharedTable] = WeakValueDictionary()
"""Tables of this process, by their identity across processes."""


class SharedTable:
    """Table of keys and values that s-transactions share, with versions by timestamp.

    A table is equal only to itself, in other processes too: unpickled, it is the same object in a
    process that knows it, and a single new object in any other.

    Parameters
    ----------
    name : str
        Its name within its state.
    key : type, optional
        Type of the keys; by default any hashable. ``int`` does not accept ``bool``.
    initial : object
        Value of a key that has not been written.
    history : float, optional
        Longest window over it, in seconds; versions are kept for this time.
    size : int, optional
        If given, keys are the whole numbers from 0 to ``size - 1`` and values are numbers, held in
        columns (64-bit floats), as compiled functions need.

    Attributes
    ----------
    name, key, initial, size
        As given.
    history_us : int
        `history` in microseconds.
    plain_keys : frozenset of type
        Types whose objects are all valid keys; hot paths look here before they call `check_key`.

    Examples
    --------
    >>> accounts = SharedTable("accounts", key=int, initial=0, history=60)
    >>> accounts[7]
    accounts[7]
    >>> accounts[7].window(10)
    accounts[7].window(10.0)
    """

    __slots__ = (
        "__weakref__",
        "_identity",
        "history_us",
        "initial",
        "key",
        "name",
        "plain_keys",
        "size",
    )

    def __init__(
        self,
        name: str,
        *,
        key: type | None = None,
        initial: Any = None,
        history: float = 0,
        size: int | None = None,
    ):
        if not isinstance(name, str) or not name:
            raise DefinitionError(f"a shared table needs a name, a non-empty string, not {name!r}")
        is_number = isinstance(history, int | float) and not isinstance(history, bool)
        if not is_number or not 0 <= history < inf:
            raise DefinitionError(f"table {name}: history is some seconds, not {history!r}")
        if size is not None:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise DefinitionError(f"table {name}: size is a whole number from 1, not {size!r}")
            if key not in (None, int):
                raise DefinitionError(f"table {name}: with a size its keys are int, not {key!r}")
            if isinstance(initial, bool) or not isinstance(initial, int | float):
                raise DefinitionError(
                    f"table {name}: with a size its values are numbers; initial is {initial!r}"
                )
            key, initial = int, float(initial)
        try:
            self.initial = copied(initial)
        except Exception as error:  # the class of the value may raise anything
            raise DefinitionError(
                f"table {name}: initial is a value that can be copied: {typed_text(error)}"
            ) from error
        self.name = name
        self.key = key
        self.history_us = round(history * 1_000_000)
        self.size = size
        if size is not None:
            self.plain_keys: frozenset[type] = frozenset()
        else:
            self.plain_keys = _HASHABLE if key is None else frozenset((key,))
        self._identity = uuid4().hex
        _known[self._identity] = self

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.name, self.key, self.initial, self.history_us, self.size)
        return _table_of, (self._identity, *fields)

    def __getitem__(self, key: Any) -> Ref:
        return Ref(self, key)

    def computed(
        self, function: Callable[..., Any], *args: Any, reads: tuple[Ref, ...] = ()
    ) -> Ref:
        """Return a reference to the key ``function(*values of reads, *args)``, known when it runs.

        Until then the operation may access any key of the table (Mao et al., section 4.4).
        """
        return Ref(self, Computed(function, reads, args))

    def range(self, low: Any = None, high: Any = None) -> Ref:
        """Return a reference to all keys from `low` on and before `high`; its value is a dict.

        None means unbounded.
        """
        return Ref(self, Range(low, high))

    def check_key(self, key: Any) -> None:
        """Raise `AccessError` if `key` is invalid for this table."""
        if self.size is not None:
            if type(key) is int and 0 <= key < self.size:
                return
            if not isinstance(key, bool) and isinstance(key, int) and 0 <= key < self.size:
                return
            raise AccessError(
                f"{key!r} is not a key of table {self.name}: its keys are the whole numbers from 0 "
                f"to {self.size - 1}"
            )
        if self.key is not None:
            if isinstance(key, self.key) and (self.key is not int or not isinstance(key, bool)):
                return
            raise AccessError(
                f"{key!r} is not a key of table {self.name}: its keys are of type "
                f"{self.key.__name__}"
            )
        try:
            hash(key)
        except TypeError:
            raise AccessError(
                f"{key!r} is not a key of table {self.name}: it cannot be hashed"
            ) from None

    def check_value(self, value: Any) -> Any:
        """Return the value to store for `value`: a float with `size`, else a copy if it is mutable.

        Raises
        ------
        AccessError
            If `value` is invalid for this table.
        """
        if type(value) in IMMUTABLE and self.size is None:
            return value
        if value is REMOVED:
            return value
        if self.size is None:
            try:
                return copied(value)
            except Exception as error:  # the class of the value may raise anything
                raise AccessError(
                    f"a value of table {self.name} cannot be copied ({typed_text(error)}): write "
                    "plain data, such as numbers, texts, lists and dicts of these"
                ) from error
        if isinstance(value, int | float) or (
            # NumPy numbers, which are not ints; but not texts that look like numbers
            hasattr(value, "dtype") and hasattr(value, "__float__")
        ):
            try:
                return float(value)
            except (TypeError, ValueError, OverflowError):
                pass
        raise AccessError(f"{value!r} is not a value of table {self.name}: its values are numbers")

    def __repr__(self) -> str:
        return self.name


def _table_of(
    identity: str, name: str, key: type | None, initial: Any, history_us: int, size: int | None
) -> SharedTable:
    """Return the table with this identity; create it if it is new to this process."""
    table = _known.get(identity)
    if table is None:
        table = SharedTable(
            name, key=key, initial=initial, history=history_us / 1_000_000, size=size
        )
        table._identity = identity
        _known[identity] = table
    return table


@dataclass(frozen=True, slots=True)
class Parameter:
    """Placeholder for an event parameter while a state access is traced; see `Program`."""

    name: str

    def __bool__(self) -> bool:
        raise TypeError(f"the operations depend on the value of {self.name}")


@dataclass(frozen=True, slots=True)
class Computed:
    """Key that is computed when the operation runs."""

    function: Callable[..., Any]
    reads: tuple[Ref, ...]
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """Keys from `low` on and before `high`."""

    low: Any
    high: Any


@dataclass(frozen=True, slots=True)
class Ref:
    """Reference of an operation: a key of a table, a computed key or a range, optionally a window.

    Attributes
    ----------
    table : SharedTable
    key : object
        A key, a `Computed`, a `Range`, or a `Parameter` while a state access is traced.
    window_us : int or None
        If not None: the length of the window over the values written, in microseconds.
    """

    table: SharedTable
    key: Any
    window_us: int | None = None

    def window(self, seconds: float) -> Ref:
        """Return a reference to the list of values written in the last `seconds`, oldest first.

        The window ends before the s-transaction's place.
        """
        if isinstance(self.key, Range):
            raise DefinitionError(f"{self!r}: a range has no window")
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not 0 < seconds < inf:
            raise DefinitionError(f"{self!r}: a window is longer than 0 seconds, not {seconds!r}")
        window_us = round(seconds * 1_000_000)
        if window_us == 0:
            raise DefinitionError(f"{self!r}: a window is a microsecond or more, not {seconds!r} s")
        if window_us > self.table.history_us:
            raise DefinitionError(
                f"{self!r}: a window of {seconds} seconds over a table that keeps "
                f"{self.table.history_us / 1_000_000}: give it a longer history"
            )
        return replace(self, window_us=window_us)

    def __reduce__(self) -> tuple[Any, ...]:
        return Ref, (self.table, self.key, self.window_us)  # faster, and many are pickled

    @property
    def is_whole(self) -> bool:
        """True if it may denote any key of the table until it runs: a computed key or a range."""
        return isinstance(self.key, Computed | Range)

    def __repr__(self) -> str:
        if isinstance(self.key, Computed):
            text = f"{self.table.name}.computed({_name(self.key.function)})"
        elif isinstance(self.key, Range):
            text = f"{self.table.name}.range({self.key.low!r}, {self.key.high!r})"
        else:
            text = f"{self.table.name}[{self.key!r}]"
        return text if self.window_us is None else f"{text}.window({self.window_us / 1_000_000})"


def at_key(ref: Ref, read: Callable[[Ref], Any]) -> Hashable:
    """Return the key that `ref` denotes, computed through `read` if necessary, and checked.

    Raises
    ------
    AccessError
        If the key is invalid for the table.
    """
    key = ref.key
    if type(key) is Computed:
        key = key.function(*[read(source) for source in key.reads], *key.args)
    if type(key) not in ref.table.plain_keys:
        ref.table.check_key(key)
    found: Hashable = key
    return found


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
