"""The bound on how many matches one event may complete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from activedb.errors import MatchesExceeded, PatternError

__all__ = ["MATCHES_MAX", "Bound", "too_many"]

MATCHES_MAX = 10_000
"""By default one event completes at most so many matches of an expression, or part of one."""

_T = TypeVar("_T")


class Bound:
    """Takes candidates up to a bound, and looks for no more.

    Raises
    ------
    PatternError
        If the bound is no whole number from 1.

    Attributes
    ----------
    most : int or None
        How many are taken at most; None: any number.
    truncates : bool
        Whether the most preferred ones are taken if there are more; else they are refused.
    must_truncate : bool
        Whether they are so now: where there is no event that could be refused.
    truncated : int
        How often there were more.
    """

    __slots__ = ("most", "must_truncate", "truncated", "truncates")

    def __init__(self, most: int | None, *, truncates: bool = False):
        if most is not None and (type(most) is not int or most < 1):
            raise PatternError(f"matches_max takes a whole number from 1, not {most!r}")
        self.most = most
        self.truncates = truncates
        self.must_truncate = False
        self.truncated = 0

    def copy(self) -> Bound:
        """Another one like it, that has truncated nothing."""
        return Bound(self.most, truncates=self.truncates)

    def taken(self, candidates: Iterable[_T], name: str, *, is_sorted: bool = True) -> Iterator[_T]:
        """Yield the candidates, as many as may be; no more than one further is looked for.

        Parameters
        ----------
        candidates : iterable
        name : str
            What completes them.
        is_sorted : bool
            Whether they come in the order of preference; else they are never truncated.

        Raises
        ------
        MatchesExceeded
            If there are more, and they are to be refused.
        """
        most = self.most
        for number, candidate in enumerate(candidates):
            if number == most:
                if is_sorted and (self.truncates or self.must_truncate):
                    self.truncated += 1
                    return
                assert most is not None
                raise too_many(most, name)
            yield candidate


def too_many(most: int, name: str) -> MatchesExceeded:
    """The error of an event that completes more matches than it may."""
    return MatchesExceeded(
        f"one event completes more than {most} matches of {name}: select next, choose "
        "a context, bound its Kleene parts or shorten its window; raise matches_max, "
        'or make the most preferred ones alone with on_many="truncate"'
    )
