"""What a context makes whatever the order of the events is, and what it makes only for some."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, starmap
from typing import TYPE_CHECKING

from activedb.events._choices import Context
from activedb.events._conjunction import Conjunction
from activedb.events._occurrence import Occurrence
from activedb.events.detection._choice import latest
from activedb.events.detection._entry import Candidate, Entry, constituents, place_of
from activedb.events.detection._journal import Journal, add

if TYPE_CHECKING:
    from activedb.events.detection._combination import CombinationNode
    from activedb.events.detection._group import Group
    from activedb.events.detection._node import Moment
    from activedb.events.detection._uncertain import Relation

__all__ = ["Ambiguity"]

Judged = tuple[Candidate, bool]
"""A candidate, and whether it is certain."""


class Ambiguity:
    """Tells what is sure of the choice among the candidates of one moment and group.

    After C. Liebig, M. Cilia, A. Buchmann, 1999, V.B: a context composes if what is oldest, or
    latest, is known of the events that can stand for the same part. Those that are not fed yet, the
    contemporaries, count if they can take the place of a constituent.

    Complexity: O(n²) comparisons of n candidates if some are not sure, else O(n); times the number
    of contemporaries.
    """

    def __init__(self, relation: Relation, node: CombinationNode, group: Group, moment: Moment):
        self.relation = relation
        self.node = node
        self.group = group
        self.moment = moment
        self.context = Context.UNRESTRICTED if node.times_out else node.chooser.context
        self._is_conjunction = isinstance(node.expression, Conjunction)
        self._waiting = [
            (o, stages) for o in moment.contemporaries if (stages := self._stages_of(o))
        ]

    def judged(self, found: Iterable[Judged]) -> list[Judged]:
        """The candidates of which nothing is used up, in the order of preference.

        One of which a constituent may be used up is not certain.
        """
        used = self.group.used
        left = [
            (candidate, certain and not self._may_be_used(candidate))
            for candidate, certain in found
            if not (used and any(entry[2] in used for entry in constituents(candidate)))
        ]
        left.sort(key=lambda item: self.node.order(item[0]))
        return left

    def split(self, candidates: list[Judged]) -> tuple[list[Candidate], list[list[Judged]]]:
        """Return those that are sure to be made, and, in groups, those of which some may be."""
        sure: list[Candidate] = []
        doubtful: list[list[Judged]] = []
        is_known = self._is_known()
        for rivals in self._rivals(candidates):
            if not is_known:
                doubtful.append(rivals)
                continue
            if self.context in (Context.UNRESTRICTED, Context.CUMULATIVE):
                best, is_sure = [c for c, _ in rivals], all(certain for _, certain in rivals)
            else:
                chosen = self._best(rivals)
                best = [chosen]
                is_sure = any(c is chosen and certain for c, certain in rivals) and all(
                    c is chosen or self._is_surely_better(chosen, c) for c, _ in rivals
                )
            if is_sure and not any(self._replaced(candidate) for candidate in best):
                sure += best
            else:
                doubtful.append(rivals)
        return sure, doubtful

    def doubt(self, doubtful: list[list[Judged]], journal: Journal) -> None:
        """Remember what may be used up, as these candidates are not made, but one may have been.

        What all of them have is used up in every order if one of them is certain.
        """
        if not self.node.chooser.uses_up:
            return
        for rivals in doubtful:
            possible = self._not_surely_behind(rivals)
            entries = {entry[2]: entry for c in possible for entry in constituents(c)}
            used = self._used_anyhow(rivals, possible)
            for arrival, entry in entries.items():
                if arrival in used:
                    self.node.use_up(self.group, entry, journal)
                else:
                    add(self.group.own_doubted(), arrival, journal)

    def _is_known(self) -> bool:
        """Whether these contexts may choose at all.

        What completes a conjunction, and so what recent, continuous and cumulative choose from,
        depends on the order of all its events: they choose only if that is known.
        """
        if not self._is_conjunction or self.context in (Context.UNRESTRICTED, Context.CHRONICLE):
            return True
        found = {id(entry[3]): entry[3] for entries in self.group.taken for entry in entries}
        found.update((id(o), o) for o, _ in self._waiting)
        if self.moment.o is not None:
            found[id(self.moment.o)] = self.moment.o
        return all(starmap(self._is_order_known, combinations(found.values(), 2)))

    # -- among the candidates ------------------------------------------------------------------

    def _rivals(self, candidates: list[Judged]) -> Iterator[list[Judged]]:
        """Those among which the context chooses."""
        if self.context is Context.UNRESTRICTED:
            yield from ([each] for each in candidates)
        elif self.context is Context.CONTINUOUS:
            by_first: dict[int, list[Judged]] = {}
            for each in candidates:
                entries = constituents(each[0])
                # The first one of a sequence need not have the first reading.
                first = min(entries, key=place_of) if self._is_conjunction else entries[0]
                by_first.setdefault(first[2], []).append(each)
            yield from by_first.values()
        elif candidates:
            yield candidates

    def _best(self, rivals: list[Judged]) -> Candidate:
        if self.context is Context.RECENT:
            found = latest(candidate for candidate, _ in rivals)
            assert found is not None
            return found
        return rivals[0][0]

    def _is_surely_better(self, best: Candidate, other: Candidate) -> bool:
        if self.context is Context.RECENT:
            return self._is_surely_later(constituents(best), constituents(other))
        for own, theirs in zip(best, other, strict=True):
            ours, others = constituents((own,)), constituents((theirs,))
            for a, b in zip(ours, others, strict=False):
                if a[2] != b[2]:
                    return self._is_ordered(a, b)
            if len(ours) != len(others):
                return True  # by whether the part is greedy
        return True

    def _is_surely_later(self, best: list[Entry], other: list[Entry]) -> bool:
        """Whether the latest of what they do not have in common is of the best in every order."""
        ours, theirs = {entry[2] for entry in best}, {entry[2] for entry in other}
        if len(ours) != len(theirs):
            # Which of them runs out depends on all of the order.
            return all(self._is_ordered(a, b) for a in best for b in other if a[2] != b[2])
        own = [entry for entry in best if entry[2] not in theirs]
        return all(
            any(self._is_ordered(b, a) and place_of(b) < place_of(a) for a in own)
            for b in other
            if b[2] not in ours
        )

    def _is_ordered(self, a: Entry, b: Entry) -> bool:
        return self._is_order_known(a[3], b[3])

    def _is_order_known(self, x: Occurrence, y: Occurrence) -> bool:
        relation = self.relation
        if relation.precedes(x, y) or relation.precedes(y, x):
            return True
        return not (relation.may_precede(x, y) or relation.may_precede(y, x))  # exact ones

    def _not_surely_behind(self, rivals: list[Judged]) -> list[Candidate]:
        """Those that may be chosen."""
        certain = [] if self.context is Context.CUMULATIVE else [c for c, sure in rivals if sure]
        order = self.node.order
        return [
            candidate
            for candidate, _ in rivals
            if not any(
                order(other) < order(candidate) and self._is_surely_better(other, candidate)
                for other in certain
            )
        ]

    def _used_anyhow(self, rivals: list[Judged], possible: list[Candidate]) -> set[int]:
        certain = [candidate for candidate, sure in rivals if sure]
        if not certain or self.context is not Context.CHRONICLE:
            # The others use up what any of several has: what is fed late may have been one's, too.
            return set()
        replaced = {stage for candidate in possible for stage in self._replaced(candidate)}
        return set.intersection(
            *(
                {
                    entry[2]
                    for stage, bound in enumerate(candidate)
                    if stage not in replaced
                    for entry in constituents((bound,))
                }
                for candidate in possible
            )
        )

    # -- what is not among them ----------------------------------------------------------------

    def _may_be_used(self, candidate: Candidate) -> bool:
        """Whether a constituent, or one of which it is not known which was first, is doubted."""
        doubted = self.group.doubted
        if not doubted:
            return False
        for stage, bound in enumerate(candidate):
            for entry in constituents((bound,)):
                if entry[2] in doubted or any(
                    other[2] in doubted and not self._is_ordered(entry, other)
                    for other in self.group.taken[stage]
                ):
                    return True
        return False

    def _replaced(self, candidate: Candidate) -> set[int]:
        """The stages at which a contemporary may stand instead, or as well."""
        if self.context is Context.UNRESTRICTED:
            return set()
        return {
            stage
            for o, stages in self._waiting
            for stage in stages
            if self._may_stand(o, stage, candidate)
        }

    def _may_stand(self, o: Occurrence, stage: int, candidate: Candidate) -> bool:
        relation, bound = self.relation, candidate[stage]
        if (
            self.context in (Context.CHRONICLE, Context.RECENT)
            and bound is not None
            and not self.node.stages[stage].kleene
        ):
            if self.context is Context.CHRONICLE:
                return relation.may_precede(o, bound[3])
            return bound[3] is not self.moment.o and relation.may_precede(bound[3], o)
        return any(relation.may_precede(o, entry[3]) for entry in constituents(candidate))

    def _stages_of(self, o: Occurrence) -> set[int]:
        """The stages that would take an event, or something that is made of it."""
        node = self.node
        stages = {number for number, child in node.sources if o.key in child.keys}
        names = node.attributes
        if all(name in o.params for name in names) and self.group.key == tuple(
            [o.params[name] for name in names]
        ):
            stages |= {
                number
                for primitive, number, forbids in node.dispatch.get(o.key, ())
                if not forbids and primitive.takes(o)
            }
        return stages
