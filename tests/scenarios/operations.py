"""Operations of a scenario on rows: read from words, done for real, done by a model.

==================================  =============================================================
``get accounts 1``                  also ``... for update``, and then ``... nowait``
``insert accounts 3 balance=30``    ``insert tickets new seat=1`` leaves the key to the database
``update accounts 1 balance=5``     ``balance+=5``, ``balance-=5``: reads the row for update first
``delete accounts 1``
``select accounts``                 a scan; ``... where balance>=10 room=1``: both must hold
``sum accounts balance``            an aggregate; ``count accounts``; both with ``where`` too
``set accounts balance+=1``         an UPDATE statement; ``remove accounts``: a DELETE
``copy accounts to 100``            an INSERT ... SELECT that adds 100 to the keys
==================================  =============================================================

A condition is ``balance>=10`` with any comparison, or ``balance%3=0``; the statements take them
too. ``select`` may go on with ``limit 1``, then ``for update``, and that with ``nowait`` or ``skip
locked``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import Table, delete, func, insert, select
from sqlalchemy import update as sql_update

from activedb.errors import RowExists, RowNotFound

if TYPE_CHECKING:
    from activedb import Transaction
    from tests.transactions.model import Model, Node

VERBS = ("get", "insert", "update", "delete", "select", "sum", "count", "set", "remove", "copy")
_CONDITION = re.compile(r"(\w+)(?:%(\d+))?(<=|>=|!=|=|<|>)(-?\w+)")
_CHANGE = re.compile(r"(\w+)(\+=|-=|=)(\S*)")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def value(word: str) -> Any:
    """Read ``10`` as a number, ``null`` as None, anything else as text."""
    if word == "null":
        return None
    return int(word) if re.fullmatch(r"-?\d+", word) else word


def shown(row: Mapping[str, Any]) -> str:
    """Write ``room=1 start=9``; the key is not shown, nor is what is null."""
    cells = [f"{name}={cell}" for name, cell in row.items() if name != "id" and cell is not None]
    return " ".join(cells) or "empty"


def listed(rows: list[Mapping[str, Any]]) -> str:
    """Write ``1 balance=10, 2 balance=20``, by key."""
    ordered = sorted(rows, key=lambda row: row["id"])
    return ", ".join(f"{row['id']} {shown(row)}" for row in ordered) or "nothing"


@dataclass(frozen=True)
class Condition:
    """``column % modulus compared with value``."""

    column: str
    modulus: int | None
    sign: str
    value: Any

    @classmethod
    def read(cls, word: str) -> Condition:
        """Read a condition."""
        match = _CONDITION.fullmatch(word)
        assert match, f"not a condition: {word}"
        column, modulus, sign, limit = match.groups()
        return cls(column, int(modulus) if modulus else None, sign, value(limit))

    def clause(self, table: Table) -> Any:
        """The condition in SQL."""
        subject = table.c[self.column]
        return _COMPARE[self.sign](
            subject if self.modulus is None else subject % self.modulus, self.value
        )

    def holds(self, row: Mapping[str, Any]) -> bool:
        """The condition on a row of the model; nothing can be said of a null."""
        subject = row[self.column]
        if subject is None:
            return False
        left = subject if self.modulus is None else subject % self.modulus
        return bool(_COMPARE[self.sign](left, self.value))


@dataclass(frozen=True)
class Operation:
    """One operation with its arguments, as read from a step."""

    verb: str
    table: str
    key: int | None = None
    column: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    where: tuple[Condition, ...] = ()
    limit: int | None = None
    for_update: bool = False
    nowait: bool = False
    skip_locked: bool = False

    @classmethod
    def read(cls, words: list[str]) -> Operation:
        """Read an operation."""
        verb, table, *rest = words
        options: dict[str, Any] = {}
        text = " ".join(rest)
        for ending, name in (("nowait", "nowait"), ("skip locked", "skip_locked")):
            if text.endswith(ending):
                text = text.removesuffix(ending).rstrip()
                options[name] = True
        if text.endswith("for update"):
            text = text.removesuffix("for update").rstrip()
            options["for_update"] = True
        text, _, limit = text.partition("limit ")
        options["limit"] = int(limit) if limit else None
        text, _, conditions = text.partition("where ")
        options["where"] = tuple(Condition.read(word) for word in conditions.split())
        rest = text.split()
        if verb in ("get", "insert", "update", "delete"):
            options["key"] = None if rest[0] == "new" else int(rest[0])
            rest = rest[1:]
        elif verb == "copy":
            options["key"] = int(rest[1])
            rest = rest[2:]
        elif verb == "sum":
            options["column"] = rest.pop(0)
        values: dict[str, Any] = {}
        steps: dict[str, int] = {}
        for word in rest:
            match = _CHANGE.fullmatch(word)
            assert match, f"not a change: {word}"
            name, sign, amount = match.groups()
            if sign == "=":
                values[name] = value(amount)
            else:
                steps[name] = int(amount) if sign == "+=" else -int(amount)
        return cls(verb, table, values=values, steps=steps, **options)

    @property
    def is_judged(self) -> bool:
        """Return whether a serial order must explain it: not of a scan without a table lock."""
        return not (self.verb == "select" and (self.skip_locked or self.nowait))


def perform(o: Operation, t: Transaction, tables: Mapping[str, Table]) -> str:
    """Do an operation in a transaction; return what came of it."""
    table = tables[o.table]
    where = [condition.clause(table) for condition in o.where]
    match o.verb:
        case "get":
            options = {"nowait": True} if o.nowait else {}
            row = t.get(table, o.key, for_update=o.for_update, **options)
            return "absent" if row is None else shown(row)
        case "insert":
            given = dict(o.values) if o.key is None else {"id": o.key, **o.values}
            row = t.insert(table, given)
            return "ok" if o.key is not None else f"id {row['id']}"
        case "update":
            changes = dict(o.values)
            if o.steps:
                row = t.get(table, o.key, for_update=True)
                if row is not None:
                    changes |= {name: row[name] + step for name, step in o.steps.items()}
            row = t.update(table, o.key, **changes)
            return shown({name: row[name] for name in o.steps}) if o.steps else "ok"
        case "delete":
            t.delete(table, o.key)
            return "ok"
        case "select":
            chosen = select(table).where(*where).order_by(table.c.id).limit(o.limit)
            if o.for_update:
                chosen = chosen.with_for_update(nowait=o.nowait, skip_locked=o.skip_locked)
            return listed([dict(row._mapping) for row in t.query(chosen)])
        case "sum":
            total = t.query(select(func.sum(table.c[o.column])).where(*where))[0][0]
            return str(total or 0)
        case "count":
            return str(t.query(select(func.count()).select_from(table).where(*where))[0][0])
        case "set":
            changes = o.values | {name: table.c[name] + step for name, step in o.steps.items()}
            return _rows(t.execute(sql_update(table).where(*where).values(changes)))
        case "remove":
            return _rows(t.execute(delete(table).where(*where)))
        case "copy":
            columns = [c for c in table.columns if c.name != "id"]
            chosen = select(table.c.id + o.key, *columns).where(*where)
            names = ["id", *(c.name for c in columns)]
            return _rows(t.execute(insert(table).from_select(names, chosen)))
    raise AssertionError(f"not an operation: {o.verb}")


def foresee(o: Operation, model: Model, node: Node, columns: list[str], outcome: str) -> str:
    """Do an operation in the model; return what should come of it.

    Parameters
    ----------
    columns : list of str
        Those of the table, for the rows that are new.
    outcome : str
        What came of it for real; generated keys are taken from there.
    """
    key = o.key
    if key is None and o.verb == "insert":
        key = int(outcome.removeprefix("id "))
    item = (o.table, key)
    row = model.read(node, item)
    visible = {found[1]: seen for found, seen in model.scan(node).items() if found[0] == o.table}
    chosen = {k: seen for k, seen in visible.items() if all(c.holds(seen) for c in o.where)}
    match o.verb:
        case "get":
            return "absent" if row is None else shown(row)
        case "insert":
            if row is not None:
                return _name(RowExists)
            model.write(node, item, dict.fromkeys(columns) | {"id": key} | o.values)
            return "ok" if o.key is not None else f"id {key}"
        case "update":
            if row is None:
                return _name(RowNotFound)
            new = _changed(row, o)
            model.write(node, item, new)
            return shown({name: new[name] for name in o.steps}) if o.steps else "ok"
        case "delete":
            if row is None:
                return _name(RowNotFound)
            model.write(node, item, None)
            return "ok"
        case "select":
            return listed([chosen[k] for k in sorted(chosen)][: o.limit])
        case "sum":
            return str(sum(seen[o.column] or 0 for seen in chosen.values()))
        case "count":
            return str(len(chosen))
        case "set":
            for k, seen in chosen.items():
                model.write(node, (o.table, k), _changed(seen, o))
            return _rows(len(chosen))
        case "remove":
            for k in chosen:
                model.write(node, (o.table, k), None)
            return _rows(len(chosen))
        case "copy":
            assert o.key is not None
            if any(k + o.key in visible for k in chosen):
                return _name(RowExists)  # a statement is done completely or not at all
            for k, seen in chosen.items():
                model.write(node, (o.table, k + o.key), seen | {"id": k + o.key})
            return _rows(len(chosen))
    raise AssertionError(f"not an operation: {o.verb}")


def _changed(row: Mapping[str, Any], o: Operation) -> dict[str, Any]:
    return {**row, **o.values, **{name: row[name] + step for name, step in o.steps.items()}}


def _rows(count: int) -> str:
    return f"{count} row" if count == 1 else f"{count} rows"


def _name(error: type[BaseException]) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", error.__name__).lower()


def called(error: BaseException) -> str:
    """Name an error as the scenarios do: ``row exists`` for `RowExists`.

    A deadlock that the server found is a deadlock, not merely a conflict.
    """
    name = _name(type(error))
    if name == "serialization conflict":
        return "deadlock" if "deadlock" in str(error) else "conflict"
    return name.removeprefix("transaction ") if name == "transaction aborted" else name
