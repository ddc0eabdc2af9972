"""What a rule may read, change and raise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["ALL_KINDS", "Change", "Effects", "Outside", "Read", "Signal", "Unresolved"]

ALL_KINDS = frozenset({"reads", "writes", "raises"})


@dataclass(frozen=True, slots=True)
class Read:
    """A table that may be read.

    Attributes
    ----------
    table : str
        Its full name.
    column : str or None
        Which column; None: whole rows.
    place : str
        Where in the source, ``"job.py:12"``; empty if it was declared.
    """

    table: str
    column: str | None
    place: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"reads {_dotted(self.table, self.column)}"


@dataclass(frozen=True, slots=True)
class Change:
    """Rows that may be written.

    Attributes
    ----------
    kind : {"insert", "update", "delete"}
    table : str
        Its full name.
    column : str or None
        Of an update: the column; None: any.
    place : str
        As in `Read`.
    """

    kind: str
    table: str
    column: str | None = None
    place: str = field(default="", compare=False)

    @property
    def key(self) -> tuple[str, str]:
        """The key of its event."""
        return (self.kind, self.table)

    def __str__(self) -> str:
        verb = {"insert": "inserts into", "update": "updates", "delete": "deletes from"}[self.kind]
        return f"{verb} {_dotted(self.table, self.column)}"


@dataclass(frozen=True, slots=True)
class Signal:
    """An application event that may be raised, or the event of a call.

    Attributes
    ----------
    name : str
    place : str
        As in `Read`.
    kind : {"event", "call", "return"}
        Of the last two, `name` is a function's: its calls are events (`Database.emits`).
    """

    name: str
    place: str = field(default="", compare=False)
    kind: str = "event"

    @property
    def key(self) -> tuple[str, str]:
        """The key of its event."""
        return (self.kind, self.name)

    def __str__(self) -> str:
        verb = {"event": "raises", "call": "calls", "return": "returns from"}[self.kind]
        return f"{verb} {self.name}"


@dataclass(frozen=True, slots=True)
class Outside:
    """An event that no rule raises: of a clock, of a stream that is late, the passing of time.

    Attributes
    ----------
    key : tuple of (str, str)
    """

    key: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Something in the source of a rule of which the effects cannot be told.

    Attributes
    ----------
    place : str
        ``"job.py:12"``.
    why : str
    kinds : frozenset of {"reads", "writes", "raises"}
        What it leaves open.
    """

    place: str
    why: str
    kinds: frozenset[str] = ALL_KINDS

    def __str__(self) -> str:
        return f"{self.place}: {self.why}"


@dataclass(frozen=True, slots=True)
class Effects:
    """Everything that condition and action of a rule may do; each tuple sorted.

    Attributes
    ----------
    reads : tuple of Read
    changes : tuple of Change
    signals : tuple of Signal
    unresolved : tuple of Unresolved
        In the order of the source. Not empty: the rule is opaque, and may do more.
    """

    reads: tuple[Read, ...] = ()
    changes: tuple[Change, ...] = ()
    signals: tuple[Signal, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()

    @classmethod
    def of(
        cls,
        reads: Iterable[Read] = (),
        changes: Iterable[Change] = (),
        signals: Iterable[Signal] = (),
        unresolved: Iterable[Unresolved] = (),
    ) -> Effects:
        """Effects from what was found, each once."""
        return cls(
            tuple(sorted(dict.fromkeys(reads), key=lambda r: (r.table, r.column or ""))),
            tuple(sorted(dict.fromkeys(changes), key=lambda c: (c.table, c.kind, c.column or ""))),
            tuple(sorted(dict.fromkeys(signals), key=lambda s: (s.name, s.kind))),
            tuple(dict.fromkeys(unresolved)),
        )

    @property
    def is_opaque(self) -> bool:
        """Whether it may do more than is listed."""
        return bool(self.unresolved)

    @property
    def may_raise_anything(self) -> bool:
        """Whether it may change rows or raise signals that are not listed."""
        return any(u.kinds & {"writes", "raises"} for u in self.unresolved)


def _dotted(table: str, column: str | None) -> str:
    return table if column is None else f"{table}.{column}"
