"""Batches for expressions that are not compiled, and what there is without numba."""

from __future__ import annotations

import subprocess
import sys

import pytest

from activedb.columns.detect._detector import ColumnarDetector, detector_for
from activedb.columns.events import EventColumns
from activedb.errors import BadEvent
from activedb.events import event, occurrence, seq

A, B, N = (event(name) for name in "ABN")


def stream(text: str) -> EventColumns:
    return EventColumns.of_occurrences(
        occurrence(word[0], timestamp=int(word[1:])) for word in text.split()
    )


def test_detector_for_what_is_compiled_is_a_columnar_one() -> None:
    assert isinstance(detector_for(seq(A, B)), ColumnarDetector)


def test_detector_for_what_time_completes_finds_it_when_a_batch_or_the_time_has_passed() -> None:
    detector = detector_for(seq(A, ~N).within(5), name="alone")
    assert not isinstance(detector, ColumnarDetector)
    assert len(detector.feed(stream("A1 N2 A3 A20"))) == 1
    assert detector.partials > 0
    matches = detector.advance(30_000_000)
    assert matches.us.tolist() == [25_000_000]
    [match] = matches.occurrences()
    assert (match.name, match.parts["A"].timestamp) == ("alone", 20)


def test_detector_for_a_conjunction_takes_batches_in_any_order_but_none_before_the_last() -> None:
    detector = detector_for((A & B).within(5))
    assert len(detector.feed(stream("B3 A1"))) == 1
    with pytest.raises(BadEvent, match="before what was fed or trimmed"):
        detector.feed(stream("A2"))
    detector.trim(60_000_000)
    assert detector.partials == 0


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
import pytest
from activedb.columns.detect import ColumnarDetector, detector_for
from activedb.columns.events import EventColumns
from activedb.errors import ConfigurationError
from activedb.events import event, occurrence, seq
pattern = seq(event("A"), event("B"))
with pytest.raises(ConfigurationError, match="pip install '"):
    ColumnarDetector(pattern)
detector = detector_for(pattern)
events = [occurrence("A", timestamp=1), occurrence("B", timestamp=2)]
assert len(detector.feed(EventColumns.of_occurrences(events))) == 1
"""

WITHOUT_PYARROW = """
import sys
sys.modules["pyarrow"] = None
import pytest
from activedb.errors import ConfigurationError
with pytest.raises(ConfigurationError, match="columns of events need pyarrow"):
    import activedb.columns.detect
"""

WITHOUT_COLUMNS = """
import sys
import activedb
assert "numba" not in sys.modules
assert "activedb.columns.detect" not in sys.modules
"""


@pytest.mark.parametrize("program", [WITHOUT_NUMBA, WITHOUT_PYARROW, WITHOUT_COLUMNS])
def test_columns_without_what_they_need_say_so_and_nobody_else_needs_it(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
