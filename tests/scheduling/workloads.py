"""Random workloads: programs, and streams of events that trigger all kinds of s-transactions.

A workload is told by its `Parameters`, the seed among them. The functions of its operations are
pure, and fold what they are given into numbers modulo a prime such that the order matters: whoever
reads a version too early or too late writes another number, and so do all that read that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from itertools import accumulate, pairwise
from typing import Any

from hypothesis import strategies as st

from activedb.clock import moment_of
from activedb.errors import AccessError
from activedb.events import Occurrence
from activedb.scheduling import REMOVED, Abort, Access, Outcome, Program, Ref, SharedTable, View

__all__ = ["Parameters", "Workload", "fold", "parameters", "workload"]

PRIME = 1_000_003
START_US = 1_000_000_000
Piece = tuple[list[Occurrence], int | None]


@dataclass(frozen=True)
class Parameters:
    """Kind of workload; shares are from 0 to 1.

    Attributes
    ----------
    seed : int
    transactions, keys, tables : int
        How many; keys per table.
    skew : float
        Of the keys: Zipf's exponent.
    aborts : float
        The share of s-transactions one operation of which aborts, half the time or so by what it
        reads.
    length : int
        Operations per s-transaction at most.
    states : int
        Sources per operation at most.
    cyclic : bool
        Whether keys may be written by what others of them are read for, and those the other way
        round. If not, sources come before targets.
    disorder : float
        0: in order of time; 1: in any order.
    windows, computed, ranges : float
        The share of sources that are windows, or of keys that are computed, or of sources that are
        ranges.
    bodies : float
        The share of s-transactions in the short form.
    breaches : float
        The share of those that access something that they did not declare, and of operations whose
        computed key is no key.
    removed, duplicates : float
        The share of writes that remove, and of s-transactions that write a key twice.
    ties : float
        The share of events with the timestamp of another.
    junk : float
        The share of events that are refused or dropped: of an unknown type, without a parameter,
        with a key of the wrong type, too late.
    pieces : int
        Into how many feeds the stream is cut.
    """

    seed: int = 0
    transactions: int = 30
    keys: int = 6
    tables: int = 2
    skew: float = 0.6
    aborts: float = 0.2
    length: int = 4
    states: int = 3
    cyclic: bool = True
    disorder: float = 0.5
    windows: float = 0.15
    computed: float = 0.1
    ranges: float = 0.05
    bodies: float = 0.2
    breaches: float = 0.05
    removed: float = 0.05
    duplicates: float = 0.02
    ties: float = 0.2
    junk: float = 0.05
    pieces: int = 3


@dataclass(frozen=True)
class Workload:
    """A program, and the feeds of its stream: events, and the punctuation after them or None."""

    parameters: Parameters
    program: Program
    pieces: list[Piece] = field(repr=False)


_SHARES = {
    "aborts": 0.9,
    "disorder": 1.0,
    "windows": 0.5,
    "computed": 0.5,
    "ranges": 0.3,
    "bodies": 1.0,
    "breaches": 0.3,
    "removed": 0.3,
    "duplicates": 0.2,
    "ties": 0.8,
    "junk": 0.3,
}


def parameters(**fixed: Any) -> st.SearchStrategy[Parameters]:
    """Parameters of workloads for Hypothesis; those named are as given, or drawn as given."""
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "seed": st.integers(0, 2**32 - 1),
        "transactions": st.integers(1, 40),
        "keys": st.integers(1, 12),
        "tables": st.integers(1, 3),
        "skew": st.sampled_from([0.0, 0.2, 0.6, 1.0, 1.2]),
        "length": st.integers(1, 10),
        "states": st.integers(1, 10),
        "cyclic": st.booleans(),
        "pieces": st.integers(1, 6),
        **{
            name: st.sampled_from([0.0, most / 10, most / 3, most])
            for name, most in _SHARES.items()
        },
    }
    for name, value in fixed.items():
        drawn[name] = value if isinstance(value, st.SearchStrategy) else st.just(value)
    assert set(drawn) == {each.name for each in fields(Parameters)}
    return st.builds(Parameters, **drawn)


# -- the functions of operations -----------------------------------------------------------------


def fold(*values: Any) -> int:
    """Return a number that distinguishes any two sequences, nearly always."""
    number = 7
    for value in values:
        number = (number * 8191 + _number(value)) % PRIME
    return number


def _number(value: Any) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return round(value)
    if value is None:
        return 11
    if value is REMOVED:
        return 13
    if isinstance(value, Mapping):
        return fold(*(part for pair in value.items() for part in pair))
    if isinstance(value, list | tuple):
        return fold(len(value), *value)
    return fold(*repr(value).encode())


def step(*given: Any) -> Any:
    """Return what a WRITE writes: ``step(*values, salt, way, percent)``.

    With a probability of `percent`, by the values, end in the given `way` instead.
    """
    *values, salt, way, percent = given
    number = fold(salt, *values)
    if number % 100 >= percent:
        return number
    if way == "none":
        return None
    if way == "removed":
        return REMOVED
    if way == "abort":
        raise Abort(f"{number} is not to be written")
    if way == "type":
        raise TypeError(f"{number} is of no use")
    raise ZeroDivisionError


def picked(*given: Any) -> Any:
    """A computed key: ``picked(*values, salt, keys, percent)``; at times none of the table's."""
    *values, salt, keys, percent = given
    number = fold(salt, *values)
    if number % 100 < percent:
        return f"no key {number}"
    return number // 100 % keys


_WAYS = ("none", "abort", "type", "zero")


# -- programs ------------------------------------------------------------------------------------


def _program(p: Parameters, tables: list[SharedTable]) -> Program:
    program = Program("random", tables)
    first, last = tables[0], tables[-1]

    @program.on("OPERATIONS")
    def operations(e: Mapping[str, Any], access: Access) -> None:
        for make in e["operations"]:
            make(access)

    @program.transaction("BODY", reads=lambda e: e["reads"], writes=lambda e: e["writes"])
    def body(t: View, e: Mapping[str, Any]) -> int:
        seen: list[Any] = [e["salt"]]
        for what, ref in e["steps"]:
            if what == "read":
                seen.append(t.read(ref))
            elif what == "try":
                try:
                    seen.append(t.read(ref))
                except AccessError:
                    seen.append(-1)
            elif what == "remove":
                t.write(ref, REMOVED)
            else:
                value = step(*seen, *e["ending"])
                if value is None:
                    t.abort(f"{fold(*seen)} is too much")
                t.write(ref, value)
                seen.append(value)
        return fold(*seen)

    @program.transaction("DERIVED")  # its access sets are found in these very lines
    def derived(t: View, e: Mapping[str, Any]) -> int:
        source = first[e["source"]]
        value = t.read(source)
        if value is not None and value % 3 == 0:
            t.write(last[e["target"]], fold(value, e["salt"]))
        else:
            t.write(first[e["source"]], fold(t.read(last[e["target"]]), e["salt"]))
        return fold(value, t.read(last[e["target"]]))

    @program.pre_process
    def pre_process(type_: str, params: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if "drop" in params:
            return None
        if "broken" in params:
            raise ValueError("it is broken")
        return params

    @program.post_process
    def post_process(type_: str, params: Mapping[str, Any], outcome: Outcome) -> Any:
        if type_ == "DERIVED" and not outcome.committed:
            return None
        return type_, params["salt"], outcome.results

    return program


# -- streams -------------------------------------------------------------------------------------


def workload(p: Parameters) -> Workload:
    """The workload that has these parameters: always the same."""
    return _Maker(p).made()


class _Maker:
    def __init__(self, p: Parameters):
        self.p = p
        self.random = random.Random(repr(p))
        self.tables = [
            SharedTable(f"table{n}", key=int, initial=n or None, history=[20e-6, 5e-6, 0][n % 3])
            for n in range(p.tables)
        ]
        self.foreign = SharedTable("foreign")
        self.weights = list(accumulate(1 / (n + 1) ** p.skew for n in range(p.keys)))

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def made(self) -> Workload:
        program = _program(self.p, self.tables)
        events, us = [], START_US
        for n in range(self.p.transactions):
            if n == 0 or not self.chance(self.p.ties):
                us += self.random.randint(1, 4)
            events.append(self.event(us))
        return Workload(self.p, program, self.cut(self.shuffled(events)))

    def shuffled(self, events: list[Occurrence]) -> list[Occurrence]:
        """Return the events in the order of arrival."""
        reach = self.p.disorder * len(events)
        places = {id(o): n + reach * self.random.random() for n, o in enumerate(events)}
        return sorted(events, key=lambda o: places[id(o)])

    def cut(self, events: list[Occurrence]) -> list[Piece]:
        """Return feeds, some without punctuation. Few events come later than a punctuation says."""
        inner = sorted(self.random.randint(0, len(events)) for _ in range(self.p.pieces - 1))
        pieces: list[Piece] = []
        for start, end in pairwise([0, *inner, len(events)]):
            left = events[end:]
            punctuation_us = min((o.us for o in left), default=events[-1].us + 1)
            if left and self.chance(self.p.junk):
                punctuation_us += self.random.randint(0, 8)
            with_one = self.chance(0.8)
            pieces.append((events[start:end], punctuation_us if with_one else None))
        return pieces

    def event(self, us: int) -> Occurrence:
        salt = self.random.randrange(PRIME)
        kind = self.random.random()
        if self.chance(self.p.junk):
            name, params = self.junk(salt)
        elif kind < self.p.bodies * 0.7:
            name, params = "BODY", self.body(salt)
        elif kind < self.p.bodies:
            keys = {"source": self.key(), "target": self.key()}
            name, params = "DERIVED", {**keys, "salt": salt}
        else:
            name, params = "OPERATIONS", {"operations": self.operations(), "salt": salt}
        # Ties: by id where there are ids, then by arrival.
        event_id = self.random.choice([None, f"e{self.random.randrange(100)}"])
        return Occurrence(name, moment_of(us), params, id=event_id)

    def junk(self, salt: int) -> tuple[str, dict[str, Any]]:
        wrong = SharedTable.__getitem__(self.tables[0], "text")
        access = [
            lambda access: access.write(wrong, step, 1, "none", 0),
            lambda access: access.read(self.foreign[1]),
            lambda access: access.read(1),
            lambda access: 1 // 0,
        ]
        made: list[tuple[str, dict[str, Any]]] = [
            ("UNKNOWN", {"salt": salt}),
            ("DERIVED", {"source": 0, "salt": salt}),
            ("DERIVED", {"source": "text", "target": 0, "salt": salt}),
            ("BODY", {"salt": salt, "reads": [], "steps": [], "ending": (0, "none", 0)}),
            ("BODY", {**self.body(salt), "writes": [wrong]}),
            ("BODY", {**self.body(salt), "drop": True}),
            ("BODY", {**self.body(salt), "broken": True}),
            ("OPERATIONS", {"operations": [self.random.choice(access)], "salt": salt}),
        ]
        return self.random.choice(made)

    # -- references ------------------------------------------------------------------------------

    def key(self, below: int | None = None) -> int:
        keys = self.p.keys if below is None else min(below, self.p.keys)
        return self.random.choices(range(keys), cum_weights=self.weights[:keys])[0]

    def source(self, below: tuple[int, int] | None) -> Ref:
        """Return what is read; with `below`, of earlier tables, or smaller keys of the same one."""
        number = self.random.randrange(self.p.tables if below is None else below[0] + 1)
        table = self.tables[number]
        least = below[1] if below is not None and number == below[0] else None
        if least == 0:
            return table[0]
        if self.chance(self.p.ranges):
            low, high = sorted((self.key(least), self.key(least)))
            bounds = [(low, high + 1), (None, high + 1)] + [(low, None)] * (least is None)
            return table.range(*self.random.choice(bounds))
        if self.chance(self.p.computed):
            ref = self.computed(table, below)
        else:
            ref = table[self.key(least)]
        if table.history_us and self.chance(self.p.windows):
            ref = ref.window(self.random.randint(1, table.history_us) / 1e6)
        return ref

    def computed(self, table: SharedTable, below: tuple[int, int] | None) -> Ref:
        """A computed key: of parameters, of states, or of what a computed key reads."""
        reads = tuple(self.source(below) for _ in range(self.random.choice([0, 1, 1, 2])))
        percent = 30 if self.chance(self.p.breaches) else 0
        salt = self.random.randrange(PRIME)
        return table.computed(picked, salt, self.p.keys, percent, reads=reads)

    # -- s-transactions --------------------------------------------------------------------------

    def ending(self, aborts: bool) -> tuple[int, str, int]:
        """The last arguments of `step`."""
        salt = self.random.randrange(PRIME)
        if aborts:
            return salt, self.random.choice(_WAYS), self.random.choice([50, 100, 100])
        if self.chance(self.p.removed):
            return salt, "removed", 100
        return salt, "none", 0

    def operations(self) -> list[Callable[[Access], None]]:
        length = self.random.randint(1, self.p.length)
        aborting = self.random.randrange(length) if self.chance(self.p.aborts) else None
        taken: list[tuple[int, int]] = []
        return [self.operation(taken, n == aborting) for n in range(length)]

    def operation(self, taken: list[tuple[int, int]], aborts: bool) -> Callable[[Access], None]:
        place = self.random.randrange(self.p.tables), self.key()
        again = place in taken and not self.chance(self.p.duplicates)
        count = self.random.randint(1, self.p.states)
        if (again or self.chance(0.2)) and not aborts:
            sources = [self.source(None) for _ in range(count)]
            function, args = self.random.choice([(None, ()), (fold, (self.random.random(),))])
            return lambda access: access.read(*sources, function=function, args=args)
        taken.append(place)
        table, below = self.tables[place[0]], None if self.p.cyclic else place
        target = table[place[1]]
        if self.chance(self.p.computed):
            target = self.computed(table, below)
        own = (target,) if self.chance(0.7) else ()
        reads: tuple[Ref, ...] | None = (*own, *(self.source(below) for _ in range(count - 1)))
        if reads == (target,) and self.chance(0.5):
            reads = None
        ending = self.ending(aborts)
        return lambda access: access.write(target, step, *ending, reads=reads)

    def body(self, salt: int) -> dict[str, Any]:
        steps: list[tuple[str, Ref]] = []
        reads: list[Ref] = []
        writes: list[Ref] = []
        for _ in range(self.random.randint(1, self.p.length)):
            what = self.random.choice(["read", "read", "write"])
            if what == "write" and self.chance(self.p.removed):
                what = "remove"
            table = self.random.choice(self.tables)
            ref = self.source(None) if what == "read" else table[self.key()]
            if what != "read" and self.chance(self.p.computed):
                ref = self.computed(table, None)
            if self.chance(self.p.breaches):
                what = self.random.choice(["try", what]) if what == "read" else what
            else:
                (reads if what == "read" else writes).extend(self.declaration(ref))
                if ref.is_whole:
                    reads.extend(_read_for_key(ref))
            steps.append((what, ref))
        ending = self.ending(self.chance(self.p.aborts))
        return {"salt": salt, "reads": reads, "writes": writes, "steps": steps, "ending": ending}

    def declaration(self, ref: Ref) -> list[Ref]:
        """One that covers the reference."""
        if hasattr(ref.key, "function"):
            return [ref.table.range()]
        if isinstance(ref.key, int) and ref.window_us is None and self.chance(0.1):
            return [ref.table.range(ref.key, ref.key + self.random.randint(1, 3))]
        return [ref]


def _read_for_key(ref: Ref) -> list[Ref]:
    """Return what a computed key reads."""
    found: list[Ref] = []
    for each in getattr(ref.key, "reads", ()):
        found += [each, *_read_for_key(each)]
    return found
