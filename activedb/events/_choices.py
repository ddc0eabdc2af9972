"""Choice among possible matches: contexts, selection strategies, skips."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from activedb.errors import PatternError

__all__ = ["NO_SKIP", "Context", "Selection", "Skip", "SkipTo", "one_of"]


class Context(StrEnum):
    """Consumption context: the candidates made and the events used up (README, "Contexts")."""

    UNRESTRICTED = "unrestricted"
    RECENT = "recent"
    CHRONICLE = "chronicle"
    CONTINUOUS = "continuous"
    CUMULATIVE = "cumulative"


class Selection(StrEnum):
    """Selection strategy: events allowed between neighbours (README, "Selection")."""

    ANY = "any"
    NEXT = "next"
    STRICT = "strict"


class SkipTo(StrEnum):
    """Target of an after-match skip: where later matches may start (README, "Skips")."""

    NONE = "none"
    NEXT = "to_next"
    PAST_LAST = "past_last"
    FIRST = "to_first"
    LAST = "to_last"


@dataclass(frozen=True, slots=True)
class Skip:
    """An after-match skip strategy.

    Attributes
    ----------
    to : SkipTo
    part : str or None
        The name of a part, for `SkipTo.FIRST` and `SkipTo.LAST`.
    """

    to: SkipTo = SkipTo.NONE
    part: str | None = None

    @classmethod
    def of(cls, to: str, part: str | None = None) -> Skip:
        """Return the strategy after validating its arguments.

        Raises
        ------
        PatternError
            If the strategy is unknown, or a part is missing or superfluous.
        """
        strategy = one_of(SkipTo, to, "a skip strategy")
        if (part is not None) != (strategy in (SkipTo.FIRST, SkipTo.LAST)):
            raise PatternError(
                f"skip {strategy.value!r} "
                + ("needs the name of a part" if part is None else f"takes no part, not {part!r}")
            )
        if part is not None and not isinstance(part, str):
            raise PatternError(f"skip {strategy.value!r} takes the name of a part, not {part!r}")
        return cls(strategy, part)


NO_SKIP = Skip()

E = TypeVar("E", bound=StrEnum)


def one_of(choices: Iterable[E], value: object, what: str) -> E:
    """Return the choice with this value.

    Raises
    ------
    PatternError
        If there is none. The message lists the valid values.
    """
    for choice in choices:
        if choice == value:
            return choice
    known = ", ".join(repr(choice.value) for choice in choices)
    raise PatternError(f"{value!r} is not {what}: write one of {known}")
