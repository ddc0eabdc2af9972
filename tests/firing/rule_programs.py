"""Random programs of `naive_rules`, such that their outcome does not depend on any order.

Effects commute: counters grow, rows have names of their own. The programs avoid all else that could
make the order matter:

* *Termination.* A rule on an event of kind k raises only kinds above k.
* *Failure* aborts other rules only in a group of its own: a rule that may fail with
  ``on_abort="triggering"`` has a priority that no other rule has. It would be unknown how far
  siblings that run beside it came.
* *Quiet* is a rule if nothing that it triggers outlives its abort. Rules that may be undone at any
  point must be quiet: such a rule in deferred mode, which may be triggered several times, in an
  unknown order; causal rules; actions that start before their condition is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from hypothesis import strategies as st

from tests.firing.naive_rules import Add, Fail, Par, Program, Raise, RuleSpec, Step, Sub, Top, Write

__all__ = ["COUNTERS", "KINDS", "programs"]

KINDS = 5
COUNTERS = 2
_CHILD = ("immediate", "deferred")

T = TypeVar("T")


class _Draft:
    """Writer of a random program, from the last kind of event to the first."""

    def __init__(self, draw: st.DrawFn, modes: Sequence[str], condition_actions: Sequence[str]):
        self._draw = draw
        self._modes = modes
        self._condition_actions = condition_actions
        self.rules: list[RuleSpec] = []

    def one_of(self, choices: Sequence[T]) -> T:
        return self._draw(st.sampled_from(choices))

    def chance(self, one_in: int) -> bool:
        return self._draw(st.integers(0, one_in - 1)) == one_in - 1

    # -- steps -----------------------------------------------------------------------------

    def steps(self, above: int, depth: int, longest: int) -> tuple[Step, ...]:
        """Steps that raise events of kinds above `above`."""
        length = self._draw(st.integers(1, longest))
        return tuple(self.step(above, depth) for _ in range(length))

    def step(self, above: int, depth: int) -> Step:
        kinds = [k for k in range(above + 1, KINDS) if any(r.on == k for r in self.rules)]
        choices = ["write", "add", "raise", "raise", "raise", "raise", "sub", "par", "fail"]
        what = self.one_of(choices)
        if what == "raise" and kinds:
            return Raise(self.one_of(kinds), self._draw(st.integers(0, 5)), self.chance(3))
        if what == "sub" and depth:
            return Sub(self.steps(above, depth - 1, 2))
        if what == "par" and depth:
            branches = self._draw(st.integers(1, 2))
            return Par(tuple(self.steps(above, depth - 1, 2) for _ in range(branches)))
        if what == "fail":
            return Fail(self._draw(st.booleans()))
        if what == "add":
            return Add(self._draw(st.integers(0, COUNTERS - 1)), self._draw(st.integers(1, 9)))
        return Write()

    # -- rules -----------------------------------------------------------------------------

    def rule(self, on: int) -> None:
        number = len(self.rules)
        coupling = self.one_of([*self._modes, *_CHILD, *_CHILD])
        steps = self.steps(on, 1, 3)
        rule = RuleSpec(
            f"r{number}",
            on,
            coupling,
            steps if self.chance(3) else (Write(), *steps),
            priority=self.one_of([None, 0, 1]),
            on_abort=self.one_of(["triggering", "rule"]),
            unless=self.one_of([0, 0, 0, 2, 3]),
        )
        if rule.unless:
            rule = replace(rule, condition_action=self.one_of(self._condition_actions))
        if coupling == "causal" and not self.is_quiet(rule):
            rule = replace(rule, coupling="sequential")
        if rule.condition_action == "sequential" and not self.is_quiet(rule):
            rule = replace(rule, condition_action="immediate")
        if rule.on_abort == "triggering" and self.may_fail(rule.steps):
            rule = replace(rule, priority=self.one_of([-1, 1]) * (10 + number))
            is_late = rule.coupling == "deferred" or rule.condition_action == "deferred"
            if is_late and not self.is_quiet(rule):
                rule = replace(rule, on_abort="rule")
        if rule.coupling == "causal":
            rule = replace(rule, priority=None)  # such rules have none
        self.rules.append(rule)

    def triggered(self, steps: Iterable[Step]) -> list[RuleSpec]:
        """The rules that may be triggered by these steps."""
        kinds = {step.kind for step in flat(steps) if isinstance(step, Raise)}
        return [rule for rule in self.rules if rule.on in kinds]

    def may_fail(self, steps: Iterable[Step]) -> bool:
        """Return whether a transaction with these steps may fail.

        Steps inside other transactions are ignored.
        """
        for step in steps:
            if isinstance(step, Fail):
                return True
            if isinstance(step, Raise) and any(
                rule.on_abort == "triggering" and self.may_fail(rule.steps)
                for rule in self.triggered([step])
                if rule.coupling in _CHILD
            ):
                return True
        return False

    def is_quiet(self, rule: RuleSpec) -> bool:
        if rule.condition_action == "detached":
            return False
        return all(
            other.coupling not in ("detached", "exclusive")
            and (other.coupling not in _CHILD or self.is_quiet(other))
            for other in self.triggered(rule.steps)
        )


def flat(steps: Iterable[Step]) -> list[Step]:
    """Steps with those inside them."""
    found: list[Step] = []
    for step in steps:
        found.append(step)
        if isinstance(step, Sub):
            found += flat(step.steps)
        elif isinstance(step, Par):
            for branch in step.branches:
                found += flat(branch)
    return found


@st.composite
def programs(draw: st.DrawFn, *, modes: Sequence[str], condition_actions: Sequence[str]) -> Program:
    """Programs with rules in these modes."""
    draft = _Draft(draw, modes, condition_actions)
    for kind in reversed(range(KINDS)):
        for _ in range(draw(st.integers(2, 3))):
            draft.rule(kind)
    tops = tuple(
        Top(f"t{number}", draft.steps(-1, 2, 5)) for number in range(draw(st.integers(1, 3)))
    )
    return Program(tuple(draft.rules), tops)
