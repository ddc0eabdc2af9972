"""Possible matches, and exclusion among them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from activedb.events._choices import Context, SkipTo
from activedb.events._conjunction import Conjunction
from activedb.events._occurrence import Occurrence
from activedb.events.detection._entry import Candidate, Entry, constituents, leaves, place_of

if TYPE_CHECKING:
    from activedb.events.detection._combination import CombinationNode

__all__ = ["Exclusion", "Possible"]

Doubt = tuple[Occurrence, Occurrence]
"""Two events whose order or distance is uncertain."""


class Possible:
    """Possible match: a candidate in at least one order of events.

    Attributes
    ----------
    candidate : Candidate
    entries : list of Entry
        The constituents.
    is_certain : bool
        True if it is a candidate in every order, provided that its constituents occur.
    doubts : tuple of (Occurrence, Occurrence)
        The pairs of events on which `is_certain` depends.
    is_closed : bool
        True if time completes it, not its last constituent.
    entry : Entry or None
        The occurrence that the node has passed on; None: none yet, or one of its constituents is
        yet to be fed.
    is_made : bool
        True if it was made and is only kept because it may exclude others.
    lost_rival : bool
        True if a match was forgotten that may exclude it, or may have been made with it.
    ends : list of Entry
        The constituents that may be the last, or, if time completes it, that start its window.
    """

    __slots__ = (
        "arrivals",
        "candidate",
        "doubts",
        "ends",
        "entries",
        "entry",
        "is_certain",
        "is_closed",
        "is_made",
        "lost_rival",
    )

    def __init__(
        self,
        candidate: Candidate,
        *,
        is_certain: bool,
        doubts: Iterable[Doubt] = (),
        is_closed: bool = False,
        entry: Entry | None = None,
        is_made: bool = False,
        lost_rival: bool = False,
    ):
        self.candidate = candidate
        self.entries = constituents(candidate)
        self.arrivals = frozenset([entry[2] for entry in self.entries])
        self.is_certain = is_certain
        self.doubts = tuple(doubts)
        self.is_closed = is_closed
        self.entry = entry
        self.is_made = is_made
        self.lost_rival = lost_rival
        self.ends: list[Entry] = []

    def at(self, entry: Entry) -> Possible:
        """Return a copy with `entry` as the occurrence passed on."""
        found = Possible(
            self.candidate,
            is_certain=self.is_certain,
            doubts=self.doubts,
            is_closed=self.is_closed,
            entry=entry,
            lost_rival=self.lost_rival,
        )
        found.ends = self.ends
        return found

    @property
    def last_us(self) -> int:
        """The reading of its latest constituent; the match is kept until that expires."""
        return max([entry[0] for entry in self.entries])

    def may_overlap(self, other: Possible) -> bool:
        """Return whether the time spans of the two may overlap."""
        low_us, high_us = self._span_us()
        other_low_us, other_high_us = other._span_us()
        return low_us <= other_high_us and other_low_us <= high_us

    def _span_us(self) -> tuple[int, int]:
        lows, highs = zip(*[(e[3].low_us, e[3].high_us) for e in self.entries], strict=True)
        return min(lows), max(highs)

    def made(self) -> Possible:
        """Return the match marked as made."""
        found = self.at(self.entry) if self.entry is not None else self
        found.is_made = True
        return found


class Exclusion:
    """Exclusion among the possible matches of one group.

    Whatever is uncertain counts as possible exclusion. A match is excluded by a made match that

    - uses up one of its constituents in an earlier step (chronicle, continuous, cumulative),
    - is chosen instead of it among those that one step completes (chronicle, continuous, recent;
      with a selection, among those with the same ends), or
    - skips its first constituent.

    One step completes two matches if they have the same last constituent, or, if time completes
    them, the same first one.
    """

    def __init__(self, node: CombinationNode):
        chooser = node.chooser
        self.relation = node.shared.policy.relation
        self.stages = node.stages
        self.context = Context.UNRESTRICTED if node.times_out else chooser.context
        self.uses_up = chooser.uses_up and not node.times_out
        self.skip = SkipTo.NONE if node.times_out else chooser.skip.to
        self.target = chooser.target
        self.is_picky = node.needs_used
        self.is_conjunction = isinstance(node.expression, Conjunction)
        # True if matches can exclude each other at all.
        self.contends = (
            self.context is not Context.UNRESTRICTED
            or self.skip is not SkipTo.NONE
            or self.is_picky
        )

        # True if a candidate that one step merges may be excluded by another one of the step.
        self.chooses_in_step = self.is_picky or self.skip is not SkipTo.NONE

    def prepare(self, possible: Possible) -> None:
        """Determine the constituents that may complete the match."""
        entries, relation = possible.entries, self.relation
        if possible.is_closed:
            possible.ends = [entries[0]]
        elif self.is_conjunction:
            possible.ends = [
                entry
                for entry in entries
                if not any(relation.is_later_step(entry, other) for other in entries)
            ]
        else:
            possible.ends = [entries[-1]]

    def may_exclude(self, r: Possible, c: Possible) -> bool:
        """Return whether r may exclude c."""
        same = self.may_be_one_step(r, c)
        if same:
            if self.is_picky and self._may_have_same_ends(r, c) and not self.is_better(c, r):
                return True
            if self.context is Context.CHRONICLE:
                if not self.is_better(c, r):
                    return True
            elif self.context is Context.RECENT:
                if not self._is_later(c, r):
                    return True
            elif (
                self.context is Context.CONTINUOUS
                and self._may_have_same_first(r, c)
                and not self.is_better(c, r)
            ):
                return True
        shares = self.uses_up and not r.arrivals.isdisjoint(c.arrivals)
        if not shares and self.skip is SkipTo.NONE:
            return False
        before = self.may_be_before(r, c)
        if shares and before:
            return True
        return (
            self.skip is not SkipTo.NONE
            and (before or (same and not self.is_better(c, r)))
            and self._may_skip(r, c)
        )

    def excludes(self, m: Possible, c: Possible) -> bool:
        """Return whether m, which is made in every order, excludes c in every order."""
        if (
            self.uses_up
            and not m.arrivals.isdisjoint(c.arrivals)
            and (self.context is not Context.CONTINUOUS or not self.may_be_one_step(m, c))
        ):
            return True  # only one step could make both
        if self.is_one_step(m, c):
            if self.context is Context.CHRONICLE:
                return True
            if self.context is Context.RECENT:
                return True
            if self.context is Context.CONTINUOUS and self._has_same_first(m, c):
                return True
            if self.is_picky and self._may_have_same_ends(m, c):
                return True
        return (
            self.skip is not SkipTo.NONE
            and (self.is_before(m, c) or (self.is_one_step(m, c) and self.is_better(m, c)))
            and self._skips(m, c)
        )

    def excludes_in_step(self, r: Possible, c: Possible) -> bool:
        """Return whether r, if merged, certainly excludes c within their step."""
        return self.is_better(r, c) and (
            (self.is_picky and self._may_have_same_ends(r, c))
            or (self.skip is not SkipTo.NONE and self._skips(r, c))
        )

    # -- steps -------------------------------------------------------------------------------

    def may_be_one_step(self, r: Possible, c: Possible) -> bool:
        """Return whether one step may complete both."""
        if r.is_closed is not c.is_closed:
            return True
        if r.is_closed:
            a, b = r.entries[0], c.entries[0]
            relation = self.relation
            return self.is_one_step(r, c) or not (
                relation.precedes(a[3], b[3]) or relation.precedes(b[3], a[3])
            )
        return any(_may_be_one(a, b) for a in r.ends for b in c.ends)

    def is_one_step(self, r: Possible, c: Possible) -> bool:
        """Return whether one step certainly completes both."""
        if r.is_closed and c.is_closed:
            a, b = r.entries[0], c.entries[0]
            return a[2] == b[2] or self.relation.begin_together(a[3], b[3])
        return (
            r.is_closed is c.is_closed
            and len(r.ends) == len(c.ends) == 1
            and r.ends[0][2] == c.ends[0][2]
        )

    def may_be_before(self, r: Possible, c: Possible) -> bool:
        """Return whether an earlier step may complete r than c."""
        if r.is_closed is not c.is_closed:
            return True
        relation = self.relation
        if r.is_closed:
            if self.is_one_step(r, c):
                return False
            a, b = r.entries[0], c.entries[0]
            return relation.begins(a[3])[0] <= relation.begins(b[3])[1]
        return any(
            all(a[2] != b[2] and not relation.is_later_step(b, a) for a in r.ends) for b in c.ends
        )

    def is_before(self, r: Possible, c: Possible) -> bool:
        """Return whether an earlier step certainly completes r than c."""
        if r.is_closed and c.is_closed:
            begins = self.relation.begins
            return begins(r.entries[0][3])[1] < begins(c.entries[0][3])[0]
        if r.is_closed or c.is_closed:
            return False
        return all(any(self.relation.is_later_step(a, b) for b in c.ends) for a in r.ends)

    # -- preference ----------------------------------------------------------------------------

    def is_better(self, c: Possible, r: Possible) -> bool:
        """Return whether c is certainly preferred to r."""
        for stage, own, theirs in zip(self.stages, c.candidate, r.candidate, strict=False):
            if own is None or theirs is None:
                if own is not theirs:
                    return theirs is None
                continue
            ours, others = constituents((own,)), constituents((theirs,))
            for a, b in zip(ours, others, strict=False):
                if a[2] != b[2]:
                    return self.relation.is_behind(a, b)
            if len(ours) != len(others):
                return stage.greedy is (len(ours) > len(others))
        return False

    def _is_later(self, c: Possible, r: Possible) -> bool:
        """Return whether c is certainly preferred for its later constituents."""
        if c.arrivals == r.arrivals:
            return self.is_better(c, r)
        relation = self.relation
        ours = [entry for entry in c.entries if entry[2] not in r.arrivals]
        others = [entry for entry in r.entries if entry[2] not in c.arrivals]
        if len(c.arrivals) != len(r.arrivals):
            # The whole order determines which of them has no more constituents.
            known = all(
                (place_of(a) < place_of(b) and relation.is_behind(a, b))
                or (place_of(b) < place_of(a) and relation.is_behind(b, a))
                for a in c.entries
                for b in r.entries
                if a[2] != b[2]
            )
            if not known:
                return False
            own, theirs = _from_the_last(c), _from_the_last(r)
            count = min(len(own), len(theirs))
            return own[:count] > theirs[:count]
        return bool(others) and all(any(relation.is_behind(b, a) for a in ours) for b in others)

    def _may_have_same_first(self, r: Possible, c: Possible) -> bool:
        if not self.is_conjunction:
            return r.entries[0][2] == c.entries[0][2]
        return not {e[2] for e in self._firsts(r)}.isdisjoint(e[2] for e in self._firsts(c))

    def _has_same_first(self, r: Possible, c: Possible) -> bool:
        if not self.is_conjunction:
            return r.entries[0][2] == c.entries[0][2]
        ours, others = self._firsts(r), self._firsts(c)
        return len(ours) == len(others) == 1 and ours[0][2] == others[0][2]

    def _firsts(self, c: Possible) -> list[Entry]:
        behind = self.relation.is_behind
        return [e for e in c.entries if not any(behind(other, e) for other in c.entries)]

    def _may_have_same_ends(self, r: Possible, c: Possible) -> bool:
        return r.entries[0][2] == c.entries[0][2] and r.entries[-1][2] == c.entries[-1][2]

    # -- skips -------------------------------------------------------------------------------

    def _may_skip(self, r: Possible, c: Possible) -> bool:
        """Return whether r, if made, may skip c."""
        first, own = c.entries[0], r.entries[0]
        behind = self.relation.is_behind
        if first[2] == own[2]:
            return True
        if self.skip is SkipTo.NEXT or behind(first, own):
            return False
        if self.skip is SkipTo.PAST_LAST:
            last = r.entries[-1]
            return first[2] == last[2] or not behind(last, first)
        before = [t[2] != first[2] and not behind(t, first) for t in self._targets(r)]
        return bool(before) and (any if self.skip is SkipTo.LAST else all)(before)

    def _skips(self, m: Possible, c: Possible) -> bool:
        """Return whether m, which is made, certainly skips c."""
        first, own = c.entries[0], m.entries[0]
        behind = self.relation.is_behind
        if first[2] == own[2]:
            return True
        if self.skip is SkipTo.NEXT or not behind(own, first):
            return False
        if self.skip is SkipTo.PAST_LAST:
            last = m.entries[-1]
            return first[2] == last[2] or behind(first, last)
        before = [behind(first, t) for t in self._targets(m)]
        return bool(before) and (any if self.skip is SkipTo.LAST else all)(before)

    def _targets(self, c: Possible) -> list[Entry]:
        return [] if self.target is None else constituents((c.candidate[self.target],))


def _may_be_one(a: Entry, b: Entry) -> bool:
    """Return whether one event may have completed two last constituents."""
    if a[2] == b[2]:
        return True
    if not (a[3].parts or b[3].parts):
        return False
    return not set(leaves(a[3])).isdisjoint(leaves(b[3]))


def _from_the_last(c: Possible) -> list[Any]:
    return sorted(map(place_of, c.entries), reverse=True)
