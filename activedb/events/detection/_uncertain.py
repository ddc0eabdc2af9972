"""What is done if the order of events is not known (README, "Uncertain order")."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from activedb.errors import PatternError, UncertainOrder
from activedb.events._occurrence import Occurrence
from activedb.events._precedence import precedes
from activedb.events.detection._ambiguity import Ambiguity
from activedb.events.detection._entry import Candidate, Entry
from activedb.events.detection._predicates import parts_of

if TYPE_CHECKING:
    from activedb.events.detection._combination import CombinationNode
    from activedb.events.detection._group import Group
    from activedb.events.detection._node import Moment

__all__ = ["Policy", "Relation", "is_exact"]

_NAMES = ("raise", "certain", "possible", "reading")


class Relation:
    """How occurrences lie to each other, by their intervals and local clocks."""

    def low_us(self, o: Occurrence) -> int:
        """Where it begins at the earliest."""
        return o.low_us

    def high_us(self, o: Occurrence) -> int:
        """Where it ends at the latest."""
        return o.high_us

    def precedes(self, a: Occurrence, b: Occurrence) -> bool:
        """Whether a is before b for certain."""
        return precedes(a, b)

    def may_precede(self, a: Occurrence, b: Occurrence) -> bool:
        """Whether a may be before b."""
        if precedes(a, b):
            return True
        if is_exact(a) and is_exact(b):
            return False
        return a.low_us < b.high_us and not precedes(b, a)


class ByReading(Relation):
    """The same as if the readings were exact."""

    def low_us(self, o: Occurrence) -> int:
        return min([o.us, *(self.low_us(part) for part in o.constituents)])

    def high_us(self, o: Occurrence) -> int:
        return max([o.us, *(self.high_us(part) for part in o.constituents)])

    def precedes(self, a: Occurrence, b: Occurrence) -> bool:
        return self.high_us(a) < self.low_us(b)

    def may_precede(self, a: Occurrence, b: Occurrence) -> bool:
        return self.precedes(a, b)


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy on uncertain order.

    Attributes
    ----------
    name : str
        One of raise, certain, possible, reading, or call.
    call : callable or None
        It is given an `UncertainOrder` and returns those of its candidates that are made.
    relation : Relation
        By which it orders.
    """

    name: str
    call: Callable[..., Any] | None
    relation: Relation

    @classmethod
    def of(cls, policy: str | Callable[..., Any]) -> Policy:
        """Checked.

        Raises
        ------
        PatternError
            If there is no such policy.
        """
        if callable(policy):
            return cls("call", policy, Relation())
        if policy not in _NAMES:
            raise PatternError(
                f"on_uncertain takes one of {', '.join(map(repr, _NAMES))} or a function, "
                f"not {policy!r}"
            )
        return cls(policy, None, ByReading() if policy == "reading" else Relation())

    @property
    def wants_possible(self) -> bool:
        """Whether candidates that are not certain may be made."""
        return self.name in ("possible", "call")

    def refuse_forgotten(self, new: Iterable[Entry], ended_us: int) -> None:
        """Refuse events that may precede some that were not kept, since nothing could follow them.

        Only intervals can: an exact event that is fed late completes nothing. And only if the
        policy is to raise: those that want what is possible keep all, for the others what is not
        kept makes no difference, as what is completed so is not certain.

        Parameters
        ----------
        new : iterable of Entry
            Such as others can follow.
        ended_us : int
            When the latest event happened that was not kept.

        Raises
        ------
        UncertainOrder
            Without candidates, as these are not known any more.
        """
        if self.name != "raise":
            return
        for entry in new:
            if entry[3].low_us < ended_us and not is_exact(entry[3]):
                raise UncertainOrder(
                    f"{entry[3]} may have happened before an event with an exact timestamp that "
                    "was fed before, and is not kept as nothing exact could be last with it: call "
                    "Detector.expect_intervals before, feed events in the order in which their "
                    "intervals begin, or choose a policy with on_uncertain="
                )

    def decide(
        self,
        found: Iterable[tuple[Candidate, bool]],
        group: Group,
        node: CombinationNode,
        moment: Moment,
    ) -> list[Candidate]:
        """Return the candidates that are to be chosen from, in the order of preference.

        Parameters
        ----------
        found : iterable of (Candidate, bool)
            The possible ones, and whether they are certain.

        Raises
        ------
        UncertainOrder
            If what is made of them depends on the order, and the policy is to raise.
        """
        if self.name == "reading":
            return sorted((candidate for candidate, _ in found), key=node.order)
        ambiguity = Ambiguity(self.relation, node, group, moment)
        candidates = ambiguity.judged(found)
        every = [candidate for candidate, _ in candidates]
        if self.name == "possible":
            return every
        sure, doubtful = ambiguity.split(candidates)
        if not doubtful:
            return every if all(certain for _, certain in candidates) else sure
        if self.name in ("certain", "raise"):
            from activedb.events._undecided import Undecided, identity_of
            from activedb.events.detection._journal import assign

            ambiguity.doubt(doubtful, moment.journal)
            left = tuple(parts_of(c, node.stages) for group_ in doubtful for c, _ in group_)
            us = moment.us if moment.o is None else moment.o.us
            name = identity_of(node.name, left, us)
            u = Undecided(name, left, event=moment.o, us=us)
            assign(node.shared.open, name, u, moment.journal)
            assign(node.shared.new, name, u, moment.journal)
            return sorted(sure, key=node.order)
        shown = [parts_of(candidate, node.stages) for candidate in every]
        counted = "a match that depends" if len(every) == 1 else f"{len(every)} matches that depend"
        error = UncertainOrder(
            f"{moment.o if moment.o is not None else 'the end of a window'} completes {counted} on "
            "an order of events which their timestamps do not tell: choose a policy with "
            "on_uncertain=",
            candidates=tuple(shown),
            certain=tuple(
                parts
                for parts, (_, is_certain) in zip(shown, candidates, strict=True)
                if is_certain
            ),
        )
        if self.call is None:
            raise error
        chosen = list(self.call(error))
        return [c for c, parts in zip(every, shown, strict=True) if _is_among(parts, chosen)]


def is_exact(o: Occurrence) -> bool:
    """Whether it is known exactly when it happened: of a composite, all of it."""
    if not o.parts:
        return o.low_us == o.high_us
    return all(is_exact(part) for part in o.constituents)


def _is_among(parts: Mapping[str, Any], chosen: Iterable[Mapping[str, Any]]) -> bool:
    return any(parts is other or dict(parts) == dict(other) for other in chosen)
