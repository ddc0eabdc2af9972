"""Requirements on programs, rules and streams for processing in columns."""

from __future__ import annotations

from collections.abc import Iterable

from activedb.columns.detect import supports as supports_pattern
from activedb.columns.program import supports as supports_program
from activedb.errors import DefinitionError
from activedb.events import Detector, Expression, Query, Sequence
from activedb.rules import OnMany, Rule
from activedb.scheduling import Program
from activedb.store.sql import KeyedValues
from activedb.streams._declaration import StreamDeclaration

__all__ = ["check_in_columns", "check_rule_in_columns"]


def check_rule_in_columns(rule: Rule, stream: StreamDeclaration) -> None:
    """Raise `DefinitionError` if a rule listens to a stream in columns in an unsupported way."""
    own = {("event", name) for name in stream.types}
    keys = rule.on.keys
    if keys.isdisjoint(own | {("late", stream.name)}):
        return
    why = _why_not(rule, stream, others=keys - own)
    if why is not None:
        raise DefinitionError(
            f"rule {rule.name}: stream {stream.name} is processed in columns (columns=True), and "
            f"{why}; change the rule, or leave out columns=True, and events come one by one"
        )


def _why_not(
    rule: Rule, stream: StreamDeclaration, others: frozenset[tuple[str, str]]
) -> str | None:
    if ("late", stream.name) in others:
        return "its late events are kept, but no rule receives them"
    if others:
        kind, name = min(others)
        return f"{kind} {name} is not an event of it, while all that the rule hears must be"
    if rule.partials_max is not None:
        return "the state of a rule there is bounded by its window, not by partials_max"
    if rule.on_many is not OnMany.REFUSE:
        return "an event that completes too many matches is refused there: leave out on_many"
    detector = Detector(rule.on)
    if detector.reads:
        return "its event reads the shared store: let its condition (when=) do that"
    return _why_no_pattern(rule.on) if detector.is_stateful else None


def _why_no_pattern(on: Expression) -> str | None:
    why = supports_pattern(on)
    if why is not None:
        return f"its pattern cannot be found there: {why}"
    pattern = on.pattern if isinstance(on, Query) else on
    assert isinstance(pattern, Sequence), "columns support no other pattern"
    if pattern.window_us is None:
        return "its pattern has no window, so it would keep its events for ever: add .within(…)"
    return None


_INSTEAD = 'give it another scheduler, such as "serial" or "tpg"'


def check_in_columns(
    program: Program, stream: StreamDeclaration, tables: Iterable[KeyedValues], *, is_alone: bool
) -> None:
    """Raise `DefinitionError` if a program cannot run durably in columns.

    Parameters
    ----------
    tables : iterable of KeyedValues
        Storage of the tables' rows; each holds floats.
    is_alone : bool
        Whether the stream has no other program.
    """

    def refuse(why: str) -> None:
        raise DefinitionError(f"program {program.name} cannot run in columns: {why}; {_INSTEAD}")

    if not is_alone:
        refuse(f"stream {stream.name} has another program, and in columns there is one")
    if stream.membership is not None:
        refuse(f"stream {stream.name} has producers, whose events come one by one")
    if stream.accuracy is not None:
        refuse(f"the timestamps of stream {stream.name} are intervals")
    why = supports_program(program)
    if why is not None:
        raise DefinitionError(f"{why.removesuffix('; a ProgramRun can run it')}; {_INSTEAD}")
    for kept in tables:
        if not kept.has_number_key:
            refuse(f"the key of table {kept.spec.name} is not one column of type Integer")
