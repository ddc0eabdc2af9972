"""Transfer between the processes of a program: pickles, and the errors in them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["PickledError", "RemoteError", "loads", "packed", "restored"]

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
        _text(error),
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


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # user-defined class
        return ""
