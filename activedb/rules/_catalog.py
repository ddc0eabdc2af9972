"""The catalog: which rules an event can trigger."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from activedb.errors import DefinitionError
from activedb.events import Detector, Occurrence
from activedb.rules._rule import Rule

__all__ = ["Catalog", "Subscription"]


class Subscription:
    """A rule with the detector of its event.

    The detector is used under the subscription's own latch; nothing else is taken under it.
    """

    __slots__ = ("_detector", "_latch", "is_composite", "rule")

    def __init__(self, rule: Rule):
        self.rule = rule
        self._detector = Detector(rule.on, name=rule.name)
        self.is_composite = self._detector.horizon_us != 0
        self._latch = threading.Lock()

    @property
    def horizon_us(self) -> int | None:
        """How far back a match may reach, in microseconds; None for without bound."""
        return self._detector.horizon_us

    @property
    def partials(self) -> int:
        """Occurrences kept because they may still become part of a match."""
        with self._latch:
            return self._detector.partials

    def feed(self, o: Occurrence) -> list[Occurrence]:
        """Matches that `o` completes."""
        with self._latch:
            return self._detector.feed(o)

    def withdraw(self, o: Occurrence) -> None:
        """Forget `o`, whose transaction aborted."""
        with self._latch:
            self._detector.withdraw(o)

    def trim(self, before_us: int) -> None:
        """Forget what no match at or after `before_us` can need."""
        with self._latch:
            self._detector.trim(before_us)


class Catalog:
    """Rules by name, and by the primitive events they listen to; a lookup is O(1)."""

    def __init__(self) -> None:
        self._rules: dict[str, Subscription] = {}
        self._by_key: dict[tuple[str, str], tuple[Subscription, ...]] = {}
        self._latch = threading.Lock()

    def add(self, rule: Rule) -> None:
        """Register a rule.

        Raises
        ------
        DefinitionError
            If the name is taken.
        """
        with self._latch:
            if rule.name in self._rules:
                raise DefinitionError(
                    f"there is a rule named {rule.name!r} already; pass another name= to db.rule()"
                )
            subscription = Subscription(rule)
            self._rules[rule.name] = subscription
            for key in rule.on.keys:
                self._by_key[key] = (*self._by_key.get(key, ()), subscription)

    def rule(self, name: str) -> Rule | None:
        """The rule with this name, or None."""
        subscription = self._rules.get(name)
        return subscription.rule if subscription else None

    def listening_to(self, key: tuple[str, str]) -> tuple[Subscription, ...]:
        """Subscriptions to a primitive event, in the order of definition."""
        return self._by_key.get(key, ())

    def listening_to_any(self, keys: Iterable[tuple[str, str]]) -> list[Subscription]:
        """Subscriptions to any of several primitive events, each once."""
        return list(dict.fromkeys(s for key in keys for s in self.listening_to(key)))

    def __iter__(self) -> Iterator[Rule]:
        return iter([s.rule for s in self._rules.values()])
