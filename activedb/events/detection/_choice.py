"""Contexts and skips: the choice among candidates, and the events it uses up (README)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import islice
from typing import Any, TypeVar

from activedb.errors import MatchesExceeded, PatternError
from activedb.events._choices import Context, Skip, SkipTo
from activedb.events.detection._entry import Candidate, Entry, Stage, constituents, place_of

__all__ = [
    "MATCHES_MAX",
    "Bound",
    "Chooser",
    "Place",
    "Span",
    "add_span",
    "covers",
    "cumulated",
    "first_of",
    "latest",
    "preference",
    "remove_span",
    "too_many",
    "unused",
]


Place = tuple[int, str, int]
Span = tuple[Place, Place, bool]
"""First place, last place, and whether the last place belongs to the span.

Spans in a list are disjoint and sorted, so one bisection tells whether a place is in any of them.
"""


def first_of(span: Span) -> Place:
    """Return the place at which a span begins."""
    return span[0]


def covers(spans: Sequence[Span], place: Place) -> bool:
    """Return whether a place is in one of the `spans`, disjoint and sorted; O(log n)."""
    number = bisect_right(spans, place, key=first_of)
    if not number:
        return False
    _, high, closed = spans[number - 1]
    return place < high or (closed and place == high)


def add_span(spans: list[Span], span: Span) -> tuple[Span, list[Span]]:
    """Add a span; return the merged span, and the spans that it replaces.

    Complexity: O(log n), plus the move of the spans after it.
    """
    low, high, closed = span
    begin = bisect_left(spans, low, key=first_of)
    if begin and _reaches(spans[begin - 1], low):
        begin -= 1
        low = spans[begin][0]
    end = begin
    while end < len(spans) and spans[end][0] <= high:
        _, other_high, other_closed = spans[end]
        high, closed = max((high, closed), (other_high, other_closed))
        end += 1
    replaced = spans[begin:end]
    merged = (low, high, closed)
    spans[begin:end] = [merged]
    return merged, replaced


def remove_span(spans: list[Span], merged: Span, replaced: Sequence[Span]) -> None:
    """Undo an `add_span` with these results; the span may have been forgotten since."""
    number = bisect_left(spans, merged[0], key=first_of)
    if number < len(spans) and spans[number] == merged:
        del spans[number]
    for span in replaced:
        insort(spans, span)


def _reaches(span: Span, place: Place) -> bool:
    """Return whether a span that begins before `place` extends to it, so that they merge."""
    return place <= span[1]


# -- bound on the number of matches that one event completes ---------------------------------------


MATCHES_MAX = 10_000
"""Default upper bound on the matches of an expression, or part of one, per event."""

_TRIES_PER_MATCH = 10

_T = TypeVar("_T")


class Bound:
    """Upper bound on the candidates taken, and on the tries to find them; the search stops there.

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

    def tried(self, tries: int, name: str) -> None:
        """Check the number of tries: combinations looked at, or ticks made.

        Raises
        ------
        MatchesExceeded
            If there are more than ten for each candidate that the bound allows.
        """
        if self.most is not None and tries > _TRIES_PER_MATCH * self.most:
            raise too_many(self.most, name)


def too_many(most: int, name: str) -> MatchesExceeded:
    """Return the error for an event that completes more matches than the bound."""
    return MatchesExceeded(
        f"one event completes more than {most} matches of {name}: select next, choose "
        "a context, bound its Kleene parts or shorten its window; raise matches_max, "
        'or make the most preferred ones alone with on_many="truncate"'
    )


# -- contexts and skips: the choice among candidates, and the events it uses up (README) -----------


_FIRST: tuple[int, ...] = (-1,)
_LAST: tuple[int, ...] = (1,)


def preference(stages: Sequence[Stage]) -> Callable[[Candidate], tuple[Any, ...]]:
    """Return the sort key for the order of preference among candidates."""
    ends = [_LAST if stage.greedy else _FIRST for stage in stages]

    def key(candidate: Candidate) -> tuple[Any, ...]:
        found: list[Any] = []
        for bound, end in zip(candidate, ends, strict=True):
            if bound is not None and not (bound and type(bound[0]) is int):
                found.append((*((0, *entry[:3]) for entry in bound), end))
            else:
                # An omitted part of some_of() sorts after all bindings.
                found.append(_LAST if bound is None else (0, *bound[:3]))
        return tuple(found)

    return key


class Chooser:
    """Choice among the candidates that one moment completes in one group.

    Parameters
    ----------
    context : Context
    skip : Skip
    stages : sequence of Stage
    """

    def __init__(self, context: Context, skip: Skip, stages: Sequence[Stage]):
        self.context = context
        self.skip = skip
        self.stages = stages
        self.is_plain = context is Context.UNRESTRICTED and skip.to is SkipTo.NONE
        self.uses_up = context in (Context.CHRONICLE, Context.CONTINUOUS, Context.CUMULATIVE)
        self.skips = skip.to is not SkipTo.NONE
        self.cumulates = context is Context.CUMULATIVE
        # One candidate per first constituent suffices: others are skipped, or share that event.
        self.one_per_first = context is Context.CONTINUOUS or (self.skips and not self.uses_up)
        self.target = None
        if skip.part is not None:
            self.target = next(
                number for number, stage in enumerate(stages) if skip.part in stage.names
            )

    def choose(
        self, candidates: Iterable[Candidate], spans: Sequence[Span]
    ) -> tuple[list[Candidate], list[Entry], list[Span]]:
        """Return the matches made, in order, the entries used up, and the spans skipped.

        Parameters
        ----------
        candidates : iterable
            The `unused` candidates in the order of preference; consumed only as far as needed.
        spans : sequence of Span
            The spans that earlier matches skip.
        """
        if self.is_plain:
            return list(candidates), [], []
        left = self._unskipped(candidates, spans) if self.skips else candidates
        context = self.context
        made: list[Candidate] = []
        if context is Context.UNRESTRICTED:
            made = list(left)
        elif context is Context.CHRONICLE:
            made = list(islice(left, 1))
        elif context is Context.CONTINUOUS:
            begun: set[int] = set()
            for candidate in left:
                first = _first(candidate)[2]
                if first not in begun:
                    begun.add(first)
                    made.append(candidate)
        elif context is Context.RECENT:
            last = latest(left)
            if last is not None:
                made.append(last)
        else:
            found = list(left)
            if found:
                made.append(cumulated(found))
        consumed = [entry for c in made for entry in constituents(c)] if self.uses_up else []
        return made, consumed, [span for candidate in made for span in self.span(candidate)]

    def _unskipped(
        self, candidates: Iterable[Candidate], skipped: Sequence[Span]
    ) -> Iterator[Candidate]:
        """Yield candidates that neither `skipped` nor an earlier candidate skips."""
        more: list[Span] = []
        for candidate in candidates:
            first = _first(candidate)[:3]
            if covers(skipped, first) or covers(more, first):
                continue
            for span in self.span(candidate):
                add_span(more, span)
            yield candidate

    def span(self, candidate: Candidate) -> list[Span]:
        """Return the spans that a match skips, starting at its first constituent."""
        to = self.skip.to
        if to is SkipTo.NONE:
            return []
        entries = constituents(candidate)
        first = min(entry[:3] for entry in entries)
        spans = [(first, first, True)]
        if to is SkipTo.PAST_LAST:
            spans = [(first, max(entry[:3] for entry in entries), True)]
        elif self.target is not None:
            bound = candidate[self.target]
            targets = constituents((bound,))
            if targets:
                ends = min if to is SkipTo.FIRST else max
                spans.append((first, ends(entry[:3] for entry in targets), False))
        return spans


def unused(candidates: Iterable[Candidate], used: Set[int]) -> Iterable[Candidate]:
    """Return the candidates without used-up entries; `used` has the arrivals of these."""
    if not used:
        return candidates
    return (c for c in candidates if not any(entry[2] in used for entry in constituents(c)))


def _first(candidate: Candidate) -> Entry:
    return min(constituents(candidate), key=place_of)


def _from_the_last(candidate: Candidate) -> list[Place]:
    return sorted((entry[:3] for entry in constituents(candidate)), reverse=True)


def latest(candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the candidate with the latest constituents; the preferred one if none has more."""
    found: Candidate | None = None
    places: list[Place] = []
    for candidate in candidates:
        own = _from_the_last(candidate)
        if found is None or own[: len(places)] > places[: len(own)]:
            found, places = candidate, own
    return found


def cumulated(candidates: list[Candidate]) -> Candidate:
    """Return one candidate whose parts are tuples of that part's entries in all candidates.

    Entries are sorted by place.
    """
    together: list[tuple[Entry, ...]] = []
    for number in range(len(candidates[0])):
        found: dict[int, Entry] = {}
        for candidate in candidates:
            for entry in constituents((candidate[number],)):
                found[entry[2]] = entry
        together.append(tuple(sorted(found.values(), key=place_of)))
    return tuple(together)
