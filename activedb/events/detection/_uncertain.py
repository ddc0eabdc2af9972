"""What is done if the order of events is not known (README, "Uncertain order")."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from activedb.errors import PatternError, UncertainOrder
from activedb.events._choices import Context
from activedb.events._occurrence import Occurrence
from activedb.events._precedence import precedes
from activedb.events.detection._choice import Chooser
from activedb.events.detection._entry import Candidate, Entry, constituents, place_of
from activedb.events.detection._predicates import Stage, parts_of

if TYPE_CHECKING:
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


class Shape(Protocol):
    """What is asked of a sequence's layout or a conjunction's node."""

    stages: list[Stage]


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

    def decide(
        self,
        found: Iterable[tuple[Candidate, bool]],
        chooser: Chooser,
        order: Callable[[Candidate], Any],
        moment: Moment,
        shape: Shape,
    ) -> list[Candidate]:
        """Return the candidates that are to be chosen from, in the order of preference.

        Parameters
        ----------
        found : iterable of (Candidate, bool)
            The possible ones, and whether they are certain.

        Raises
        ------
        UncertainOrder
            If there are such as are not certain, or the context cannot tell which is oldest or
            latest, and the policy is to raise.
        """
        candidates = sorted(found, key=lambda item: order(item[0]))
        if self.name == "reading":
            return [candidate for candidate, _ in candidates]
        certain = [candidate for candidate, is_certain in candidates if is_certain]
        every = [candidate for candidate, _ in candidates]
        if len(certain) == len(every) and not self._is_ambiguous(every, chooser, moment):
            return every
        if self.name == "possible":
            return every
        if self.name == "certain":
            return [] if self._is_ambiguous(every, chooser, moment) else certain
        shown = [parts_of(candidate, shape.stages) for candidate in every]
        error = UncertainOrder(
            f"{moment.o if moment.o is not None else 'the end of a window'} completes "
            f"{len(every)} matches that depend on an order of events which their timestamps do not "
            "tell: choose a policy with on_uncertain=",
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

    def _is_ambiguous(self, candidates: list[Candidate], chooser: Chooser, moment: Moment) -> bool:
        """Whether a context cannot tell which of the candidates is oldest or latest."""
        context = chooser.context
        if context in (Context.UNRESTRICTED, Context.CUMULATIVE) or not candidates:
            return False
        if any(
            self.relation.may_precede(other, entry[3]) and not is_exact(other)
            for other in moment.contemporaries
            for candidate in candidates
            for entry in constituents(candidate)
        ):
            return True
        latest_first = context is Context.RECENT
        ordered = [
            sorted(constituents(candidate), key=place_of, reverse=latest_first)
            for candidate in candidates
        ]
        best = (
            max(ordered, key=lambda each: list(map(place_of, each))) if latest_first else ordered[0]
        )
        return any(self._is_unordered(best, other) for other in ordered)

    def _is_unordered(self, some: list[Entry], others: list[Entry]) -> bool:
        for a, b in zip(some, others, strict=False):
            if a[2] != b[2]:
                x, y = a[3], b[3]
                return not (
                    (is_exact(x) and is_exact(y))
                    or self.relation.precedes(x, y)
                    or self.relation.precedes(y, x)
                )
        return False


def is_exact(o: Occurrence) -> bool:
    """Whether it is known exactly when it happened: of a composite, all of it."""
    if not o.parts:
        return o.low_us == o.high_us
    return all(is_exact(part) for part in o.constituents)


def _is_among(parts: Mapping[str, Any], chosen: Iterable[Mapping[str, Any]]) -> bool:
    return any(parts is other or dict(parts) == dict(other) for other in chosen)
