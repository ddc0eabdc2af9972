"""Random rule sets with declared effects, and what they do, worked out without the analysis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Integer, MetaData, Table

from activedb.events import deleted, event, inserted, updated
from activedb.rules import Rule

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

METADATA = MetaData()
TABLES = {
    name: Table(
        name,
        METADATA,
        Column("id", Integer, primary_key=True),
        Column("x", Integer),
        Column("y", Integer),
    )
    for name in ("a", "b", "c")
}
SIGNALS = ("S", "T")
COLUMNS = ("id", "x", "y")
STEPS_MAX = 300

Effect = tuple[str, str, str]
"""Kind ("insert", "update", "delete", "event"), table or signal, and column or "" of a change."""


@dataclass(frozen=True)
class Spec:
    """A rule as the evaluator knows it."""

    name: str
    on: Effect
    reads: tuple[tuple[str, str], ...]
    does: tuple[Effect, ...]
    coupling: str
    priority: int | None

    def rule(self) -> Rule:
        """The same as a rule, with its effects declared."""
        writes: list[Any] = []
        for kind, table, column in self.does:
            if kind == "update":
                writes.append(f"{table}.{column}" if column else updated(TABLES[table]))
            elif kind != "event":
                make = inserted if kind == "insert" else deleted
                writes.append(make(TABLES[table]))
        return Rule.define(
            lambda t, o: None,
            on=_expression(self.on),
            when=None,
            coupling=self.coupling,
            priority=self.priority,
            on_abort="triggering",
            name=self.name,
            reads=[
                f"{table}.{column}" if column else TABLES[table] for table, column in self.reads
            ],
            writes=writes,
            raises=[name for kind, name, _ in self.does if kind == "event"],
        )

    def listens_to(self, effect: Effect) -> bool:
        """Return whether `effect` triggers the rule."""
        kind, name, column = self.on
        return effect[:2] == (kind, name) and (not column or effect[2] in ("", column))


def random_effect(draw: random.Random) -> Effect:
    """Return a random effect."""
    kind = draw.choice(["insert", "update", "update", "update", "delete", "event"])
    if kind == "event":
        return (kind, draw.choice(SIGNALS), "")
    column = draw.choice(["", "x", "y"]) if kind == "update" else ""
    return (kind, draw.choice(list(TABLES)), column)


def random_specs(draw: random.Random, couplings: Sequence[str], *, rules_max: int) -> list[Spec]:
    """A small rule set, in which rules often have their event in common."""
    events = [random_effect(draw) for _ in range(rules_max // 2)]
    return [
        Spec(
            name=f"r{number}",
            on=draw.choice(events),
            reads=tuple(
                (draw.choice(list(TABLES)), draw.choice(["", "x", "y"]))
                for _ in range(draw.randrange(2))
            ),
            does=tuple(random_effect(draw) for _ in range(draw.randrange(1, 3))),
            coupling=draw.choice(list(couplings)),
            priority=draw.choice([None, None, 1, 2]),
        )
        for number in range(draw.randrange(2, rules_max + 1))
    ]


class TooLong(Exception):
    """A run that does not end within STEPS_MAX rules."""


@dataclass
class Interpreter:
    """Interpreter of a rule set over symbolic values: equal states mean equal relevant histories.

    Attributes
    ----------
    specs : list of Spec
        In the order in which rules that no priority orders are taken.
    """

    specs: list[Spec]
    state: dict[tuple[str, str], Any] = field(default_factory=dict)
    steps: int = 0

    def run(self, events: Sequence[Effect]) -> dict[tuple[str, str], Any]:
        """Run one top-level transaction that does `events`; return its final state."""
        queue: list[Spec] = []
        for number, effect in enumerate(events):
            self._do(effect, ("application", number), queue)
        self._commit_point(queue)
        return self.state

    def _do(self, effect: Effect, value: Any, queue: list[Spec]) -> None:
        kind, name, column = effect
        rows = (name, "rows")
        if kind == "update":
            for each in [column] if column else COLUMNS:
                self.state[name, each] = hash((value, self.state.get(rows)))
        elif kind != "event":
            cells = tuple(self.state.get((name, each)) for each in COLUMNS)
            self.state[rows] = hash((kind, value, self.state.get(rows), cells))
        triggered = [spec for spec in self.specs if spec.listens_to(effect)]
        queue += [spec for spec in triggered if spec.coupling == "deferred"]
        self._run([spec for spec in triggered if spec.coupling == "immediate"], None)

    def _run(self, specs: list[Spec], queue: list[Spec] | None) -> None:
        def turn(spec: Spec) -> tuple[bool, int, int]:
            return (spec.priority is None, -(spec.priority or 0), self.specs.index(spec))

        for spec in sorted(specs, key=turn):
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise TooLong
            read = []
            for table, column in spec.reads:
                cells = [column] if column else list(COLUMNS)
                read += [self.state.get((table, each)) for each in (*cells, "rows")]
            own: list[Spec] = []
            for number, effect in enumerate(spec.does):
                value = hash((spec.name, number, tuple(read)))
                self._do(effect, value, own if queue is None else queue)
            if queue is None:
                self._commit_point(own)

    def _commit_point(self, queue: list[Spec]) -> None:
        while queue:
            cycle, queue[:] = list(queue), []
            self._run(cycle, queue)


def _expression(effect: Effect) -> Any:
    kind, name, column = effect
    if kind == "event":
        return event(name)
    if kind == "update":
        return updated(TABLES[name], *([column] if column else []))
    return (inserted if kind == "insert" else deleted)(TABLES[name])
