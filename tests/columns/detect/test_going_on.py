"""A detector in columns goes on from a copy, and from the events of the last window."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activedb.columns.detect._detector import ColumnarDetector
from activedb.columns.events import EventColumns
from tests.columns.detect.strategies import events, is_supported, sequences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from activedb.events import Occurrence

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
QUICK = settings(max_examples=60 * SCALE, deadline=None, suppress_health_check=list(HealthCheck))


def columns_of(found: Sequence[Occurrence]) -> EventColumns:
    """Events, each at the place of its number."""
    numbers = np.array([o.params["n"] for o in found], np.int64)
    return replace(
        EventColumns.of_occurrences(found), places=np.column_stack((numbers, numbers + 100))
    )


def made_of(detector: ColumnarDetector, found: Sequence[Occurrence]) -> list[list[Any]]:
    """The numbers of the constituents of all matches."""
    matches = detector.feed(columns_of(found)).occurrences()
    return [
        [
            [o.params["n"] for o in (part if isinstance(part, tuple) else (part,))]
            for part in match.parts.values()
        ]
        for match in matches
    ]


@QUICK
@given(st.data())
def test_copy_of_a_detector_goes_on_as_it_does(data: Any) -> None:
    expression = data.draw(sequences().filter(is_supported))
    found = data.draw(events())
    cut = data.draw(st.integers(0, len(found)))
    detector = ColumnarDetector(expression)
    made_of(detector, found[:cut])
    copied = detector.copy()
    once = made_of(detector, found[cut:])
    assert made_of(copied.copy(), found[cut:]) == once
    assert made_of(copied, found[cut:]) == once
    assert copied.partials == detector.partials


@QUICK
@given(st.data())
def test_detector_that_absorbs_the_last_window_goes_on_as_the_other_does(data: Any) -> None:
    expression = data.draw(
        sequences().filter(lambda s: is_supported(s) and getattr(s, "window_us", None) is not None)
    )
    found = data.draw(events())
    cut = data.draw(st.integers(0, len(found)))
    # Parts of a stream never share a time.
    while 0 < cut < len(found) and found[cut].us == found[cut - 1].us:
        cut -= 1
    detector = ColumnarDetector(expression)
    used = {n for n, _ in detector.feed(columns_of(found[:cut])).places().tolist()}
    if cut < len(found):
        assert detector.horizon_us is not None
        kept = [o for o in found[:cut] if o.us >= found[cut].us - detector.horizon_us]
        other = ColumnarDetector(expression)
        other.absorb(columns_of(kept))
        if other.uses_up:
            other.use_up(np.array([row for row, o in enumerate(kept) if o.params["n"] in used]))
        assert made_of(other, found[cut:]) == made_of(detector, found[cut:])


@pytest.mark.long
def test_matches_tell_at_which_row_and_from_which_places_they_are() -> None:
    from activedb.events import event, occurrence, seq

    detector = ColumnarDetector(seq(event("A"), event("B")).within(9))
    found = [occurrence(kind, timestamp=n, n=n) for n, kind in enumerate("AABB")]
    detector.feed(columns_of(found[:1]))
    matches = detector.feed(columns_of(found[1:]))
    assert matches.at.tolist() == [2, 2, 3, 3]
    assert matches.places().tolist() == [[n, n + 100] for n in range(4)]
    assert detector.rows == 4
    wanted = matches.only([False, True, False, False])
    assert (wanted.at.tolist(), wanted.places().tolist()) == ([2], [[1, 101], [2, 102]])
