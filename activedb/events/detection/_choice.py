"""Contexts and skips: the choice among candidates, and the events it uses up (README)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import islice
from typing import Any

from activedb.events._choices import Context, Skip, SkipTo
from activedb.events.detection._entry import Candidate, Entry, constituents, place_of
from activedb.events.detection._predicates import Stage
from activedb.events.detection._skips import Place, Span, add_span, covers

__all__ = ["Chooser", "cumulated", "latest", "preference", "unused"]

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
