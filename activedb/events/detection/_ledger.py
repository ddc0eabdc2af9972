"""Ledger of possible matches, which makes those that are certain (README, "Unknown order")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from activedb.errors import BadEvent
from activedb.events._choices import Context
from activedb.events._undecided import Rivals
from activedb.events.detection._choice import cumulated
from activedb.events.detection._entry import Entry, place_of
from activedb.events.detection._journal import Journal, add
from activedb.events.detection._possible import Exclusion, Possible
from activedb.events.detection._skips import covers

if TYPE_CHECKING:
    from activedb.events.detection._combination import CombinationNode
    from activedb.events.detection._group import Group
    from activedb.events.detection._node import Moment

__all__ = ["Ledger"]


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
        group: Group,
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
        self, group: Group, before: Sequence[Possible], made: list[Possible], journal: Journal
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

    def _is_used(self, group: Group, c: Possible) -> bool:
        """Return whether a match made while the order of all events was certain excludes it."""
        if self.exclusion.uses_up and not group.used.isdisjoint(c.arrivals):
            by_ledger = {a for each in group.possible if each.is_made for a in each.arrivals}
            if not (group.used & c.arrivals) <= by_ledger:
                return True
        if not group.spans or self.node.times_out:
            return False
        return covers(group.spans, c.entries[0][:3])

    def _use_up(self, group: Group, c: Possible, journal: Journal) -> None:
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
        found = Possible(
            cumulated([each.candidate for each in step]),
            is_certain=True,
            is_closed=step[0].is_closed,
        )
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
