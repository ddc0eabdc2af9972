"""Columns, compiled or not, serially or on threads, give what the serial order gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activedb.columns.program._run import ColumnRun
from tests.scheduling.comparison import SCALE

from .shapes import LEDGER, WINDOWED
from .twins import compare, events_of

pytestmark = pytest.mark.long

SHAPES = {"ledger": (LEDGER, ("from", "to")), "windowed": (WINDOWED, ("key", "other"))}


@pytest.mark.parametrize("decision", ["serial", "parallel", "python", None])
@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=12 * SCALE, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(0, 150))
def test_columns_any_program_and_workload_give_the_serial_order(
    shape: str, decision: str | None, seed: int, count: int
) -> None:
    program, names = SHAPES[shape]
    run = ColumnRun(program, threads=3, decision=decision)
    compare(program, run, events_of(program, names, seed, count), seed)
    assert (run.not_compiled is None) == (decision != "python")
