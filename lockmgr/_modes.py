"""Lock modes, their compatibility and their suprema.

The two tables below are the only definition of both relations; all other code goes through this
module (Gray, Lorie, Putzolu, Traiger 1976).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = [
    "COMPATIBLE",
    "CONFLICTS",
    "COVERING",
    "INTENTION",
    "SUPREMUM",
    "UNIT",
    "WRITES",
    "Mode",
    "intention",
]


class Mode(IntEnum):
    """Lock mode; reading needs `S`, writing needs `X`.

    The integers are indexes into the tables, not strengths: modes are only partially ordered, so
    compare them through `SUPREMUM`, never with ``<``.
    """

    IS = 0
    """Intention to read something inside the resource."""
    IX = 1
    """Intention to write something inside the resource."""
    S = 2
    """Read the resource and everything inside it."""
    SIX = 3
    """Read everything inside the resource, and intention to write some of it."""
    X = 4
    """Write the resource and everything inside it."""


IS, IX, S, SIX, X = Mode

# fmt: off
COMPATIBLE: Final[tuple[tuple[bool, ...], ...]] = (
    #  IS     IX     S      SIX    X
    (True,  True,  True,  True,  False),  # IS
    (True,  True,  False, False, False),  # IX
    (True,  False, True,  False, False),  # S
    (True,  False, False, False, False),  # SIX
    (False, False, False, False, False),  # X
)
"""``COMPATIBLE[a][b]``: may one transaction hold `a` while an unrelated one holds `b`?"""

SUPREMUM: Final[tuple[tuple[Mode, ...], ...]] = (
    # IS  IX   S    SIX  X
    (IS,  IX,  S,   SIX, X),  # IS
    (IX,  IX,  SIX, SIX, X),  # IX
    (S,   SIX, S,   SIX, X),  # S
    (SIX, SIX, SIX, SIX, X),  # SIX
    (X,   X,   X,   X,   X),  # X
)
"""``SUPREMUM[a][b]``: the weakest mode as strong as both. `a` covers `b` iff it is `a` itself.

The supremum conflicts with a mode iff one of the two does, so merging the modes that a transaction
retains changes no other transaction's rights.
"""
# fmt: on

_TALLY_BITS: Final = 24
_TALLY_PLACES: Final = (X, S, IX, IS, SIX)  # common modes lowest: small integers are faster

UNIT: Final[tuple[int, ...]] = tuple(
    1 << (_TALLY_BITS * _TALLY_PLACES.index(mode)) for mode in Mode
)
"""``UNIT[mode]``: one lock of this mode in a *tally*, an integer with a 24-bit count per mode.

``tally & CONFLICTS[mode]`` is non-zero iff at least one counted lock conflicts with `mode`, however
many locks are counted.
"""

CONFLICTS: Final[tuple[int, ...]] = tuple(
    sum(UNIT[other] * ((1 << _TALLY_BITS) - 1) for other in Mode if not COMPATIBLE[mode][other])
    for mode in Mode
)
"""``CONFLICTS[mode]``: the mask of the counts, in a tally, of the modes that conflict with it."""


INTENTION: Final[tuple[Mode, ...]] = (IS, IX, IS, IX, IX)
"""``INTENTION[mode]``: the mode needed on every enclosing resource before `mode` is requested."""

COVERING: Final[tuple[Mode, ...]] = (S, X, S, X, X)
"""``COVERING[mode]``: the mode that, held on an enclosing resource, makes `mode` redundant."""


WRITES: Final[tuple[bool, ...]] = (False, True, False, True, True)
"""``WRITES[mode]``: may the resource, or something inside it, be written under `mode`?"""


def intention(mode: Mode) -> Mode:
    """Return the mode needed on every enclosing resource before `mode` is requested inside it."""
    return INTENTION[mode]
