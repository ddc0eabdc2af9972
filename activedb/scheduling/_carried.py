"""What goes from one process of a program to another: pickles, and errors in them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Carried", "Packed", "loads", "packed", "restored"]

_CHAIN_MAX = 16
"""Errors, one the cause of the other, that are taken along."""


class Carried(Exception):
    """Stands for an error that cannot be pickled, with its text; its class has its class's name."""


class Packed(NamedTuple):
    """An error as plain values, which any pickle can have.

    Attributes
    ----------
    data : bytes or None
        The error, pickled; None if that cannot be done.
    name, text : str
        Of its class, and of itself.
    notes : list of str
    cause, context : Packed or None
    is_explicit : bool
        Whether it was raised from its cause, so that the context is not to be shown.
    """

    data: bytes | None
    name: str
    text: str
    notes: list[str]
    cause: Any
    context: Any
    is_explicit: bool


def loads(data: bytes) -> Any:
    """Read what this program has pickled, here or in another of its processes."""
    return pickle.loads(data)  # noqa: S301  # of this program alone, by way of Spark


def packed(
    error: BaseException, dumps: Callable[[Any], bytes] = pickle.dumps, left: int = _CHAIN_MAX
) -> Packed:
    """What to send of an error, and of those that it came from."""
    cause, context = (
        None if each is None or left == 0 else packed(each, dumps, left - 1)
        for each in (error.__cause__, error.__context__)
    )
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    return Packed(
        _dumped(error, dumps),
        type(error).__name__,
        _text(error),
        notes,
        cause,
        context,
        error.__suppress_context__,
    )


def restored(sent: Packed) -> BaseException:
    """The error; of the same class if that can be, else a `Carried` of its name."""
    error = _loaded(sent)
    if error is None:
        error = type(sent.name, (Carried,), {})(sent.text)
    if not hasattr(error, "__notes__"):
        for note in sent.notes:
            error.add_note(note)
    error.__cause__ = None if sent.cause is None else restored(sent.cause)
    error.__context__ = None if sent.context is None else restored(sent.context)
    error.__suppress_context__ = sent.is_explicit
    return error


def _dumped(error: BaseException, dumps: Callable[[Any], bytes]) -> bytes | None:
    """It, pickled, if what is read again says the same: some classes cannot do that."""
    try:
        data = dumps(error)
        again = loads(data)
        is_same = type(again).__name__ == type(error).__name__ and str(again) == str(error)
    except Exception:  # of a class of the user's, it may be any
        return None
    return data if is_same else None


def _loaded(sent: Packed) -> BaseException | None:
    if sent.data is None:
        return None
    try:
        error = loads(sent.data)
    except Exception:  # its class is known where it was raised, and not here
        return None
    return error if isinstance(error, BaseException) else None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # its class is the user's
        return ""
