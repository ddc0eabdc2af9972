"""Steps from one version of a rule to the next, and to the version stored in its row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from activedb.rules._fingerprint import fingerprint
from activedb.rules._registered import RegisteredRule
from activedb.rules._rule import OnAbort, Rule
from activedb.rules._subscription import PARTIALS_MAX, Sharing
from activedb.rules._without_event import FindReads
from coupling import Coupling

__all__ = [
    "CHANGEABLE",
    "KEPT",
    "as_kept",
    "next_version",
    "quarantined",
    "redefined",
    "registered",
]

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
