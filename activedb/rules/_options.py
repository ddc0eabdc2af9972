"""Options of a rule, as its definition takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from activedb.rules._rule import Condition, OnUncertain

__all__ = ["RuleOptions"]


class RuleOptions(TypedDict, total=False):
    """Options of a rule; all are optional.

    Attributes
    ----------
    on : event expression, optional
        Event that triggers the rule: ``event("EXIT")``, ``inserted(table)``,
        ``updated(table, "column")``, ``deleted(table)``, ``every(60)``, several of them with
        ``any_of(…)`` or ``|``, ``seq(…)``, and the other operators in ``docs/rules.md``. By
        default any change of what the condition reads, according to `reads` or its source.
    when : callable ``(t, o)``, optional
        Condition, evaluated in the rule's own subtransaction; by default the action always
        runs. A condition may only read: a write raises `ConditionWrites`, and the rule fails.
    coupling : {"immediate", "deferred", "detached", "causal", "sequential", "exclusive"}
        Coupling mode. As a child of the triggering transaction, the rule runs at the event
        (immediate) or at the commit point of that transaction (deferred). As a top-level
        transaction, it runs at the event, independently of the triggering transaction's outcome
        (detached); at the event, committing only after the triggering transaction and aborting
        with it (causal); after the triggering transaction has committed (sequential); or if it
        aborts (exclusive).
    priority : int, optional
        Order among rules that are triggered together, or due at the same time: higher
        priorities run first, equal ones in parallel, and None last (``docs/coupling.md``). Not
        allowed with ``coupling="causal"``.
    on_abort : {"triggering", "rule"}
        Scope of the abort when the rule raises: the triggering transaction, which gets
        `RuleFailed`, or only the rule's own subtransaction, in which case the dead-letter table
        keeps the reason. A rule in a separate top-level transaction always fails alone.
    name : str, optional
        Unique name of the rule; the function's name by default.
    params : mapping of str to value, optional
        Keyword arguments for action and condition; each gets the ones it takes.
    set_oriented : bool, default False
        If True, all triggering events of one statement, or of one deferred cycle for a deferred
        rule, fire the rule once. Its occurrence ``o`` has the individual occurrences in
        ``o.occurrences`` and their rows in ``o.rows``.
    condition_action : {"immediate", "sequential", "deferred", "detached"}
        Coupling of the action to the condition. Immediate: right after the condition, in its
        transaction. Sequential: at the same time, and undone unless the condition turns out
        true. Deferred: at the commit point of the triggering transaction. Detached: in a
        separate top-level transaction.
    after : list of str, optional
        Names of rules that end before this one starts, if they are triggered together: by one
        event with ``coupling="immediate"``, in one cycle with ``"deferred"``. This order takes
        precedence over priorities.
    partials_max : int, optional
        Upper bound on the occurrences that the detector of the event keeps for later matches;
        by default the setting of the same name.
    on_full : {"drop_oldest", "refuse"}
        Policy when the detector has reached `partials_max`: it forgets the oldest occurrence
        (``db.rules[name].dropped`` counts them), or refuses the event with `PartialsExceeded`.
    matches_max : int or None, default 10,000
        Upper bound on the matches that one event may complete; None: unbounded.
    on_many : {"refuse", "truncate"}
        Policy when an event would complete more than `matches_max` matches: the event is
        refused with `MatchesExceeded`, or it triggers the rule for the most preferred matches
        (``db.rules[name].truncated`` counts such events). The end of a window is no event that
        could be refused, so it always makes the most preferred matches.
    on_uncertain : {"raise", "certain", "possible", "reading"} or callable
        Policy for events whose timestamps do not determine their order; the default is
        ``"certain"``. Certain: make the certain matches, and leave the others open
        (`decisions`). Raise: the same, with a dead letter. Possible: make all possible matches.
        Reading: go by the clock readings. A callable gets the `UncertainOrder`, and returns its
        choice.
    reads, writes : list, optional
        Tables, mapped classes, columns or ``"table.column"`` that condition and action may read
        and write; `writes` may also have ``inserted(table)``, ``updated(…)`` and
        ``deleted(table)``. Used by `Rules.analyze`, and for rules without `on`. By default they
        are inferred from the source.
    raises : list of str, optional
        Signals that condition and action may raise; used by `Rules.analyze`. By default they
        are inferred from the source.
    """

    on: Any
    when: Condition | None
    coupling: str
    priority: int | None
    on_abort: str
    name: str | None
    params: Mapping[str, Any] | None
    set_oriented: bool
    condition_action: str
    after: Iterable[str]
    partials_max: int | None
    on_full: str
    matches_max: int | None
    on_many: str
    on_uncertain: OnUncertain
    reads: Any
    writes: Any
    raises: Any
