"""Evaluation of the predicates of a combination, as early as possible."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from activedb.errors import BadEvent, StoreError, TransactionError
from activedb.events._occurrence import Occurrence
from activedb.events.detection._entry import Candidate, Entry, Stage
from activedb.functions import checked_result

if TYPE_CHECKING:
    from activedb.events.detection._moment import Moment

__all__ = ["Predicates", "attribute", "merged", "parts_of"]


_COMPARABLE = frozenset((int, str, bool, type(None), bytes))
"""Types whose values can all be hashed and are equal to themselves."""


class Predicates:
    """Predicates of a combination, by the place where each is evaluated (README).

    Attributes
    ----------
    joining : list of list of (Term, bool)
        By stage, the terms evaluated when a constituent joins it; and whether only from the second
        element on.
    leaving : list of list of Term
        By stage, the terms evaluated when the stage is complete.
    final : list of callable
        The predicates evaluated when the candidate is complete.
    readings : tuple of callable
        The predicates evaluated after all others.
    required : dict of str to list of (str, bool)
        By part name, the attributes that its events must have, and whether in the old row.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        predicates: Sequence[Callable[..., object]],
        readings: Sequence[Callable[..., object]],
    ):
        self.stages = stages
        self.joining: list[list[tuple[Any, bool]]] = [[] for _ in stages]
        self.leaving: list[list[Any]] = [[] for _ in stages]
        self.final: list[Any] = []
        self.readings = tuple(readings)
        self.required: dict[str, list[tuple[str, bool]]] = {}
        of_name = {name: number for number, stage in enumerate(stages) for name in stage.names}
        for predicate in predicates:
            names = frozenset(getattr(predicate, "part_names", ()))
            if not names or not names <= set(of_name):
                self.final.append(predicate)
                continue
            term: Any = predicate
            last = max(of_name[name] for name in names)
            stage = stages[last]
            if stage.kleene and stage.name in term.aggregated:
                self.leaving[last].append(term)
            else:
                self.joining[last].append((term, stage.kleene and term.uses_prev))
        for term in (*predicates, *readings):
            for reference in getattr(term, "walk", tuple)():
                part, name = getattr(reference, "part", None), getattr(reference, "name", None)
                if isinstance(part, str) and isinstance(name, str):
                    self.required.setdefault(part, []).append(
                        (name, bool(getattr(reference, "old", False)))
                    )
        self.are_staged = any(self.joining) or any(self.leaving)
        self.is_empty = not (self.are_staged or self.final or self.readings)

    def treat_errors_as_false(self) -> None:
        """Treat predicates that raise as false from now on."""
        self.joining = [[(_forgiving(t), later) for t, later in terms] for terms in self.joining]
        self.leaving = [list(map(_forgiving, terms)) for terms in self.leaving]
        self.final = list(map(_forgiving, self.final))
        self.readings = tuple(map(_forgiving, self.readings))

    def check(self, o: Occurrence, name: str) -> None:
        """Raise `BadEvent` if an event of this part lacks an attribute that a term uses."""
        for attribute_name, old in self.required.get(name, ()):
            row = o.old if old else o.params
            if row is None or attribute_name not in row:
                where = " in the row before" if old else ""
                raise BadEvent(
                    f"{o!r} has no attribute {attribute_name!r}{where}, which a predicate of the "
                    "pattern needs"
                )

    def joins(self, stage: int, count: int, parts: Mapping[str, Any]) -> bool:
        """Return whether the predicates on the `count`-th constituent of a stage hold."""
        for term, from_second in self.joining[stage]:
            if not (from_second and count < 2) and not term(parts):
                return False
        return True

    def leaves(self, stage: int, parts: Mapping[str, Any]) -> bool:
        """Return whether the predicates on a complete stage hold."""
        return all(term(parts) for term in self.leaving[stage])

    def holds_finally(self, parts: Mapping[str, Any]) -> bool:
        """Return whether the predicates on a complete candidate hold, except readings."""
        if not self.final:
            return True
        shown = MappingProxyType(dict(parts))
        return all(checked_result(predicate(shown), "a predicate") for predicate in self.final)

    def completes(self, parts: Mapping[str, Any], moment: Moment, index: int) -> bool:
        """Return whether the predicates on a complete candidate hold, readings last."""
        return self.holds_finally(parts) and self.reads_true(parts, moment, index)

    def reads_true(self, parts: Mapping[str, Any], moment: Moment, index: int) -> bool:
        """Return whether the readings of a complete candidate hold; each is evaluated once."""
        if not self.readings:
            return True
        shown = MappingProxyType(dict(parts))
        asked = _described(parts)
        for number, reading in enumerate(self.readings):
            key = (index, number, asked)
            said = moment.said.get(key)
            if said is None:
                said = moment.said[key] = bool(
                    checked_result(reading(moment.reader, shown), "a reading")
                )
            if not said:
                return False
        return True


def _described(parts: Mapping[str, Any]) -> tuple[Hashable, ...]:
    """Return what a reading sees of parts, the same when their step is done again.

    Composites and ticks of clocks are made anew then. The same events may be bound to other names,
    or at other times after a delay, by other candidates of the step.
    """
    return tuple(
        [
            (
                name,
                tuple([_described_event(o) for o in part])
                if type(part) is tuple
                else _described_event(part),
            )
            for name, part in parts.items()
        ]
    )


def _described_event(o: Occurrence) -> Hashable:
    if o.parts:
        return (o.us, _described(o.parts))
    return (o.key, o.us) if o.key[0] == "clock" else o


def _forgiving(predicate: Callable[..., object]) -> Callable[..., object]:
    def holds(*args: Any) -> object:
        try:
            return predicate(*args)
        except (TransactionError, StoreError):
            raise  # the predicate was not evaluated
        except Exception:
            return False

    return holds


def parts_of(candidate: Candidate, stages: Sequence[Stage]) -> dict[str, Any]:
    """Return the parts of a match as a flat mapping."""
    parts: dict[str, Any] = {}
    for stage, bound in zip(stages, candidate, strict=True):
        if bound is None:
            continue
        if stage.kleene:
            parts[stage.name] = tuple([entry[3] for entry in bound])
        elif bound[4] is None:
            parts[stage.name] = bound[3]
        else:
            parts.update(bound[4])
    return parts


def merged(entries: list[Entry]) -> dict[str, Any]:
    """Return the parameters of the constituents, later ones overriding earlier ones."""
    params: dict[str, Any] = {}
    for entry in entries:
        params.update(entry[3].params)
    return params


def attribute(o: Occurrence, name: str) -> object:
    """Return the parameter `name` of `o` as a component of an equivalence key.

    Raises
    ------
    BadEvent
        If `o` lacks it, or its value cannot be compared.
    """
    try:
        value = o.params[name]
    except KeyError:
        raise BadEvent(
            f"{o!r} has no parameter {name!r}, which must be the same in all parts of the pattern"
        ) from None
    if type(value) in _COMPARABLE:
        return value
    try:
        hash(value)
        # A dictionary assumes that an object equals itself, which NaN does not.
        comparable = bool(value == value)
    except (TypeError, ArithmeticError, ValueError):
        comparable = False
    if not comparable:
        raise BadEvent(
            f"parameter {name!r} of {o!r} must be the same in all parts of the pattern, but its "
            "value cannot be compared: use a hashable value that is equal to itself"
        )
    return value
