"""Serialisation of the nodes' state as JSON; each occurrence is written once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from activedb.errors import BadEvent
from activedb.events._codec import decode, decode_params, encode, encode_params
from activedb.events._occurrence import Occurrence
from activedb.events.detection._choice import add_span
from activedb.events.detection._entry import Bound, Entry, Possible
from activedb.events.detection._group import EntryGroup, Groups

__all__ = ["StateReader", "StateWriter"]


class StateWriter:
    """Collector of the occurrences to which the states of nodes refer.

    An occurrence that is used in several places must become one object again when it is read. It is
    written once, after its constituents, and referred to by its number.

    Attributes
    ----------
    occurrences : list of dict
        The occurrences as JSON.
    """

    def __init__(self) -> None:
        self.occurrences: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}
        self._held: list[Occurrence] = []  # keeps them alive, so that no id() is reused

    def occurrence(self, o: Occurrence) -> int:
        """Return the number of an occurrence; write the occurrence if it is new.

        Raises
        ------
        BadEvent
            If the occurrence cannot be encoded.
        """
        number = self._numbers.get(id(o))
        if number is not None:
            return number
        if o.parts:
            parts = [[self._name(name), self.part(part)] for name, part in o.parts.items()]
            data = encode(Occurrence(o.name, o.timestamp, o.params, id=o.id))
            data["parts"] = parts
        else:
            data = encode(o)
        number = self._numbers[id(o)] = len(self.occurrences)
        self.occurrences.append(data)
        self._held.append(o)
        return number

    def part(self, part: Occurrence | tuple[Occurrence, ...]) -> int | list[int]:
        """Return the number of a part's occurrence; for a Kleene part a list of numbers."""
        if type(part) is tuple:
            return [self.occurrence(o) for o in part]
        assert isinstance(part, Occurrence)
        return self.occurrence(part)

    def entry(self, entry: Entry) -> list[Any]:
        """Return an entry as its occurrence, arrival and, if it has own parts, these."""
        parts = entry[4]
        if parts is None:
            return [self.occurrence(entry[3]), entry[2]]
        named = [[self._name(name), self.part(part)] for name, part in parts.items()]
        return [self.occurrence(entry[3]), entry[2], named]

    def groups(self, groups: Groups) -> list[Any]:
        """Return all groups of a node."""
        return [
            {
                "key": encode_params({str(n): value for n, value in enumerate(group.key)}),
                "lists": [[self.entry(entry) for entry in each] for each in group.lists],
                "used": sorted(group.used),
                "doubted": sorted(group.doubted),
                "begun": sorted(group.begun),
                "decided": sorted(group.decided.items()),
                "possible": [self.possible(each) for each in group.possible],
                "spans": [[[*low], [*high], closed] for low, high, closed in group.spans],
            }
            for group in groups.by_key.values()
        ]

    def possible(self, possible: Possible) -> dict[str, Any]:
        """Return an open or made match."""
        return {
            "candidate": [self._bound(bound) for bound in possible.candidate],
            "is_certain": possible.is_certain,
            "is_closed": possible.is_closed,
            "is_made": possible.is_made,
            "is_early": possible.is_early,
            "lost_rival": possible.lost_rival,
            "entry": None if possible.entry is None else self.entry(possible.entry),
        }

    def _bound(self, bound: Any) -> Any:
        if bound is None:
            return None
        if bound and isinstance(bound[0], int):
            return {"entry": self.entry(bound)}
        return {"entries": [self.entry(entry) for entry in bound]}

    @staticmethod
    def _name(name: str) -> Any:
        return encode_params({"name": name})["name"]


class StateReader:
    """Reader of the data that a `StateWriter` wrote.

    Parameters
    ----------
    occurrences : list of dict

    Raises
    ------
    BadEvent
        If the occurrences are invalid.
    """

    def __init__(self, occurrences: list[Mapping[str, Any]]):
        self.occurrences: list[Occurrence] = []
        for data in occurrences:
            plain = decode({name: value for name, value in data.items() if name != "parts"})
            if "parts" in data:
                parts = {self._name(name): self.part(part) for name, part in data["parts"]}
                plain = Occurrence(
                    plain.name, plain.timestamp, plain.params, id=plain.id, parts=parts
                )
            self.occurrences.append(plain)

    def part(self, part: int | list[int]) -> Occurrence | tuple[Occurrence, ...]:
        """Return the occurrence, or tuple of occurrences, of a part."""
        if isinstance(part, list):
            return tuple([self.occurrences[number] for number in part])
        return self.occurrences[part]

    def entry(self, data: list[Any]) -> Entry:
        """Return an entry."""
        o = self.occurrences[data[0]]
        parts = None
        if len(data) > 2:
            parts = {self._name(name): self.part(part) for name, part in data[2]}
        return (o.us, o.id or "", data[1], o, parts)

    def possible(self, data: Mapping[str, Any]) -> Possible:
        """Return an open or made match."""
        entry = data["entry"]
        return Possible(
            tuple([self._bound(bound) for bound in data["candidate"]]),
            is_certain=data["is_certain"],
            is_closed=data["is_closed"],
            is_made=data["is_made"],
            is_early=data.get("is_early", False),
            lost_rival=data.get("lost_rival", False),
            entry=None if entry is None else self.entry(entry),
        )

    def _bound(self, data: Mapping[str, Any] | None) -> Bound:
        if data is None:
            return None
        if "entry" in data:
            return self.entry(data["entry"])
        return tuple([self.entry(entry) for entry in data["entries"]])

    def read_groups(self, data: list[Any], groups: Groups) -> None:
        """Fill the groups of a node."""
        for item in data:
            named = decode_params(item["key"])
            key = tuple([named[str(n)] for n in range(len(named))])
            group = EntryGroup(key, groups.stages)
            group.put_all([[self.entry(each) for each in items] for items in item["lists"]])
            if item["used"]:
                group.own_used().update(item["used"])
            if item.get("doubted"):
                group.own_doubted().update(item["doubted"])
            if item.get("possible"):
                group.possible = tuple([self.possible(each) for each in item["possible"]])
            if item["begun"]:
                group.own_begun().update(item["begun"])
            if item["decided"]:
                group.own_decided().update([(us, arrival) for us, arrival in item["decided"]])
            for low, high, closed in item["spans"]:
                add_span(group.own_spans(), (tuple(low), tuple(high), closed))
            groups.by_key[key] = group
            groups.count += len(group.kept())
            oldest_us = group.oldest_us()
            if oldest_us is not None:
                groups.expire_at(group, oldest_us)

    @staticmethod
    def _name(name: Any) -> str:
        decoded = decode_params({"name": name})["name"]
        if not isinstance(decoded, str):
            raise BadEvent(f"a part's name is a string, not {decoded!r}")
        return decoded
