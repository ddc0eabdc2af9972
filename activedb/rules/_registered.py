"""Version of a rule in the catalog, with the detector of its event."""

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
        Definition of the rule.
    version : int
        1 for a new rule, incremented by each change.
    enabled : bool
        True if the rule can be triggered.
    fingerprint : str
        Identifier of the definition in code or data. It ignores changes of coupling, priority or
        on_abort alone, so that such a change survives a restart with the same code.
    subscription : Subscription
        The rule with the detector of its event.
    order : int
        Place in the order of definition.
    quarantine : str or None
        Start and reason of a quarantine, in which the rule is triggered but not run; None if it
        runs.
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
        """Name of the rule."""
        return self.rule.name

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        """Keys of the primitive events it listens to; empty if it is disabled."""
        return self.rule.on.keys if self.enabled else frozenset()

    @property
    def on(self) -> Expression:
        """Event of the rule."""
        return self.rule.on

    @property
    def coupling(self) -> Coupling:
        """Coupling mode of the rule."""
        return self.rule.coupling

    @property
    def priority(self) -> int | None:
        """Priority of the rule; None is the lowest."""
        return self.rule.priority

    @property
    def condition_action(self) -> ConditionAction:
        """Coupling of the action to the condition."""
        return self.rule.condition_action

    @property
    def after(self) -> tuple[str, ...]:
        """Rules that end before this one starts, if they are triggered together."""
        return self.rule.after

    @property
    def on_abort(self) -> OnAbort:
        """Scope of the abort when the rule raises."""
        return self.rule.on_abort

    @property
    def partials(self) -> int:
        """Number of occurrences that its detector keeps, as they may become part of a match."""
        return self.subscription.partials

    @property
    def dropped(self) -> int:
        """Number of occurrences that its detector has dropped because there were too many."""
        return self.subscription.dropped

    @property
    def undecided(self) -> int:
        """Number of choices left open by its detector, as the order of events is uncertain."""
        return self.subscription.undecided

    @property
    def truncated(self) -> int:
        """Number of events whose matches its detector has truncated because there were too many."""
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
        """Return a new rule, placed last in the order of definition."""
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
        """Return another version of the rule, at the same place in the order.

        The detector is kept if it detects the same as before and was not disabled in between.
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
