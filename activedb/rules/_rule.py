"""ECA rules: event, condition, action, their coupling, and the options of a definition."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Concatenate, TypeAlias, TypedDict, TypeVar

from activedb.errors import DefinitionError, PatternError, RuleSignatureError
from activedb.events import MATCHES_MAX, Expression, Occurrence
from activedb.functions import checked_function, checked_result
from activedb.rules._declared import Declared, FindReads, event_of_reads
from activedb.transactions import Transaction, TransactionNode
from coupling import ConditionAction, Coupling

__all__ = [
    "Action",
    "Condition",
    "OccurrenceSet",
    "OnAbort",
    "OnFull",
    "OnMany",
    "OnUncertain",
    "Rule",
    "RuleOptions",
]


class OccurrenceSet(Occurrence):
    """Several occurrences that fire a rule once: a composite with one part for each.

    Parameters
    ----------
    occurrences : sequence of Occurrence
        At least one, in the order in which they were raised. The set has the name and the time of
        the last one.
    """

    __slots__ = ()

    def __init__(self, occurrences: Sequence[Occurrence]):
        last = occurrences[-1]
        parts = {str(number): o for number, o in enumerate(occurrences)}
        super().__init__(last.name, last.timestamp, parts=parts)

    @property
    def occurrences(self) -> tuple[Occurrence, ...]:
        """Occurrences, in the order in which they were raised; O(n)."""
        return tuple(self.parts.values())

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """Attribute `params` of each occurrence: new or deleted rows, for data changes; O(n)."""
        return [o.params for o in self.parts.values()]


Condition: TypeAlias = (
    Callable[[Transaction, Occurrence], Any]  # for lambdas, whose types checkers then infer
    | Callable[Concatenate[Transaction, Occurrence, ...], Any]
    | Callable[Concatenate[Transaction, OccurrenceSet, ...], Any]
)
E = TypeVar("E", bound=StrEnum)
Action: TypeAlias = Condition

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_UNDECLARED = Declared()
_PRIORITY_MAX = 2**63  # limit of the column
OnUncertain: TypeAlias = str | Callable[[Any], Any]
_POLICIES = ("raise", "certain", "possible", "reading")


class OnAbort(StrEnum):
    """Scope of the abort when a rule fails."""

    RULE = "rule"
    TRIGGERING = "triggering"


class OnFull(StrEnum):
    """Policy for a detector that already keeps as many occurrences as it may."""

    DROP_OLDEST = "drop_oldest"
    REFUSE = "refuse"


class OnMany(StrEnum):
    """Policy for an event that would complete more matches than allowed."""

    REFUSE = "refuse"
    TRUNCATE = "truncate"


@dataclass(frozen=True, slots=True)
class Rule:
    """An ECA rule.

    Attributes
    ----------
    name : str
        Name, unique in its catalog.
    on : Expression
        The event.
    action : callable ``(t, o)``
    when : callable ``(t, o)`` or None
        The condition, evaluated in the rule's own subtransaction before the action.
    coupling : Coupling
    priority : int or None
        Higher first; None is the lowest.
    on_abort : OnAbort
        Scope of the abort when the rule raises: its own subtransaction, or the triggering one.
    params : mapping
        Keyword arguments for action and condition; each gets the ones it takes.
    set_oriented : bool
        True if all occurrences in one statement, or in one deferred cycle, fire the rule once, with
        an `OccurrenceSet`.
    condition_action : ConditionAction
        Coupling of the action to the condition.
    after : tuple of str
        Names of rules that end before this one starts, if they are triggered together.
    partials_max : int or None
        Maximum number of occurrences that its detector keeps; None: as in the settings.
    on_full : OnFull
        Policy when `partials_max` is exceeded.
    matches_max : int or None
        Maximum number of matches that one event may complete; None: any number.
    on_many : OnMany
        Policy when `matches_max` is exceeded.
    on_uncertain : str or callable
        Policy for candidates whose order is not certain (`activedb/events/README.md`).
    without_event : bool
        True if the event was left out: `on` is any change of the tables that the condition reads.
    declared : Declared
        Reads, writes and signals that the author has declared.
    """

    name: str
    on: Expression
    action: Callable[..., Any]
    when: Callable[..., Any] | None
    coupling: Coupling
    priority: int | None
    on_abort: OnAbort
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)
    set_oriented: bool = False
    condition_action: ConditionAction = ConditionAction.IMMEDIATE
    after: tuple[str, ...] = ()
    partials_max: int | None = None
    on_full: OnFull = OnFull.DROP_OLDEST
    matches_max: int | None = MATCHES_MAX
    on_many: OnMany = OnMany.REFUSE
    on_uncertain: OnUncertain = "certain"
    without_event: bool = False
    declared: Declared = field(default=_UNDECLARED, compare=False)
    _of_action: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    _of_when: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def define(
        cls,
        action: Action,
        *,
        on: Any = None,
        when: Condition | None = None,
        coupling: str = "immediate",
        priority: int | None = None,
        on_abort: str = "triggering",
        name: str | None = None,
        params: Mapping[str, Any] | None = None,
        set_oriented: bool = False,
        condition_action: str = "immediate",
        after: Any = (),
        partials_max: int | None = None,
        on_full: str = "drop_oldest",
        matches_max: int | None = MATCHES_MAX,
        on_many: str = "refuse",
        on_uncertain: OnUncertain = "certain",
        reads: Any = None,
        writes: Any = None,
        raises: Any = None,
        declared: Declared | None = None,
        find_reads: FindReads | None = None,
    ) -> Rule:
        """Return a rule, checking the arguments that a user wrote; see `RuleOptions`.

        Parameters
        ----------
        declared : Declared, optional
            Earlier value of `reads`, `writes` and `raises`.
        find_reads : callable, optional
            Returns the reads of a condition from its source, for a rule that does not declare them.

        Raises
        ------
        RuleSignatureError
            If action or condition cannot be called as ``fn(t, o)``, with the parameters it takes,
            or a parameter is taken by neither of them.
        DefinitionError
            If the event, coupling, priority or on_abort is not valid.
        """
        if name is not None and not isinstance(name, str):
            raise DefinitionError(f"the name of a rule is a string, not {name!r}")
        name = name or getattr(action, "__name__", "")
        if not name or name == "<lambda>":
            raise DefinitionError("give the rule a name: @db.rule(..., name='…')")
        if declared is None:
            declared = Declared.of(name, reads=reads, writes=writes, raises=raises)
        without_event = on is None
        if on is None:
            on = event_of_reads(name, when, params, declared, find_reads)
        if not isinstance(on, Expression):
            raise DefinitionError(
                f"rule {name}: on= takes an event expression such as event('EXIT'), "
                f"updated(table), every(60), any_of(…) or seq(…), not {on!r}"
            )
        try:
            on.check()
        except PatternError as error:
            raise PatternError(f"rule {name}: {error}") from None
        given = _checked_params(name, params)
        of_action = _params_of(name, "action", action, given)
        of_when = _NOTHING if when is None else _params_of(name, "condition (when=)", when, given)
        for param in given:
            if param not in of_action and param not in of_when:
                raise RuleSignatureError(
                    f"rule {name}: neither the action nor the condition takes the parameter "
                    f"{param!r} of params=; write def {name}(t, o, *, {param})"
                )
        if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
            raise DefinitionError(f"rule {name}: priority takes an integer, not {priority!r}")
        if priority is not None and not -_PRIORITY_MAX <= priority < _PRIORITY_MAX:
            raise DefinitionError(f"rule {name}: priority has at most 64 bits, not {priority!r}")
        if not isinstance(set_oriented, bool):
            raise DefinitionError(f"rule {name}: set_oriented is True or False")
        mode = _one_of(Coupling, coupling, name, "coupling")
        if set_oriented and not mode.is_child:
            raise DefinitionError(
                f"rule {name}: set_oriented=True goes together with coupling='immediate' or "
                f"'deferred', not {coupling!r}: the set is what triggers it in one statement, or "
                f"in one deferred cycle"
            )
        if priority is not None and mode is Coupling.CAUSAL:
            raise DefinitionError(
                f"rule {name}: priority= means nothing with coupling='causal': such rules begin at "
                f"their event, and none can end before what triggered it; leave it out, or take "
                f"coupling='sequential'"
            )
        then = _one_of(ConditionAction, condition_action, name, "condition_action")
        if when is None and then is not ConditionAction.IMMEDIATE:
            raise DefinitionError(
                f"rule {name}: condition_action={condition_action!r} says when the action runs "
                f"after the condition, and there is none; give it one with when=, or leave that out"
            )
        return cls(
            name=name,
            on=on,
            action=action,
            when=when,
            coupling=mode,
            priority=priority,
            on_abort=_one_of(OnAbort, on_abort, name, "on_abort"),
            params=given,
            set_oriented=set_oriented,
            condition_action=then,
            after=_names_after(name, after, mode),
            partials_max=_checked_bound(
                name, partials_max, "partials_max takes how many occurrences its event may keep"
            ),
            on_full=_one_of(OnFull, on_full, name, "on_full"),
            matches_max=_checked_bound(
                name, matches_max, "matches_max takes how many matches one event may complete"
            ),
            on_many=_one_of(OnMany, on_many, name, "on_many"),
            on_uncertain=_checked_policy(name, on_uncertain),
            without_event=without_event,
            declared=declared,
            _of_action=of_action,
            _of_when=of_when,
        )

    def holds(self, t: TransactionNode, o: Occurrence) -> bool:
        """Return whether the condition, if there is one, is true of `o` in `t`."""
        if self.when is None:
            return True
        said = self.when(Transaction(t), o.apart(), **self._of_when)
        return bool(checked_result(said, f"the condition (when=) of rule {self.name}"))

    def act(self, t: TransactionNode, o: Occurrence) -> None:
        """Run the action in `t` for `o`."""
        said = self.action(Transaction(t), o.apart(), **self._of_action)
        checked_result(said, f"the action of rule {self.name}")


def _one_of(choices: Iterable[E], value: str, rule: str, option: str) -> E:
    for choice in choices:
        if choice == value:
            return choice
    known = ", ".join(repr(str(choice)) for choice in choices)
    raise DefinitionError(f"rule {rule}: {option}={value!r} is not one of {known}")


def _checked_bound(rule: str, most: Any, takes: str) -> int | None:
    is_whole = isinstance(most, int) and not isinstance(most, bool)
    if most is None or (is_whole and most >= 1):
        return most  # type: ignore[no-any-return]  # checked
    raise DefinitionError(f"rule {rule}: {takes}, at least 1, not {most!r}")


def _checked_policy(rule: str, on_uncertain: Any) -> OnUncertain:
    if callable(on_uncertain):
        checked_function(on_uncertain, f"on_uncertain= of rule {rule}")
        return on_uncertain  # type: ignore[no-any-return]  # checked
    if isinstance(on_uncertain, str) and on_uncertain in _POLICIES:
        return on_uncertain
    raise DefinitionError(
        f"rule {rule}: on_uncertain={on_uncertain!r} is not one of "
        f"{', '.join(map(repr, _POLICIES))} or a function"
    )


def _names_after(rule: str, after: Any, coupling: Coupling) -> tuple[str, ...]:
    if not isinstance(after, list | tuple | set | frozenset):
        raise DefinitionError(f"rule {rule}: after= takes a list of rules' names, not {after!r}")
    for name in after:
        if not isinstance(name, str) or not name:
            raise DefinitionError(f"rule {rule}: after= takes names of rules, not {name!r}")
    if after and not coupling.is_child:
        raise DefinitionError(
            f"rule {rule}: after= is about rules that are triggered together as children, and with "
            f"coupling={str(coupling)!r} it starts by itself; leave after= out"
        )
    return tuple(sorted(set(after)))


def _checked_params(rule: str, params: Any) -> Mapping[str, Any]:
    if params is None:
        return _NOTHING
    if not isinstance(params, Mapping):
        raise DefinitionError(f"rule {rule}: params takes a mapping of names, not {params!r}")
    for name in params:
        if not isinstance(name, str) or not name.isidentifier():
            raise DefinitionError(
                f"rule {rule}: a parameter is named like an argument of a function, not {name!r}"
            )
    return MappingProxyType(dict(params))


def _params_of(rule: str, what: str, function: Any, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `params` that a function takes, after checking that it can be called with them."""
    if not callable(function):
        raise RuleSignatureError(f"rule {rule}: the {what} is not a function: {function!r}")
    checked_function(function, f"the {what} of rule {rule}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return _NOTHING  # a built-in without a signature; a wrong call will fail
    kinds = signature.parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in kinds)
    named = {p.name for p in kinds if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    taken = {name: value for name, value in params.items() if takes_all or name in named}
    try:
        signature.bind(None, None, **taken)
    except TypeError as error:
        shown = f"{getattr(function, '__name__', 'function')}{signature}"
        called = ", ".join(["t, o", *(f"{name}=…" for name in taken)])
        raise RuleSignatureError(
            f"rule {rule}: the {what} {shown} cannot be called with ({called}): {error}; "
            f"write def {rule}({', '.join(['t, o', *taken])})"
        ) from None
    return MappingProxyType(taken)


# -- options of a rule, as its definition takes them -----------------------------------------------


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
