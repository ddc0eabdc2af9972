"""Names and texts of firings and letters: readable, the same whenever work is done again."""

from __future__ import annotations

import hashlib

from activedb.errors import ActiveDBError

__all__ = ["shortened", "told"]


def shortened(name: str, length_max: int) -> str:
    """`name`, or its beginning and a hash of the whole if it is too long for its column."""
    if len(name) <= length_max:
        return name
    digest = hashlib.blake2b(name.encode(), digest_size=20).hexdigest()
    return f"{name[: length_max - len(digest) - 1]}#{digest}"


def told(error: BaseException) -> str:
    """Text of an error, with the type of errors of others: that of a KeyError is a mere name."""
    if isinstance(error, ActiveDBError):
        return str(error) or type(error).__name__
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
