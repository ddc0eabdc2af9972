"""Event expressions from plain data: mappings such as ``{"updated": "accounts"}``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from activedb.errors import DefinitionError
from activedb.events import (
    Conjunction,
    Expression,
    Sequence,
    aborted,
    all_of,
    any_of,
    aperiodic,
    at,
    began,
    called,
    committing,
    cron,
    deleted,
    event,
    every,
    inserted,
    late,
    many,
    periodic,
    query,
    returned,
    seq,
    some_of,
    updated,
)
from activedb.rules._function_names import FunctionNames
from activedb.spelling import did_you_mean

__all__ = ["CHANGES", "EventReader", "check_fields"]

CHANGES = ("inserted", "updated", "deleted")

_PRIMITIVE = frozenset(("where", "reading", "alias"))
_COMBINED = frozenset(("same", "within", "where", "reading", "context"))
_FIELDS_OF: dict[str, frozenset[str]] = {
    "event": _PRIMITIVE,
    "inserted": _PRIMITIVE,
    "updated": _PRIMITIVE | {"columns"},
    "deleted": _PRIMITIVE,
    "late": frozenset(("where", "alias")),
    "called": frozenset(("where", "alias")),
    "returned": frozenset(("where", "alias")),
    "transaction": frozenset(("where",)),
    "at": frozenset(("alias",)),
    "every": frozenset(("offset", "alias")),
    "cron": frozenset(("zone", "alias")),
    "any_of": frozenset(("context",)),
    "all_of": _COMBINED,
    "some_of": _COMBINED | {"count"},
    "seq": _COMBINED | {"gap", "select", "skip"},
    "not": frozenset(),
    "many": frozenset(("min", "max", "greedy", "alias")),
    "optional": frozenset(("greedy", "alias")),
    "after": frozenset(("delay", "context")),
    "periodic": frozenset(("period", "until", "collected", "alias", "context")),
    "aperiodic": frozenset(("what", "until", "collected", "same", "within", "context")),
    "timed_out": frozenset(),
    "query": frozenset(("pattern", "stream")),
}
"""Kinds of events, each with the optional fields of its mapping."""
_NEEDED = {
    "some_of": ("count",),
    "after": ("delay",),
    "periodic": ("period", "until"),
    "aperiodic": ("what", "until"),
    "query": ("pattern",),
}


@dataclass(frozen=True, slots=True)
class EventReader:
    """Reader of event expressions from data.

    Attributes
    ----------
    functions : FunctionNames
        Meaning of references to functions.
    table : callable
        Returns the declared table with a name; raises `DefinitionError`.
    """

    functions: FunctionNames
    table: Callable[[str], Any]

    def expression(self, data: Any) -> Expression:
        """Return the event expression of data; raise `DefinitionError` or `PatternError`."""
        if not isinstance(data, Mapping):
            raise DefinitionError(f"an event is written like {{event: EXIT}}, not {data!r}")
        kinds = [kind for kind in _FIELDS_OF if kind in data]
        if len(kinds) != 1:
            raise DefinitionError(
                f"an event is one of {', '.join(_FIELDS_OF)}, such as {{event: EXIT}}; "
                f"{dict(data)!r} is {' and '.join(kinds) or 'none'}"
            )
        kind = kinds[0]
        check_fields(data, {kind} | _FIELDS_OF[kind], needed=_NEEDED.get(kind, ()))
        read: Callable[[Any, Mapping[str, Any]], Expression] = getattr(self, f"_{kind}")
        return read(data[kind], data)

    # -- primitive events ------------------------------------------------------------------

    def _event(self, what: Any, data: Mapping[str, Any]) -> Expression:
        return event(what, **self._of_primitive(data))

    def _inserted(self, what: Any, data: Mapping[str, Any]) -> Expression:
        return inserted(self.table(what), **self._of_primitive(data))

    def _updated(self, what: Any, data: Mapping[str, Any]) -> Expression:
        columns = _strings(data.get("columns", ()), "columns")
        return updated(self.table(what), *columns, **self._of_primitive(data))

    def _deleted(self, what: Any, data: Mapping[str, Any]) -> Expression:
        return deleted(self.table(what), **self._of_primitive(data))

    def _late(self, what: Any, data: Mapping[str, Any]) -> Expression:
        where = self._function(data.get("where"))
        made: Expression = late(what, where, data.get("alias"))
        return made

    def _called(self, what: Any, data: Mapping[str, Any]) -> Expression:
        return called(what, self._function(data.get("where")), data.get("alias"))

    def _returned(self, what: Any, data: Mapping[str, Any]) -> Expression:
        return returned(what, self._function(data.get("where")), data.get("alias"))

    def _transaction(self, what: Any, data: Mapping[str, Any]) -> Expression:
        kinds = {"began": began, "committing": committing, "aborted": aborted}
        if not isinstance(what, str) or what not in kinds:
            raise DefinitionError(f"transaction takes one of {', '.join(kinds)}, not {what!r}")
        return kinds[what](self._function(data.get("where")))

    def _at(self, what: Any, data: Mapping[str, Any]) -> Expression:
        return at(what, data.get("alias"))

    def _every(self, what: Any, data: Mapping[str, Any]) -> Expression:
        return every(what, data.get("offset", 0), data.get("alias"))

    def _cron(self, what: Any, data: Mapping[str, Any]) -> Expression:
        return cron(what, data.get("zone", "UTC"), data.get("alias"))

    # -- combinations ----------------------------------------------------------------------

    def _any_of(self, what: Any, data: Mapping[str, Any]) -> Expression:
        return _in_context(any_of(*self._list(what, "any_of")), data)

    def _all_of(self, what: Any, data: Mapping[str, Any]) -> Expression:
        return self._combined(all_of(*self._list(what, "all_of")), data)

    def _some_of(self, what: Any, data: Mapping[str, Any]) -> Expression:
        return self._combined(some_of(data["count"], *self._list(what, "some_of")), data)

    def _seq(self, what: Any, data: Mapping[str, Any]) -> Expression:
        found = self._combined(seq(*self._list(what, "seq")), data)
        assert isinstance(found, Sequence)
        if data.get("gap") is not None:
            found = found.gap(data["gap"])
        if data.get("select") is not None:
            found = found.selecting(data["select"])
        skip = data.get("skip")
        if isinstance(skip, Mapping) and len(skip) == 1:
            ((to, part),) = skip.items()
            return found.skipping(to, part)
        return found if skip is None else found.skipping(skip)

    def _aperiodic(self, what: Any, data: Mapping[str, Any]) -> Expression:
        parts: Any = map(self.expression, (what, data["what"], data["until"]))
        collected = _flag(data, "collected", default=False)
        return self._combined(aperiodic(*parts, collected=collected), data)

    def _not(self, what: Any, data: Mapping[str, Any]) -> Expression:
        return ~self.expression(what)

    def _many(self, what: Any, data: Mapping[str, Any]) -> Expression:
        greedy = _flag(data, "greedy", default=True)
        made = many(self.expression(what), data.get("min", 1), data.get("max"), greedy=greedy)
        return made if data.get("alias") is None else made.named(data["alias"])

    def _optional(self, what: Any, data: Mapping[str, Any]) -> Expression:
        return self._many(what, {**data, "min": 0, "max": 1})

    # -- timed events ----------------------------------------------------------------------

    def _after(self, what: Any, data: Mapping[str, Any]) -> Expression:
        return _in_context(self.expression(what).after(data["delay"]), data)

    def _periodic(self, what: Any, data: Mapping[str, Any]) -> Expression:
        made = periodic(
            self.expression(what),
            data["period"],
            self.expression(data["until"]),
            collected=_flag(data, "collected", default=False),
            alias=data.get("alias", "tick"),
        )
        return _in_context(made, data)

    def _timed_out(self, what: Any, data: Mapping[str, Any]) -> Expression:
        found = self.expression(what)
        if not isinstance(found, Sequence):
            raise DefinitionError(
                f"timed_out takes a sequence, {{seq: […], within: 45}}, not {what!r}"
            )
        return found.timed_out()

    def _query(self, what: Any, data: Mapping[str, Any]) -> Expression:
        return query(what, self.expression(data["pattern"]), stream=data.get("stream"))

    # -- internals -------------------------------------------------------------------------

    def _of_primitive(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "where": self._function(data.get("where")),
            "alias": data.get("alias"),
            "reading": self._function(data.get("reading")),
        }

    def _combined(self, found: Expression, data: Mapping[str, Any]) -> Expression:
        same = _strings(data.get("same", ()), "same")
        if same:
            found = found.same(*same)
        for where in _each(data.get("where")):
            found = found.where(self.functions.function(where))
        for reading in _each(data.get("reading")):
            assert isinstance(found, Sequence | Conjunction)
            found = found.reading(self.functions.function(reading))
        if data.get("within") is not None:
            found = found.within(data["within"])
        return _in_context(found, data)

    def _list(self, data: Any, kind: str) -> list[Any]:
        if not isinstance(data, list):
            raise DefinitionError(f"{kind} takes a list of events, not {data!r}")
        return [self.expression(part) for part in data]

    def _function(self, name: Any) -> Any:
        return None if name is None else self.functions.function(name)


def check_fields(data: Mapping[Any, Any], known: Iterable[str], needed: Iterable[str] = ()) -> None:
    """Raise `DefinitionError` for a field that is unknown or missing."""
    names = frozenset(known)
    for field in data:
        if field not in names:
            raise DefinitionError(f"there is no field {field!r}; {did_you_mean(field, names)}")
    for field in needed:
        if field not in data:
            raise DefinitionError(f"the field {field!r} is missing")


def _in_context(found: Expression, data: Mapping[str, Any]) -> Expression:
    context = data.get("context")
    return found if context is None else found.context(context)


def _each(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _flag(data: Mapping[str, Any], field: str, *, default: bool) -> bool:
    value = data.get(field, default)
    if not isinstance(value, bool):
        raise DefinitionError(f"{field} is true or false, not {value!r}")
    return value


def _strings(value: Any, field: str) -> list[str]:
    if not isinstance(value, list | tuple):
        raise DefinitionError(f"{field} takes a list of names, not {value!r}")
    return list(value)
