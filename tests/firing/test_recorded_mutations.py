"""Histories that the engine recorded, changed in one place: the right axiom finds it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import activedb as adb
from coupling.acta import (
    AbortEvent,
    BeginEvent,
    CommitEvent,
    DelegateEvent,
    Event,
    History,
    ObjectOperation,
    OperationKind,
    SpawnEvent,
    SpawnMode,
    audit,
)
from tests.coupling.acta_mutations import KINDS, mutated
from tests.coupling.acta_naive import Naive
from tests.databases import place
from tests.drawing import SCALE, Worlds
from tests.ledger import Ledger, open_ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from activedb import Occurrence, Transaction

E = TypeVar("E", bound=Event)


class Recorded:
    """Record that a database made of a few transactions: one rule in each mode and some more.

    Attributes
    ----------
    events : list of Event
    who : dict of str to int
        Transactions by the rule that ran in them; those that raised the events by their own names.
    """

    def __init__(self, ledger: Ledger):
        self.who: dict[str, int] = {}
        db = ledger.db
        before = len(db.admin.history())

        def listen(name: str, on: str, raises: str = "", **options: Any) -> None:
            @db.rule(on=adb.event(on), name=name, **options)
            def rule(t: Transaction, o: Occurrence) -> None:
                self.who[name] = t.id
                ledger.write(t, name)
                if raises:
                    db.signal(raises)

        listen("high", "E", priority=2)
        listen("low", "E", priority=1)
        listen("first", "E", "F", coupling="deferred", priority=2)
        listen("second", "E", coupling="deferred", priority=1)
        listen("next cycle", "F", coupling="deferred", priority=3)
        for mode in ("detached", "sequential", "causal"):
            listen(mode, "E", coupling=mode)
        listen("exclusive", "X", coupling="exclusive")
        with db.transaction() as t:
            self.who["committed"] = t.id
            t.update(ledger.accounts, 1, balance=1)
            with t.subtransaction() as s:
                self.who["child"] = s.id
                s.update(ledger.accounts, 2, balance=1)
            db.signal("E")
            with t.subtransaction() as s:
                self.who["undone child"] = s.id
                s.update(ledger.accounts, 2, balance=2)
                s.abort()
        db.wait_idle()
        with db.transaction() as t:
            self.who["aborted"] = t.id
            db.signal("X")
            t.update(ledger.accounts, 1, balance=2)
            t.abort()
        db.wait_idle()
        self.events: list[Event] = list(db.admin.history().events[before:])

    def at(self, kind: type[E], who: str, last: bool = False) -> int:
        """Position of the first, or last, event of a kind by a transaction."""
        by = self.who[who]
        found = [i for i, e in enumerate(self.events) if isinstance(e, kind) and e.by == by]
        return found[-1 if last else 0]

    def spawn(self, who: str) -> int:
        """Position of the event that spawned a transaction."""
        child = self.who[who]
        (found,) = (
            i for i, e in enumerate(self.events) if isinstance(e, SpawnEvent) and e.child == child
        )
        return found

    def without(self, position: int) -> list[Event]:
        """Events without one of them."""
        return self.events[:position] + self.events[position + 1 :]

    def instead(self, position: int, event: Event) -> list[Event]:
        """Events with one of them changed."""
        return [*self.events[:position], event, *self.events[position + 1 :]]

    def with_one_more(self, position: int, *events: Event) -> list[Event]:
        """Events with others before a position."""
        return [*self.events[:position], *events, *self.events[position:]]

    def moved(self, position: int, to: int) -> list[Event]:
        """Events, one of them put before another one."""
        event, events = self.events[position], self.without(position)
        events.insert(to if to < position else to - 1, event)
        return events

    def swapped(self, one: int, other: int) -> list[Event]:
        """Events, two of them in each other's place."""
        events = list(self.events)
        events[one], events[other] = events[other], events[one]
        return events

    def operation(self, who: str, *path: str) -> ObjectOperation:
        """A write that was never made."""
        return ObjectOperation(self.who[who], 10**9, OperationKind.WRITE, path)

    def changed(self, who: str, **values: Any) -> list[Event]:
        """Events with another spawn of a transaction."""
        position = self.spawn(who)
        return self.instead(position, dataclasses.replace(self.events[position], **values))

    def early(self, who: str, position: int) -> list[Event]:
        """Events, a child with all it does before a position."""
        id = self.who[who]
        mine = [
            e for e in self.events if e.by == id or (isinstance(e, SpawnEvent) and e.child == id)
        ]
        before = [e for e in self.events[:position] if e not in mine]
        return [*before, *mine, *(e for e in self.events[position:] if e not in mine)]


@pytest.fixture(scope="module", params=["memory", "postgres"])
def recorded(request: pytest.FixtureRequest) -> Iterator[Recorded]:
    url = None if request.param == "memory" else request.getfixturevalue("postgres_url")
    with place(url) as where:
        yield Recorded(open_ledger(where.open(recording="full"), {1: 10, 2: 20}))


def axioms(events: list[Event]) -> set[int]:
    return {violation.axiom for violation in audit(History(tuple(events)))}


def test_recorded_history_as_it_is_is_legal_and_has_every_mode(recorded: Recorded) -> None:
    assert axioms(recorded.events) == set()
    modes = {event.mode for event in recorded.events if isinstance(event, SpawnEvent)}
    assert modes == set(SpawnMode)


MUTATIONS: dict[str, tuple[set[int], Callable[[Recorded], list[Event]]]] = {
    "a begin is dropped": ({2}, lambda r: r.without(r.at(BeginEvent, "committed"))),
    "a commit is dropped": ({3}, lambda r: r.without(r.at(CommitEvent, "sequential"))),
    "a child's commit is dropped": ({6, 19, 24}, lambda r: r.without(r.at(CommitEvent, "child"))),
    "a child's abort is dropped": ({6, 19}, lambda r: r.without(r.at(AbortEvent, "undone child"))),
    "a delegation is dropped": ({24}, lambda r: r.without(r.at(DelegateEvent, "low"))),
    "a transaction begins twice": (
        {7},
        lambda r: r.with_one_more(r.at(ObjectOperation, "aborted"), BeginEvent(r.who["aborted"])),
    ),
    "a transaction ends twice": (
        {3},
        lambda r: r.with_one_more(len(r.events), CommitEvent(r.who["committed"])),
    ),
    "an operation is added after the end": (
        {7},
        lambda r: r.with_one_more(len(r.events), r.operation("detached", "nobody's")),
    ),
    "a child works before it is spawned": (
        {5, 7},
        lambda r: r.moved(r.at(ObjectOperation, "high"), r.spawn("high")),
    ),
    "a stranger writes what is not committed": (
        {9},
        lambda r: r.with_one_more(
            r.at(ObjectOperation, "committed", last=True) + 1,
            BeginEvent(10**6),
            ObjectOperation(10**6, 10**9, OperationKind.WRITE, ("accounts", "1")),
            CommitEvent(10**6),
        ),
    ),
    "a child writes what is open to its sibling alone": (
        {17},
        lambda r: r.with_one_more(
            r.at(AbortEvent, "undone child"),
            SpawnEvent(r.who["committed"], 10**6, SpawnMode.IMMEDIATE, r.who["committed"]),
            ObjectOperation(10**6, 10**9, OperationKind.WRITE, ("accounts", "2")),
            AbortEvent(10**6),
        ),
    ),
    "the parent writes what its child has": (
        {25},
        lambda r: r.with_one_more(
            r.at(AbortEvent, "undone child"), r.operation("committed", "accounts", "2")
        ),
    ),
    "an end is another one": (
        {24},
        lambda r: r.instead(r.at(CommitEvent, "child"), AbortEvent(r.who["child"])),
    ),
    "a child has no parent": ({18, 24, 26}, lambda r: r.changed("high", parent=None)),
    "a firing has a parent": ({16, 20, 26}, lambda r: r.changed("detached", parent=1)),
    "a sequential rule begins before the commit": (
        {22},
        lambda r: r.swapped(r.at(BeginEvent, "sequential"), r.at(CommitEvent, "committed")),
    ),
    "a causal rule's triggering transaction aborts": (
        {21},
        lambda r: r.instead(r.at(CommitEvent, "committed"), AbortEvent(r.who["committed"])),
    ),
    "a sequential rule's triggering transaction aborts": (
        {22},
        lambda r: r.instead(r.at(CommitEvent, "committed"), AbortEvent(r.who["committed"])),
    ),
    "an exclusive rule's triggering transaction commits": (
        {23},
        lambda r: r.instead(r.at(AbortEvent, "aborted"), CommitEvent(r.who["aborted"])),
    ),
    "a sequential rule is said to be exclusive": (
        {23},
        lambda r: r.changed("sequential", mode=SpawnMode.EXCLUSIVE),
    ),
    "the parent works after its deferred rule has": (
        {27},
        lambda r: r.with_one_more(
            r.at(CommitEvent, "committed"), r.operation("committed", "accounts", "3")
        ),
    ),
    "a rule of the next cycle runs in the first": (
        {28},
        lambda r: r.early("next cycle", r.spawn("second")),
    ),
    "priorities in a cycle are swapped": ({29}, lambda r: r.changed("first", priority=0)),
    "a rule runs into one of higher priority": (
        {30},
        lambda r: r.early("low", r.at(ObjectOperation, "high")),
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_of_a_recorded_history_is_found_by_its_axiom(
    recorded: Recorded, name: str
) -> None:
    expected, change = MUTATIONS[name]
    changed = change(recorded)
    assert changed != recorded.events
    assert axioms(changed) >= expected


@pytest.mark.long
def test_random_mutations_of_a_recorded_history_are_found_as_the_formulas_say(
    recorded: Recorded,
) -> None:
    history = History(tuple(recorded.events))
    caught: set[str] = set()
    worlds = Worlds(60 * SCALE, "mutations", kinds=len(KINDS) - 1)
    for chance in worlds:
        kind, changed = mutated(history, chance)
        naive = Naive(changed)
        if naive.has_circles():
            continue
        found = {(violation.axiom, violation.transaction) for violation in audit(changed)}
        assert found == naive.violations(), "\n".join(changed.lines())
        if found:
            caught.add(kind)
        worlds.met["kinds"] = len(caught)
