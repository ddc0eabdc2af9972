"""Checked rule definitions from plain data: mappings and lists, as in a YAML file."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from activedb.errors import ActiveDBError, DefinitionError
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
from activedb.rules._declared import FindReads
from activedb.rules._registered import CHANGEABLE
from activedb.rules._rule import Rule
from activedb.spelling import did_you_mean
from activedb.trust import check_trusted

__all__ = [
    "CHANGES",
    "ExpressionReader",
    "FunctionNames",
    "check_fields",
    "rules_from_data",
    "rules_from_file",
]


class FunctionNames:
    """Resolver of references such as ``"module:function"``.

    Only functions that a module itself defines, or lists in ``__all__``, can be named, without a
    leading underscore: a function that a module merely imports (``os.system``) is not offered by
    it. Nothing is evaluated, and a module that is not allowed is not imported.

    Parameters
    ----------
    modules : iterable of modules, or mapping of str to module
        Modules by their own names, or by the given ones.
    allow : iterable of str
        Full names of modules that are imported when a reference names them.

    Raises
    ------
    DefinitionError
        If an argument is invalid.
    """

    def __init__(
        self,
        modules: Iterable[ModuleType] | Mapping[str, ModuleType] = (),
        allow: Iterable[str] = (),
    ):
        if isinstance(allow, str):
            raise DefinitionError(f"allow takes a list of module names: allow=[{allow!r}]")
        if isinstance(modules, ModuleType):
            raise DefinitionError(f"modules takes a list: modules=[{modules.__name__}]")
        given = modules if isinstance(modules, Mapping) else {m.__name__: m for m in modules}
        self._modules: dict[str, ModuleType] = dict(given)
        self._allowed = frozenset(allow)

    def function(self, reference: Any) -> Callable[..., Any]:
        """Return the function that ``"module:function"`` names.

        Raises
        ------
        DefinitionError
            If the reference is malformed, the module is not allowed or cannot be imported, or it
            offers no such function.
        """
        if not isinstance(reference, str) or reference.count(":") != 1:
            raise DefinitionError(f"a function is named as 'module:function', not {reference!r}")
        module_name, name = reference.split(":")
        module = self._module(module_name)
        function = vars(module).get(name)
        is_offered = name in getattr(module, "__all__", ()) or (
            getattr(function, "__module__", None) == module.__name__
        )
        if name.startswith("_") or not callable(function) or not is_offered:
            raise DefinitionError(
                f"module {module_name} offers no function {name!r}: define it there, or list it in "
                f"__all__"
            )
        return function  # type: ignore[no-any-return]  # callable, as has been checked

    def _module(self, name: str) -> ModuleType:
        if name in self._modules:
            return self._modules[name]
        if name not in self._allowed:
            known = ", ".join(sorted({*self._modules, *self._allowed})) or "none"
            raise DefinitionError(
                f"functions of module {name!r} are not allowed here (allowed: {known}); pass the "
                f"module in modules=, or its name in allow="
            )
        try:
            return importlib.import_module(name)
        except Exception as error:
            raise DefinitionError(f"module {name!r} cannot be imported: {error}") from error


# -- event expressions from plain data: mappings such as ``{"updated": "accounts"}`` ---------------


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
class ExpressionReader:
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


# -- checked rule definitions from plain data: mappings and lists, as in a YAML file ---------------


_OF_RULE = (
    *(field for field in CHANGEABLE if field not in ("on", "action", "when")),
    "reads",
    "raises",
)
"""Optional fields that are passed to the rule as they are."""
_DEPTH_MAX = 200  # each level takes some stack frames of Python, whose limit is 1000
_FIELDS = frozenset(("name", "on", "do", "when", "writes", "enabled", *_OF_RULE))


def rules_from_data(
    data: Any,
    *,
    functions: FunctionNames,
    table: Callable[[str], Any],
    find_reads: FindReads | None = None,
) -> list[tuple[Rule, bool]]:
    """Return rules, each with its enabled flag, from a list of mappings or a mapping by name.

    Parameters
    ----------
    data : list of mappings, or mapping of str to mapping
        Each with ``do``, usually ``on``, and further fields of a rule.
    functions : FunctionNames
        Meaning of references to functions.
    table : callable
        Returns the declared table with a name; raises `DefinitionError`.
    find_reads : callable, optional
        Returns the reads of a condition, for a rule without ``on``.

    Raises
    ------
    DefinitionError
        If a field has no meaning, or two rules have one name; the message names the rule.
    """
    reader = _RuleReader(functions, ExpressionReader(functions, table), find_reads)
    found: dict[str, tuple[Rule, bool]] = {}
    for name, fields in _items(data):
        rule, enabled = reader.rule(name, fields)
        if rule.name in found:
            raise DefinitionError(f"rule {rule.name}: two rules have this name; rename one")
        found[rule.name] = (rule, enabled)
    return list(found.values())


def rules_from_file(path: str | Path) -> Any:
    """Return the contents of a YAML file for `rules_from_data`, as plain data.

    Nothing in the file is evaluated. Only ``true`` and ``false`` are booleans, so that ``on:`` is a
    name. Duplicate keys are refused.

    Raises
    ------
    DefinitionError
        If the file cannot be read or is not such YAML.
    UntrustedFile
        If the file is world-writable.
    """
    check_trusted(path)
    try:
        return yaml.load(Path(path).read_text("utf-8"), Loader=_Loader)  # noqa: S506  # a SafeLoader
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise DefinitionError(f"the rules in {path} cannot be read: {error}") from error


def _check_depth(data: Any) -> None:
    """Refuse data nested so deeply that Python's stack would overflow; O(size)."""
    level: dict[int, Any] = {id(data): data}  # each thing once, however often it is contained
    for _ in range(_DEPTH_MAX):
        parts = [
            part
            for each in level.values()
            if isinstance(each, Mapping | list | tuple)
            for part in (each.values() if isinstance(each, Mapping) else each)
        ]
        level = {id(part): part for part in parts}
        if not level:
            return
    raise DefinitionError("it is nested too deeply")


@dataclass(frozen=True, slots=True)
class _RuleReader:
    functions: FunctionNames
    events: ExpressionReader
    find_reads: FindReads | None

    def rule(self, name: str, fields: Mapping[str, Any]) -> tuple[Rule, bool]:
        """Return a rule and its enabled flag; errors begin with its name."""
        try:
            _check_depth(fields)
            check_fields(fields, _FIELDS, needed=("do",))
            enabled = fields.get("enabled", True)
            if not isinstance(enabled, bool):
                raise DefinitionError(f"enabled is true or false, not {enabled!r}")
            if "on" not in fields and "when" not in fields:
                raise DefinitionError("the field 'on' is missing, and there is no 'when' either")
            when = fields.get("when")
            given = {f: fields[f] for f in _OF_RULE if f in fields}
            given["reads"] = self.effects(fields.get("reads"))
            policy = given.get("on_uncertain")
            if isinstance(policy, str) and ":" in policy:
                given["on_uncertain"] = self.functions.function(policy)
            rule = Rule.define(
                self.functions.function(fields["do"]),
                name=name,
                on=self.events.expression(fields["on"]) if "on" in fields else None,
                when=None if when is None else self.functions.function(when),
                writes=self.effects(fields.get("writes"), events=True),
                find_reads=self.find_reads,
                **given,
            )
        except ActiveDBError as error:
            message = str(error)
            if message.startswith(f"rule {name}:"):
                raise
            raise type(error)(f"rule {name}: {message}") from error
        return rule, enabled

    def effects(self, data: Any, *, events: bool = False) -> Any:
        """Return the items of ``reads`` or ``writes`` with the tables that they name.

        Those of ``writes`` also with expressions for ``{"inserted": "log"}``.

        Raises
        ------
        DefinitionError
            If no such table is declared.
        """
        if not isinstance(data, list | tuple | set | frozenset):
            return data
        found = []
        for item in data:
            if events and isinstance(item, Mapping) and _is_change(item):
                item = self.events.expression(item)
            elif isinstance(item, str) and item:
                item = self._place(item)
            found.append(item)
        return found

    def _place(self, name: str) -> Any:
        """Return the table with this name; the name itself if it is that of a table's column."""
        table, dot, _ = name.rpartition(".")
        try:
            return self.events.table(name)
        except DefinitionError:
            if not dot:
                raise
            self.events.table(table)
            return name


def _items(data: Any) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Return the names and fields of the rules in `data`."""
    if isinstance(data, Mapping):
        pairs = [(name, fields) for name, fields in data.items()]
    elif isinstance(data, list | tuple):
        pairs = [(f.get("name") if isinstance(f, Mapping) else None, f) for f in data]
    else:
        raise DefinitionError(f"rules come as a list or a mapping by name, not {data!r}")
    for number, (name, fields) in enumerate(pairs, 1):
        if not isinstance(name, str) or not name:
            raise DefinitionError(f"rule number {number} needs a name, a string, not {name!r}")
        if not isinstance(fields, Mapping):
            raise DefinitionError(f"rule {name}: fields such as on and do come as a mapping")
        if fields.get("name", name) != name:
            raise DefinitionError(
                f"rule {name}: it calls itself {fields['name']!r}; leave that out"
            )
        yield name, fields


def _is_change(data: Mapping[Any, Any]) -> bool:
    return any(kind in data for kind in CHANGES)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the booleans of YAML 1.2; what it refuses is an error with a line.

    It also refuses duplicate keys, keys that are lists or mappings, and what contains itself.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            # Deep, as a node that contains itself is an error then, and else a value without end.
            return super().construct_object(node, deep=True)
        except (yaml.YAMLError, RecursionError):
            raise
        except Exception as error:  # of a scalar: its text is no value of its kind
            raise _refused(f"this is no value of its kind ({error})", node) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refused("a key is text; quote it if it is to have brackets or braces", key)
            if key.value in seen:
                raise _refused(f"the key {key.value!r} occurs twice", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _refused(why: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, why, node.start_mark)


_BOOLEAN = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOLEAN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOLEAN, re.compile("^(?:true|false)$"), list("tf"))
