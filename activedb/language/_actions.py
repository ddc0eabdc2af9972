"""Actions of rules: SQL, signals and function calls, run in sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from activedb.errors import DefinitionError
from activedb.events import name_text
from activedb.events.terms import Term
from activedb.language._sql import SqlWrite

__all__ = ["Body", "Call", "Signal", "Step"]


@dataclass(frozen=True, slots=True)
class Signal:
    """An application event that an action raises.

    Attributes
    ----------
    name : str
    values : tuple of (str, Term)
        Parameters, computed from the event that triggered the rule.
    raising : callable or None
        Called as ``raising(name, **params)``; None if the text was read without a database.
    """

    name: str
    values: tuple[tuple[str, Term], ...] = ()
    raising: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    def run(self, t: Any, o: Any) -> None:
        """Raise the event in `t`, the current transaction of this thread."""
        if self.raising is None:
            raise DefinitionError(
                f"SIGNAL {self.name} cannot run: read the rule by db.rules.load_text"
            )
        params = {name: term.evaluate(o.parts, o, t) for name, term in self.values}
        self.raising(self.name, **params)

    @property
    def text(self) -> str:
        """Source text of the step."""
        values = ", ".join(f"{name_text(name)} = {term!r}" for name, term in self.values)
        return f"SIGNAL {name_text(self.name)}" + (f"({values})" if values else "")


@dataclass(frozen=True, slots=True)
class Call:
    """Call of a Python function ``(t, o)``.

    Attributes
    ----------
    reference : str
        ``"module:function"``.
    function : callable
    """

    reference: str
    function: Callable[..., Any] = field(compare=False, repr=False)

    def run(self, t: Any, o: Any) -> None:
        """Call the function."""
        self.function(t, o)

    @property
    def text(self) -> str:
        """Source text of the step."""
        module, _, function = self.reference.partition(":")
        dotted = ".".join(map(name_text, module.split(".")))
        return f"CALL {dotted}:{name_text(function)}"


Step: TypeAlias = SqlWrite | Signal | Call


@dataclass(frozen=True, slots=True)
class Body:
    """An action, called as ``body(t, o)``.

    Attributes
    ----------
    steps : tuple of SqlWrite, Signal or Call
    new, old : str
        Names of the event itself, and of the row before its change, in the SQL of action and
        condition (REFERENCING).
    """

    steps: tuple[Step, ...]
    new: str = "NEW"
    old: str = "OLD"

    def __call__(self, t: Any, o: Any) -> None:
        for step in self.steps:
            step.run(t, o)

    @property
    def rule_text(self) -> str:
        """Source text of the action, used in the fingerprint of the definition."""
        (first, *others) = self.steps
        if not others and not isinstance(first, SqlWrite):
            return first.text
        return f"BEGIN\n{''.join(f'  {step.text};{chr(10)}' for step in self.steps)}END"
