"""Assignment of rules to the times of streams, while streams are added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from activedb.firing._time_lines import TimeLines
from tests.databases import in_thread
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


@dataclass
class Declared:
    """A stream, as far as the assignment knows it."""

    name: str
    types: Collection[str]


class Growing(dict[str, Declared]):
    """Streams of which another thread declares one more as soon as they have been read."""

    then: Callable[[], Any] | None = None

    def values(self) -> Any:
        found = list(super().values())
        then, self.then = self.then, None
        if then is not None:
            in_thread(then).result(PATIENCE_S)
        return found


@dataclass
class OnEvents:
    """A subscription to some events."""

    keys: frozenset[tuple[str, str]]


def test_stream_added_while_a_rule_is_assigned_is_seen_by_the_next_look() -> None:
    streams = Growing({"ward": Declared("ward", ["A"])})
    lines = TimeLines(streams, lambda subscription: None)
    early: Any = OnEvents(frozenset([("event", "B")]))
    other: Any = OnEvents(frozenset([("event", "A")]))

    def add() -> None:
        streams["lab"] = Declared("lab", ["B"])
        assert lines.stream_of(other) == "ward"

    streams.then = add
    assert lines.stream_of(early) is None  # it was read before
    assert lines.stream_of(early) == "lab"
