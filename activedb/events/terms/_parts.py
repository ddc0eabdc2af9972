"""How the attributes of a pattern's parts are written in Python."""

from __future__ import annotations

from activedb.events.terms._references import Aggregate, Attribute

__all__ = ["PartReference", "part"]


class PartReference:
    """A part of a pattern, of which attributes are taken: ``part("A").x``, ``part("A")["HCW-ID"]``.

    The brackets also take names that this class has itself: ``part("A")["count"]``.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str):
        self._name = name

    def __getitem__(self, name: str) -> Attribute:
        return Attribute(self._name, name)

    def __getattr__(self, name: str) -> Attribute:
        if name.startswith("__"):  # copy and pickle ask for such
            raise AttributeError(name)
        return Attribute(self._name, name)

    def old(self, name: str) -> Attribute:
        """Return an attribute of the row before an update or delete."""
        return Attribute(self._name, name, old=True)

    def count(self) -> Aggregate:
        """How many elements a Kleene part has."""
        return Aggregate("count", self._name, None)

    def __repr__(self) -> str:
        return f"part({self._name!r})"


def part(name: str) -> PartReference:
    """Return a part of a pattern, by its name, whose attributes are terms.

    Examples
    --------
    >>> part("EXIT").location != part("ENTER").location
    EXIT.location != ENTER.location
    >>> part("B")["HCW-ID"].count() > 2
    COUNT(B.HCW-ID) > 2
    """
    return PartReference(name)
