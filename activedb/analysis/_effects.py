"""Effects of a rule: tables it may read, rows it may change, events it may raise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = [
    "ALL_KINDS",
    "ChangeEffect",
    "Effects",
    "LockEffect",
    "Outside",
    "ReadEffect",
    "SignalEffect",
    "Unresolved",
]

ALL_KINDS = frozenset({"reads", "writes", "raises"})


@dataclass(frozen=True, slots=True)
class ReadEffect:
    """A table that may be read.

    Attributes
    ----------
    table : str
        Full name.
    column : str or None
        Column that is read; None: whole rows.
    place : str
        Location in the source, such as ``"job.py:12"``; empty if the effect was declared.
    """

    table: str
    column: str | None
    place: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"reads {_dotted(self.table, self.column)}"


@dataclass(frozen=True, slots=True)
class ChangeEffect:
    """Rows that may be written.

    Attributes
    ----------
    kind : {"insert", "update", "delete"}
    table : str
        Full name.
    column : str or None
        Column of an update; None: any column.
    place : str
        As in `ReadEffect`.
    """

    kind: str
    table: str
    column: str | None = None
    place: str = field(default="", compare=False)

    @property
    def key(self) -> tuple[str, str]:
        """Key of the event that the change raises."""
        return (self.kind, self.table)

    def __str__(self) -> str:
        verb = {"insert": "inserts into", "update": "updates", "delete": "deletes from"}[self.kind]
        return f"{verb} {_dotted(self.table, self.column)}"


@dataclass(frozen=True, slots=True)
class SignalEffect:
    """An application event that may be raised, or the event of a call.

    Attributes
    ----------
    name : str
    place : str
        As in `ReadEffect`.
    kind : {"event", "call", "return"}
        ``"call"``, ``"return"``: `name` is a function whose calls are events (`Database.emits`).
    """

    name: str
    place: str = field(default="", compare=False)
    kind: str = "event"

    @property
    def key(self) -> tuple[str, str]:
        """Key of the event that is raised."""
        return (self.kind, self.name)

    def __str__(self) -> str:
        verb = {"event": "raises", "call": "calls", "return": "returns from"}[self.kind]
        return f"{verb} {self.name}"


@dataclass(frozen=True, slots=True)
class LockEffect:
    """Rows of a table that may be locked.

    Attributes
    ----------
    table : str
        Full name.
    grain : {"rows", "predicate", "table", "unknown"}
        ``"rows"``: single rows, by their keys; ``"predicate"``: what satisfies comparisons of
        columns with values; ``"unknown"``: as the statements compare, which is not known here.
    is_write : bool
        True if they are locked for writing.
    columns : tuple of str
        Columns that are compared; of ``"rows"``, the primary key.
    place : str
        As in `ReadEffect`.
    """

    table: str
    grain: str
    is_write: bool
    columns: tuple[str, ...] = ()
    place: str = field(default="", compare=False)

    def __str__(self) -> str:
        what = {
            "rows": f"rows of {self.table} by {', '.join(self.columns) or 'key'}",
            "predicate": f"what satisfies a condition on {', '.join(self.columns)} of {self.table}",
            "table": f"the table {self.table}",
            "unknown": f"rows, or the whole, of {self.table}",
        }[self.grain]
        return f"locks {what}, to {'write' if self.is_write else 'read'}"


@dataclass(frozen=True, slots=True)
class Outside:
    """An event that no rule raises: of a clock, of a late stream, or the passing of time.

    Attributes
    ----------
    key : tuple of (str, str)
    """

    key: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A place in the source of a rule whose effects could not be determined.

    Attributes
    ----------
    place : str
        ``"job.py:12"``.
    why : str
    kinds : frozenset of {"reads", "writes", "raises"}
        Kinds of effect that are left open.
    """

    place: str
    why: str
    kinds: frozenset[str] = ALL_KINDS

    def __str__(self) -> str:
        return f"{self.place}: {self.why}"


@dataclass(frozen=True, slots=True)
class Effects:
    """All effects that the condition and action of a rule may have; each tuple is sorted.

    Attributes
    ----------
    reads : tuple of ReadEffect
    changes : tuple of ChangeEffect
    signals : tuple of SignalEffect
    unresolved : tuple of Unresolved
        In the order of the source. If not empty, the rule is opaque and may have further effects.
    locks : tuple of LockEffect
        Locks for the reads and changes; values that do not suit their columns make them coarser.
    """

    reads: tuple[ReadEffect, ...] = ()
    changes: tuple[ChangeEffect, ...] = ()
    signals: tuple[SignalEffect, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()
    locks: tuple[LockEffect, ...] = ()

    @classmethod
    def of(
        cls,
        reads: Iterable[ReadEffect] = (),
        changes: Iterable[ChangeEffect] = (),
        signals: Iterable[SignalEffect] = (),
        unresolved: Iterable[Unresolved] = (),
        locks: Iterable[LockEffect] = (),
    ) -> Effects:
        """Build from effects found, without duplicates."""
        return cls(
            tuple(sorted(dict.fromkeys(reads), key=lambda r: (r.table, r.column or ""))),
            tuple(sorted(dict.fromkeys(changes), key=lambda c: (c.table, c.kind, c.column or ""))),
            tuple(sorted(dict.fromkeys(signals), key=lambda s: (s.name, s.kind))),
            tuple(dict.fromkeys(unresolved)),
            tuple(sorted(dict.fromkeys(locks), key=_order)),
        )

    @property
    def is_opaque(self) -> bool:
        """True if the rule may have effects that are not listed."""
        return bool(self.unresolved)

    @property
    def may_raise_anything(self) -> bool:
        """True if the rule may change rows or raise signals that are not listed."""
        return any(u.kinds & {"writes", "raises"} for u in self.unresolved)


def _order(lock: LockEffect) -> tuple[str, bool, str, tuple[str, ...]]:
    return (lock.table, lock.is_write, lock.grain, lock.columns)


def _dotted(table: str, column: str | None) -> str:
    return table if column is None else f"{table}.{column}"
