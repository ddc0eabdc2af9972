"""Feeding of detectors that are locked by one hierarchy at a time, or that read the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from activedb.errors import StoreError
from activedb.events import Detector, Occurrence, Query
from activedb.rules import Subscription, Taken
from activedb.transactions import Node, Transaction

__all__ = ["advanced", "feed_exclusively", "passed_over"]

T = TypeVar("T")


def feed_exclusively(
    subscription: Subscription,
    o: Occurrence,
    t: Node,
    contemporaries: Sequence[Occurrence] = (),
) -> Taken:
    """Feed `o`, raised in `t`, to the detector.

    The events that an occurrence consumes are certain only once its transaction has committed. A
    hierarchy that feeds such a detector therefore locks it until its end, like a row it writes.
    """
    if subscription.is_exclusive:
        t.lock_detector(subscription.rule.name)
    if not subscription.reads:
        return subscription.feed_kept(o, contemporaries=contemporaries)
    is_fed = False

    def feed(c: Transaction) -> Taken:
        nonlocal is_fed
        if is_fed:  # by an earlier try of the child
            subscription.withdraw(o)
        is_fed = False
        found = subscription.feed_kept(o, c, contemporaries=contemporaries)
        is_fed = True
        return found

    try:
        return _reading(subscription, t, feed)
    except BaseException:
        if is_fed:
            subscription.withdraw(o)
        raise


def advanced(subscription: Subscription, us: int, t: Node) -> Taken:
    """Return the matches that time completes before `us`, in `t`, in which their rules may run."""
    if subscription.is_exclusive:
        t.lock_detector(subscription.rule.name)
    if not subscription.reads:
        return subscription.advance(us)
    return _reading(subscription, t, lambda c: subscription.advance(us, c))


def passed_over(subscription: Subscription, us: int, t: Node) -> Taken:
    """Return the matches that time completes before `us`, except those whose predicate raises.

    The detector continues after them, and everything else that it keeps stays. O(kept events).

    Raises
    ------
    BadEvent
        If the state of the detector cannot be encoded; it is unchanged then.
    """
    rule = subscription.rule
    # A twin that forgives raising predicates, which is not part of a detector's state.
    detector = Detector(
        rule.on,
        name=None if isinstance(rule.on, Query) else rule.name,
        on_uncertain="certain" if rule.on_uncertain == "raise" else rule.on_uncertain,
    )
    detector.treat_errors_as_false()
    state = subscription.state()
    detector.restore(state["detector"])
    if subscription.reads:
        found = _reading(subscription, t, lambda c: detector.advance(us, c))
    else:
        found = detector.advance(us)
    subscription.restore({**state, "detector": detector.state()})
    # This completes no more matches; it reports open choices and the change of state.
    return subscription.advance(us)._replace(matches=found)


def _reading(subscription: Subscription, t: Node, work: Callable[[Transaction], T]) -> T:
    """Run `work` in a read-only child of `t`.

    In a child, so that `t` only retains the locks on the rows read, and its rules may write them.

    Raises
    ------
    StoreError
        If the store refuses the read; the error names the rule.
    """
    name = subscription.rule.name

    def read(c: Node) -> T:
        c.condition_of = name
        return work(Transaction(c))

    try:
        return t.run_child(read, label=f"{t.next_label()}.reading.{name}")
    except StoreError as error:
        raise error.during(f"in rule {name}") from error.__cause__
