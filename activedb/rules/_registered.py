"""A rule as it stands in the catalog: a version, and the detector of its event."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

from activedb.events import Expression
from activedb.rules._rule import OnAbort, Rule
from activedb.rules._subscription import PARTIALS_MAX, Sharing, Subscription
from coupling import ConditionAction, Coupling

__all__ = ["RegisteredRule"]

_numbers = itertools.count()


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

    @property
    def partials(self) -> int:
        """Occurrences that its detector keeps, as they may still become part of a match."""
        return self.subscription.partials

    @property
    def dropped(self) -> int:
        """Occurrences that its detector has forgotten because there were too many."""
        return self.subscription.dropped

    @property
    def undecided(self) -> int:
        """Choices that its detector here has left open, as the order of events is not known."""
        return self.subscription.undecided

    @property
    def truncated(self) -> int:
        """Number of events of which its detector has left out matches, as there were too many."""
        return self.subscription.truncated

    @classmethod
    def of(
        cls,
        rule: Rule,
        *,
        version: int,
        enabled: bool,
        fingerprint: str,
        partials_max: int = PARTIALS_MAX,
        sharing: Sharing | None = None,
    ) -> RegisteredRule:
        """A rule that comes last in the order of definition."""
        subscription = Subscription(rule, partials_max=partials_max, sharing=sharing)
        return cls(rule, version, enabled, fingerprint, subscription)

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

        Its detector goes on if it detects the same as before and was not off meanwhile.
        """
        goes_on = (
            self.enabled
            and enabled
            and rule.on is self.rule.on
            and rule.partials_max == self.rule.partials_max
            and rule.on_full == self.rule.on_full
            and rule.matches_max == self.rule.matches_max
            and rule.on_many == self.rule.on_many
            and rule.on_uncertain == self.rule.on_uncertain
        )
        subscription = self.subscription.changed(rule, goes_on=goes_on)
        return replace(
            self,
            rule=rule,
            version=version,
            enabled=enabled,
            fingerprint=fingerprint,
            subscription=subscription,
            quarantine=quarantine,
        )
