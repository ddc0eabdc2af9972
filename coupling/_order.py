"""Order of rules: of those triggered together, and of deferred ones, cycle by cycle."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import groupby
from typing import Generic, NamedTuple, TypeVar

__all__ = [
    "CycleBoundReached",
    "DeferredCycles",
    "Group",
    "OrderCycle",
    "check_order",
    "ordered_groups",
    "priority_groups",
    "priority_rank",
]


T = TypeVar("T")
Rank = tuple[bool, int]


class Group(NamedTuple, Generic[T]):
    """Triggered rules that may run in parallel, after the groups before.

    Attributes
    ----------
    priority : int or None
        Common priority of the items, given or inherited from a rule that comes after them.
    items : list
    """

    priority: int | None
    items: list[T]


class OrderCycle(Exception):
    """Rules that would have to wait for each other; ``rules`` is the cycle."""

    def __init__(self, rules: list[str]):
        super().__init__(" after ".join([*rules, rules[0]]))
        self.rules = rules


def priority_groups(items: Iterable[T], priority: Callable[[T], int | None]) -> list[list[T]]:
    """Split triggered rules into groups that run one after another.

    Parameters
    ----------
    items : iterable
        Items triggered together, in a stable order.
    priority : callable
        Function from item to priority; None is the lowest.

    Returns
    -------
    list of lists
        Higher priorities first; items of one group may run in parallel. Items of a group keep
        their given order.

    Notes
    -----
    O(n log n). (Saygin, Ulusoy, Chakravarthy, section 3.2.)
    """
    return _grouped(items, lambda item: priority_rank(priority(item)))


def ordered_groups(
    items: Iterable[T],
    *,
    name: Callable[[T], str],
    priority: Callable[[T], int | None],
    after: Callable[[T], Collection[str]],
) -> list[Group[T]]:
    """Split triggered rules into groups, each after the rules that its items name.

    A dependency is an implicit priority (Saygin, Ulusoy, Chakravarthy, section 3.3): if rule A
    comes after rule B, the priority of B is at least that of A. Among rules of one priority, a rule
    is in a later group than the rules that it names.

    Parameters
    ----------
    items : iterable
        Items triggered together, in a stable order.
    name : callable
        Function from item to the rule's name; items of one rule stay in one group.
    priority : callable
        Function from item to priority; None is the lowest.
    after : callable
        Function from item to the names of rules that must end first, if they are among the items.

    Returns
    -------
    list of Group
        Groups in order. Items of a group keep their given order.

    Raises
    ------
    OrderCycle
        If items would have to wait for each other.

    Notes
    -----
    O(n log n + d) for n items that name d rules.
    """
    found = list(items)
    ranks: dict[str, Rank] = {}
    named: dict[str, set[str]] = {}
    for item in found:
        rule = name(item)
        rank = priority_rank(priority(item))
        ranks[rule] = min(rank, ranks.get(rule, rank))
        named.setdefault(rule, set()).update(after(item))
    needs = {rule: {other for other in others if other in named} for rule, others in named.items()}
    order = _in_order(needs)
    for rule in reversed(order):
        for other in needs[rule]:
            ranks[other] = min(ranks[other], ranks[rule])
    steps: dict[str, int] = {}
    for rule in order:
        # Rules of a higher priority end before this priority starts.
        same = [steps[other] + 1 for other in needs[rule] if ranks[other] == ranks[rule]]
        steps[rule] = max(same, default=0)
    groups = _grouped(found, lambda item: (*ranks[name(item)], steps[name(item)]))
    return [Group(_priority(ranks[name(group[0])]), group) for group in groups]


def check_order(after: Mapping[str, Collection[str]]) -> None:
    """Check that no rule comes after itself, directly or through other rules.

    Parameters
    ----------
    after : mapping of str to collection of str
        Rule to the rules it comes after; a rule that is no key comes after none.

    Raises
    ------
    OrderCycle

    Notes
    -----
    O(rules + names).
    """
    _in_order(after)


def priority_rank(priority: int | None) -> Rank:
    """Return the rank of a priority: lower ranks come first, None last."""
    return (priority is None, -(priority or 0))


def _priority(rank: Rank) -> int | None:
    has_none, negative = rank
    return None if has_none else -negative


def _grouped(items: Iterable[T], rank: Callable[[T], tuple[int, ...]]) -> list[list[T]]:
    return [list(group) for _, group in groupby(sorted(items, key=rank), key=rank)]


def _in_order(needs: Mapping[str, Collection[str]]) -> list[str]:
    """Return the rules, each after the rules that it needs."""
    try:
        return list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        # In the list each rule is needed by the next, and the first is repeated at the end.
        cycle: list[str] = error.args[1]
        raise OrderCycle(cycle[:0:-1]) from None


# -- deferred cycles of one commit point -----------------------------------------------------------


class CycleBoundReached(Exception):
    """The bound on cycles is used up; ``pending`` holds the items of the next cycle."""

    def __init__(self, bound: int, pending: list[object]):
        super().__init__(f"more than {bound} deferred cycles")
        self.bound = bound
        self.pending = pending


class DeferredCycles(Generic[T]):
    """Items that wait for one commit point, cycle by cycle.

    Cycle 0 holds the items deferred up to the commit point. Items deferred while a cycle runs
    belong to the next cycle, after all siblings of the current one. (Saygin, Ulusoy,
    Chakravarthy, sections 2.1 and 3.3.2.)

    Parameters
    ----------
    bound : int
        Maximum number of cycles of one commit point.
    """

    __slots__ = ("_bound", "_taken", "_waiting")

    def __init__(self, bound: int):
        self._bound = bound
        self._taken = 0
        self._waiting: list[T] = []

    @property
    def taken(self) -> int:
        """Number of cycles taken so far. The running cycle's number is one less."""
        return self._taken

    def defer(self, item: T) -> None:
        """Add `item` to the next cycle."""
        self._waiting.append(item)

    def next_cycle(self) -> list[T]:
        """Take the next cycle's items; an empty list ends the commit point.

        Raises
        ------
        CycleBoundReached
            If items are waiting and the bound is used up.
        """
        if not self._waiting:
            return []
        if self._taken >= self._bound:
            raise CycleBoundReached(self._bound, list(self._waiting))
        self._taken += 1
        cycle, self._waiting = self._waiting, []
        return cycle
