"""Exclusion among possible matches, and the ledger that makes those that are certain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from activedb.errors import BadEvent
from activedb.events._choices import Context, SkipTo
from activedb.events._expressions import Conjunction
from activedb.events._undecided import Rivals
from activedb.events.detection._choice import covers, cumulated
from activedb.events.detection._entry import (
    Candidate,
    Entry,
    Possible,
    constituents,
    leaves,
    place_of,
)
from activedb.events.detection._journal import Journal, add

if TYPE_CHECKING:
    from activedb.events.detection._combination import CombinationNode
    from activedb.events.detection._group import EntryGroup
    from activedb.events.detection._moment import Moment

__all__ = ["Exclusion", "Ledger"]


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
        self.window_us = node.window_us
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
                # The context chooses among those that skips leave.
                if not (self._is_later(c, r) or self.excludes_in_step(c, r)):
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

    # -- merging -----------------------------------------------------------------------------

    def merged(self, step: Iterable[Possible]) -> Candidate:
        """Return the candidate that merges those of a step: the events of each part, in order.

        Where the order is uncertain, it is that of the readings.
        """
        candidate = cumulated([each.candidate for each in step])
        return tuple([tuple(self._in_order(bound)) for bound in candidate])

    def _in_order(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield entries as given, but each after those that are certainly before it."""
        precedes = self.relation.precedes
        left = list(entries)
        while left:
            first = next(
                (e for e in left if not any(precedes(other[3], e[3]) for other in left)), left[0]
            )
            left.remove(first)
            yield first

    # -- steps -------------------------------------------------------------------------------

    def may_be_one_step(self, r: Possible, c: Possible) -> bool:
        """Return whether one step may complete both."""
        if r.is_closed is not c.is_closed:
            return False
        if r.is_closed:
            a, b = r.entries[0], c.entries[0]
            return a[2] == b[2] or self.relation.may_begin_together(a[3], b[3])
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
            return self._is_ahead(self._ends_us(r)[0], r, self._ends_us(c)[1])
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
            return self._is_ahead(self._ends_us(r)[1], r, self._ends_us(c)[0])
        return all(any(self.relation.is_later_step(a, b) for b in c.ends) for a in r.ends)

    @staticmethod
    def _is_ahead(us: int, r: Possible, other_us: int) -> bool:
        """Return whether r, completed at `us`, is ahead of what is completed in the other way.

        A window ends after all events of its last microsecond.
        """
        return us < other_us if r.is_closed else us <= other_us

    def _ends_us(self, c: Possible) -> tuple[int, int]:
        """Return the earliest and the latest time at which c is completed."""
        if not c.is_closed:
            return self.relation.ends(c.entries[-1][3])
        assert self.window_us is not None
        low_us, high_us = self.relation.begins(c.entries[0][3])
        return low_us + self.window_us, high_us + self.window_us

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
            if own[:count] == theirs[:count]:
                return self.is_better(c, r)  # one has no more
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
            return first[2] == last[2] or (last[2] != own[2] and not behind(last, first))
        # Between its first constituent and a target that is the same one there is nothing.
        before = [t[2] not in (first[2], own[2]) and not behind(t, first) for t in self._targets(r)]
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


# -- ledger of possible matches, which makes those that are certain (README, "Unknown order") ------


class Ledger:
    """Decision on the possible matches of a node, group by group.

    The group keeps open matches, and made matches for as long as they may exclude open ones. A
    match is made when it is certainly a candidate and no possible match may exclude it. It is out
    when a made match certainly excludes it.

    Complexity: O(n²) comparisons for n possible matches of a group.
    """

    def __init__(self, node: CombinationNode):
        self.node = node
        self.shared = node.shared
        self.exclusion = Exclusion(node)
        self.context = self.exclusion.context

    def settle(
        self,
        group: EntryGroup,
        found: Iterable[Possible],
        unfed: Sequence[Possible],
        moment: Moment,
    ) -> list[tuple[Possible, Entry]]:
        """Add matches; return those that are new, made or doubtful, with their entries.

        Parameters
        ----------
        found : iterable of Possible
            The matches that the moment completes.
        unfed : sequence of Possible
            The matches that events yet to be fed, or windows yet to end, would complete.
        """
        journal = moment.journal
        before = group.possible
        made = [each for each in before if each.is_made]
        opened = self._decided_elsewhere(group, before, made, journal)
        opened = self._judged_again(group, opened, moment)
        for each in found:
            self.exclusion.prepare(each)
        fresh = [each for each in found if not self._is_used(group, each)]
        for each in unfed:
            self.exclusion.prepare(each)
        new: list[tuple[Possible, Entry]] = []
        pending = [*opened, *fresh]
        isolated = self._is_isolated(pending)
        while True:
            pending, out = self._without_excluded(pending, made, unfed)
            for each in out:
                if each.entry is not None:
                    self.shared.decide(each.entry[2], journal, is_made=False)
            chosen = [] if isolated else self._sure(pending, made, unfed)
            if not chosen:
                break
            pending = [each for each in pending if not any(each is other for other in chosen)]
            if self.context is Context.CUMULATIVE and len(chosen) > 1:
                chosen = [self._merged(chosen, journal)]
            for each in chosen:
                if each.entry is None:
                    entry = self.node.occurrence_of(each)
                    each = each.at(entry)
                    new.append((each, entry))
                else:
                    self.shared.decide(each.entry[2], journal, is_made=True)
                self._use_up(group, each, journal)
                made.append(each.made())
        kept: list[Possible] = []
        for each in pending:
            if each.entry is None:
                why = self._why(each, pending, made, unfed)
                entry = self.node.occurrence_of(each)
                self.shared.doubt(entry[2], why, journal)
                each = each.at(entry)
                new.append((each, entry))
            if self.exclusion.contends or each.is_certain:
                kept.append(each)
        if not self.exclusion.contends:
            made = []
        after = (*made, *kept)
        if len(after) != len(before) or any(a is not b for a, b in zip(after, before, strict=True)):
            group.possible = after
            journal.append((setattr, (group, "possible", before)))
            if after:
                self.node.groups.expire_at(group, min(each.last_us for each in after))
        new.sort(key=lambda item: self.node.order_of_judged(item[0].candidate))
        return new

    # -- earlier decisions ---------------------------------------------------------------------

    def _decided_elsewhere(
        self, group: EntryGroup, before: Sequence[Possible], made: list[Possible], journal: Journal
    ) -> list[Possible]:
        """Return the matches still open, after decisions by `Detector.resolve` or child nodes."""
        doubtful, gone = self.shared.doubtful, self.shared.gone
        opened: list[Possible] = []
        chosen: list[Possible] = []
        for each in before:
            if each.is_made:
                continue
            assert each.entry is not None
            if each.entry[2] in gone:
                continue
            if each.entry[2] not in doubtful:
                chosen.append(each)
            elif not gone.isdisjoint(each.arrivals):
                self.shared.decide(each.entry[2], journal, is_made=False)
            else:
                opened.append(each)
        for number, each in enumerate(chosen):
            others = [*made, *chosen[:number]] if self.context is not Context.CUMULATIVE else made
            if any(self.exclusion.excludes(other, each) for other in others):
                raise BadEvent(
                    f"{each.entry[3] if each.entry else each} is excluded by another match that "
                    "is made: of matches that exclude each other only one can be chosen"
                )
        for each in chosen:
            for arrival in each.arrivals:
                self.shared.decide_all(arrival, journal, is_made=True)
            self._use_up(group, each, journal)
            made.append(each.made())
        return opened

    def _judged_again(
        self, group: EntryGroup, opened: list[Possible], moment: Moment
    ) -> list[Possible]:
        """Judge early matches again if no part may make anything any more that matters to them."""
        if not any(each.is_early for each in opened) or self.node.is_blind():
            return opened
        found: list[Possible] = []
        for each in opened:
            again = self.node.judged_again(group, each, moment) if each.is_early else each
            if again is not None:
                found.append(again)
            elif each.entry is not None:
                self.shared.decide(each.entry[2], moment.journal, is_made=False)
        return found

    def _is_used(self, group: EntryGroup, c: Possible) -> bool:
        """Return whether a match made while the order of all events was certain excludes it."""
        if self.exclusion.uses_up and not group.used.isdisjoint(c.arrivals):
            by_ledger = {a for each in group.possible if each.is_made for a in each.arrivals}
            if not (group.used & c.arrivals) <= by_ledger:
                return True
        if not group.spans or self.node.times_out:
            return False
        return covers(group.spans, c.entries[0][:3])

    def _use_up(self, group: EntryGroup, c: Possible, journal: Journal) -> None:
        if self.exclusion.uses_up:
            for arrival in c.arrivals:
                add(group.own_used(), arrival, journal)

    # -- certain matches ---------------------------------------------------------------------

    def _is_isolated(self, pending: Sequence[Possible]) -> bool:
        """Return whether matches that the node's parts may still make prevent a decision."""
        return self.exclusion.contends and bool(pending) and self.node.is_blind()

    def _is_free(self, c: Possible) -> bool:
        if not c.is_certain or (c.lost_rival and self.exclusion.contends):
            return False
        return self.shared.doubtful.keys().isdisjoint(c.arrivals)

    def _against(self, c: Possible, others: Iterable[Possible]) -> Iterator[Possible]:
        may_exclude = self.exclusion.may_exclude
        return (r for r in others if r is not c and may_exclude(r, c))

    def _sure(
        self, pending: list[Possible], made: list[Possible], unfed: Sequence[Possible]
    ) -> list[Possible]:
        """Return the matches that are made in every order."""
        if not self.exclusion.contends:
            return [c for c in pending if self._is_free(c)]
        if self.context is Context.CUMULATIVE:
            return self._sure_together(pending, made, unfed)
        return [
            c
            for c in pending
            if self._is_free(c) and not any(self._against(c, chain(pending, unfed, made)))
        ]

    def _sure_together(
        self, pending: list[Possible], made: list[Possible], unfed: Sequence[Possible]
    ) -> list[Possible]:
        """Return all candidates that one step merges, if it certainly merges exactly these."""
        exclusion = self.exclusion
        for c in pending:
            step = [r for r in pending if r is c or exclusion.is_one_step(r, c)]
            others = [r for r in pending if not any(r is each for each in step)]
            if all(
                self._is_free(each)
                and not any(
                    exclusion.may_be_one_step(r, each) or exclusion.may_exclude(r, each)
                    for r in chain(others, unfed, made)
                )
                for each in step
            ):
                return self._unexcluded(step)
        return []

    def _unexcluded(self, step: list[Possible]) -> list[Possible]:
        """Return the candidates of a step that no other excludes; nothing if uncertain."""
        exclusion = self.exclusion
        if not exclusion.chooses_in_step:
            return step
        undecided = [(c, list(self._against(c, step))) for c in step]
        left, out = list[Possible](), list[Possible]()
        while undecided:
            for number, (c, rivals) in enumerate(undecided):
                if any(exclusion.excludes_in_step(r, c) for r in left):
                    out.append(c)
                elif all(any(r is each for each in out) for r in rivals):
                    left.append(c)
                else:
                    continue
                del undecided[number]
                break
            else:
                return []
        return left

    def _merged(self, step: list[Possible], journal: Journal) -> Possible:
        """Return the match that merges all candidates of a step."""
        for each in step:
            if each.entry is not None:
                self.shared.decide(each.entry[2], journal, is_made=False)
        candidate = self.exclusion.merged(step)
        found = Possible(candidate, is_certain=True, is_closed=step[0].is_closed)
        found.ends = step[0].ends
        return found

    # -- excluded matches --------------------------------------------------------------------

    def _without_excluded(
        self, pending: list[Possible], made: list[Possible], unfed: Sequence[Possible]
    ) -> tuple[list[Possible], list[Possible]]:
        """Split pending matches into those still possible and those excluded in every order."""
        if not self.exclusion.contends:
            return pending, []
        left: list[Possible] = []
        out: list[Possible] = []
        for c in pending:
            excluded = any(self.exclusion.excludes(m, c) for m in made)
            (out if excluded else left).append(c)
        if self.context is Context.CHRONICLE and self.exclusion.uses_up:
            spent = self._spent(left, made, unfed)
            if spent:
                out += [c for c in left if self._is_spent(c, spent)]
                left = [c for c in left if not self._is_spent(c, spent)]
        return left, out

    def _spent(
        self, pending: list[Possible], made: list[Possible], unfed: Sequence[Possible]
    ) -> list[tuple[frozenset[int], list[Possible]]]:
        """Return entries that one of several matches certainly uses up, whichever is made.

        A certain candidate is made unless another excludes it: the entries that all of them share
        are used up in every case.
        """
        found: list[tuple[frozenset[int], list[Possible]]] = []
        for c in pending:
            if not self._is_free(c):
                continue
            against, common = list[Possible](), c.arrivals
            for r in self._against(c, chain(pending, unfed, made)):
                against.append(r)
                common &= r.arrivals
                if not common:
                    break
            if common and against:
                found.append((common, [c, *against]))
        return found

    def _is_spent(self, d: Possible, spent: list[tuple[frozenset[int], list[Possible]]]) -> bool:
        return any(
            not common.isdisjoint(d.arrivals)
            and all(each is not d and self.exclusion.is_before(each, d) for each in those)
            for common, those in spent
        )

    # -- reasons -----------------------------------------------------------------------------

    def _why(
        self,
        c: Possible,
        pending: list[Possible],
        made: list[Possible],
        unfed: Sequence[Possible],
    ) -> Rivals:
        """Return why a possible match is not certain."""
        unordered = list(c.doubts)
        contends = self.exclusion.contends
        rivals = list(self._against(c, chain(pending, unfed, made))) if contends else []
        candidates: list[Mapping[str, Any]]
        candidates = [self.node.parts_of(r.candidate) for r in rivals]
        for entry in sorted(c.entries, key=place_of):
            why = self.shared.doubtful.get(entry[2])
            if why is not None:
                unordered += why.unordered
                candidates += why.candidates
        return Rivals(tuple(dict.fromkeys(unordered)), tuple(candidates))
