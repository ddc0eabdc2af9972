"""A rule as it stands in the catalog: a version, and the detector of its event."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field, replace

from activedb.events import Detector, Expression, Occurrence
from activedb.rules._rule import OnAbort, Rule
from coupling import ConditionAction, Coupling

__all__ = ["RegisteredRule", "Subscription"]

_numbers = itertools.count()


class Subscription:
    """A rule with the detector of its event.

    The detector is used under the subscription's own latch; nothing else is taken under it.

    Parameters
    ----------
    rule : Rule
    detecting : Subscription, optional
        Whose detector to go on with: that of an earlier version of the rule, on the same event.
    """

    __slots__ = ("_detector", "_latch", "is_composite", "rule")

    def __init__(self, rule: Rule, *, detecting: Subscription | None = None):
        self.rule = rule
        if detecting is None:
            self._detector = Detector(rule.on, name=rule.name)
            self._latch = threading.Lock()
        else:
            self._detector, self._latch = detecting._detector, detecting._latch
        self.is_composite = self._detector.horizon_us != 0

    @property
    def horizon_us(self) -> int | None:
        """How far back a match may reach, in microseconds; None for without bound."""
        return self._detector.horizon_us

    @property
    def partials(self) -> int:
        """Occurrences kept because they may still become part of a match."""
        with self._latch:
            return self._detector.partials

    def feed(self, o: Occurrence) -> list[Occurrence]:
        """Matches that `o` completes."""
        with self._latch:
            return self._detector.feed(o)

    def withdraw(self, o: Occurrence) -> None:
        """Forget `o`, whose transaction aborted."""
        with self._latch:
            self._detector.withdraw(o)

    def trim(self, before_us: int) -> None:
        """Forget what no match at or after `before_us` can need."""
        with self._latch:
            self._detector.trim(before_us)


@dataclass(frozen=True, slots=True)
class RegisteredRule:
    """A version of a rule in the catalog; immutable.

    Attributes
    ----------
    rule : Rule
        Its definition.
    version : int
        1 when it is created, one more with each change.
    enabled : bool
        Whether it can be triggered.
    fingerprint : str
        Of the definition in code or data; a change of coupling, priority or on_abort alone leaves
        it, so that the change survives a restart with the same code.
    subscription : Subscription
        Its event's detector.
    order : int
        Place in the order of definition.
    quarantine : str or None
        Since when and why it is not run, only triggered; None if it is run.
    """

    rule: Rule
    version: int
    enabled: bool
    fingerprint: str
    subscription: Subscription = field(repr=False, compare=False)
    order: int = field(default_factory=lambda: next(_numbers), repr=False, compare=False)
    quarantine: str | None = None

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.rule.name

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        """Keys of the primitive events it listens to: none if it is disabled."""
        return self.rule.on.keys if self.enabled else frozenset()

    @property
    def on(self) -> Expression:
        """Its event."""
        return self.rule.on

    @property
    def coupling(self) -> Coupling:
        """Its coupling mode."""
        return self.rule.coupling

    @property
    def priority(self) -> int | None:
        """Its priority; None is the lowest."""
        return self.rule.priority

    @property
    def condition_action(self) -> ConditionAction:
        """When and where its action runs, relative to its condition."""
        return self.rule.condition_action

    @property
    def after(self) -> tuple[str, ...]:
        """Rules that end before it starts, if they are triggered together with it."""
        return self.rule.after

    @property
    def on_abort(self) -> OnAbort:
        """What aborts when it raises."""
        return self.rule.on_abort

    @classmethod
    def of(cls, rule: Rule, *, version: int, enabled: bool, fingerprint: str) -> RegisteredRule:
        """A rule that comes last in the order of definition."""
        return cls(rule, version, enabled, fingerprint, Subscription(rule))

    def changed(
        self,
        rule: Rule,
        *,
        version: int,
        enabled: bool,
        fingerprint: str,
        quarantine: str | None = None,
    ) -> RegisteredRule:
        """Another version of it, at its place in the order.

        Its detector goes on if it listens to the same event as before and was not off meanwhile.
        """
        goes_on = self.enabled and enabled and rule.on is self.rule.on
        subscription = Subscription(rule, detecting=self.subscription if goes_on else None)
        return replace(
            self,
            rule=rule,
            version=version,
            enabled=enabled,
            fingerprint=fingerprint,
            subscription=subscription,
            quarantine=quarantine,
        )
