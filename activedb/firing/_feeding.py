"""Feeding detectors that only one hierarchy at a time may use, or that read the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from activedb.errors import StoreError
from activedb.events import Detector, Occurrence, Query
from activedb.rules import Subscription, Taken
from activedb.transactions import Transaction

__all__ = ["advanced", "fed_alone", "passed_over"]

T = TypeVar("T")


def fed_alone(
    subscription: Subscription,
    o: Occurrence,
    t: Transaction,
    contemporaries: Sequence[Occurrence] = (),
) -> Taken:
    """Feed `o`, raised in `t`, to the detector.

    What an event uses up is certain only when its transaction has committed. So whoever feeds such
    a detector locks it until the end of the hierarchy, as if it were a row that it writes.
    """
    if subscription.is_exclusive:
        t.lock_detector(subscription.rule.name)
    if not subscription.reads:
        return subscription.feed_kept(o, contemporaries=contemporaries)
    is_fed = False

    def feed(c: Transaction) -> Taken:
        nonlocal is_fed
        if is_fed:  # in an earlier try of the child
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


def advanced(subscription: Subscription, us: int, t: Transaction) -> Taken:
    """What time completes before `us`, in `t`, in which rules may run for it."""
    if subscription.is_exclusive:
        t.lock_detector(subscription.rule.name)
    if not subscription.reads:
        return subscription.advance(us)
    return _reading(subscription, t, lambda c: subscription.advance(us, c))


def passed_over(subscription: Subscription, us: int, t: Transaction) -> Taken:
    """Matches that time completes before `us`, without those of which a predicate raises.

    The detector goes on behind it, and everything else that it keeps stays. O(what it keeps).

    Raises
    ------
    BadEvent
        If what the detector keeps cannot be written; nothing has changed then.
    """
    rule = subscription.rule
    # The same detector but for that, which is no part of its state.
    detector = Detector(
        rule.on,
        name=None if isinstance(rule.on, Query) else rule.name,
        on_uncertain="certain" if rule.on_uncertain == "raise" else rule.on_uncertain,
    )
    detector.forgive()
    state = subscription.state()
    detector.restore(state["detector"])
    if subscription.reads:
        found = _reading(subscription, t, lambda c: detector.advance(us, c))
    else:
        found = detector.advance(us)
    subscription.restore({**state, "detector": detector.state()})
    # Completes nothing more, and tells what is undecided, and that the state has changed.
    return subscription.advance(us)._replace(matches=found)


def _reading(subscription: Subscription, t: Transaction, work: Callable[[Transaction], T]) -> T:
    """Do work in a child of `t` that may only read.

    A child, so that `t` only retains the locks of what was read, and its rules may write it.

    Raises
    ------
    StoreError
        Naming the rule, if the store refuses what is to be read.
    """
    name = subscription.rule.name

    def read(c: Transaction) -> T:
        c.condition_of = name
        return work(c)

    try:
        return t.run_child(read, label=f"{t.next_label()}.reading.{name}")
    except StoreError as error:
        raise error.during(f"in rule {name}") from error.__cause__
