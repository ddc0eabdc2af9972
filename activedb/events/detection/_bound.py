"""Bound on the number of matches that one event completes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from activedb.errors import MatchesExceeded, PatternError

__all__ = ["MATCHES_MAX", "Bound", "too_many"]

MATCHES_MAX = 10_000
"""Default upper bound on the matches of an expression, or part of one, per event."""

_T = TypeVar("_T")


class Bound:
    """Upper bound on the candidates taken; the search stops there.

    Raises
    ------
    PatternError
        If the bound is not a whole number of at least 1.

    Attributes
    ----------
    most : int or None
        The maximum number; None: unbounded.
    truncates : bool
        True if the most preferred candidates are taken when there are more; False: raise.
    must_truncate : bool
        True while truncation is forced because there is no event to refuse.
    truncated : int
        How often there were more candidates.
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
        """Return a new bound with the same options and no truncations."""
        return Bound(self.most, truncates=self.truncates)

    def taken(self, candidates: Iterable[_T], name: str, *, is_sorted: bool = True) -> Iterator[_T]:
        """Yield candidates up to the bound; at most one more is searched for.

        Parameters
        ----------
        candidates : iterable
        name : str
            The name of the expression, for the error.
        is_sorted : bool
            True if candidates come in the order of preference; otherwise they are never truncated.

        Raises
        ------
        MatchesExceeded
            If there are more, and the policy is to refuse.
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
    """Return the error for an event that completes more matches than the bound."""
    return MatchesExceeded(
        f"one event completes more than {most} matches of {name}: select next, choose "
        "a context, bound its Kleene parts or shorten its window; raise matches_max, "
        'or make the most preferred ones alone with on_many="truncate"'
    )
