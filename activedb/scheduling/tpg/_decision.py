"""Decision about a batch: three dimensions of scheduling, or the serial order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from activedb.errors import DefinitionError

__all__ = ["Abort", "Decision", "Explore", "Unit"]

Explore = Literal["breadth-first", "depth-first", "non-structured", "serial"]
Unit = Literal["operation", "group"]
Abort = Literal["eager", "lazy"]


@dataclass(frozen=True, slots=True)
class Decision:
    """Scheduling of a batch (Mao et al., table 1).

    Attributes
    ----------
    explore : {"non-structured", "breadth-first", "depth-first", "serial"}
        ``breadth-first`` and ``depth-first`` are the two forms of structured exploration. With
        ``serial``, there is no exploration: no TPG is built, and the calling thread runs one
        s-transaction after the other; the other dimensions have no meaning then.
    unit : {"operation", "group"}
        Unit that a worker takes at once: f-schedule, c-schedule.
    abort : {"eager", "lazy"}
        Time at which failed operations are handled: e-abort, l-abort.
    speculative : bool
        Whether a worker that would wait runs an operation that is still BLK.

    Raises
    ------
    DefinitionError
        If a value is none of these.
    """

    explore: Explore = "non-structured"
    unit: Unit = "operation"
    abort: Abort = "eager"
    speculative: bool = False

    def __post_init__(self) -> None:
        for name, words in (("explore", Explore), ("unit", Unit), ("abort", Abort)):
            if getattr(self, name) not in get_args(words):
                known = ", ".join(map(repr, get_args(words)))
                raise DefinitionError(
                    f"a decision's {name} is one of {known}, not {getattr(self, name)!r}"
                )
        if not isinstance(self.speculative, bool):
            raise DefinitionError(
                f"a decision's speculative is True or False, not {self.speculative!r}"
            )

    @property
    def is_serial(self) -> bool:
        """True if no TPG is built."""
        return self.explore == "serial"
