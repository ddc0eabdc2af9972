"""Random rules on the same events: each fires as often, and on the same, as when it is alone."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from sqlalchemy import Column, Integer, String, Table

import activedb as adb
from activedb.clock import SimulatedClock, in_microseconds, moment_of
from activedb.events import AccuracyInterval
from tests.databases import place
from tests.drawing import drawn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from activedb import Expression, Occurrence, Transaction

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
START_US = 1_700_000_000_000_000
TYPES = "ABN"
CONTEXTS = ("unrestricted", "recent", "chronicle", "continuous", "cumulative")
KINDS = ("intervals", "exact", "columns", "signals", "rows")

Primitives: TypeAlias = "Mapping[str, Expression]"


@dataclass(frozen=True)
class Spec:
    """A rule that can be defined over the events of any kind of source."""

    name: str
    shape: str
    first: str
    second: str
    context: str
    policy: str
    fails: int
    refuses: bool

    def on(self, of: Primitives, *, plain: bool) -> Expression:
        """Return what triggers it; with `plain`, only what columns can find."""
        a, b = of[self.first], of[self.second]
        if self.shape == "one":
            return a
        if plain:
            return adb.seq(a, b).within(40e-6)
        if self.shape == "silence":
            return adb.seq(a, ~b).within(40e-6)
        if self.shape == "between":
            return adb.seq(a, ~of[TYPES[-1]], b).within(60e-6)
        made = adb.all_of(a, b) if self.shape == "both" else adb.seq(a, b).within(60e-6)
        return made.context(self.context)


@dataclass(frozen=True)
class Event:
    """An event with its number, and what is known of its time, in microseconds."""

    kind: str
    n: int
    low_us: int
    high_us: int

    @property
    def stamp(self) -> AccuracyInterval:
        us, low, high = (self.low_us + self.high_us) // 2, self.low_us, self.high_us
        return AccuracyInterval(START_US + us, START_US + low, START_US + high, node=self.kind)


def drawn_rule(draw: random.Random, name: str, kind: str) -> Spec:
    """A random rule."""
    is_exact = kind in ("exact", "columns", "rows")
    shape = draw.choice(("one", "pair", "pair", "both", "silence", "between"))
    first, second = draw.sample("AB", 2)
    return Spec(
        name,
        shape,
        first,
        second,
        draw.choice(CONTEXTS),
        "certain" if is_exact else draw.choice(("raise", "certain", "possible")),
        draw.choice((0, 0, 3)),
        kind != "columns" and draw.random() < 0.2,
    )


def drawn_events(draw: random.Random, kind: str) -> list[Event]:
    """Random events, each of its producer in order."""
    events, us = [], 0
    for n in range(draw.randint(8, 14)):
        us += draw.randint(1, 12)
        error = 0 if kind in ("exact", "columns", "rows") else draw.choice((0, 3, 8))
        events.append(Event(draw.choice(TYPES), n, us - error, us + error))
    return events


def numbers(o: Occurrence) -> str:
    """An occurrence, by the numbers of its events."""
    of = [(c.new or c.params)["n"] for c in (o.constituents or (o,))]
    return "-".join(map(str, of))


def define(db: adb.Database, spec: Spec, on: Expression, log: Table) -> None:
    """Define the rule of a spec; it writes down what it is triggered by, before it may fail."""
    options: dict[str, Any] = {"partials_max": 2, "on_full": "refuse"} if spec.refuses else {}

    def act(t: Transaction, o: Occurrence) -> None:
        text = numbers(o)
        if spec.fails and len(text) % spec.fails == 1:
            raise ValueError(text)
        t.insert(log, {"rule": spec.name, "text": text})

    db.rule(on=on, name=spec.name, on_abort="rule", on_uncertain=spec.policy, **options)(act)


def go_on(db: adb.Database, clock: SimulatedClock, to: Event | None = None) -> None:
    """Let the clock go on to an event, or past all of them; finish what that completes."""
    us = START_US + (900 if to is None else to.high_us)
    now_us = in_microseconds(clock.now())
    clock.advance(max(us - now_us, 0) / 1e6)
    db.wait_idle()


def fired(
    db: adb.Database,
    clock: SimulatedClock,
    kind: str,
    specs: Sequence[Spec],
    events: Sequence[Event],
) -> dict[str, list[str]]:
    """Return by rule, in order, what it has fired on and what became of the other matches."""
    number = Column("id", Integer, primary_key=True)
    log = Table("log", db.metadata, number, Column("rule", String(9)), Column("text", String(99)))
    tables = {
        name: Table(
            f"of_{name.lower()}",
            db.metadata,
            Column("n", Integer, primary_key=True, autoincrement=False),
        )
        for name in TYPES
    }
    db.create_all()
    of: dict[str, Expression] = {name: adb.event(name) for name in TYPES}
    if kind == "rows":
        of = {name: adb.inserted(table, alias=name) for name, table in tables.items()}
    for spec in specs:
        define(db, spec, spec.on(of, plain=kind == "columns"), log)
    if kind == "rows":
        for each in events:
            go_on(db, clock, each)
            with db.transaction() as t:
                t.insert(tables[each.kind], {"n": each.n})
        go_on(db, clock)
    elif kind == "signals":
        for each in events:
            go_on(db, clock, each)
            db.signal(each.kind, timestamp=each.stamp, n=each.n)
        go_on(db, clock)
    elif kind == "intervals":
        stream = db.stream("input", types=dict.fromkeys(TYPES, ()), membership="atomic")
        producers = stream.producers
        for name in TYPES:
            producers.register(name, in_order=False)
        for some in (events[:4], events[4:]):
            stream.feed([adb.occurrence(e.kind, timestamp=e.stamp, n=e.n) for e in some])
            for name in TYPES:
                producers.sync(name, (START_US + some[-1].low_us) / 1e6)
        for name in TYPES:
            producers.sync(name, (START_US + 900) / 1e6)
    else:
        types = dict.fromkeys(TYPES, ("n",))
        options: dict[str, Any] = {"type": "kind", "timestamp": "at", "types": types}
        stream = db.stream("input", columns=kind == "columns", **options)
        made = [
            adb.occurrence(e.kind, timestamp=moment_of(START_US + e.low_us), n=e.n) for e in events
        ]
        stream.feed(made, punctuation=(START_US + 900) / 1e6)
    found: dict[str, list[str]] = defaultdict(list)
    with db.transaction() as t:
        for row in t.query(log.select().order_by(log.c.id)):
            found[row.rule].append(row.text)
    for letter in db.dead_letters.list():
        rule = letter.payload.get("rule", letter.source.removeprefix("rule "))
        found[rule].append(letter.error)
    for decision in db.decisions.list():
        found[decision.rule].append(f"{decision.us} {len(decision.candidates)} {decision.status}")
    return dict(found)


def in_a_place_of_its_own(
    server_url: str | None, kind: str, specs: Sequence[Spec], events: Sequence[Event]
) -> dict[str, list[str]]:
    """Return what rules have fired on in an empty database."""
    clock = SimulatedClock(moment_of(START_US))
    with place(server_url) as where:
        return fired(where.open(clock=clock, quarantine_after=0), clock, kind, specs, events)


def check(server_url: str | None, kind: str, seed: int, rules: int) -> int:
    """Compare rules that run together with each of them alone; return how much was compared."""
    draw = random.Random(f"{kind} {seed}")
    specs = [drawn_rule(draw, f"rule{number}", kind) for number in range(rules)]
    events = drawn_events(draw, kind)
    together = in_a_place_of_its_own(server_url, kind, specs, events)
    for spec in specs:
        alone = in_a_place_of_its_own(server_url, kind, [spec], events)
        assert together.get(spec.name, []) == alone.get(spec.name, []), (kind, seed, spec)
        assert alone.keys() <= {spec.name}
    return sum(map(len, together.values()))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_rules_in_memory_fire_together_as_each_does_alone(kind: str) -> None:
    first, compared, seed = drawn("isolation", kind).randrange(10**9), 0, 0
    print(f"seeds from {first}")
    while seed < 2 * SCALE or compared < 10:  # a world that says nothing is drawn again
        compared += check(None, kind, first + seed, rules=5)
        seed += 1


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_rules_on_postgres_fire_together_as_each_does_alone(kind: str, postgres_url: str) -> None:
    first, compared, seed = drawn("isolation", kind).randrange(10**9), 0, 0
    print(f"seeds from {first}")
    while seed < SCALE or compared < 4:
        compared += check(postgres_url, kind, first + seed, rules=3)
        seed += 1
