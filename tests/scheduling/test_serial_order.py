"""The serial order of the package against the naive reference."""

from __future__ import annotations

from hypothesis import given, settings

from activedb.scheduling import SerialOrder
from tests.scheduling.comparison import SCALE, check
from tests.scheduling.workloads import Parameters, parameters, workload


@settings(max_examples=100 * SCALE)
@given(parameters())
def test_serial_order_of_any_workload_is_that_of_the_definition(p: Parameters) -> None:
    check(SerialOrder, workload(p))
