"""What names of events mean at a place of a text: parts of a pattern, and the event itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from activedb.events.terms import Attribute

__all__ = ["Scope"]


@dataclass(frozen=True, slots=True)
class Scope:
    """The names before a dot that mean events.

    Attributes
    ----------
    parts : tuple of str, or None
        The parts of the pattern, whose attributes can be named; None: any name is taken for one.
    this : frozenset of str
        Names of the event itself.
    old : frozenset of str
        Names of the row before its change.
    is_of_one : bool
        Whether an attribute may be named without an event: that of the event itself.
    attributes : mapping of str to frozenset of str
        The attributes that are known of some names; of others any may be there.
    """

    parts: tuple[str, ...] | None = ()
    this: frozenset[str] = frozenset()
    old: frozenset[str] = frozenset()
    is_of_one: bool = False
    attributes: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that there are."""
        return (*(self.parts or ()), *sorted(self.this | self.old))

    @property
    def transitions(self) -> frozenset[str]:
        """Those of the words NEW and OLD that mean something."""
        return (self.this | self.old) & {"NEW", "OLD"}

    def attribute(self, name: str, attribute: str) -> Attribute | None:
        """What ``name.attribute`` means; None if the name means no event."""
        if name in self.this:
            return Attribute(None, attribute)
        if name in self.old:
            return Attribute(None, attribute, old=True)
        return self.part(name, attribute)

    def part(self, name: str, attribute: str) -> Attribute | None:
        """The attribute of a part; None if there is no such part."""
        is_part = self.parts is None or name in self.parts
        return Attribute(name, attribute) if is_part else None

    def unknown_attribute(self, name: str, attribute: str) -> frozenset[str] | None:
        """The attributes that `name` has, if they are known and this is not one of them."""
        known = self.attributes.get(name)
        return known if known is not None and attribute not in known else None

    def naming(self, *names: str) -> Scope:
        """With more names for the event itself."""
        return replace(self, this=self.this | frozenset(names))
