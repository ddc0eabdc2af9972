"""Berkeley DB, which has nested transactions too, asked the same questions.

Where both define the answer, the same locks are granted and refused, request by request. Of the
modes, that is IS, IX, S and X; Berkeley DB has no SIX. Two differences are matters of definition:

- *Held or retained by a parent.* In Berkeley DB a child may have whatever its superiors hold; here,
  what they retain. So a parent here offers all that it holds before it begins a child.
- *Parents with live children.* Berkeley DB forbids them everything but to begin more children
  (documentation of ``DB_TXN``). It does not enforce that, and then refuses a parent what its child
  holds in a conflicting mode, unless the parent has had it before: that it gets again, though the
  child is writing. Here parents may do anything and obey rule 1. So only those without live
  children ask for locks in the comparison.

Beyond that, Berkeley DB's detector does not see two waits without end, whatever the policy:
it counts a top-level transaction with all its inferiors as one locker, which does not wait for
itself. Only lock timeouts, if there are any and a program checks them, end such a wait.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockmgr import Blocked, Busy, Denied, EdgeKind, Grant, Granted, Mode, VerifyingLockTable
from tests.lockmgr.berkeley import (
    MODES,
    Environment,
    is_granted,
    open_environment,
    victims_by_policy,
)

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
LIVE_MAX = 12


@pytest.fixture(scope="module")
def environment() -> Iterator[Environment]:
    environment = open_environment()
    yield environment
    environment.close()


# -- the same answers ----------------------------------------------------------------------------

RESOURCES = (b"a", b"b")
VERBS = ("lock",) * 8 + ("begin",) * 4 + ("commit",) * 3 + ("abort",)
Draw: TypeAlias = tuple[int, int, int]


class Both:
    """A lock table and a Berkeley DB environment, led through the same steps."""

    def __init__(self, environment: Environment, seen: Counter[str]):
        self.seen = seen
        self.environment = environment
        self.table = VerifyingLockTable()
        self.theirs: dict[int, Any] = {}
        self.parents: dict[int, int | None] = {}
        self.begun = 0

    def step(self, verb: str, draw: Draw) -> None:
        """Take one step, if there is a transaction that can."""
        leaves = [tid for tid in self.parents if tid not in self.parents.values()]
        if verb == "begin":
            if len(self.parents) < LIVE_MAX:
                choices = [None, *self.parents, *self.parents, *self.parents]
                self._begin(choices[draw[0] % len(choices)])
        elif leaves:
            tid = leaves[draw[0] % len(leaves)]
            if verb == "lock":
                modes = list(MODES)
                self._lock(tid, RESOURCES[draw[1] % len(RESOURCES)], modes[draw[2] % len(modes)])
            else:
                self._end(verb, tid)

    def _begin(self, parent: int | None) -> None:
        self.begun += 1
        if parent is not None:
            self.table.offer(parent)
        self.table.begin(self.begun, parent)
        self.theirs[self.begun] = self.environment.txn_begin(
            None if parent is None else self.theirs[parent]
        )
        self.parents[self.begun] = parent

    def _lock(self, tid: int, resource: bytes, mode: Mode) -> None:
        reply = self.table.request(tid, (resource,), mode, wait=False)
        assert isinstance(reply, Granted | Busy)
        ours = isinstance(reply, Granted)
        theirs = is_granted(self.environment, self.theirs[tid], resource, mode)
        assert theirs == ours, f"{tid} asks {mode.name} {resource!r}:\n{self.table.dump()}"
        self.seen["granted" if ours else "refused"] += 1
        if isinstance(reply, Busy):
            self.seen.update({f"refused: {edge.kind}" for edge in reply.edges})
        elif self.parents[tid] is not None and len(self.parents) > 1:
            self.seen["granted to a child"] += 1

    def _end(self, verb: str, tid: int) -> None:
        getattr(self.table, verb)(tid)
        getattr(self.theirs.pop(tid), verb)()
        del self.parents[tid]

    def finish(self) -> None:
        """End everybody, the leaves first; neither may have a lock left."""
        for tid in sorted(self.parents, reverse=True):
            self._end("abort", tid)
        assert self.table.dump() == "empty"
        assert self.environment.lock_stat()["nlocks"] == 0


@pytest.mark.long
def test_berkeley_random_nested_transactions_get_the_same_locks(environment: Environment) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=200 * SCALE, deadline=None)
    @given(
        st.lists(
            st.tuples(st.sampled_from(VERBS), st.tuples(*[st.integers(0, 59)] * 3)),
            min_size=40,
            max_size=120,
        )
    )
    def compare(program: list[tuple[str, Draw]]) -> None:
        both = Both(environment, seen)
        try:
            for verb, draw in program:
                both.step(verb, draw)
        finally:
            both.finish()

    compare()
    print(dict(seen))
    assert min(seen["granted to a child"], seen["refused: held"], seen["refused: retained"]) > 100


# -- other answers -------------------------------------------------------------------------------


def test_berkeley_deadlock_of_strangers_is_found_by_both() -> None:
    assert set(victims_by_policy("strangers").values()) == {1}
    assert isinstance(_ask_crosswise(None), Denied)


def test_berkeley_deadlock_of_siblings_is_found_here_only() -> None:
    assert set(victims_by_policy("siblings").values()) == {0}
    reply = _ask_crosswise(1)
    assert isinstance(reply, Denied)
    assert [(edge.waiter, edge.waited_for) for edge in reply.report.cycle] == [(3, 2), (2, 3)]


def _ask_crosswise(parent: int | None) -> object:
    table = VerifyingLockTable()
    table.begin(1)
    for tid, resource in ((2, "a"), (3, "b")):
        table.begin(tid, parent)
        assert table.request(tid, (resource,), Mode.X) == Granted()
    assert isinstance(table.request(2, ("b",), Mode.X), Blocked)
    return table.request(3, ("a",), Mode.X)


def test_berkeley_parent_reading_what_its_child_writes_waits_for_ever_there_only() -> None:
    """Our parent waits for the child, if that can go on, and if not, gets an error at once."""
    assert set(victims_by_policy("parent_and_child").values()) == {0}
    for inline in (True, False):
        table = VerifyingLockTable()
        table.begin(1)
        table.begin(2, 1, inline=inline)
        assert table.request(2, ("a",), Mode.X) == Granted()
        reply = table.request(1, ("a",), Mode.S)
        if inline:
            assert isinstance(reply, Denied)
            kinds = [edge.kind for edge in reply.report.cycle]
            assert kinds == [EdgeKind.HELD, EdgeKind.INLINE]
        else:
            assert isinstance(reply, Blocked)
            assert table.commit(2) == (Grant(1, ("a",), Mode.S),)


def test_berkeley_parent_gets_again_what_it_had_though_its_child_is_writing(
    environment: Environment,
) -> None:
    """The reason why parents with live children are left out of the comparison."""
    parent = environment.txn_begin()
    assert is_granted(environment, parent, b"a", Mode.X)
    child = environment.txn_begin(parent)
    assert is_granted(environment, child, b"a", Mode.X)
    assert is_granted(environment, parent, b"a", Mode.X)
    assert not is_granted(environment, parent, b"a", Mode.S)
    child.abort()
    parent.abort()
