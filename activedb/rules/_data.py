"""Checked rule definitions from plain data: mappings and lists, as in a YAML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from activedb.errors import ActiveDBError, DefinitionError
from activedb.rules._event_data import CHANGES, EventReader, check_fields
from activedb.rules._function_names import FunctionNames
from activedb.rules._rule import Rule
from activedb.rules._without_event import FindReads
from activedb.trust import check_trusted

__all__ = ["rules_from_data", "rules_from_file"]

_OF_RULE = (
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
    "reads",
    "raises",
)
"""Optional fields that are passed to the rule as they are."""
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
    reader = _Reader(functions, EventReader(functions, table), find_reads)
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


@dataclass(frozen=True, slots=True)
class _Reader:
    functions: FunctionNames
    events: EventReader
    find_reads: FindReads | None

    def rule(self, name: str, fields: Mapping[str, Any]) -> tuple[Rule, bool]:
        """Return a rule and its enabled flag; errors begin with its name."""
        try:
            check_fields(fields, _FIELDS, needed=("do",))
            enabled = fields.get("enabled", True)
            if not isinstance(enabled, bool):
                raise DefinitionError(f"enabled is true or false, not {enabled!r}")
            if "on" not in fields and "when" not in fields:
                raise DefinitionError("the field 'on' is missing, and there is no 'when' either")
            when = fields.get("when")
            given = {f: fields[f] for f in _OF_RULE if f in fields}
            policy = given.get("on_uncertain")
            if isinstance(policy, str) and ":" in policy:
                given["on_uncertain"] = self.functions.function(policy)
            rule = Rule.define(
                self.functions.function(fields["do"]),
                name=name,
                on=self.events.expression(fields["on"]) if "on" in fields else None,
                when=None if when is None else self.functions.function(when),
                writes=self.writes(fields.get("writes")),
                find_reads=self.find_reads,
                **given,
            )
        except ActiveDBError as error:
            message = str(error)
            if message.startswith(f"rule {name}:"):
                raise
            raise type(error)(f"rule {name}: {message}") from error
        return rule, enabled

    def writes(self, data: Any) -> Any:
        """Return the items of ``writes``, with expressions for ``{"inserted": "log"}``."""
        if not isinstance(data, list):
            return data
        return [
            self.events.expression(item) if isinstance(item, Mapping) and _is_change(item) else item
            for item in data
        ]


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
    """PyYAML's safe loader with the booleans of YAML 1.2, which refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            if isinstance(key.value, str):
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_BOOLEAN = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOLEAN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOLEAN, re.compile("^(?:true|false)$"), list("tf"))
