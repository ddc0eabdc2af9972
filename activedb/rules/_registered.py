"""Versions of a rule in the catalog, with the detector of its event, and the steps between them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from activedb.events import Expression
from activedb.rules._declared import FindReads
from activedb.rules._fingerprint import fingerprint
from activedb.rules._rule import OnAbort, Rule
from activedb.rules._subscription import PARTIALS_MAX, Sharing, Subscription
from coupling import ConditionAction, Coupling

__all__ = [
    "CHANGEABLE",
    "KEPT",
    "RegisteredRule",
    "as_kept",
    "next_version",
    "quarantined",
    "redefined",
    "registered",
]


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


# -- steps from one version of a rule to the next, and to the version stored in its row ------------


CHANGEABLE = (
    "on",
    "action",
    "when",
    "coupling",
    "priority",
    "on_abort",
    "params",
    "set_oriented",
    "condition_action",
    "after",
    "partials_max",
    "on_full",
    "matches_max",
    "on_many",
    "on_uncertain",
)
KEPT = frozenset(("coupling", "priority", "on_abort"))
"""Fields stored in the row, so that they survive a restart."""


def registered(
    rule: Rule,
    *,
    version: int,
    enabled: bool,
    partials_max: int = PARTIALS_MAX,
    sharing: Sharing | None = None,
) -> RegisteredRule:
    """Return a rule defined by code or data, at a given version.

    Parameters
    ----------
    partials_max : int
        Maximum number of occurrences that its detector keeps, if the rule has no value; 0: any
        number.
    sharing : Sharing, optional
        State shared with other rules.
    """
    return RegisteredRule.of(
        rule,
        version=version,
        enabled=enabled,
        fingerprint=fingerprint(rule),
        partials_max=partials_max,
        sharing=sharing,
    )


def next_version(
    entry: RegisteredRule, rule: Rule, *, enabled: bool | None = None, text: str | None = None
) -> RegisteredRule:
    """Return the next version of a rule, or the present one if nothing changes.

    A new definition ends a quarantine, and so does enabling the rule.

    Parameters
    ----------
    text : str, optional
        Fingerprint of the new definition; None if it is unchanged.
    """
    on = entry.enabled if enabled is None else enabled
    text = entry.fingerprint if text is None else text
    quarantine = None if enabled or text != entry.fingerprint else entry.quarantine
    if rule == entry.rule and on == entry.enabled and quarantine == entry.quarantine:
        return entry
    return entry.changed(
        rule, version=entry.version + 1, enabled=on, fingerprint=text, quarantine=quarantine
    )


def quarantined(entry: RegisteredRule, reason: str) -> RegisteredRule:
    """Return the next version, in quarantine; the present one if it already is in quarantine."""
    if entry.quarantine is not None:
        return entry
    return entry.changed(
        entry.rule,
        version=entry.version + 1,
        enabled=entry.enabled,
        fingerprint=entry.fingerprint,
        quarantine=reason,
    )


def redefined(rule: Rule, fields: Mapping[str, Any], find_reads: FindReads | None = None) -> Rule:
    """Return `rule` with other fields, checked like a new one.

    If its event was left out, it listens to the tables that its new condition reads.
    """
    old = {name: getattr(rule, name) for name in CHANGEABLE}
    if rule.without_event and "when" in fields:
        old["on"] = None
    defined = Rule.define(
        **{**old, "name": rule.name, **fields}, declared=rule.declared, find_reads=find_reads
    )
    if rule.without_event and not fields.keys() & {"on", "when"}:
        return replace(defined, without_event=True)
    return defined


def as_kept(entry: RegisteredRule, row: Mapping[str, Any]) -> RegisteredRule:
    """Return a rule as stored in its row, which another program may have changed."""
    if row["version"] == entry.version:
        return entry
    rule, quarantine = entry.rule, None
    if row["fingerprint"] == entry.fingerprint:
        quarantine = row["quarantine"]
        rule = replace(
            rule,
            coupling=Coupling(row["coupling"]),
            priority=row["priority"],
            on_abort=OnAbort(row["on_abort"]),
        )
    return entry.changed(
        rule,
        version=row["version"],
        enabled=row["enabled"],
        fingerprint=entry.fingerprint,
        quarantine=quarantine,
    )
