"""Figure 1 with rules, under every scheduler, in any order of arrival."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from activedb.events import Occurrence
from activedb.scheduling import Scheduler, SerialOrder
from activedb.scheduling.locking import LWM, S2PL, SEI
from tests.drawing import drawn
from tests.scheduling.comparison import SCALE
from tests.scheduling.locking.hygiene import history_of
from tests.streams.hygiene import KINDS, behave, expected

SCHEDULERS: dict[str, Callable[[], Scheduler]] = {
    "serial": SerialOrder,
    "sei": SEI,
    "s2pl table": lambda: S2PL("table"),
    "s2pl row": lambda: S2PL("row"),
    "lwm table": lambda: LWM("table"),
    "lwm row": lambda: LWM("row"),
}


def paper_stream() -> list[Occurrence]:
    """{exit², enter¹⁰, exit¹⁵}, with the masks that make Q2 look at both exits."""
    return [
        behave("MASK", 1),
        behave("EXIT", 2, location="a"),
        behave("ENTER", 10, location="b"),
        behave("MASK", 12),
        behave("EXIT", 15, location="b"),
    ]


@pytest.mark.long
@pytest.mark.parametrize("name", SCHEDULERS)
def test_paper_stream_in_every_order_of_arrival(name: str) -> None:
    for events in itertools.permutations(paper_stream()):
        statuses, history = history_of(SCHEDULERS[name](), [(list(events), None)])
        assert history == [(10, 1, "warning"), (15, 1, "safe")]
        assert statuses == {1: "safe", 2: "safe"}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_violation_follows_from_a_warning_until_the_worker_sanitises(name: str) -> None:
    events = [
        behave("EXIT", 1, location="a"),
        behave("ENTER", 2, location="b"),
        behave("TOUCH", 3, location="b"),
        behave("EXIT", 1, worker=2, location="a"),
        behave("SANITIZE", 1.5, worker=2),
        behave("ENTER", 2, worker=2, location="b"),
        behave("SANITIZE", 9),
    ]
    statuses, history = history_of(SCHEDULERS[name](), [(events[::-1], None)])
    assert history == [(2, 1, "warning"), (3, 1, "violation"), (9, 1, "safe")]
    assert statuses == {1: "safe", 2: "safe"}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("seed", range(4 * SCALE))
def test_random_behaviour_gives_what_one_loop_in_the_order_of_time_gives(
    seed: int, name: str
) -> None:
    r = drawn("hygiene", seed)
    events = [
        behave(r.choice(KINDS), second + r.random() / 2, r.choice([1, 2]), r.choice("ab"))
        for second in range(60)
    ]
    arrived = sorted(events, key=lambda o: o.us + r.randint(0, 4_000_000))
    feeds: list[tuple[list[Occurrence], int | None]] = []
    while arrived:
        count = r.randint(1, 20)
        now, arrived = arrived[:count], arrived[count:]
        feeds.append((now, min((o.us for o in arrived), default=None)))
    assert history_of(SCHEDULERS[name](), feeds) == expected(events)
