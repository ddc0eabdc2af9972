"""Figure 3, cell by cell, as a table and in the lock table; and the hierarchy made of it."""

from __future__ import annotations

import itertools

import pytest

from activedb.scheduling.locking import (
    FIGURE_3_LWM,
    FIGURE_3_S2PL,
    AccessMode,
    LockAnswer,
    ObjectLock,
)
from activedb.scheduling.locking._lock_table import Compatibility, answer, blockers
from tests.scheduling.locking.requests import Requests
from tests.scheduling.locking.ward import at

READ, WRITE, READ_ROWS, WRITE_ROWS = (
    AccessMode.READ,
    AccessMode.WRITE,
    AccessMode.READ_ROWS,
    AccessMode.WRITE_ROWS,
)
YES, MAYBE, NO = LockAnswer.YES, LockAnswer.MAYBE, LockAnswer.NO


@pytest.mark.parametrize(
    ("figure", "held", "requested", "expected"),
    [
        (FIGURE_3_S2PL, READ, READ, YES),
        (FIGURE_3_S2PL, READ, WRITE, NO),
        (FIGURE_3_S2PL, WRITE, READ, NO),
        (FIGURE_3_S2PL, WRITE, WRITE, NO),
        (FIGURE_3_LWM, READ, READ, YES),
        (FIGURE_3_LWM, READ, WRITE, YES),
        (FIGURE_3_LWM, WRITE, READ, MAYBE),
        (FIGURE_3_LWM, WRITE, WRITE, NO),
    ],
)
def test_figure_3_is_that_of_the_paper(
    figure: Compatibility, held: AccessMode, requested: AccessMode, expected: LockAnswer
) -> None:
    assert figure[held, requested] is expected
    assert answer(figure, held, requested) is expected


@pytest.mark.parametrize("figure", [FIGURE_3_S2PL, FIGURE_3_LWM])
def test_figure_3_has_a_cell_for_every_two_modes_and_no_other(figure: Compatibility) -> None:
    assert set(figure) == set(itertools.product((READ, WRITE), repeat=2))


@pytest.mark.parametrize(
    ("figure", "requested", "expected"),
    [
        (FIGURE_3_S2PL, READ, {WRITE, WRITE_ROWS}),
        (FIGURE_3_S2PL, WRITE, {READ, WRITE, READ_ROWS, WRITE_ROWS}),
        (FIGURE_3_S2PL, READ_ROWS, {WRITE}),
        (FIGURE_3_S2PL, WRITE_ROWS, {READ, WRITE}),
        (FIGURE_3_LWM, READ, {WRITE, WRITE_ROWS}),
        (FIGURE_3_LWM, WRITE, {WRITE, WRITE_ROWS}),
        (FIGURE_3_LWM, READ_ROWS, {WRITE}),
        (FIGURE_3_LWM, WRITE_ROWS, {WRITE}),
    ],
)
def test_hierarchy_waits_for_what_figure_3_says_of_the_accesses(
    figure: Compatibility, requested: AccessMode, expected: set[AccessMode]
) -> None:
    assert set(blockers(figure)[requested]) == expected


@pytest.mark.parametrize(
    ("figure", "held", "requested", "waits"),
    [
        (FIGURE_3_S2PL, READ, READ, False),
        (FIGURE_3_S2PL, READ, WRITE, True),
        (FIGURE_3_S2PL, WRITE, READ, True),
        (FIGURE_3_S2PL, WRITE, WRITE, True),
        (FIGURE_3_LWM, READ, READ, False),
        (FIGURE_3_LWM, READ, WRITE, False),
        (FIGURE_3_LWM, WRITE, READ, True),
        (FIGURE_3_LWM, WRITE, WRITE, True),
    ],
)
def test_request_waits_for_an_older_lock_as_figure_3_says(
    figure: Compatibility, held: AccessMode, requested: AccessMode, waits: bool
) -> None:
    requests = Requests(figure)
    requests.table.insert(at(10), [ObjectLock(("p",), held)])
    requests.table.insert(at(15), [ObjectLock(("p",), requested)])
    requests.table.punctuate(at(20))
    assert requests.ask(at(15), [ObjectLock(("p",), requested)]) is not waits
    requests.table.release(at(10))
    requests.settle()
    assert at(15) in requests.granted
    requests.end()


@pytest.mark.parametrize("figure", [FIGURE_3_S2PL, FIGURE_3_LWM])
@pytest.mark.parametrize(("held", "requested"), [*itertools.product((READ, WRITE), repeat=2)])
def test_request_never_waits_for_a_younger_lock(
    figure: Compatibility, held: AccessMode, requested: AccessMode
) -> None:
    requests = Requests(figure)
    requests.table.insert(at(15), [ObjectLock(("p",), held)])
    requests.table.insert(at(10), [ObjectLock(("p",), requested)])
    requests.table.punctuate(at(20))
    assert requests.ask(at(10), [ObjectLock(("p",), requested)])
    requests.end()
