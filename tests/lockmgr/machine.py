"""A lock table driven by Hypothesis at random, each step judged by the naive model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, TypeAlias, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from lockmgr import (
    Denied,
    Granted,
    LockTable,
    LockUsageError,
    Mode,
    Reply,
    Resource,
    VerifyingLockTable,
)
from lockmgr._modes import SUPREMUM
from tests.lockmgr.model import Model, of
from tests.lockmgr.oracle import Oracle

POLICIES = ("requester", "blocker", "youngest", "smallest hierarchy", "least work")
LIVE_MAX = 10
NOBODY = 99
"""A number that no transaction ever has."""

Something = TypeVar("Something")
Step = TypeVar("Step", bound=Callable[..., None])
Downgrade: TypeAlias = tuple[int, Resource, Mode | None]
Misuse: TypeAlias = tuple[str, Callable[[], object]]


def some(who: Callable[[LockMachine], Sequence[object]]) -> Callable[[Step], Step]:
    """Take a step only if some transaction can."""

    def decorate(step: Step) -> Step:
        return precondition(lambda machine: bool(who(machine)))(step)

    return decorate


class LockMachine(RuleBasedStateMachine):
    """One run: a fresh table with a policy of its own, then steps, and at last everybody ends."""

    table_class: ClassVar[type[LockTable]] = VerifyingLockTable
    resources: ClassVar[Sequence[Resource]] = (("a",), ("b",), ("c",), ("c", 1))
    seen: ClassVar[Counter[str]] = Counter()
    """Tally of what happened, in all runs of the class."""

    model: Model
    table: LockTable
    oracle: Oracle

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Callable[[LockTable], object]] = []
        self.refused = 0

    @initialize(data=st.data(), policy=st.sampled_from(POLICIES))
    def open(self, data: st.DataObject, policy: str) -> None:
        self.model = Model(policy)
        self.settle_more(data)
        self.table = self.new_table()
        self.oracle = self.new_oracle()
        self.seen["runs"] += 1

    def settle_more(self, data: st.DataObject) -> None:
        """Draw what else the table of this run is made with."""

    def new_table(self) -> LockTable:
        return self.table_class(self.model.policy)

    def new_oracle(self) -> Oracle:
        return Oracle(self.table, self.model, self.seen)

    def teardown(self) -> None:
        self.seen["steps"] += len(self.log) + self.refused
        self.seen["refused"] += self.refused
        if self.log and self.oracle.agrees:
            self.finish()

    # -- who can do what ---------------------------------------------------------------------

    def live(self) -> list[int]:
        return list(self.model.parents)

    def acting(self) -> list[int]:
        """Return the transactions on threads that are awake."""
        return [tid for tid in self.live() if not self.model.is_stalled(tid)]

    def leaves(self) -> list[int]:
        return [tid for tid in self.acting() if not self.model.children(tid)]

    def waiting(self) -> list[int]:
        return [tid for tid in self.live() if self.model.waits(tid)]

    def committing(self) -> list[int]:
        return [tid for tid in self.leaves() if not self.model.causes[tid]]

    def aborting(self) -> list[int]:
        """Return the transactions that may abort; a thread may sleep in a superior's call."""
        model = self.model
        caused = set().union(*model.causes.values())
        idle = [tid for tid in self.live() if not model.waits(tid) and not model.children(tid)]
        return [tid for tid in idle if tid not in caused]

    def holding(self) -> list[int]:
        return [tid for tid in self.acting() if of(tid, self.model.held)]

    def downgrades(self) -> list[Downgrade]:
        """Return which transactions may downgrade what to what."""
        return [
            (tid, resource, mode)
            for tid in self.holding()
            for resource, held in of(tid, self.model.held).items()
            for mode in weaker(held)
        ]

    def has_room(self) -> bool:
        return len(self.live()) < LIVE_MAX

    # -- steps -------------------------------------------------------------------------------

    @precondition(has_room)
    @rule()
    def begin(self) -> None:
        self._begin(None)

    @precondition(lambda self: self.live() and self.has_room())
    @rule(data=st.data())
    def begin_dependent(self, data: st.DataObject) -> None:
        causes = st.lists(st.sampled_from(self.live()), min_size=1, max_size=2)
        self._begin(None, data.draw(causes))

    @precondition(lambda self: self.live() and self.has_room())
    @rule(data=st.data(), offering=st.booleans(), inline=st.booleans())
    def begin_child(self, data: st.DataObject, offering: bool, inline: bool) -> None:
        parent = pick(data, self.live())
        is_awake = not self.model.is_stalled(parent)
        if offering and is_awake:
            self._offer(parent)
        inline = inline and is_awake and self.model.may_begin_inline(parent)
        self._begin(parent, inline=inline)

    @some(leaves)
    @rule(data=st.data(), mode=st.sampled_from(Mode))
    def ask(self, data: st.DataObject, mode: Mode) -> None:
        self._ask(pick(data, self.leaves()), pick(data, self.resources), mode)

    @some(leaves)
    @rule(data=st.data(), mode=st.sampled_from((Mode.S, Mode.X)))
    def ask_to_read_or_write(self, data: st.DataObject, mode: Mode) -> None:
        self._ask(pick(data, self.leaves()), pick(data, self.resources), mode)

    @some(acting)
    @rule(data=st.data(), mode=st.sampled_from(Mode))
    def ask_as_a_superior(self, data: st.DataObject, mode: Mode) -> None:
        self._ask(pick(data, self.acting()), pick(data, self.resources), mode)

    @precondition(lambda self: self.model.asked and self.acting())
    @rule(data=st.data(), mode=st.sampled_from(Mode), wait=st.booleans())
    def ask_where_others_wait(self, data: st.DataObject, mode: Mode, wait: bool) -> None:
        self._ask(pick(data, self.acting()), pick(data, list(self.model.queues)), mode, wait)

    @some(acting)
    @rule(data=st.data(), mode=st.sampled_from(Mode))
    def ask_without_waiting(self, data: st.DataObject, mode: Mode) -> None:
        self._ask(pick(data, self.acting()), pick(data, self.resources), mode, wait=False)

    @some(acting)
    @rule(data=st.data(), wait=st.sampled_from((True, True, True, False)))
    def await_end(self, data: st.DataObject, wait: bool) -> None:
        tid = pick(data, self.acting())
        others = [NOBODY, *(other for other in self.live() if other != tid)]
        of_whom = pick(data, others + sorted(self.model.causes[tid]) * len(others))
        self._await_end(tid, of_whom, wait)

    @precondition(lambda self: len(self.live()) > 2 and self.committing())
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self._commit(pick(data, self.committing()))

    @precondition(lambda self: len(self.live()) > 2 and self.aborting())
    @rule(data=st.data(), for_an_heir=st.booleans())
    def abort(self, data: st.DataObject, for_an_heir: bool) -> None:
        tid = pick(data, self.aborting())
        superiors = self.model.superiors(tid)
        self._abort(tid, pick(data, superiors) if for_an_heir and superiors else None)

    @some(waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self._cancel(pick(data, self.waiting() * 2 + self.live()))

    @some(waiting)
    @rule(data=st.data())
    def overtake(self, data: st.DataObject) -> None:
        model = self.model
        free = [tid for tid in model.asked if not model.in_the_way(tid, *model.asked[tid])]
        self._overtake(pick(data, free or self.live()))

    @some(holding)
    @rule(data=st.data())
    def offer(self, data: st.DataObject) -> None:
        self._offer(pick(data, self.holding()))

    @some(downgrades)
    @rule(data=st.data())
    def downgrade(self, data: st.DataObject) -> None:
        tid, resource, mode = pick(data, self.downgrades())
        effects = self._call(lambda table: table.downgrade(tid, resource, mode))
        self.oracle.downgraded(tid, {resource: mode}, effects)

    @precondition(lambda self: self.refused * 12 < len(self.log))
    @rule(data=st.data())
    def misuse(self, data: st.DataObject) -> None:
        """Misuse of the protocol is refused, and leaves no trace."""
        what, call = pick(data, self.misuses())
        before = self.table.snapshot(), self.table.dump(), replace(self.table.counters)
        self.oracle.agrees = False
        try:
            call()
        except LockUsageError as error:
            refusal = error
        else:
            raise AssertionError(f"allowed: {what}")
        assert str(refusal).startswith(f"{refusal.rule}: "), what
        assert (self.table.snapshot(), self.table.dump(), self.table.counters) == before, what
        self.oracle.agrees = True
        self.refused += 1

    def misuses(self) -> list[Misuse]:
        """Return the calls that are not allowed now."""
        table, model, somewhere = self.table, self.model, self.resources[0]
        new = self._number()
        found: list[Misuse] = []

        def add(what: str, call: Callable[..., object], *args: object, **kwargs: object) -> None:
            found.append((what, lambda: call(*args, **kwargs)))

        add("begin under an unknown parent", table.begin, new, NOBODY)
        add("begin inline without a parent", table.begin, new, inline=True)
        add("begin with an unknown cause", table.begin, new, causes=[NOBODY])
        for call in (table.commit, table.abort, table.cancel, table.overtake, table.offer):
            add("call for an unknown transaction", call, NOBODY)
        add("request by an unknown transaction", table.request, NOBODY, somewhere, Mode.S)
        add("wait by an unknown transaction", table.await_end, NOBODY, NOBODY)
        add("downgrade by an unknown transaction", table.downgrade, NOBODY, somewhere, None)
        for tid in model.parents:
            add("begin twice", table.begin, tid)
            add("begin of a child with causes", table.begin, new, tid, causes=[tid])
            if not model.may_begin_inline(tid):
                add("begin inline where another runs", table.begin, new, tid, inline=True)
            if model.children(tid):
                add("commit before the children", table.commit, tid)
                add("abort before the children", table.abort, tid)
            if model.causes[tid]:
                add("commit before the causes", table.commit, tid)
            if any(tid in causes for causes in model.causes.values()):
                add("abort before the dependents", table.abort, tid)
            for heir in {NOBODY, *model.parents}.difference(model.superiors(tid)):
                add("abort for a stranger", table.abort, tid, heir)
            if model.waits(tid):
                for call in (table.commit, table.abort, table.offer):
                    add("call while waiting", call, tid)
                add("request while waiting", table.request, tid, somewhere, Mode.IS)
                add("nowait while waiting", table.request, tid, somewhere, Mode.IS, wait=False)
                add("wait while waiting", table.await_end, tid, NOBODY)
            else:
                add("wait for itself", table.await_end, tid, tid)
                if model.waits(model.innermost(tid)):
                    add("wait on a thread that sleeps", table.await_end, tid, model.innermost(tid))
            for resource in self.resources:
                held = model.held.get((tid, resource))
                if held is None or model.waits(tid):
                    add("downgrade of what is not held", table.downgrade, tid, resource, None)
                else:
                    for mode in set(Mode).difference(weaker(held)):
                        add("downgrade to no less", table.downgrade, tid, resource, mode)
        return found

    # -- calls -------------------------------------------------------------------------------

    def _number(self) -> int:
        """The lowest free number, so that numbers do not tell who began first."""
        return next(tid for tid in range(1, NOBODY) if tid not in self.model.parents)

    def _call(self, call: Callable[[LockTable], Something]) -> Something:
        self.oracle.agrees = False
        outcome = call(self.table)
        self.log.append(call)
        return outcome

    def _begin(
        self, parent: int | None, causes: Iterable[int] = (), *, inline: bool = False
    ) -> None:
        tid = self._number()
        self._call(lambda table: table.begin(tid, parent, causes=causes, inline=inline))
        self.oracle.begun(tid, parent, causes, inline)

    def _ask(self, tid: int, resource: Resource, mode: Mode, wait: bool = True) -> Reply:
        if wait:
            reply = self._call(lambda table: table.request(tid, resource, mode))
            self.oracle.requested(tid, resource, mode, reply)
            return reply

        def would_be_granted() -> bool:
            """Ask a twin of the table, as it was before this call."""
            twin = self.new_table()
            for call in self.log[:-1]:
                call(twin)
            before = twin.snapshot().queue
            reply = twin.request(tid, resource, mode)
            return isinstance(reply, Granted) and twin.snapshot().queue == before

        reply = self._call(lambda table: table.request(tid, resource, mode, wait=False))
        self.oracle.tried(tid, resource, mode, reply, would_be_granted)
        return reply

    def _await_end(self, tid: int, of_whom: int, wait: bool = True) -> Reply:
        reply = self._call(lambda table: table.await_end(tid, of_whom, wait=wait))
        self.oracle.awaited(tid, of_whom, wait, reply)
        return reply

    def _cancel(self, tid: int) -> None:
        self.oracle.stopped(tid, self._call(lambda table: table.cancel(tid)))

    def _overtake(self, tid: int) -> None:
        self.oracle.overtook(tid, self._call(lambda table: table.overtake(tid)))

    def _offer(self, tid: int) -> None:
        effects = self._call(lambda table: table.offer(tid))
        self.oracle.downgraded(tid, dict.fromkeys(of(tid, self.model.held)), effects)

    def _commit(self, tid: int) -> None:
        effects = self._call(lambda table: table.commit(tid))
        self.oracle.ended(tid, self.model.parents[tid], effects, committed=True)

    def _abort(self, tid: int, heir: int | None = None) -> None:
        effects = self._call(lambda table: table.abort(tid, heir))
        self.oracle.ended(tid, heir, effects, committed=False)

    def finish(self) -> None:
        """End all transactions: without an undetected deadlock one of them can always go on."""
        while self.live():
            able = self.committing()
            if able:
                self._commit(able[0])
                continue
            dependent = self.leaves()
            assert dependent, f"stuck:\n{self.table.dump()}"
            cause = min(self.model.causes[dependent[0]])
            if isinstance(self._await_end(dependent[0], cause), Denied):
                self._abandon(dependent[0])
        assert self.table.dump() == "empty"

    def _abandon(self, tid: int) -> None:
        """Abort a transaction, after its inferiors and dependents."""
        if self.model.waits(tid):
            self._cancel(tid)
        while needing := [
            other
            for other in self.live()
            if self.model.parents[other] == tid or tid in self.model.causes[other]
        ]:
            self._abandon(needing[0])
        self._abort(tid)


def weaker(held: Mode) -> list[Mode | None]:
    """Return the modes to which a lock may be downgraded."""
    return [None, *(mode for mode in Mode if mode is not held and SUPREMUM[held][mode] is held)]


def pick(data: st.DataObject, among: Sequence[Something]) -> Something:
    return data.draw(st.sampled_from(among))
