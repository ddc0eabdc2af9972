"""Values of several kinds in one column: those that no window brings together don't matter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb import event, part, seq
from activedb.columns.detect import ColumnarDetector
from activedb.columns.events import EventColumns
from activedb.errors import BadEvent
from activedb.events import Occurrence
from tests.drawing import SCALE, Worlds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from activedb.events import Expression

SAME_CARD = seq(event("A"), event("B")).where(part("B").x == part("A").x).within(10)
LARGE = seq(event("A"), event("B")).where(part("A").x * part("B").y > 10).within(10)


def fed(expression: Expression, batches: Sequence[Sequence[Occurrence]]) -> list[tuple[int, ...]]:
    """Return the times of the matches' events, detected in columns."""
    detector = ColumnarDetector(expression)
    found = []
    for batch in batches:
        matches = detector.feed(EventColumns.of_occurrences(list(batch)))
        found += [tuple(each.us for each in o.constituents) for o in matches.occurrences()]
    return found


def occurrences(*events: tuple[str, int, Any]) -> list[Occurrence]:
    return [Occurrence(name, float(at), {"x": x, "y": x}) for name, at, x in events]


ODD: dict[str, tuple[Expression, Any, list[Any]]] = {
    "a text among numbers": (SAME_CARD, "unknown", [1, 2, 3]),
    "a number among texts": (SAME_CARD, 2**40, [f"text {n}" for n in range(40)]),
    "a truth value": (SAME_CARD, True, [1, 2]),
    "a large number": (LARGE, 2**40, [2**20, 5]),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_value_before_the_window_does_not_matter(case: str) -> None:
    expression, odd, values = ODD[case]
    batches = [occurrences(("A", 1, odd))]
    expected = []
    for n, x in enumerate(values, start=1):
        at = 100 * n
        batches += [occurrences(("A", at, x)), occurrences(("B", at + 10, x))]
        expected.append((at * 10**6, (at + 10) * 10**6))
    batches += [occurrences(("A", 10_000, odd)), occurrences(("A", 20_000, values[0]))]
    assert fed(expression, batches) == expected
    stream = [o for batch in batches for o in batch]
    assert len(adb.detect(expression, stream)) == len(expected)


@pytest.mark.parametrize("case", ODD)
def test_odd_value_within_the_window_is_refused_and_nothing_is_taken(case: str) -> None:
    expression, odd, values = ODD[case]
    detector = ColumnarDetector(expression)
    detector.feed(EventColumns.of_occurrences(occurrences(("A", 1, odd))))
    for _ in range(2):
        with pytest.raises(BadEvent):
            detector.feed(EventColumns.of_occurrences(occurrences(("B", 11, values[0]))))
    later = EventColumns.of_occurrences(occurrences(("A", 12, values[0]), ("B", 13, values[0])))
    assert len(detector.feed(later)) == 1


@pytest.mark.long
def test_batches_of_any_kinds_match_as_in_rows() -> None:
    """Batches far apart, each of one kind, with texts that are forgotten and come again."""
    worlds = Worlds(40 * SCALE, "kinds", matches=20, kinds=20)
    for random in worlds:
        batches = [_batch(random, 100 * n) for n in range(random.randint(2, 8))]
        kinds = {type(o.params["x"]) for batch in batches for o in batch}
        worlds.met["kinds"] += len(kinds) > 1
        stream = [o for batch in batches for o in batch]
        expected = sorted(
            tuple(each.us for each in o.constituents) for o in adb.detect(SAME_CARD, stream)
        )
        assert sorted(fed(SAME_CARD, batches)) == expected
        worlds.met["matches"] += bool(expected)


def _batch(random: Random, at: int) -> list[Occurrence]:
    value: Any = random.choice([str, int, bool, float, lambda n: None])
    events = [
        (random.choice("AB"), at + random.randint(0, 30), value(random.randint(0, 2)))
        for _ in range(random.randint(1, 6))
    ]
    return occurrences(*sorted(events, key=lambda e: e[1]))


@pytest.mark.parametrize("columns", [False, True])
def test_stream_goes_on_after_an_odd_value(columns: bool) -> None:
    with adb.connect("memory://") as db:
        stream = db.stream("s", types={"A": ("x", "y"), "B": ("x", "y")}, columns=columns)
        hits: list[Any] = []

        @db.rule(on=SAME_CARD)
        def hit(t: adb.Transaction, o: Occurrence) -> None:
            hits.append(o.timestamp)

        stream.feed(occurrences(("A", 1, "unknown")))
        for n in range(1, 4):
            stream.feed(occurrences(("A", 100 * n, n), ("B", 100 * n + 1, n)))
        db.wait_idle()
        assert len(hits) == 3
        assert db.dead_letters.list() == []
