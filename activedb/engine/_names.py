"""Names of firings and letters: readable where they fit, the same whenever work is done again."""

from __future__ import annotations

import hashlib

__all__ = ["shortened"]


def shortened(name: str, length_max: int) -> str:
    """`name`, or its beginning and a hash of the whole if it is too long for its column."""
    if len(name) <= length_max:
        return name
    digest = hashlib.blake2b(name.encode(), digest_size=20).hexdigest()
    return f"{name[: length_max - len(digest) - 1]}#{digest}"
