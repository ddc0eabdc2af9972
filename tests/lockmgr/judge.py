"""Judge of a lock table, which must justify each of its answers to an account of what has happened.

A grant is right if rule 1 admits it; a denial, if each edge of its cycle is there and some
transaction could never go on, however the queues were served. And whatever the table answered, no
transaction may be left that waits for nothing, or for itself. Nothing here looks at the table's
structures, so the judge can check any table, even a faulty one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lockmgr import (
    Blocked,
    Busy,
    Denial,
    Denied,
    Edge,
    Effects,
    Ended,
    Grant,
    Granted,
    LockTable,
    Mode,
    Predicate,
    Reply,
    Resource,
    VerifyingLockTable,
)
from tests.lockmgr.account import Account, Row


class Judge(LockTable):
    """Judge, which comes before the table to be judged in a list of bases."""

    def __init__(self, victim: str = "requester") -> None:
        super().__init__(victim)
        self.account = Account()

    def begin(
        self,
        tid: int,
        parent: int | None = None,
        *,
        causes: Iterable[int] = (),
        inline: bool = False,
    ) -> None:
        super().begin(tid, parent, causes=causes, inline=inline)
        self.account.begin(tid, parent, causes, inline=inline)
        self._judge(())

    def request(self, tid: int, resource: Resource, mode: Mode, *, wait: bool = True) -> Reply:
        is_new = all(lock.resource != resource for lock in self.account.locks)
        reply = super().request(tid, resource, mode, wait=wait)
        is_needed = self.account.wanted(tid, resource, mode) is not None
        if is_new and is_needed and isinstance(resource[-1], Predicate):
            self.account.meet(resource)
        wanted = self.account.wanted(tid, resource, mode)
        if wanted is None:
            assert reply == Granted(), f"{tid} may use {resource} anyway, and is told {reply}"
        else:
            self.account.asked[tid] = (resource, wanted)
            self._judge_reply(tid, reply, Grant(tid, resource, wanted))
        return reply

    def declare(
        self, tid: int, table: Resource, rows: Sequence[Row] | None, *, first: bool = True
    ) -> Predicate | None:
        predicate = super().declare(tid, table, rows, first=first)
        if predicate is None:
            self.account.write(tid, table, rows)
            self._judge(())
        return predicate

    def await_end(self, tid: int, of: int, *, wait: bool = True) -> Reply:
        reply = super().await_end(tid, of, wait=wait)
        if of in self.account.parents:
            self.account.awaited[tid] = of
            self._judge_reply(tid, reply, Ended(tid, of))
        return reply

    def cancel(self, tid: int) -> Effects:
        effects = super().cancel(tid)
        self.account.withdraw(tid)
        return self._judge(effects)

    def downgrade(self, tid: int, resource: Resource, mode: Mode | None) -> Effects:
        effects = super().downgrade(tid, resource, mode)
        self.account.retain(tid, resource)
        if mode is not None:
            self.account.hold(tid, resource, mode)
        return self._judge(effects)

    def offer(self, tid: int) -> Effects:
        effects = super().offer(tid)
        self.account.retain(tid)
        return self._judge(effects)

    def commit(self, tid: int) -> Effects:
        effects = super().commit(tid)
        parent = self.account.parents[tid]
        self.account.end(tid, heir=parent, successor=parent)
        return self._judge(effects)

    def abort(self, tid: int, heir: int | None = None) -> Effects:
        effects = super().abort(tid, heir)
        self.account.end(tid, heir=heir, successor=None)
        return self._judge(effects)

    def _judge_reply(self, tid: int, reply: Reply, granted: Grant | Ended) -> None:
        """Judge what a reply did, to the one who asked and to others: victims, then grants."""
        own: list[Grant | Denial | Ended] = [granted]
        if isinstance(reply, Denied):
            own = [Denial(tid, reply.report)]
        elif isinstance(reply, Blocked):
            own = []
        elif isinstance(reply, Busy):
            assert not reply.effects, f"{tid} does not wait, and yet moves others"
            self._find_true(tid, reply.edges)
            self.account.withdraw(tid)
            own = []
        victims = [step for step in reply.effects if isinstance(step, Denial)]
        others = [step for step in reply.effects if not isinstance(step, Denial)]
        self._judge([*victims, *own, *others])
        if isinstance(reply, Blocked):
            self._find_true(tid, self.edges(tid))

    def _find_true(self, tid: int, edges: tuple[Edge, ...]) -> None:
        assert edges, f"{tid} is kept from going on by no transaction"
        self.account.find_true(edges)

    def _judge(self, steps: Iterable[Grant | Denial | Ended]) -> Effects:
        for step in steps:
            self.account.enter(step)
        self.account.check_waits()
        self.account.check_answers()
        return tuple(steps)


class Judged(Judge, VerifyingLockTable):
    """Judged, and with its own invariants checked."""
