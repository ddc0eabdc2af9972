"""A machine whose tables escalate, and what an escalation must not change.

The model knows nothing of escalation: whenever the table has made one, the oracle looks at what
the owner has instead of what it would have, and tells the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import rule

from lockmgr import Granted, LockTable, Mode, Reply, Resource, intention
from lockmgr._modes import SUPREMUM
from tests.lockmgr.machine import NOBODY, Downgrade, LockMachine, Misuse, pick, some
from tests.lockmgr.model import Lock, Model, of
from tests.lockmgr.oracle import Oracle


class EscalationOracle(Oracle):
    """Oracle that judges escalations too: what was protected still is, and its owner can use it."""

    def __init__(
        self,
        table: LockTable,
        model: Model,
        seen: Counter[str],
        limit: int,
        resources: Sequence[Resource],
    ) -> None:
        super().__init__(table, model, seen)
        self.limit = limit
        self.uses = list(product(resources, Mode))
        self.escalations_before = 0

    def compare(self) -> None:
        escalations = self.table.counters.escalations - self.escalations_before
        if escalations:
            model = self.model
            owners = {view.tid for view in model.lock_views() ^ {*self.table.snapshot().locks}}
            assert 1 <= len(owners) <= escalations
            model.begin(NOBODY, None, (), False)  # a stranger, to see what it cannot have
            for owner in owners:
                self._judge_escalation(owner)
            model.end(NOBODY, None, committed=False)
        self.escalations_before += escalations
        self.seen["escalations"] += escalations
        super().compare()

    def _judge_escalation(self, owner: int) -> None:
        model = self.model
        edges = model.edges(model.queues)
        sphere = model.sphere(owner)
        outside = [tid for tid in model.parents if tid not in sphere]
        within = [use for use in product(sphere[1:], self.uses) if not self._is_refused(*use)]
        usable = [use for use in self.uses if model.may_use(owner, *use)]
        refused = [use for use in product(outside, self.uses) if self._is_refused(*use)]
        exchanged = self._exchanged(owner)
        expected = [
            self._coarsened(owner, locks, exchanged) for locks in (model.held, model.retained)
        ]
        for locks, now in self._owned(owner):
            for resource in of(owner, locks):
                del locks[owner, resource]
            locks |= {(owner, resource): mode for resource, mode in now.items()}
        let_in = [use for use in refused if not self._is_refused(*use)]
        assert not let_in, f"{owner} lets in who was kept out: {let_in}"
        shut_out = [use for use in within if self._is_refused(*use)]
        assert not shut_out, f"{owner} lets its own inferiors run into a deadlock: {shut_out}"
        assert all(self.table.holds(owner, *use) for use in usable)
        assert model.edges(model.queues) == edges
        assert [of(owner, locks) for locks in (model.held, model.retained)] == expected
        assert min(exchanged.values()) > self.limit, "escalates too early"

    def _exchanged(self, owner: int) -> dict[Resource, int]:
        """Return the resources in which locks are given up, each with the number of locks."""
        owned: set[Resource] = set()
        given_up: set[Resource] = set()
        for locks, now in self._owned(owner):
            owned |= of(owner, locks).keys()
            given_up |= of(owner, locks).keys() - now.keys()
        return {
            resource: sum(inner[:-1] == resource for inner in owned)
            for resource in {inner[:-1] for inner in given_up} - given_up
        }

    def _coarsened(
        self, owner: int, locks: dict[Lock, Mode], exchanged: Iterable[Resource]
    ) -> dict[Resource, Mode]:
        """Return what it must own then: a lock that covers all that is inside, and no more."""
        owned = of(owner, locks)
        for resource in exchanged:
            for inner in [inner for inner in owned if is_inside(inner, resource)]:
                covering = Mode.S if owned.pop(inner) in (Mode.IS, Mode.S) else Mode.X
                owned[resource] = SUPREMUM[owned.get(resource, covering)][covering]
        return owned

    def _owned(self, owner: int) -> list[tuple[dict[Lock, Mode], dict[Resource, Mode]]]:
        """Return what the model believes to be held and retained, and what the owner has."""
        return [
            (self.model.held, self.table.held(owner)),
            (self.model.retained, self.table.retained(owner)),
        ]

    def _is_refused(self, tid: int, use: tuple[Resource, Mode]) -> bool:
        """Return whether rule 1 keeps it from the resource, or from what encloses that."""
        model, (resource, mode) = self.model, use
        for length in range(1, len(resource) + 1):
            prefix = resource[:length]
            wanted = mode if prefix == resource else intention(mode)
            if model.may_use(tid, prefix, wanted):
                continue
            held = model.held.get((tid, prefix))
            if model.in_the_way(tid, prefix, wanted if held is None else SUPREMUM[held][wanted]):
                return True
        return False


class EscalationMachine(LockMachine):
    """Locks paths as `LockManager` does: what encloses a resource first."""

    resources: ClassVar[Sequence[Resource]] = (
        ("t",),
        ("u",),
        *product("t", (1, 2, 3)),
        *product("u", (1, 2)),
        *product("t", (1,), (1, 2, 3)),
    )

    def settle_more(self, data: st.DataObject) -> None:
        self.limit = data.draw(st.integers(1, 4))

    def new_table(self) -> LockTable:
        return self.table_class(self.model.policy, self.limit)

    def new_oracle(self) -> Oracle:
        return EscalationOracle(self.table, self.model, self.seen, self.limit, self.resources)

    @some(LockMachine.leaves)
    @rule(data=st.data(), mode=st.sampled_from((Mode.S, Mode.S, Mode.X)))
    def ask_for_many(self, data: st.DataObject, mode: Mode) -> None:
        """Ask for everything directly inside something, until that would mean to wait."""
        tid = pick(data, self.leaves())
        enclosing = pick(data, [("t",), ("u",), ("t", 1)])
        for resource in self.resources:
            if resource[:-1] == enclosing:
                self._ask(tid, resource, mode, wait=False)

    def _ask(self, tid: int, resource: Resource, mode: Mode, wait: bool = True) -> Reply:
        if len(resource) > 1 and not self.model.covers(tid, resource, mode):
            reply = self._ask(tid, resource[:-1], intention(mode), wait)
            if not isinstance(reply, Granted):
                return reply
        return super()._ask(tid, resource, mode, wait)

    def downgrades(self) -> list[Downgrade]:
        return [
            (tid, resource, mode)
            for tid, resource, mode in super().downgrades()
            if all(
                mode is not None and SUPREMUM[mode][intention(held)] is mode
                for inner, held in of(tid, self.model.held).items()
                if is_inside(inner, resource)
            )
        ]

    def misuses(self) -> list[Misuse]:
        found = super().misuses()
        for tid in self.acting():
            for resource in self.resources:
                prefixes = [resource[:length] for length in range(1, len(resource))]
                if prefixes and not any((tid, prefix) in self.model.held for prefix in prefixes):
                    found.append(self._request_without_prefix(tid, resource))
        return found

    def _request_without_prefix(self, tid: int, resource: Resource) -> Misuse:
        return "request before the prefix", lambda: self.table.request(tid, resource, Mode.S)


def is_inside(inner: Resource, resource: Resource) -> bool:
    return len(inner) > len(resource) and inner[: len(resource)] == resource
