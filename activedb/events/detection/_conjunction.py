"""Node of a conjunction: all, or some, of several events in any order."""

from __future__ import annotations

from bisect import bisect_left
from heapq import merge
from itertools import permutations
from typing import TYPE_CHECKING, Any

from activedb.events._choices import NO_SKIP
from activedb.events._expressions import Conjunction
from activedb.events.detection._choice import Chooser
from activedb.events.detection._combination import Children, CombinationNode
from activedb.events.detection._entry import (
    Candidate,
    Doubt,
    Entry,
    Possible,
    Stage,
    constituents,
    leaves,
)
from activedb.events.detection._predicates import Predicates, parts_of
from activedb.events.detection._traits import stage_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from activedb.events.detection._backtracking import Waiting
    from activedb.events.detection._group import EntryGroup
    from activedb.events.detection._moment import Moment
    from activedb.events.detection._node import DetectorState

__all__ = ["ConjunctionNode"]


class ConjunctionNode(CombinationNode):
    """Node of a conjunction."""

    __slots__ = ("may_share", "needed")

    def __init__(
        self,
        expression: Conjunction,
        children: Children,
        shared: DetectorState,
        index: int,
        horizon_us: int | None,
    ):
        self.stages = [stage_of(part) for part in expression.parts]
        self.predicates = Predicates(self.stages, expression.predicates, expression.readings)
        chooser = Chooser(expression.consumption, NO_SKIP, self.stages)
        super().__init__(
            expression,
            list(expression.parts),
            [],
            children,
            chooser,
            shared,
            index,
            horizon_us,
        )
        self.needed = expression.count
        # Only then can entries of different feeds share a primitive event.
        self.may_share = bool(children.nodes) or any(
            len(each) > 1 for each in self.dispatch.values()
        )

    def evaluate(self, moment: Moment) -> list[Entry]:
        items = self.items(moment)
        if not items and not self.opened:
            return []
        by_key: dict[tuple[object, ...], list[tuple[Entry, list[int]]]] = {}
        for entry, stages, _ in items:
            by_key.setdefault(self.key_of(entry[3]), []).append((entry, stages))
        if self.shared.is_inexact:
            return self._evaluate_inexact(by_key, moment)
        completed = []
        for key, own in by_key.items():
            group = self.group(key, moment.journal)
            searches = [
                self._candidates(group, entry, stage, moment)
                for entry, stages in own
                for stage in stages
            ]
            found: Iterable[Candidate] = (
                searches[0] if len(searches) == 1 else merge(*searches, key=self.order)
            )
            completed.append((group, found))
        # All entries of a step share the event that is fed, so they do not combine with each other.
        made = self.make(completed, moment)
        for key, own in by_key.items():
            group = self.group(key, moment.journal)
            self._keep(group, own, moment)
            self.settle(group, moment.journal)
        return made

    def _keep(
        self, group: EntryGroup, items: list[tuple[Entry, list[int]]], moment: Moment
    ) -> None:
        for entry, stages in items:
            if entry[2] in group.used and not self.shared.is_inexact:
                continue
            self.keep(group, [group.stage(stage) for stage in stages], entry, moment.journal)

    # -- uncertain order -----------------------------------------------------------------------

    def _evaluate_inexact(
        self, by_key: dict[tuple[object, ...], list[tuple[Entry, list[int]]]], moment: Moment
    ) -> list[Entry]:
        completed: list[tuple[EntryGroup, list[Possible]]] = []
        for key, own in by_key.items():
            group = self.group(key, moment.journal)
            found = [
                possible
                for entry, stages in own
                for stage in stages
                for possible in self._possible(group, entry, stage, moment)
            ]
            self._keep(group, own, moment)
            completed.append((group, found))
        taken = [group for group, _ in completed]
        completed += [(group, []) for group in self.reopened(taken)]
        made = self.judge(completed, moment)
        for group in taken:
            self.settle(group, moment.journal)
        return made

    def _possible(
        self,
        group: EntryGroup,
        own: Entry,
        at_stage: int,
        moment: Moment,
        waiting: Sequence[Waiting] | None = None,
    ) -> Iterator[Possible]:
        """Yield candidates with `own` at a stage, and the distances on which they depend."""
        for candidate in self._candidates(group, own, at_stage, moment, waiting):
            yield self._judged(candidate, moment, is_trial=waiting is not None)

    def _judged(self, candidate: Candidate, moment: Moment, *, is_trial: bool) -> Possible:
        relation, window_us = self.shared.policy.relation, self.window_us
        doubts: list[Doubt] = []
        if window_us is not None:
            inner = [entry[3] for entry in constituents(candidate)]
            for a, b in permutations(inner, 2):
                if relation.ends(b)[1] - relation.begins(a)[0] > window_us:
                    doubts.append((a, b))
        parts = self._bound(candidate)
        is_certain = not doubts and (
            self.predicates.is_empty
            or not self.shared.is_unsettled(parts)
            or self._holds(candidate, moment, is_trial=is_trial)
        )
        is_early = not is_certain and bool(self.shared.growing(parts))
        return Possible(candidate, is_certain=is_certain, doubts=doubts, is_early=is_early)

    def judged(self, group: EntryGroup, possible: Possible, moment: Moment) -> Possible | None:
        if not self._may_hold(possible.candidate, moment, is_trial=False):
            return None
        return self._judged(possible.candidate, moment, is_trial=False)

    def _may_hold(self, candidate: Candidate, moment: Moment, *, is_trial: bool) -> bool:
        return self._holds(candidate, moment, is_trial=is_trial) or self.shared.is_unsettled(
            self._bound(candidate)
        )

    def _bound(self, candidate: Candidate) -> list[tuple[Stage, Any]]:
        return [each for each in zip(self.stages, candidate, strict=True) if each[1] is not None]

    def unfed(
        self,
        group: EntryGroup,
        moment: Moment,
        found: Sequence[Possible],
        start_us: int | None,
    ) -> list[Possible]:
        is_asked = found or any(not each.is_made for each in group.possible)
        if not is_asked or not self.ledger.exclusion.contends or not self.shared.policy.doubts:
            return []
        waiting = self.waiting(group)
        seen: dict[tuple[int | None, ...], Possible] = {}
        for entry, stages in waiting:
            for stage in stages:
                for each in self._possible(group, entry, stage, moment, waiting):
                    key = tuple([None if b is None else b[2] for b in each.candidate])
                    seen.setdefault(key, each)
        return list(seen.values())

    def _candidates(
        self,
        group: EntryGroup,
        own: Entry,
        at_stage: int,
        moment: Moment,
        waiting: Sequence[Waiting] | None = None,
    ) -> Iterator[Candidate]:
        """Yield the candidates with `own` at a stage, in the order of preference.

        Events yet to be fed, `waiting`, are treated as if they had been fed.

        Complexity: the product of the numbers of entries of the other parts within the window.
        """
        window_us, used = self.window_us, group.used
        is_inexact, gone = self.shared.is_inexact, self.shared.gone
        if is_inexact and self.shared.policy.doubts:
            used = frozenset()
        options: list[list[Entry]] = []
        for number, entries in enumerate(group.taken):
            if number == at_stage:
                options.append([own])
                continue
            low, high = 0, len(entries)
            if window_us is not None and not is_inexact:
                low = bisect_left(entries, (own[3].low_us - window_us,))
                high = bisect_left(entries, (own[0] + window_us + 1,))
            options.append([e for e in entries[low:high] if e[2] not in used and e[2] not in gone])
            if waiting:
                options[-1] += [e for e, stages in waiting if number in stages and e is not own]
        if own[2] in used:
            return
        count, needed = len(options), self.needed
        if sum(map(bool, options)) < needed:
            return
        chosen: list[Any] = []

        def choose(number: int, bound: int, taken: frozenset[int]) -> Iterator[Candidate]:
            if number == count:
                candidate = tuple(chosen)
                is_trial = waiting is not None
                if self._is_near(candidate) and self._may_hold(
                    candidate, moment, is_trial=is_trial
                ):
                    yield candidate
                return
            # `own` must be one of the constituents.
            owed = int(number < at_stage)
            if bound + owed < needed or number == at_stage:
                for entry in options[number]:
                    own_leaves = frozenset(leaves(entry[3])) if self.may_share else taken
                    if self.may_share and own_leaves & taken:
                        continue
                    chosen.append(entry)
                    yield from choose(number + 1, bound + 1, taken | own_leaves)
                    chosen.pop()
            if number != at_stage and bound + (count - number - 1) >= needed:
                chosen.append(None)
                yield from choose(number + 1, bound, taken)
                chosen.pop()

        yield from choose(0, 0, frozenset())

    def _is_near(self, candidate: Candidate) -> bool:
        """Return whether the window allows the candidate."""
        if self.window_us is None:
            return True
        inner = [entry[3] for entry in constituents(candidate)]
        relation = self.shared.policy.relation
        if self.shared.is_inexact:
            # The shortest possible duration.
            begin_us = min([relation.begins(o)[1] for o in inner])
            end_us = max([relation.ends(o)[0] for o in inner])
        else:
            begin_us = min([o.low_us for o in inner])
            end_us = max([o.high_us for o in inner])
        return end_us - begin_us <= self.window_us

    def _holds(self, candidate: Candidate, moment: Moment, *, is_trial: bool) -> bool:
        if self.predicates.is_empty:
            return True
        parts = parts_of(candidate, self.stages)
        if not is_trial:
            return self._fulfils(candidate, parts) and self.predicates.completes(
                parts, moment, self.index
            )
        try:
            return self._fulfils(candidate, parts) and self.predicates.holds_finally(parts)
        except Exception:
            return True  # an event yet to be fed may lack an attribute

    def _fulfils(self, candidate: Candidate, parts: Mapping[str, Any]) -> bool:
        return all(
            bound is None or self.predicates.joins(number, 1, parts)
            for number, bound in enumerate(candidate)
        )
