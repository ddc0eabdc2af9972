"""Rules triggered by patterns: their conditions and actions are operations of s-transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from activedb.errors import ConditionWrites, DefinitionError
from activedb.events import Detector, Expression, Occurrence
from activedb.functions import checked_function, checked_result
from activedb.scheduling._access import View
from activedb.scheduling._operations import Effect, Operation
from activedb.scheduling._tables import Ref

__all__ = ["OnUncertain", "ProgramRule", "Reaction", "Reactions", "Triggered"]

Refs = Callable[[Occurrence], Iterable[Ref]]
Function = Callable[[View, Occurrence], Any]
Triggered = tuple["ProgramRule", Occurrence]
OnUncertain: TypeAlias = str | Callable[[Any], Any]
_POLICIES = ("certain", "possible", "reading")
_Declared = tuple[tuple[Ref, ...], tuple[Ref, ...]]


@dataclass(frozen=True, slots=True)
class ProgramRule:
    """Rule over shared tables (Wang et al., definition 5); see `Program.rule`.

    Attributes
    ----------
    name : str
    expression : Expression
        The pattern that triggers it.
    action : callable ``(t, o)``
        Called with a `View` and the occurrence.
    when : callable ``(t, o)`` or None
        The condition: it may read all of `reads` and `writes`, and writes nothing.
    reads, writes : callable ``(o)``
        References that condition and action may at most read, and that the action may write (and
        both may read).
    priority : int
        Of the rules that one event triggers, those with higher priority come first.
    on_uncertain : {"certain", "possible", "reading"} or callable
        Policy for events whose order does not follow from their timestamps; as for a `Detector`.
    """

    name: str
    expression: Expression
    action: Function
    when: Function | None
    reads: Refs
    writes: Refs
    priority: int
    on_uncertain: OnUncertain = "certain"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise DefinitionError(f"a rule needs a name, a non-empty string, not {self.name!r}")
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise DefinitionError(
                f"rule {self.name}: priority is a whole number, not {self.priority!r}"
            )
        self._check_policy()
        for name in ("action", "when", "reads", "writes"):
            function = getattr(self, name)
            if not callable(function) and not (name == "when" and function is None):
                raise DefinitionError(f"rule {self.name}: {name} is a function, not {function!r}")
            if function is not None:
                checked_function(
                    function,
                    f"{name} of rule {self.name}",
                    may_yield=name in ("reads", "writes"),
                )
        if self.detector().reads:
            raise DefinitionError(
                f"rule {self.name}: a predicate of its pattern reads the store; what looks at "
                "shared tables is part of the condition, `when`"
            )

    def _check_policy(self) -> None:
        policy = self.on_uncertain
        if callable(policy):
            checked_function(policy, f"on_uncertain= of rule {self.name}")
        elif policy == "raise":
            raise DefinitionError(
                f"rule {self.name}: on_uncertain='raise' is not for rules of programs, which no "
                "event fails for: with 'certain' what is open is listed (Results.undecided; of a "
                "stream's program db.decisions), and a function is told at once, and decides"
            )
        elif policy not in _POLICIES:
            raise DefinitionError(
                f"rule {self.name}: on_uncertain={policy!r} is not one of "
                f"{', '.join(map(repr, _POLICIES))} or a function"
            )

    def detector(self) -> Detector:
        """Return a new detector of the rule's expression."""
        return Detector(self.expression, on_uncertain=self.on_uncertain)


class _ConditionView(View):
    """View for conditions: it refuses writes."""

    __slots__ = ()

    def write(self, ref: Ref, value: Any) -> None:
        raise ConditionWrites(f"a condition may only read; write {ref!r} in the rule's action")


class _Acting(NamedTuple):
    """The parts of a rule still needed after its match, once its access sets are known."""

    name: str
    when: Function | None
    action: Function


class Reaction(NamedTuple):
    """Result of one triggered rule.

    Attributes
    ----------
    rule : str
    occurrence : Occurrence
        The match.
    fired : bool
        Whether the condition held, so that the action ran.
    result : object
        Return value of the action.
    """

    rule: str
    occurrence: Occurrence
    fired: bool
    result: Any


class Reactions(Operation):
    """Conditions and actions of all rules that one event triggers, one after the other.

    As in a `ShortFormBody`, each sees the writes of those before it. If one raises, none of them
    takes effect: the s-transaction aborts. The result is a tuple of `Reaction`.

    Parameters
    ----------
    triggered : sequence of (ProgramRule, Occurrence)
        In the order in which they run.
    check : callable
        Raises if an operation may not access one of its references.
    error : Exception, optional
        Reason why the triggered rules are unknown: the s-transaction aborts.
    """

    __slots__ = ("_declared", "_error", "triggered")

    def __init__(
        self,
        triggered: Sequence[Triggered],
        check: Callable[[Operation], None],
        error: Exception | None = None,
    ):
        self.triggered = tuple((_Acting(r.name, r.when, r.action), o) for r, o in triggered)
        super().__init__((), ())
        self._declared: list[_Declared] = []
        self._error = error
        if error is not None:
            return
        try:
            self._declared = [(tuple(r.reads(o)), tuple(r.writes(o))) for r, o in triggered]
            written = tuple(ref for _, writes in self._declared for ref in writes)
            read = tuple(ref for reads, _ in self._declared for ref in reads)
            super().__init__(written, (*read, *written))
            check(self)
        except Exception as error:  # any error of the user's functions is the reason of the abort
            super().__init__((), ())
            self._error = error

    def evaluate(self, read: Callable[[Ref], Any]) -> Effect:
        if self._error is not None:
            raise self._error
        common = View(read, self.sources, self.targets)
        reactions = [
            _react(rule, o, common, *declared)
            for (rule, o), declared in zip(self.triggered, self._declared, strict=True)
        ]
        return common.effect(tuple(reactions))


def _react(
    rule: _Acting, o: Occurrence, common: View, reads: tuple[Ref, ...], writes: tuple[Ref, ...]
) -> Reaction:
    """Run a rule through separate views, since it may access less than all rules together."""
    if rule.when is not None:
        looking = _ConditionView(common.read, (*reads, *writes), ())
        if not checked_result(rule.when(looking, o), f"the condition of rule {rule.name}"):
            return Reaction(rule.name, o, False, None)
    view = View(common.read, reads, writes)
    result = checked_result(rule.action(view, o), f"the action of rule {rule.name}")
    for table, key, value in view.effect(None).writes:
        common.write(table[key], value)
    return Reaction(rule.name, o, True, result)
