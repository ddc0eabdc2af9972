"""Order among rules triggered together: what comes after what, then priorities."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import groupby
from typing import Generic, NamedTuple, TypeVar

__all__ = [
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
    """Triggered rules that may run in parallel, after those of the groups before.

    Attributes
    ----------
    priority : int or None
        The one they all have, of their own or because of a rule that comes after them.
    items : list
    """

    priority: int | None
    items: list[T]


class OrderCycle(Exception):
    """Rules that would have to wait for each other; ``rules`` is the way around."""

    def __init__(self, rules: list[str]):
        super().__init__(" after ".join([*rules, rules[0]]))
        self.rules = rules


def priority_groups(items: Iterable[T], priority: Callable[[T], int | None]) -> list[list[T]]:
    """Split triggered rules into groups that run one after another.

    Parameters
    ----------
    items : iterable
        What was triggered together, in a stable order.
    priority : callable
        Item to priority; None is the lowest.

    Returns
    -------
    list of lists
        Higher priorities first; items of one group may run in parallel. The order inside a
        group is the order given.

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
    """Split triggered rules into groups, so that each comes after those it names.

    A dependency is an implicit priority (Saygin, Ulusoy, Chakravarthy, section 3.3): a rule that
    another one comes after has at least that one's priority. Among rules of one priority those
    that name others come in later groups than these.

    Parameters
    ----------
    items : iterable
        What was triggered together, in a stable order.
    name : callable
        Item to the rule's name; items of one rule stay in one group.
    priority : callable
        Item to priority; None is the lowest.
    after : callable
        Item to the names of rules which have to end first, if they are among the items.

    Returns
    -------
    list of Group
        The order inside a group is the order given.

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
        # Those of a higher priority have ended when this rule's priority has its turn.
        same = [steps[other] + 1 for other in needs[rule] if ranks[other] == ranks[rule]]
        steps[rule] = max(same, default=0)
    groups = _grouped(found, lambda item: (*ranks[name(item)], steps[name(item)]))
    return [Group(_priority(ranks[name(group[0])]), group) for group in groups]


def check_order(after: Mapping[str, Collection[str]]) -> None:
    """Check that no rule comes, through others, after itself.

    Parameters
    ----------
    after : mapping of str to collection of str
        Rule to the rules it comes after; those that are no keys come after nothing.

    Raises
    ------
    OrderCycle

    Notes
    -----
    O(rules + names).
    """
    _in_order(after)


def priority_rank(priority: int | None) -> Rank:
    """Rank of a priority: the lower the earlier, None last."""
    return (priority is None, -(priority or 0))


def _priority(rank: Rank) -> int | None:
    has_none, negative = rank
    return None if has_none else -negative


def _grouped(items: Iterable[T], rank: Callable[[T], tuple[int, ...]]) -> list[list[T]]:
    return [list(group) for _, group in groupby(sorted(items, key=rank), key=rank)]


def _in_order(needs: Mapping[str, Collection[str]]) -> list[str]:
    """The rules, each after those that it needs."""
    try:
        return list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        # A list in which each one is needed by the next, and the first stands at the end, too.
        cycle: list[str] = error.args[1]
        raise OrderCycle(cycle[:0:-1]) from None
