"""The axioms evaluated as they are written: every quantifier a loop over the whole history."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from coupling.acta import (
    AbortEvent,
    AbortOperation,
    BeginEvent,
    CommitEvent,
    CommitOperation,
    DelegateEvent,
    Event,
    History,
    ObjectOperation,
    SpawnEvent,
    SpawnMode,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Naive"]

IMM, DEF = SpawnMode.IMMEDIATE, SpawnMode.DEFERRED


class Naive:
    """Naive search for the transactions that break an axiom, in O(n³) and worse."""

    def __init__(self, history: History):
        self.h = list(enumerate(history.events))
        self.all: list[int] = []
        for _, e in self.h:
            self.all += [e.by, e.child] if isinstance(e, SpawnEvent) else [e.by]
        self.all = sorted(set(self.all))
        self.ops = [(i, e) for i, e in self.h if isinstance(e, ObjectOperation)]

    # -- functions of the paper ------------------------------------------------------------

    def own(self, t: int | None, *kinds: type[Event]) -> list[int]:
        return [i for i, e in self.h if e.by == t and (not kinds or isinstance(e, kinds))]

    def spawns(self, t: int) -> list[tuple[int, SpawnEvent]]:
        return [(i, e) for i, e in self.h if isinstance(e, SpawnEvent) and e.child == t]

    def is_child(self, t: int) -> bool:
        return any(e.mode.is_child for _, e in self.spawns(t))

    def parent(self, t: int) -> int | None:
        if spawns := self.spawns(t):
            return spawns[0][1].parent
        found = [e.parent for _, e in self.h if isinstance(e, BeginEvent) and e.by == t]
        return next((p for p in reversed(found) if p is not None), None)

    def line(self, t: int) -> list[int]:
        found = [t]
        while (p := self.parent(found[-1])) in self.all and p not in found:
            found.append(p)
        return found

    def has_circles(self) -> bool:
        return any(self.parent(self.line(t)[-1]) in self.all for t in self.all)

    def open_to(self, t: int | None) -> list[int]:
        """Return the transactions whose operations in progress are no obstacle to `t`."""
        found: list[int] = []
        while t is not None and t not in found:
            line = self.line(t)
            found += line
            causes = [e.by for _, e in self.spawns(line[-1]) if e.mode is SpawnMode.CAUSAL]
            t = causes[0] if causes else None
        return found

    def first_end(self, t: int) -> int | None:
        return min(self.own(t, CommitEvent, AbortEvent), default=None)

    def named(self, number: int) -> int | None:
        return next((i for i, e in self.ops if e.number == number), None)

    def state(self, p: int, until: int | None = None) -> tuple[str, int, int | None]:
        """Return the state of operation `p` before position `until`, and who is responsible."""
        responsible, status = self.h[p][1].by, "in progress"
        for i, e in self.h[p + 1 : until]:
            if isinstance(e, DelegateEvent) and e.by == responsible and e.to in self.all:
                if e.operations is None or p in map(self.named, e.operations):
                    responsible = e.to
            elif isinstance(e, CommitOperation | AbortOperation):
                if e.by == responsible and self.named(e.operation) == p:
                    status = "aborted" if isinstance(e, AbortOperation) else "committed"
            elif isinstance(e, CommitEvent | AbortEvent) and self.first_end(e.by) == i:
                ends_all = not self.is_child(e.by) and e.by in (
                    responsible,
                    self.line(responsible)[-1],
                )
                if isinstance(e, AbortEvent) and (e.by == responsible or ends_all):
                    status = "aborted"
                elif ends_all:
                    status = "committed"
            if status != "in progress":
                return status, responsible, i
        return status, responsible, None

    def undone_at(self, t: int) -> int | None:
        return min((i for a in self.line(t) for i in self.own(a, AbortEvent)), default=None)

    def durable_at(self, t: int) -> int | None:
        line = self.line(t)
        if all(self.own(a, CommitEvent) and not self.own(a, AbortEvent) for a in line):
            return max(self.own(a, CommitEvent)[0] for a in line)
        return None

    # -- the axioms ------------------------------------------------------------------------

    def violations(self) -> set[tuple[int, int]]:
        found: set[tuple[int, int]] = set()
        for t in self.all:
            found |= {(n, t) for n in self.alone(t)}
        return found | self.operations() | self.cycles() | self.pairs()

    def alone(self, t: int) -> Iterator[int]:
        child, spawns = self.is_child(t), self.spawns(t)
        begins, ends = self.own(t, BeginEvent), sorted(self.own(t, CommitEvent, AbortEvent))
        ops, own = self.own(t, ObjectOperation), self.own(t)
        if not child and self.own(t, DelegateEvent):
            yield 1
        if child and begins:
            yield 4
        starts = [i for i, _ in spawns] + ([] if child else begins)
        others = [i for i in own if i not in begins]
        if not starts or any(i < min(starts) for i in others):
            yield 5 if child else 2
        promise = spawns and not child and not own
        late = [i for i in own if ends and i > ends[0] and i not in ops]
        if (not ends and not promise) or late:
            yield 6 if child else 3
        initiated = [i for i, _ in spawns] + begins
        if len(begins) > 1 or len(spawns) > 1:
            yield 7
        for q in ops:
            if not initiated or q < min(initiated) or (ends and q > ends[0]):
                yield 7
        if begins and self.parent(t) is not None:
            yield 16
        for _, e in spawns:
            if e.mode in (IMM, DEF) and e.parent != e.by:
                yield 18
            if e.mode not in (IMM, DEF) and e.parent is not None:
                yield 20
        if self.parent(t) is None:
            if child:
                yield 26
        elif (
            not child
            or spawns[0][1].by != self.parent(t)
            or self.parent(self.line(t)[-1]) is not None
        ):
            yield 26
        if child and self.own(t, CommitEvent) and not self.own(t, DelegateEvent):
            yield 24

    def access_set(self, t: int, at: int) -> list[int]:
        return [p for p, _ in self.ops if p < at and self.state(p, at)[:2] == ("in progress", t)]

    def operations(self) -> set[tuple[int, int]]:
        found: set[tuple[int, int]] = set()
        e: Event
        for q, e in self.ops:
            if self.named(e.number) != q:
                found.add((7, e.by))
            if e.saw is not None and e.is_read:
                written = [
                    p
                    for p, w in self.ops
                    if p < q
                    and not w.is_read
                    and w.object == e.object[: len(w.object)]
                    and self.state(p, q)[0] != "aborted"
                ]
                if max(written, default=-1) != (self.named(e.saw) if e.saw else -1):
                    found.add((8, e.by))
            for p, before in self.ops:
                if p >= q or not before.conflicts_with(e):
                    continue
                status, owner, _ = self.state(p, q)
                if status == "in progress" and owner != e.by:
                    if e.by in self.line(owner):
                        found.add((25, e.by))
                    elif owner not in self.open_to(e.by):
                        found.add((17 if self.is_child(e.by) else 9, e.by))
                final, _, when = self.state(p)
                is_kept = self.state(q)[0] != "aborted"
                if not before.is_read and final == "aborted" and (when or 0) > q and is_kept:
                    found.add((10, e.by))
        for i, e in self.h:
            t = e.by
            if isinstance(e, CommitOperation | AbortOperation):
                kind, axiom = (
                    (CommitEvent, 12) if isinstance(e, CommitOperation) else (AbortEvent, 14)
                )
                if not self.own(t, kind) or (axiom == 12 and self.is_child(t)):
                    found.add((axiom, t))
                if self.named(e.operation) not in self.access_set(t, i):
                    found.add((7, t))
            elif isinstance(e, CommitEvent | AbortEvent) and self.first_end(t) == i:
                tells = [j for j in self.own(t, CommitOperation, AbortOperation) if j < i]
                is_abort = isinstance(e, AbortEvent)
                if tells and self.access_set(t, i) and (is_abort or not self.is_child(t)):
                    found.add((15 if is_abort else 13, t))
            elif isinstance(e, DelegateEvent):
                access = self.access_set(t, i)
                if e.operations is not None:
                    named = [self.named(n) for n in e.operations]
                    if any(p not in access for p in named):
                        found.add((7, t))
                    if any(p not in named for p in access):
                        found.add((24, t))
                if (
                    not self.is_child(t)
                    or not self.own(t, CommitEvent)
                    or e.to != self.parent(t)
                    or len(self.own(t, DelegateEvent)) > 1
                ):
                    found.add((24, t))
        return found

    def cycles(self) -> set[tuple[int, int]]:
        kept = [(i, e) for i, e in self.ops if self.state(i)[0] != "aborted"]
        edges = set()
        for (p, a), (q, b) in product(kept, kept):
            if p < q and a.conflicts_with(b):
                one, other = self.line(a.by)[::-1], self.line(b.by)[::-1]
                for x, y in zip(one, other, strict=False):
                    if x != y:
                        edges.add((x, y))
                        break
        reach = set(edges)
        for middle, x, y in product(self.all, self.all, self.all):
            if (x, middle) in reach and (middle, y) in reach:
                reach.add((x, y))
        found = set()
        for t in self.all:
            if (t, t) in reach:
                mates = [u for u in self.all if (t, u) in reach and (u, t) in reach]
                committed = [u for u in mates if self.own(u, CommitEvent)]
                if committed:
                    found.add((11, min(committed)))
        return found

    def pairs(self) -> set[tuple[int, int]]:
        found: set[tuple[int, int]] = set()
        spawned = [(i, e) for i, e in self.h if isinstance(e, SpawnEvent)]
        for _, e in spawned:
            tp, tc = e.by, e.child
            p_ops, c_ops = self.own(tp, ObjectOperation), self.own(tc, ObjectOperation)
            commits, aborts = self.own(tc, CommitEvent), self.own(tc, AbortEvent)
            if e.mode.is_child:
                for aborted in self.own(tp, AbortEvent)[:1]:
                    if not (commits and commits[0] < aborted) and not aborts:
                        found.add((19, tc))
                for committed in self.own(tp, CommitEvent)[:1]:
                    if not any(end < committed for end in commits + aborts):
                        found.add((19, tc))
            elif self.own(tc):
                undone, durable = self.undone_at(tp), self.durable_at(tp)
                if e.mode is SpawnMode.CAUSAL and undone is not None and not aborts:
                    found.add((21, tc))
                if e.mode is SpawnMode.SEQUENTIAL and (
                    durable is None or min(self.own(tc)) < durable
                ):
                    found.add((22, tc))
                if e.mode is SpawnMode.EXCLUSIVE and (
                    (durable is not None and not aborts)
                    or (commits and (undone is None or commits[0] < undone))
                ):
                    found.add((23, tc))
            own = self.spawns(tp)[0][1] if self.spawns(tp) else None
            if e.mode is DEF and (own is None or own.mode is not DEF):
                if any(p > q for p in p_ops for q in c_ops):
                    found.add((27, tc))
            elif e.mode is DEF:
                assert own is not None
                for _, mate in spawned:
                    same = mate.by == own.by and mate.mode is DEF
                    if same and (mate.cycle or 0) <= (own.cycle or 0):
                        for r, q in product(self.own(mate.child, ObjectOperation), c_ops):
                            if r > q:
                                found.add((28, tc))
            for _, f in spawned:
                if f.by != tp or f.mode is not e.mode or f.child == tc:
                    continue
                f_ops = self.own(f.child, ObjectOperation)
                f_cycle, e_cycle = f.cycle or 0, e.cycle or 0
                late = any(x > q for x in f_ops for q in c_ops)
                if e.mode is DEF and f_cycle < e_cycle and late:
                    found.add((28, tc))
                higher = f.priority is not None and (e.priority is None or f.priority > e.priority)
                if e.mode is DEF and f_cycle == e_cycle and higher and late:
                    found.add((29, tc))
                if e.mode is IMM and higher and f.group == e.group:
                    start = next(j for j, g in spawned if g is f)
                    if any(start < q < x for q in c_ops for x in f_ops):
                        found.add((30, tc))
        return found
