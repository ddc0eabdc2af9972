"""Names of events at a place of a text: parts of a pattern, and the event itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from activedb.events.terms import Attribute

__all__ = ["Scope"]


@dataclass(frozen=True, slots=True)
class Scope:
    """Names before a dot that denote events.

    Attributes
    ----------
    parts : tuple of str, or None
        Parts of the pattern, whose attributes can be named; None: any name counts as a part.
    this : frozenset of str
        Names of the event itself.
    old : frozenset of str
        Names of the row before its change.
    is_of_one : bool
        True if an attribute of the event itself may be named without an event.
    attributes : mapping of str to frozenset of str
        Attributes of the names whose attributes are known; other names may have any.
    """

    parts: tuple[str, ...] | None = ()
    this: frozenset[str] = frozenset()
    old: frozenset[str] = frozenset()
    is_of_one: bool = False
    attributes: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All names of events."""
        return (*(self.parts or ()), *sorted(self.this | self.old))

    @property
    def transitions(self) -> frozenset[str]:
        """Words NEW and OLD, if they denote events."""
        return (self.this | self.old) & {"NEW", "OLD"}

    def attribute(self, name: str, attribute: str) -> Attribute | None:
        """Return the attribute that ``name.attribute`` denotes; None if the name is no event."""
        if name in self.this:
            return Attribute(None, attribute)
        if name in self.old:
            return Attribute(None, attribute, old=True)
        return self.part(name, attribute)

    def part(self, name: str, attribute: str) -> Attribute | None:
        """Return an attribute of a part; None if there is no such part."""
        is_part = self.parts is None or name in self.parts
        return Attribute(name, attribute) if is_part else None

    def unknown_attribute(self, name: str, attribute: str) -> frozenset[str] | None:
        """Return the attributes of `name` if they are known and `attribute` is not among them."""
        known = self.attributes.get(name)
        return known if known is not None and attribute not in known else None

    def naming(self, *names: str) -> Scope:
        """Return this scope with more names for the event itself."""
        return replace(self, this=self.this | frozenset(names))
