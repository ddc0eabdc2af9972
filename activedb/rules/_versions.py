"""From one version of a rule to the next, and to the version that its row keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from activedb.rules._fingerprint import fingerprint
from activedb.rules._registered import RegisteredRule
from activedb.rules._rule import OnAbort, Rule
from coupling import Coupling

__all__ = ["CHANGEABLE", "KEPT", "as_kept", "next_version", "redefined", "registered"]

CHANGEABLE = (
    "on",
    "action",
    "when",
    "coupling",
    "priority",
    "on_abort",
    "params",
    "set_oriented",
)
KEPT = frozenset(("coupling", "priority", "on_abort"))
"""Those that are in the row, so that a restart keeps them."""


def registered(rule: Rule, *, version: int, enabled: bool) -> RegisteredRule:
    """A rule that code or data defines, at a version."""
    return RegisteredRule.of(rule, version=version, enabled=enabled, fingerprint=fingerprint(rule))


def next_version(
    entry: RegisteredRule, rule: Rule, *, enabled: bool | None = None, text: str | None = None
) -> RegisteredRule:
    """The next version of a rule, or the present one if nothing is different.

    Parameters
    ----------
    text : str, optional
        The fingerprint of the new definition; None if it is the same one.
    """
    on = entry.enabled if enabled is None else enabled
    if rule == entry.rule and on == entry.enabled:
        return entry
    return entry.changed(
        rule,
        version=entry.version + 1,
        enabled=on,
        fingerprint=entry.fingerprint if text is None else text,
    )


def redefined(rule: Rule, fields: Mapping[str, Any]) -> Rule:
    """`rule` with other fields, checked like a new one."""
    old = {name: getattr(rule, name) for name in CHANGEABLE}
    defined = Rule.define(**{**old, "name": rule.name, **fields})
    return replace(defined, declared=rule.declared)


def as_kept(entry: RegisteredRule, row: Mapping[str, Any]) -> RegisteredRule:
    """A rule as its row says, which somebody else may have changed."""
    if row["version"] == entry.version:
        return entry
    rule = entry.rule
    if row["fingerprint"] == entry.fingerprint:
        rule = replace(
            rule,
            coupling=Coupling(row["coupling"]),
            priority=row["priority"],
            on_abort=OnAbort(row["on_abort"]),
        )
    return entry.changed(
        rule, version=row["version"], enabled=row["enabled"], fingerprint=entry.fingerprint
    )
