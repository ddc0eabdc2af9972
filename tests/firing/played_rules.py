"""A program of `naive_rules`, run by the engine."""

from __future__ import annotations

import contextlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Integer, MetaData, String, Table, delete, select

import activedb as adb
from activedb.errors import RuleFailed, TransactionAborted
from activedb.store.system import dead_letters
from tests.firing.naive_rules import Add, Fail, Par, Raise, Sub, World, Write
from tests.firing.rule_programs import COUNTERS, KINDS
from tests.ledger import read

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction
    from tests.firing.naive_rules import Program, RuleSpec, Step, Top

__all__ = ["Played"]


class Boom(Exception):
    """Error that a program raises."""


FAILURES = (Boom, RuleFailed, TransactionAborted)


class Played:
    """A database on which one program after another is run."""

    def __init__(self, db: adb.Database):
        self.db = db
        metadata: MetaData = db.metadata
        self.counters = Table(
            "counters", metadata, Column("id", Integer, primary_key=True), Column("n", Integer)
        )
        names = ["log", *(f"facts{kind}" for kind in range(1, KINDS, 2))]
        self.tables = {
            name: Table(
                name, metadata, Column("id", String(500), primary_key=True), Column("n", Integer)
            )
            for name in names
        }
        db.create_all()
        self.clear()

    def clear(self) -> None:
        """Remove rules, rows, and what was recorded."""
        with self.db.transaction() as t:
            for name in [rule.name for rule in self.db.rules]:
                self.db.rules.delete(name)
            for table in (self.counters, *self.tables.values()):
                t.execute(delete(table))
            for key in range(COUNTERS):
                t.insert(self.counters, {"id": key, "n": 0})
        with self.db._store.short() as connection:
            connection.execute(delete(dead_letters))
        recording = self.db.admin._recording
        assert recording is not None
        with recording._latch:
            recording._ended.clear()

    def run(self, program: Program) -> None:
        """Define the rules, run the top-level transactions side by side, await all firings."""
        with self.db.transaction():
            for rule in program.rules:
                self._define(rule)
        with ThreadPoolExecutor(len(program.tops)) as threads:
            for done in [threads.submit(self._top, top) for top in program.tops]:
                done.result()
        self.db.wait_idle()

    def outcome(self) -> World:
        """Return the committed state."""
        world = World(())
        with self.db.transaction() as t:
            world.counters = Counter({r.id: r.n for r in t.query(select(self.counters)) if r.n})
            world.rows = {
                (name, row.id)
                for name, table in self.tables.items()
                for row in t.query(select(table))
            }
        sources = [letter["source"] for letter in read(self.db, dead_letters)]
        world.letters = Counter(source.removeprefix("rule ") for source in sources)
        return world

    # -- inside ----------------------------------------------------------------------------

    def _top(self, top: Top) -> None:
        with contextlib.suppress(*FAILURES):
            self.db.run(lambda t: self._play(t, top.steps, top.name))

    def _define(self, rule: RuleSpec) -> None:
        def path_of(o: Occurrence) -> str:
            return str(o.new["id"] if rule.on % 2 else o.params["path"])

        def n_of(o: Occurrence) -> int:
            return int(o.new["n"] if rule.on % 2 else o.params["n"])

        def action(t: Transaction, o: Occurrence) -> None:
            self._play(t, rule.steps, f"{path_of(o)}>{rule.name}")

        if rule.on % 2:
            on = adb.inserted(self.tables[f"facts{rule.on}"])
        else:
            on = adb.event(f"E{rule.on}")
        options: dict[str, Any] = {}
        if rule.condition_action != "immediate":
            options["condition_action"] = rule.condition_action
        self.db.rules.create(
            action,
            on=on,
            when=(lambda t, o: rule.holds(n_of(o))) if rule.unless else None,
            coupling=rule.coupling,
            priority=rule.priority,
            on_abort=rule.on_abort,
            name=rule.name,
            **options,
        )

    def _play(self, t: Transaction, steps: tuple[Step, ...], path: str) -> None:
        for number, step in enumerate(steps):
            here = f"{path}.{number}"
            match step:
                case Add(counter, n):
                    row = t.get(self.counters, counter, for_update=True)
                    assert row is not None
                    t.update(self.counters, counter, n=row["n"] + n)
                case Write():
                    t.insert(self.tables["log"], {"id": here, "n": 0})
                case Raise(kind, n, swallows):
                    with contextlib.suppress(*((RuleFailed,) if swallows else ())):
                        if kind % 2:
                            t.insert(self.tables[f"facts{kind}"], {"id": here, "n": n})
                        else:
                            self.db.signal(f"E{kind}", path=here, n=n)
                case Fail(by_abort):
                    if by_abort:
                        t.abort("as planned")
                    raise Boom(here)
                case Sub(inner):
                    with contextlib.suppress(*FAILURES), t.subtransaction() as s:
                        self._play(s, inner, here)
                case Par(branches):
                    children = [
                        t.spawn(self._play, inner, f"{here}.{branch}")
                        for branch, inner in enumerate(branches)
                    ]
                    for child in children:
                        with contextlib.suppress(*FAILURES):
                            child.result()
