"""Lock modes and their compatibility: figure 3 of Wang et al., and its hierarchy."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum

__all__ = ["FIGURE_3_LWM", "FIGURE_3_S2PL", "Answer", "Compatibility", "Mode", "blockers"]


class Mode(IntEnum):
    """Access of an s-transaction that a lock permits, to an object or to rows inside it.

    An integer enumeration, since modes are hashed at every access.
    """

    READ = 1
    WRITE = 2
    READ_ROWS = 3
    WRITE_ROWS = 4

    @property
    def is_inside(self) -> bool:
        """True if the mode only announces locks on rows, which then decide."""
        return self in (Mode.READ_ROWS, Mode.WRITE_ROWS)

    @property
    def access(self) -> Mode:
        """`READ` or `WRITE`."""
        return Mode.WRITE if self in (Mode.WRITE, Mode.WRITE_ROWS) else Mode.READ


class Answer(Enum):
    """Answer to a request for a lock while another s-transaction holds one."""

    YES = "yes"
    MAYBE = "maybe"
    """Depends on the timestamps: granted unless the lock held is older."""
    NO = "no"


Compatibility = Mapping[tuple[Mode, Mode], Answer]
"""Answers by the mode held and the mode requested."""

FIGURE_3_S2PL: Compatibility = {
    (Mode.READ, Mode.READ): Answer.YES,
    (Mode.READ, Mode.WRITE): Answer.NO,
    (Mode.WRITE, Mode.READ): Answer.NO,
    (Mode.WRITE, Mode.WRITE): Answer.NO,
}
FIGURE_3_LWM: Compatibility = {
    (Mode.READ, Mode.READ): Answer.YES,
    (Mode.READ, Mode.WRITE): Answer.YES,
    (Mode.WRITE, Mode.READ): Answer.MAYBE,
    (Mode.WRITE, Mode.WRITE): Answer.NO,
}


def answer(figure: Compatibility, held: Mode, requested: Mode) -> Answer:
    """Return the answer of figure 3 for two locks on one object, including announcing modes.

    Two locks that both only announce locks on rows are compatible: the locks on the rows decide.
    Otherwise each counts as the mode that it announces.
    """
    if held.is_inside and requested.is_inside:
        return Answer.YES
    return figure[held.access, requested.access]


def blockers(figure: Compatibility) -> dict[Mode, tuple[Mode, ...]]:
    """Return, for each requested mode, the modes whose older holders must end before the grant.

    Queues are in timestamp order. So the holder of a lock ahead of a request is older, and `NO` and
    `MAYBE` are equivalent; `MAYBE` allows a younger writer that came first to let the reader pass.
    """
    return {
        requested: tuple(held for held in Mode if answer(figure, held, requested) is not Answer.YES)
        for requested in Mode
    }
