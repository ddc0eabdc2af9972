"""Feeding of detectors: matches by events and by time, letters, withdrawal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias, TypeVar

from activedb.errors import BadEvent, StoreError, UncertainOrder
from activedb.events import Detector, Occurrence, Query
from activedb.firing._letters import Letter, uncertain
from activedb.firing._rule_listeners import RuleFigures, RuleListeners
from activedb.firing._time_lines import TimeLines
from activedb.firing._trigger_context import TriggerContext, TriggerContexts
from activedb.firing._triggered import Cause, Fed, Triggered, is_systemic, moment_in
from activedb.metrics import NamedCounters
from activedb.rules import Catalog, OnAbort, Rule, Subscription, Taken
from activedb.transactions import Transaction, TransactionNode, lock_detector, run_child

__all__ = ["Feeding", "Refused"]

T = TypeVar("T")

Refused: TypeAlias = Callable[[Rule, Exception], bool]
"""Callback for a rule whose detector cannot take an event; returns whether others continue."""


class Feeding:
    """Feeding of the detectors of rules, in the transactions in which events are raised.

    A transaction is responsible for the occurrences that it has fed: its abort withdraws them.

    Parameters
    ----------
    contexts : TriggerContexts
        Takes what was fed, open choices, and letters of events that a detector cannot take.
    lines : TimeLines
        Learns of changed due times.
    counters : NamedCounters
        Has the counters ``matches``, ``matches_undecided`` and ``rules_failed``.
    figures : RuleFigures
    listeners : RuleListeners
        Hear each event before it is fed.
    cause : callable ``(t)``
        Return the rule in which an event of `t` is raised, if any.
    """

    def __init__(
        self,
        catalog: Catalog,
        contexts: TriggerContexts,
        *,
        lines: TimeLines,
        counters: NamedCounters,
        figures: RuleFigures,
        listeners: RuleListeners,
        cause: Callable[[TransactionNode], Cause | None],
    ):
        self._catalog = catalog
        self._contexts = contexts
        self._lines = lines
        self._counters = counters
        self._figures = figures
        self._listeners = listeners
        self._cause = cause

    def feed(
        self,
        o: Occurrence,
        t: TransactionNode,
        contemporaries: Sequence[Occurrence] = (),
        *,
        undated: bool = False,
        refused: Refused | None = None,
    ) -> tuple[list[Triggered], list[Fed]]:
        """Show `o` to the detectors that listen to it in `t`; return the triggered and the fed.

        Parameters
        ----------
        contemporaries : sequence of Occurrence
            Events yet to be fed that may precede `o`.
        undated : bool
            See `occurred`.
        refused : callable, optional
            Called with each rule whose detector raises. If it returns True, the failure concerns
            this rule alone, and all others continue with `o`. By default True for a rule that fails
            alone.
        """
        for hear in self._listeners.raised:
            hear(t, o)
        triggered: list[Triggered] = []
        fed: list[Fed] = []
        catalog = self._catalog
        listening = catalog.listening_to(o.key, t) if contemporaries else catalog.concerned_by(o, t)
        if not listening:
            return triggered, fed
        refused = refused or self.refused_in(t, o)
        own = (o,) if undated else ()
        try:
            for subscription in listening:
                single = subscription.single
                try:
                    if single is None:
                        taken = self.feed_to(subscription, o, t, contemporaries)
                    elif not single.takes(o):
                        continue
                except Exception as error:
                    if is_systemic(error, t) or not refused(subscription.rule, error):
                        raise
                    continue
                if single is None:
                    triggered += self.took(t, subscription, o, taken, fed, refused, undated=undated)
                else:
                    by = self._cause(t)
                    triggered.append(Triggered(subscription.rule, o, by, undated=own))
        except BaseException:
            self.withdraw(fed)
            raise
        return triggered, fed

    def took(
        self,
        t: TransactionNode,
        subscription: Subscription,
        o: Occurrence,
        taken: Taken,
        fed: list[Fed],
        refused: Refused,
        *,
        undated: bool = False,
    ) -> list[Triggered]:
        """Return the items that a detector triggers in `t` by `o`; note in `fed` if it kept `o`."""
        if taken.is_kept:
            fed.append(Fed(subscription, o))
        if taken.undecided or taken.decided:
            self.note(t, subscription, taken, refused)
        if not taken.matches:
            return []
        by, own = self._cause(t), (o,) if undated else ()
        return [Triggered(subscription.rule, match, by, undated=own) for match in taken.matches]

    def note(
        self, t: TransactionNode, subscription: Subscription, taken: Taken, refused: Refused
    ) -> None:
        """Record choices that a detector has left open, or decided, with the commit of `t`.

        A rule with the policy "raise" is handled like a rule that cannot take the event.
        """
        context = self._contexts.of(t)
        with self._contexts.latch:
            context.choices.append((subscription, taken))
        if not taken.undecided:
            return
        rule = subscription.rule
        self._counters.add("matches_undecided", sum(len(u.candidates) for u in taken.undecided))
        self._figures.undecided(rule.name, len(taken.undecided))
        if rule.on_uncertain == "raise":
            error = uncertain(rule.name, taken.undecided)
            if not refused(rule, error):
                raise error

    def will_restore(self, t: TransactionNode, subscription: Subscription) -> None:
        """Save the state of a detector, restored if `t`, which holds the rule's lock, aborts."""
        self._contexts.of(t).before.append((subscription, subscription.state()))

    def refuse(
        self, t: TransactionNode, rule: Rule, identity: str, o: Occurrence, error: Exception
    ) -> None:
        """Write a letter of `o`, which the detector of `rule` cannot take, with the commit of `t`.

        `identity` is unique among the events that may be refused.
        """
        self._counters.add("rules_failed")
        letter = Letter.of_detection(rule.name, f"{identity}/{rule.name}", o, error)
        self._contexts.keep_letters(t, [letter])

    def refused_in(self, t: TransactionNode, o: Occurrence, *, alone: bool = False) -> Refused:
        """Return the handler of an event raised in `t` that a detector cannot take.

        With `alone`, no rule keeps the event from the others.
        """

        def refused(rule: Rule, error: Exception) -> bool:
            is_own = rule.on_abort is OnAbort.RULE or isinstance(error, UncertainOrder)
            fails_alone = alone or is_own
            if fails_alone:
                number = len(self._contexts.of(t).letters)
                self.refuse(t, rule, f"{t.path}/refused.{number}", o, error)
            return fails_alone

        return refused

    def feed_to(
        self,
        subscription: Subscription,
        o: Occurrence,
        t: TransactionNode,
        contemporaries: Sequence[Occurrence] = (),
    ) -> Taken:
        """Show `o` to one detector."""
        if subscription.is_exclusive or subscription.reads:
            taken = _feed_exclusively(subscription, o, t, contemporaries)
        else:
            is_on_clock = subscription.is_stateful and self._lines.stream_of(subscription) is None
            taken = subscription.feed_kept(o, exactly=is_on_clock, contemporaries=contemporaries)
        if subscription.is_timed:
            self._lines.moved(subscription)
        if taken.matches and subscription.is_stateful:
            self._counters.add("matches", len(taken.matches))
        return taken

    def keep(self, t: TransactionNode, fed: list[Fed], *, undated: bool = False) -> None:
        """Make `t` responsible for fed occurrences; `undated` is as for `occurred`."""
        if fed:
            context = self._contexts.of(t)
            context.fed += fed
            if undated:
                context.undated |= {id(each.occurrence): each.occurrence for each in fed}

    def take(self, t: TransactionNode, subscription: Subscription) -> None:
        """Take the first match from a rule's `pending`; an abort of top-level `t` puts it back."""
        self._contexts.of(t).taken.append((subscription, subscription.take()))

    def take_back(self, t: TransactionNode, fed: list[Fed]) -> None:
        """Withdraw the occurrences fed for one failed event of `t`, while `t` continues."""
        context = self._contexts.of(t)
        for item in fed:
            if item in context.fed:
                context.fed.remove(item)
        self.withdraw(fed)

    def advance(
        self, subscription: Subscription, us: int, t: TransactionNode, refused: Refused
    ) -> list[Triggered]:
        """Return the matches of a rule that time completes before `us`; `refused` as for `feed`."""
        return self.completed(t, subscription, _advanced(subscription, us, t), refused, us - 1)

    def pass_over(
        self, subscription: Subscription, us: int, t: TransactionNode, refused: Refused
    ) -> list[Triggered]:
        """Advance as in `advance`, but leave out the matches whose predicate raises.

        If the state of the detector cannot be encoded, the whole state is dropped: its predicate
        would raise again and again.
        """
        with suppress(BadEvent):
            taken = _passed_over(subscription, us, t)
            return self.completed(t, subscription, taken, refused, us - 1)
        subscription.restore(None)
        return self.advance(subscription, us, t, refused)

    def completed(
        self,
        t: TransactionNode,
        subscription: Subscription,
        taken: Taken,
        refused: Refused,
        us: int | None = None,
    ) -> list[Triggered]:
        """Return the matches that trigger a rule without an event: by time, or by a decision."""
        self._lines.moved(subscription)
        if taken.undecided or taken.decided:
            self.note(t, subscription, taken, refused)
        if taken.matches:
            self._counters.add("matches", len(taken.matches))
        moment = "" if us is None else moment_in(self._lines.stream_of(subscription), us)
        return [Triggered(subscription.rule, match, moment=moment) for match in taken.matches]

    def withdraw(self, fed: Sequence[Fed]) -> None:
        """Take occurrences back from the detectors that kept them, the last one first."""
        for item in reversed(fed):
            item.subscription.withdraw(item.occurrence)

    # -- end of a transaction --------------------------------------------------------------

    def aborting(self, context: TriggerContext) -> None:
        """Undo what a transaction has fed and decided, while it still locks the detectors."""
        fed, context.fed = context.fed, []
        self.withdraw(fed)
        for subscription, o in reversed(context.taken):
            subscription.put_back(o)
        context.taken = []
        for subscription, state in reversed(context.before):
            subscription.restore(state)
            self._lines.moved(subscription)
        context.before = []

    def committed(self, context: TriggerContext) -> None:
        """Let detectors forget what has expired before the events that a commit made final."""
        newest: dict[Subscription, int] = {}
        for fed in context.fed:
            us = fed.occurrence.us
            newest[fed.subscription] = max(newest.get(fed.subscription, us), us)
        for subscription, us in newest.items():
            subscription.trim(us)
            if not subscription.is_timed and self._lines.stream_of(subscription) is None:
                self._lines.moved(subscription)  # the clock makes it forget what expires


def _feed_exclusively(
    subscription: Subscription,
    o: Occurrence,
    t: TransactionNode,
    contemporaries: Sequence[Occurrence] = (),
) -> Taken:
    """Feed `o`, raised in `t`, to the detector.

    The events that an occurrence consumes are certain only once its transaction has committed. A
    hierarchy that feeds such a detector therefore locks it until its end, like a row it writes.
    """
    if subscription.is_exclusive:
        lock_detector(t, subscription.rule.name)
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


def _advanced(subscription: Subscription, us: int, t: TransactionNode) -> Taken:
    """Return the matches that time completes before `us`, in `t`, in which their rules may run."""
    if subscription.is_exclusive:
        lock_detector(t, subscription.rule.name)
    if not subscription.reads:
        return subscription.advance(us)
    return _reading(subscription, t, lambda c: subscription.advance(us, c))


def _passed_over(subscription: Subscription, us: int, t: TransactionNode) -> Taken:
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


def _reading(subscription: Subscription, t: TransactionNode, work: Callable[[Transaction], T]) -> T:
    """Run `work` in a read-only child of `t`.

    In a child, so that `t` only retains the locks on the rows read, and its rules may write them.

    Raises
    ------
    StoreError
        If the store refuses the read; the error names the rule.
    """
    name = subscription.rule.name

    def read(c: TransactionNode) -> T:
        c.condition_of = name
        return work(Transaction(c))

    try:
        return run_child(t, read, label=f"{t.next_label()}.reading.{name}")
    except StoreError as error:
        raise error.during(f"in rule {name}") from error.__cause__
