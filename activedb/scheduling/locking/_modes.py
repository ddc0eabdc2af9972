"""Lock modes, and which of them go together: figure 3 of Wang et al., and its hierarchy."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum

__all__ = ["FIGURE_3_LWM", "FIGURE_3_S2PL", "Answer", "Compatibility", "Mode", "blockers"]


class Mode(IntEnum):
    """What a lock lets its s-transaction do with an object, or with rows inside it.

    Integers, as they are hashed at every access.
    """

    READ = 1
    WRITE = 2
    READ_ROWS = 3
    WRITE_ROWS = 4

    @property
    def is_inside(self) -> bool:
        """Whether it announces locks on rows, so that these decide."""
        return self in (Mode.READ_ROWS, Mode.WRITE_ROWS)

    @property
    def access(self) -> Mode:
        """`READ` or `WRITE`."""
        return Mode.WRITE if self in (Mode.WRITE, Mode.WRITE_ROWS) else Mode.READ


class Answer(Enum):
    """Whether a lock is granted although another s-transaction holds one."""

    YES = "yes"
    MAYBE = "maybe"
    """By the timestamps: unless the one held is older."""
    NO = "no"


Compatibility = Mapping[tuple[Mode, Mode], Answer]
"""By the mode that is held, and the one that is requested."""

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
    """What figure 3 says of two locks on one object, those that announce locks on rows included.

    Two that both only announce locks on rows go together: the locks on the rows decide. Else each
    counts as what it announces.
    """
    if held.is_inside and requested.is_inside:
        return Answer.YES
    return figure[held.access, requested.access]


def blockers(figure: Compatibility) -> dict[Mode, tuple[Mode, ...]]:
    """For each mode those whose older holders have to have ended before it is granted.

    Queues are in the order of timestamps. So who holds a lock ahead of a request is older, and
    `NO` and `MAYBE` ask for the same thing; what `MAYBE` allows is that a writer that has come
    first, and is younger, lets the reader pass.
    """
    return {
        requested: tuple(held for held in Mode if answer(figure, held, requested) is not Answer.YES)
        for requested in Mode
    }
