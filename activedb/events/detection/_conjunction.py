"""The node of a conjunction: all, or some, of several events in any order."""

from __future__ import annotations

from bisect import bisect_left
from heapq import merge
from typing import TYPE_CHECKING, Any

from activedb.events._choices import NO_SKIP
from activedb.events._conjunction import Conjunction
from activedb.events.detection._choice import Chooser
from activedb.events.detection._combination import Children, CombinationNode
from activedb.events.detection._entry import Candidate, Entry, constituents, leaves
from activedb.events.detection._layout import stage_of
from activedb.events.detection._predicates import Predicates, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from activedb.events.detection._group import Group
    from activedb.events.detection._node import Moment, Shared

__all__ = ["ConjunctionNode"]


class ConjunctionNode(CombinationNode):
    """Finds the matches of a conjunction."""

    def __init__(
        self,
        expression: Conjunction,
        children: Children,
        shared: Shared,
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
        # Only then can two entries share a primitive event without being of one feed.
        self.may_share = bool(children.nodes) or any(
            len(each) > 1 for each in self.dispatch.values()
        )

    def evaluate(self, moment: Moment) -> list[Entry]:
        items = self.items(moment)
        if not items:
            return []
        by_key: dict[tuple[object, ...], list[tuple[Entry, list[int]]]] = {}
        for entry, stages, _ in items:
            by_key.setdefault(self.key_of(entry[3]), []).append((entry, stages))
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
            if self.shared.is_inexact:
                certain = [(candidate, True) for candidate in found]
                found = self.shared.policy.decide(certain, group, self, moment)
            completed.append((group, found))
        # All that a step brings shares the event that is fed, so none of it combines with another.
        made = self.make(completed, moment)
        for key, own in by_key.items():
            group = self.group(key, moment.journal)
            for entry, stages in own:
                if entry[2] in group.used:
                    continue
                self.keep(group, [group.stage(stage) for stage in stages], entry, moment.journal)
            self.settle(group, moment.journal)
        return made

    def _candidates(
        self, group: Group, own: Entry, at_stage: int, moment: Moment
    ) -> Iterator[Candidate]:
        """Yield those in which `own` stands at a stage, in the order of preference.

        Complexity: the product of what the other parts took within the window.
        """
        window_us, used = self.window_us, group.used
        options: list[list[Entry]] = []
        for number, entries in enumerate(group.taken):
            if number == at_stage:
                options.append([own])
                continue
            low, high = 0, len(entries)
            if window_us is not None:
                low = bisect_left(entries, (own[3].low_us - window_us,))
                high = bisect_left(entries, (own[0] + window_us + 1,))
            options.append([entry for entry in entries[low:high] if entry[2] not in used])
        if own[2] in used:
            return
        count, needed = len(options), self.needed
        if sum(map(bool, options)) < needed:
            return
        chosen: list[Any] = []

        def choose(number: int, bound: int, taken: frozenset[int]) -> Iterator[Candidate]:
            if number == count:
                candidate = tuple(chosen)
                if self._holds(candidate, moment):
                    yield candidate
                return
            # `own` has to be among them.
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

    def _holds(self, candidate: Candidate, moment: Moment) -> bool:
        if self.window_us is not None:
            entries = constituents(candidate)
            if self.shared.is_inexact:
                relation = self.shared.policy.relation
                low_us = min([relation.low_us(entry[3]) for entry in entries])
                high_us = max([relation.high_us(entry[3]) for entry in entries])
            else:
                low_us = min([entry[3].low_us for entry in entries])
                high_us = max([entry[3].high_us for entry in entries])
            if high_us - low_us > self.window_us:
                return False
        if self.predicates.is_empty:
            return True
        parts = parts_of(candidate, self.stages)
        predicates = self.predicates
        for number, bound in enumerate(candidate):
            if bound is not None and not predicates.joins(number, 1, parts):
                return False
        return predicates.completes(parts, moment, self.index)
