"""A machine whose transactions lock predicates, and declare the rows that they write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from lockmgr import Granted, InRange, Mode, NullTest, OneOf, Predicate, Reply, Resource, intention
from tests.lockmgr.machine import NOBODY, LockMachine, Misuse, pick, some
from tests.lockmgr.model import WRITING, Row

PREDICATES = [
    Predicate([OneOf("x", [0])]),
    Predicate([OneOf("x", [1])]),
    Predicate([OneOf("x", [0, 2]), InRange("y", 1)]),
    Predicate([InRange("y", 0, 1, with_low=False)]),
    Predicate([InRange("y", high=1, with_high=False), OneOf("x", [1, 2])]),
    Predicate([NullTest("y"), NullTest("x", negated=True)]),
]
ROWS = st.fixed_dictionaries({name: st.sampled_from([None, 0, 1, 2]) for name in "xy"})
TABLE = ("t",)


class PredicateMachine(LockMachine):
    """Lock paths as `LockManager` does: what encloses a resource first."""

    resources: ClassVar[Sequence[Resource]] = (
        TABLE,
        (*TABLE, 1),
        (*TABLE, 2),
        *((*TABLE, predicate) for predicate in PREDICATES),
    )

    @some(LockMachine.leaves)
    @rule(data=st.data(), predicate=st.sampled_from(PREDICATES))
    def ask_a_question(self, data: st.DataObject, predicate: Predicate) -> None:
        self._ask(pick(data, self.leaves()), (*TABLE, predicate), Mode.S)

    def writing(self) -> list[int]:
        """Return the transactions that may declare rows."""
        return [tid for tid in self.acting() if self.model.held.get((tid, TABLE)) in WRITING]

    @precondition(lambda self: bool(self.writing()))
    @rule(data=st.data(), rows=st.none() | st.lists(ROWS, max_size=2), first=st.booleans())
    def declare(self, data: st.DataObject, rows: list[Row] | None, first: bool) -> None:
        tid = pick(data, self.writing())
        while True:
            predicate = self._call(lambda table: table.declare(tid, TABLE, rows, first=first))
            self.oracle.declared(tid, TABLE, rows, predicate, first=first)
            if predicate is None:
                return
            if not isinstance(self._ask(tid, (*TABLE, predicate), Mode.IX), Granted):
                return

    def _ask(self, tid: int, resource: Resource, mode: Mode, wait: bool = True) -> Reply:
        if len(resource) > 1 and not self.model.covers(tid, resource, mode):
            reply = self._ask(tid, resource[:-1], intention(mode), wait)
            if not isinstance(reply, Granted):
                return reply
        return super()._ask(tid, resource, mode, wait)

    def misuses(self) -> list[Misuse]:
        found = super().misuses()
        found.append(self._declaration_without_lock(NOBODY))
        for tid in self.live():
            if self.model.waits(tid) or self.model.held.get((tid, TABLE)) not in WRITING:
                found.append(self._declaration_without_lock(tid))
        return found

    def _declaration_without_lock(self, tid: int) -> Misuse:
        return "declare without a lock", lambda: self.table.declare(tid, TABLE, [])
