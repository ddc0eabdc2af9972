"""References to the parts of a pattern, and their attributes."""

from __future__ import annotations

from activedb.events.terms._references import Aggregate, Attribute

__all__ = ["PartReference", "part"]


class PartReference:
    """Reference to a part of a pattern: ``part("A").x``, ``part("A")["HCW-ID"]``.

    Brackets also accept names that are methods of this class: ``part("A")["count"]``.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str):
        self._name = name

    def __getitem__(self, name: str) -> Attribute:
        return Attribute(self._name, name)

    def __getattr__(self, name: str) -> Attribute:
        if name.startswith("__"):  # copy and pickle look these up
            raise AttributeError(name)
        return Attribute(self._name, name)

    def old(self, name: str) -> Attribute:
        """Return the attribute `name` of the row before an update or delete."""
        return Attribute(self._name, name, old=True)

    def count(self) -> Aggregate:
        """Return the number of elements of a Kleene part."""
        return Aggregate("count", self._name, None)

    def __repr__(self) -> str:
        return f"part({self._name!r})"


def part(name: str) -> PartReference:
    """Return a reference to the part called `name`; its attributes are terms.

    Examples
    --------
    >>> part("EXIT").location != part("ENTER").location
    EXIT.location != ENTER.location
    >>> part("B")["HCW-ID"].count() > 2
    COUNT(B.HCW-ID) > 2
    """
    return PartReference(name)
