"""Names and texts of firings and letters: readable, and the same when work is repeated."""

from __future__ import annotations

import hashlib

from activedb.errors import ActiveDBError

__all__ = ["error_text", "shortened"]


def shortened(name: str, length_max: int) -> str:
    """Return `name`; if too long for its column, its beginning and a hash of the whole."""
    if len(name) <= length_max:
        return name
    digest = hashlib.blake2b(name.encode(), digest_size=20).hexdigest()
    return f"{name[: length_max - len(digest) - 1]}#{digest}"


def error_text(error: BaseException) -> str:
    """Return the text of an error; with its type unless it is an `ActiveDBError`.

    The text of a ``KeyError``, for example, is only the key.
    """
    if isinstance(error, ActiveDBError):
        return str(error) or type(error).__name__
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
