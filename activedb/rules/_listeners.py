"""Subscriptions to one event, indexed by the constants that they demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from activedb.events import Occurrence
from activedb.rules._subscription import Subscription

__all__ = ["Listeners"]

_Numbered = tuple[int, Subscription]
"""Unique place of a subscription among all listeners, and the subscription."""


class Listeners:
    """Committed subscriptions to one event; immutable.

    Parameters
    ----------
    key : tuple of (str, str)
        Key of the event.
    subscriptions : sequence of Subscription
        In the order of definition.

    Attributes
    ----------
    all : tuple of Subscription
        Subscriptions, in the order of definition.
    """

    __slots__ = ("_index", "_is_filed", "_key", "all")

    def __init__(self, key: tuple[str, str], subscriptions: Sequence[Subscription]):
        self.all = tuple(subscriptions)
        self._key = key
        # An index lookup costs as much as feeding one rule.
        self._is_filed = sum([key in s.demands for s in self.all]) > 1
        self._index: _Index | None = None

    def concerned_by(self, o: Occurrence) -> tuple[Subscription, ...]:
        """Return subscriptions that may take `o`, or fail on it, in the order of definition.

        Rules that demand other constants of its attributes are left out. The first call builds the
        index: O(rules).

        Complexity: O(attributes that rules demand constants of) to look up, and O(k log k) for k
        rules found, unless all listeners are filed by the same attributes.
        """
        if not self._is_filed:
            return self.all
        index = self._index
        if index is None:  # two threads may build it, with equal results
            index = self._index = _Index(self._key, self.all)
        return index.concerned_by(o)


class _Index:
    """Subscriptions by the constants that they demand.

    A subscription with several demands, from several parts, is filed under each.
    """

    __slots__ = ("_all", "_only", "_regular", "_tables", "_unfiled")

    def __init__(self, key: tuple[str, str], subscriptions: tuple[Subscription, ...]):
        self._all = subscriptions
        self._unfiled: list[_Numbered] = []
        tables: dict[tuple[str, ...], dict[Any, list[_Numbered]]] = {}
        kinds: dict[str, frozenset[type]] = {}
        for numbered in enumerate(subscriptions):
            demands = numbered[1].demands.get(key)
            if demands is None:
                self._unfiled.append(numbered)
                continue
            for demand in demands:
                for name, kind in zip(demand.names, demand.kinds, strict=True):
                    kinds[name] = kinds.get(name, kind) & kind
                # As itemgetter returns it: for one attribute, the value itself.
                values = demand.values if len(demand.names) > 1 else demand.values[0]
                tables.setdefault(demand.names, {}).setdefault(values, []).append(numbered)
        # Types that the attributes must have for the tables to apply.
        self._regular = tuple(kinds.items())
        self._tables: list[tuple[Callable[[Any], Any], dict[Any, list[_Numbered]]]] = [
            (itemgetter(*names), table) for names, table in tables.items()
        ]
        self._only: dict[Any, tuple[Subscription, ...]] | None = None
        if len(tables) == 1 and not self._unfiled:
            ((_, table),) = self._tables
            self._only = {values: tuple([s for _, s in found]) for values, found in table.items()}

    def concerned_by(self, o: Occurrence) -> tuple[Subscription, ...]:
        """See `Listeners.concerned_by`."""
        if o.stamp is not None or o.low_us != o.high_us:
            return self._all  # such times affect detectors even if the event is not taken
        params = o.params
        try:
            for name, kind in self._regular:
                if type(params[name]) not in kind:
                    return self._all
            if self._only is not None:
                return self._only.get(self._tables[0][0](params), ())
            found = set(self._unfiled)
            for get, table in self._tables:
                found.update(table.get(get(params), ()))
        except (KeyError, TypeError):  # an attribute is missing, or is an unhashable decimal
            return self._all
        return tuple([subscription for _, subscription in sorted(found)])
