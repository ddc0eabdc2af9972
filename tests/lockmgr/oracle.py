"""Judgement of a lock table's answers by the naive model, call by call.

Two things are taken from the table as given, because the protocol leaves them open: which of
several cycles it broke first, and by which move. Each outcome is checked to be one that the
protocol allows, and where it allows only one, to be that one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from lockmgr import (
    Blocked,
    Busy,
    DeadlockReport,
    Denial,
    Denied,
    Edge,
    EdgeKind,
    Effects,
    Ended,
    Grant,
    Granted,
    LockTable,
    Mode,
    Predicate,
    Reply,
    RequestView,
    Resource,
)
from lockmgr._modes import SUPREMUM
from tests.lockmgr.model import BLOCKED_BY, Model, Queues, Row, of


class Oracle:
    """Oracle that repeats each call on the model, and fails unless it could have had that outcome.

    `seen` counts what happened, so that a test can require how much was tried.
    """

    def __init__(self, table: LockTable, model: Model, seen: Counter[str]) -> None:
        self.table = table
        self.model = model
        self.seen = seen
        self.counted: Counter[str] = Counter()
        self.cycles_before = 0
        self.agrees = True

    # -- a method per call -------------------------------------------------------------------

    def begun(self, tid: int, parent: int | None, causes: Iterable[int], inline: bool) -> None:
        self.model.begin(tid, parent, causes, inline)
        self.compare()

    def requested(self, tid: int, resource: Resource, mode: Mode, reply: Reply) -> None:
        natural = self._enqueued(tid, resource, mode, reply)
        if natural is not None:
            self._judge_wait(tid, reply, natural)
        self.compare()

    def tried(
        self,
        tid: int,
        resource: Resource,
        mode: Mode,
        reply: Reply,
        would_be_granted: Callable[[], bool],
    ) -> None:
        """Judge a request that did not want to wait.

        `would_be_granted` returns whether the same request, if it could wait, would be granted
        immediately without changing the queue.
        """
        natural = self._enqueued(tid, resource, mode, reply)
        if natural is None:
            self.compare()
            return
        model = self.model
        if not model.on_cycles(natural):
            edges = model.wait_edges(tid, natural)
            assert isinstance(reply, Busy if edges else Granted)
            assert not isinstance(reply, Busy) or sorted(reply.edges) == sorted(edges)
        else:
            self.seen["nowait into a cycle"] += 1
            assert isinstance(reply, Granted) == would_be_granted()
            assert not isinstance(reply, Busy) or reply.edges
        assert isinstance(reply, Granted | Busy)
        assert reply.effects == ()
        if isinstance(reply, Granted):
            self._grant(Grant(tid, *model.asked[tid]))
        else:
            assert self.table.counters.deadlocks == self.cycles_before
            model.stop_waiting(tid)
        self.compare()

    def awaited(self, tid: int, of_whom: int, wait: bool, reply: Reply) -> None:
        if of_whom not in self.model.parents:
            assert reply == Granted()
        elif wait:
            self.model.awaited[tid] = of_whom
            self._judge_wait(tid, reply, self.model.queues)
        else:
            assert reply == Busy((Edge(tid, of_whom, EdgeKind.DEPENDENCY),))
        self.compare()

    def stopped(self, tid: int, effects: Effects) -> None:
        self._stop_waiting(tid, self.model.queues)
        self._judge_quiet(effects)
        self.compare()

    def overtook(self, tid: int, effects: Effects) -> None:
        """Judge a request that is to be granted ahead of its queue, if that harms no other."""
        model = self.model
        if tid in model.asked and not model.in_the_way(tid, *model.asked[tid]):
            resource, mode = model.asked[tid]
            queue = model.queues[resource]
            first = [tid, *(other for other in queue if other != tid)]
            if not model.on_cycles({**model.queues, resource: first}):
                self.seen["overtook"] += 1
                assert effects[:1] == (Grant(tid, resource, mode),)
                queue.remove(tid)
                self._grant(Grant(tid, resource, mode))
                effects = effects[1:]
            else:
                self.seen["overtook no other"] += 1
        self._judge_quiet(effects)
        self.compare()

    def downgraded(self, tid: int, to: Mapping[Resource, Mode | None], effects: Effects) -> None:
        for resource, mode in to.items():
            self.model.downgrade(tid, resource, mode)
        self._judge_quiet(effects)
        self.compare()

    def ended(self, tid: int, heir: int | None, effects: Effects, *, committed: bool) -> None:
        waiters = self.model.end(tid, heir, committed=committed)
        over = [effect for effect in effects if isinstance(effect, Ended)]
        assert sorted(over) == [Ended(waiter, tid) for waiter in sorted(waiters)]
        self.seen["ends awaited"] += len(over)
        others = tuple(effect for effect in effects if not isinstance(effect, Ended))
        if self.model.on_cycles(self.model.queues):
            assert heir is not None
            self.seen["cycles at inheritance"] += 1
            self._judge_break(heir, others, self.model.queues, inherited=True)
        else:
            self._judge_quiet(others)
        self.compare()

    def declared(
        self,
        tid: int,
        table: Resource,
        rows: list[Row] | None,
        predicate: Predicate | None,
        *,
        first: bool,
    ) -> None:
        needed = self.model.declare(tid, table, rows, first=first)
        assert predicate in needed if needed else predicate is None
        self.seen["to be locked before" if needed else "declared"] += 1
        self.compare()

    # -- the whole state ---------------------------------------------------------------------

    def compare(self) -> None:
        """Compare the table with the model, to the last edge."""
        model, snapshot = self.model, self.table.snapshot()
        views = [view._replace(causes=tuple(sorted(view.causes))) for view in snapshot.transactions]
        assert views == model.transaction_views()
        assert Counter(snapshot.locks) == Counter(model.lock_views())
        queues: Queues = {}
        for view in snapshot.queue:
            queues.setdefault(view.resource, []).append(view.tid)
            upgrade = (view.tid, view.resource) in model.held
            resource, mode = model.asked[view.tid]
            assert view == RequestView(resource, view.tid, mode, upgrade)
        assert queues == model.queues
        assert sum(map(len, queues.values())) == len(model.asked)
        assert Counter(snapshot.edges) == Counter(model.edges(queues))
        assert not model.on_cycles(queues)
        for resource, queue in queues.items():
            for tid in queue:
                assert model.blockers(tid, queue), f"{tid} waits for no transaction on {resource}"
        for tid in model.parents:
            assert tid in self.table
            assert self.table.held(tid) == of(tid, model.held)
            assert self.table.retained(tid) == of(tid, model.retained)
        counters = self.table.counters
        for name, number in self.counted.items():
            assert getattr(counters, name) == number, name
        self.cycles_before = counters.deadlocks
        self.agrees = True

    # -- what may happen ---------------------------------------------------------------------

    def _enqueued(self, tid: int, resource: Resource, mode: Mode, reply: Reply) -> Queues | None:
        """Let the model ask; None if nothing was needed, else the queues with it in its turn."""
        model = self.model
        self.counted["requests"] += 1
        self.seen[type(reply).__name__] += 1
        if model.may_use(tid, resource, mode):
            assert reply == Granted()
            self.counted["grants"] += 1
            return None
        model.meet(resource)
        held = model.held.get((tid, resource))
        model.asked[tid] = (resource, mode if held is None else SUPREMUM[held][mode])
        return model.enqueued(tid, model.queues)

    def _judge_wait(self, tid: int, reply: Reply, natural: Queues) -> None:
        """Judge a request or a wait for an end that the model already knows."""
        model = self.model
        if model.on_cycles(natural):
            self.seen["cycles at a wait"] += 1
            self._judge_cycle(tid, reply, natural)
            return
        assert self.table.counters.deadlocks == self.cycles_before
        assert reply.effects == ()
        edges = model.wait_edges(tid, natural)
        if edges:
            assert isinstance(reply, Blocked)
            assert sorted(self.table.edges(tid)) == sorted(edges)
            model.queues = natural
        else:
            assert isinstance(reply, Granted)
            self._grant(Grant(tid, *model.asked[tid]))

    def _judge_cycle(self, tid: int, reply: Reply, natural: Queues) -> None:
        model = self.model
        expected = self._only_place(tid, natural)
        effects = [*reply.effects]
        if isinstance(reply, Denied):
            denials = sum(isinstance(effect, Denial) for effect in effects)
            effects.insert(denials, Denial(tid, reply.report))
        elif isinstance(reply, Granted):
            effects.append(Grant(tid, *model.asked[tid]))
        self._judge_break(tid, effects, natural, inherited=False)
        assert model.waits(tid) == isinstance(reply, Blocked)
        if isinstance(reply, Blocked):
            assert sorted(self.table.edges(tid)) == sorted(model.wait_edges(tid, model.queues))
        if expected is not None:
            self.seen["own turn passed"] += 1
            assert model.queues == expected
            assert reply.effects == ()

    def _only_place(self, tid: int, natural: Queues) -> Queues | None:
        """Return the queues with a request ahead that only politeness keeps waiting, on a cycle.

        It goes no further ahead than it has to. With children it might not have to move at all, if
        others wait for it.
        """
        model = self.model
        if tid in model.awaited or model.children(tid) or model.in_the_way(tid, *model.asked[tid]):
            return None
        resource = model.asked[tid][0]
        orders = self._places_ahead(tid, natural[resource])
        candidates = ({**natural, resource: order} for order in orders)
        queues = next(queues for queues in candidates if not model.on_cycles(queues))
        if not model.wait_edges(tid, queues):
            queues[resource] = [other for other in queues[resource] if other != tid]
        return queues

    def _places_ahead(self, tid: int, queue: list[int]) -> Iterable[list[int]]:
        """A queue with one moved ahead, ever further."""
        others = [other for other in queue if other != tid]
        for place in reversed(range(queue.index(tid))):
            yield [*others[:place], tid, *others[place:]]

    def _judge_break(
        self,
        pivot: int,
        effects: Sequence[Grant | Denial | Ended],
        natural: Queues,
        *,
        inherited: bool,
    ) -> None:
        """Judge how cycles were broken: moves in queues, then victims, then who could go on."""
        model = self.model
        after = self._queues()
        moved = self._moved(natural, effects, after)
        if not moved <= model.on_cycles(natural):
            assert not self._one_move_would_do(natural), "moved without need"
            self.seen["arranged anew"] += 1
        self.seen["moved"] += len(moved)
        denials = [effect for effect in effects if isinstance(effect, Denial)]
        model.queues = {resource: list(queue) for resource, queue in natural.items()}
        for tid, report in denials:
            assert report.victim == tid
            self._judge_report(report, pivot, inherited=inherited)
            self._judge_need(report, moved=bool(moved) or len(denials) > 1)
            self._stop_waiting(tid, model.queues)
        self.counted["victims"] += len(denials)
        self.seen[f"denied by {model.policy}"] += len(denials)
        cycles = self.table.counters.deadlocks - self.cycles_before
        assert cycles >= max(1, len(denials))
        for effect in effects[len(denials) :]:
            assert isinstance(effect, Grant)
            self._grant(effect)
        model.queues = after

    def _one_move_would_do(self, queues: Queues) -> bool:
        """Return whether moving one waiter leaves no cycle: no queue may be rearranged then."""
        for resource, queue in queues.items():
            for place, tid in enumerate(queue):
                rest = [*queue[:place], *queue[place + 1 :]]
                for ahead in range(place):
                    order = [*rest[:ahead], tid, *rest[ahead:]]
                    if not self.model.on_cycles({**queues, resource: order}):
                        return True
        return False

    def _judge_report(self, report: DeadlockReport, pivot: int, *, inherited: bool) -> None:
        """The cycle is true, and its victim is the one that the policy wants."""
        model, cycle = self.model, report.cycle
        assert report.policy == model.policy
        true = model.edges(model.queues)
        for edge, following in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            assert edge.waited_for == following.waiter
            assert edge.kind is not EdgeKind.INLINE or following.kind in BLOCKED_BY
            self.seen[f"{edge.kind} edges in cycles"] += 1
            if edge.kind is not EdgeKind.SOFT:
                assert edge in true
                continue
            # Moves in the same call may have turned it round, or made it.
            resource, mode = model.asked[edge.waiter]
            assert edge[3:] == (resource, mode, model.asked[edge.waited_for][1])
            assert {edge.waiter, edge.waited_for} <= set(model.queues[resource])
            assert model.conflict(edge.waiter, edge.waited_for)
        closing = (
            edge.waited_for == pivot and edge.kind is not EdgeKind.INLINE
            if inherited
            else edge.waiter == pivot
            for edge in cycle
        )
        first = next(place for place, closes in enumerate(closing) if closes)
        named = model.named([*cycle[first:], *cycle[:first]])
        blocked = [edge.waiter for edge in cycle if edge.kind in BLOCKED_BY]
        victim = report.victim
        assert victim in blocked
        assert not any(victim in model.superiors(tid) for tid in blocked), "not the smallest"
        if any(named in model.superiors(tid) for tid in blocked):
            assert named in model.superiors(victim)
        else:
            assert victim == named

    def _judge_need(self, report: DeadlockReport, *, moved: bool) -> None:
        """No other order of the queues would have broken the cycle."""
        model = self.model
        soft = [edge for edge in report.cycle if edge.kind is EdgeKind.SOFT]
        if not model.inline:
            assert not soft, "denied without need"
        elif not moved:
            for edge in soft:
                tid, resource = edge.waiter, model.asked[edge.waiter][0]
                for order in self._places_ahead(tid, model.queues[resource]):
                    cycles = model.on_cycles({**model.queues, resource: order})
                    assert tid in cycles, "denied without need"

    def _judge_quiet(self, effects: Effects) -> None:
        """Judge a change that closed no cycle: the heads of the queues go, no waiter moves."""
        model = self.model
        assert self.table.counters.deadlocks == self.cycles_before
        expected: list[Grant] = []
        for queue in model.queues.values():
            for tid in list(queue):
                if not model.blockers(tid, queue):
                    grant = Grant(tid, *model.asked[tid])
                    expected.append(grant)
                    queue.remove(tid)
                    self._grant(grant)
        assert sorted(effects) == sorted(expected)
        model.queues = {resource: queue for resource, queue in model.queues.items() if queue}

    def _moved(self, natural: Queues, effects: Sequence[object], after: Queues) -> set[int]:
        """Return the waiters that have passed another that conflicts with them and still waits."""
        granted = {effect.tid for effect in effects if isinstance(effect, Grant)}
        moved: set[int] = set()
        for resource, queue in natural.items():
            left = after.get(resource, [])
            for place, tid in enumerate(queue):
                for other in queue[:place]:
                    if other not in left or not self.model.conflict(tid, other):
                        continue
                    if tid in granted or tid in left[: left.index(other)]:
                        moved.add(tid)
        return moved

    def _grant(self, grant: Grant) -> None:
        """Rule 1."""
        model = self.model
        assert model.asked[grant.tid] == grant[1:]
        assert not model.in_the_way(*grant)
        model.stop_waiting(grant.tid)
        model.hold(*grant)
        self.counted["grants"] += 1

    def _stop_waiting(self, tid: int, queues: Queues) -> None:
        if tid in self.model.asked:
            queues[self.model.asked[tid][0]].remove(tid)
        self.model.stop_waiting(tid)

    def _queues(self) -> Queues:
        queues: Queues = {}
        for view in self.table.snapshot().queue:
            queues.setdefault(view.resource, []).append(view.tid)
        return queues
