"""The theorem on uncertain time, held against what a detector makes of some events.

`certain` makes what is made in every world, `possible` what is made in some, and what was left open
is told. The worlds are all that the timestamps allow (`worlds.py`); what is made in one, the
definition says (`reference.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations, count, islice, pairwise
from random import Random
from typing import Any

from activedb.events import (
    AccuracyInterval,
    Conjunction,
    Expression,
    Occurrence,
    Periodic,
    Plus,
    Query,
    Selection,
    TimedOut,
    precedes,
)
from activedb.events import Sequence as Sequence_
from activedb.events.detection._traits import is_timed

from .telling import Outcome, numbered
from .worlds import (
    SECOND_US,
    Identity,
    Worlds,
    durations,
    has_clock,
    identity_of,
    made_at,
    number_of,
    tied_orders,
)

__all__ = ["END_US", "Case", "drawn", "shown", "some_worlds"]

END_US = 40 * SECOND_US
"""The time to which detectors and worlds are advanced in the end."""
WIDEST_US = 5 * SECOND_US
"""No interval is wider."""
CELLS_MAX = 400
"""Number of worlds above which a case is drawn again."""

Times = tuple[int, ...]


def shown(identities: Mapping[Identity, int] | Iterable[Identity]) -> str:
    """Matches in words: for each the numbers of its events."""
    return (
        "; ".join(
            " ".join(f"{name}={_numbers(bound)}" for name, bound in sorted(each, key=str))
            for each in identities
        )
        or "nothing"
    )


def _numbers(bound: Any) -> str:
    return ",".join(map(str, bound)) if isinstance(bound, frozenset | tuple) else str(bound)


def text_of(o: Occurrence) -> str:
    """An event in short: its name, number and interval in seconds."""
    low, high = o.low_us / SECOND_US, o.high_us / SECOND_US
    text = f"{o.name}{number_of(o)}" + (f"@{low:g}" if low == high else f"[{low:g},{high:g}]")
    if o.stamp is not None and o.stamp.local_us is not None:
        text += f"/{o.stamp.local_us}"
    more = {name: value for name, value in o.params.items() if name != "n" and value}
    return text + (str(more) if more else "")


class Case:
    """An expression and events in the order of their arrival, with all worlds that they allow.

    Attributes
    ----------
    worlds : list of tuple of int
        One of each cell.
    """

    def __init__(self, expression: Expression, events: Sequence[Occurrence], worlds: list[Times]):
        self.expression = expression
        self.events = events
        self.worlds = worlds

    @cached_property
    def made(self) -> list[Counter[Identity]]:
        """Per world what is made."""
        known: dict[Times, Counter[Identity]] = {}
        return [
            known.setdefault(times, made_at(self.expression, self.events, times, END_US))
            for times in self.worlds
        ]

    @cached_property
    def certain(self) -> Counter[Identity]:
        """Return the matches made in every world, each with its least count."""
        found = self.made[0]
        for made in self.made[1:]:
            found = found & made
        return found

    @cached_property
    def possible(self) -> Counter[Identity]:
        """Return the matches made in some world, each with its greatest count."""
        found: Counter[Identity] = Counter()
        for made in self.made:
            found |= made
        return found

    def __str__(self) -> str:
        return f"{self.expression!r}, fed {' '.join(map(text_of, self.events))}"

    # -- complaints: None if all is well -----------------------------------------------------

    def uncertain(self, made: Counter[Identity], *, any_order: bool = False) -> str | None:
        """Report a match that was made and is not in every world.

        With `any_order`, what happens at one time may have arrived in any order.
        """
        for times, found in zip(self.worlds, self.made, strict=True):
            wrong = made - found
            if wrong and any_order:
                wrong = wrong - self._in_any_order(times)
            if wrong:
                return f"made {shown(wrong)}; not made in {self._world(times)}: {shown(found)}"
        return None

    def impossible(self, made: Counter[Identity]) -> str | None:
        """Report a match that was made and is in no world.

        A world counts if the events told by then allow it: a later event may show, by its local
        clock, when an earlier one was.
        """
        wrong = made
        for identity in made:
            for possible in self.possible_when_told(identity):
                if not wrong[identity]:
                    break
                wrong = wrong - Counter({identity: possible[identity]})
        return f"made {shown(wrong)}; not made in any world" if wrong else None

    def possible_when_told(self, identity: Identity) -> Iterator[Counter[Identity]]:
        """Yield what is made in some world that was possible when this match was told.

        Later events may show, by their local clocks, when earlier ones were.
        """
        yield self.possible
        for times in self.worlds:
            yield self._in_any_order(times)
        for told in range(len(self.events) - 1, 0, -1):
            yield from self._possible_by_then(told)
        yield from self._possible_alone(identity)

    def disordered(self, matches: Iterable[Occurrence]) -> str | None:
        """Report a match whose elements of one part are in an order that they have in no world.

        Only worlds in which the same elements make a match count. If there are none, the match is
        impossible, or later events have made it so.
        """
        for match in matches:
            identity = identity_of(match.parts)
            parts = [part for part in match.parts.values() if isinstance(part, tuple)]
            if not parts:
                continue
            making = [
                times
                for times, made in zip(self.worlds, self.made, strict=True)
                if identity in made or identity in self._in_any_order(times)
            ]
            if making and not any(
                all(_are_in_order(part, times) for part in parts) for times in making
            ):
                numbers = [[number_of(o) for o in part] for part in parts]
                return f"made {shown([identity])} in the order {numbers}; it is so in no world"
        return None

    def _possible_by_then(self, count: int) -> Iterator[Counter[Identity]]:
        """Yield what a world makes of `count` events, and of later ones that may precede them."""
        told = self.events[:count]
        later = [x for x in self.events[count:] if not all(precedes(o, x) for o in told)]
        numbers = [number_of(o) for o in (*told, *later)]
        events = [numbered(o, n) for n, o in enumerate((*told, *later))]
        for possible in _possible(self.expression, events):
            yield Counter(
                {_renumbered(identity, numbers): number for identity, number in possible.items()}
            )

    def _possible_alone(self, identity: Identity) -> Iterator[Counter[Identity]]:
        """Yield what some world makes if a local clock has read only the events of a match.

        A pattern does not keep every event, and so not all that clocks show of those that it keeps.
        """
        own = _events_of(identity)
        events = [
            o if number_of(o) in own else Occurrence(o.name, _without_clock(o), o.params, id=o.id)
            for o in self.events
        ]
        return _possible(self.expression, events)

    def missed(self, made: Counter[Identity]) -> str | None:
        """Report a match that was not made although all is known, pair by pair."""
        missed = self.made[0] - made if self.is_known else None
        return f"did not make {shown(missed)}; there is one world only" if missed else None

    @property
    def is_known(self) -> bool:
        """Return whether nothing may be missed: completeness is only claimed for flat expressions.

        It also requires that the timestamps of any two events show how these lie to each other, and
        that the clocks agree. It is not claimed for sequences that the end of a window completes
        and that select next or strict: which of the candidates with one end is selected may stay
        open.
        """
        expression = self.expression
        if len(self.worlds) > 1 or self.is_tied or not is_flat(expression):
            return False
        if (
            isinstance(expression, Sequence_)
            and is_timed(expression)
            and expression.selection is not Selection.ANY
        ):
            return False
        differences_us = durations(self.expression, END_US)
        pairs = combinations(self.events, 2)
        return not any(
            list(islice(Worlds([numbered(a, 0), numbered(b, 1)], differences_us).cells(), 1, 2))
            for a, b in pairs
        )

    @property
    def is_complete(self) -> bool:
        """Return whether nothing may be left open where there is one world.

        In an expression that is not flat, what is made while an event of the same moment is yet to
        be fed may stay open.
        """
        return is_flat(self.expression) or all(
            precedes(a, b) or precedes(b, a) for a, b in combinations(self.events, 2)
        )

    @property
    def is_tied(self) -> bool:
        """Return whether a local clock orders two events that have to be in one microsecond."""
        return any(
            precedes(a, b) and a.low_us >= b.high_us for a in self.events for b in self.events
        )

    def untold(self, outcome: Outcome) -> str | None:
        """Report a match that is in some world, and was neither made nor reported as left open.

        A match that depends on one left open is no complaint: it shares an event with that, or with
        a choice in which that may have been preferred.
        """
        for identity in self.possible - outcome.made:
            if identity in outcome.made or identity in outcome.candidates:
                continue
            if not self._follows(identity, outcome):
                times = next(
                    times
                    for times, found in zip(self.worlds, self.made, strict=True)
                    if identity in found
                )
                if identity not in made_at(self.expression, self.events, times, END_US - WIDEST_US):
                    continue  # in another world time completes it only after the end
                return f"neither made nor told {shown([identity])}; made in {self._world(times)}"
        return None

    def _follows(self, identity: Identity, outcome: Outcome) -> bool:
        own = _events_of(identity)
        return any(own & _events_of(other) for other in outcome.candidates)

    def _in_any_order(self, times: Times) -> Counter[Identity]:
        found: Counter[Identity] = Counter()
        for ranks in tied_orders(self.events, times):
            found |= made_at(self.expression, self.events, times, END_US, ranks)
        return found

    def _world(self, times: Times) -> str:
        told = " ".join(
            f"{o.name}{number_of(o)}={us / SECOND_US:g}"
            for o, us in zip(self.events, times, strict=True)
        )
        return f"the world {told}"


def _without_clock(o: Occurrence) -> Any:
    stamp = o.stamp
    if stamp is None:
        return o.timestamp
    return AccuracyInterval(stamp.reading_us, stamp.lower_us, stamp.upper_us)


def _are_in_order(elements: Sequence[Occurrence], times: Times) -> bool:
    return all(times[number_of(a)] <= times[number_of(b)] for a, b in pairwise(elements))


def _renumbered(identity: Any, numbers: Sequence[int]) -> Any:
    return frozenset(
        (name, frozenset(_renamed(each, numbers) for each in bound))
        if isinstance(bound, frozenset)
        else (name, bound)
        for name, bound in identity
    )


def _renamed(each: Any, numbers: Sequence[int]) -> Any:
    return numbers[each] if isinstance(each, int) else _renumbered(each, numbers)


def is_flat(expression: Expression) -> bool:
    """Return whether it combines only primitive events: any of several, negated ones, or many."""
    return not isinstance(expression, Plus | Periodic | TimedOut) and not any(
        isinstance(each, Sequence_ | Conjunction | Query | Plus | Periodic | TimedOut)
        for part in expression.children
        for each in _walk(part)
    )


def _walk(expression: Expression) -> Iterator[Expression]:
    yield expression
    for child in expression.children:
        yield from _walk(child)


def _events_of(identity: Any) -> frozenset[int]:
    """The numbers of the events in a match."""
    if isinstance(identity, int):
        return frozenset((identity,))
    found: frozenset[int] = frozenset()
    for each in identity if isinstance(identity, frozenset) else ():
        found |= _events_of(each[1] if isinstance(each, tuple) and len(each) == 2 else each)
    return found


def some_worlds(
    expression: Expression, events: Sequence[Occurrence], random: Random
) -> list[Times]:
    """Return the worlds that the events allow: all, or one more than `CELLS_MAX`."""
    return list(islice(_all_worlds(expression, events, random), CELLS_MAX + 1))


def _all_worlds(
    expression: Expression, events: Sequence[Occurrence], random: Random
) -> Iterator[Times]:
    durations_us = durations(expression, END_US)
    return Worlds(events, durations_us, clock=has_clock(expression)).worlds(random)


def _possible(expression: Expression, events: Sequence[Occurrence]) -> Iterator[Counter[Identity]]:
    """Yield what is made in some world: of all worlds, however many, some at a time.

    Without what a local clock has read, or with fewer events, there may be more than `CELLS_MAX`.
    """
    worlds = _all_worlds(expression, events, Random(0))
    while some := list(islice(worlds, CELLS_MAX)):
        yield Case(expression, events, some).possible


def drawn(
    expression: Expression,
    events: Callable[[], Sequence[Occurrence]],
    random: Random,
    *,
    says: Callable[[Case], object] = lambda case: case.possible,
    tries: int | None = None,
) -> Case:
    """Return a case that says something; drawn again until it does.

    Raises
    ------
    LookupError
        If so many tries were in vain.
    """
    for number in count():
        if number == tries:
            break
        arrived = events()
        found = some_worlds(expression, arrived, random)
        if not found or len(found) > CELLS_MAX:
            continue
        case = Case(expression, arrived, found)
        if says(case):
            return case
    raise LookupError(f"nothing comes of {expression!r}")
