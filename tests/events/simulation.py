"""Simulated nodes: events at hidden true times, detected late, stamped by drifting clocks."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from activedb.clock import ClockSource, SimulatedClock
from activedb.events import AccuracyInterval, Node, Occurrence
from tests.clock.drifting import DriftingClock

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class World:
    """Errors of the nodes of a simulation, and the number of events."""

    seed: int
    nodes: int = 3
    events: int = 30
    gap_us: int = 2000
    """Average time from one detection to the next, on any node."""
    error_us: int = 1000
    drift_rate: float = 1e-4
    granularity_us: int = 1
    adjustment_us: int = 0
    detection_delay_us: int = 0
    resync_s: float | None = 64.0


@dataclass(frozen=True)
class Happening:
    """Event with its true time and the timestamp that its node gave it."""

    true_us: int
    stamp: AccuracyInterval


def run(
    world: World,
    *,
    source: Callable[[int, ClockSource], ClockSource] = lambda _, clock: clock,
    node: Callable[[int, ClockSource, World], Node] | None = None,
) -> list[Happening]:
    """Return what happened in `world`, in the order of detection.

    `source` may put something in front of a node's clock, `node` may build the nodes otherwise.
    """
    draw = random.Random(world.seed)
    true = SimulatedClock(START)
    nodes = []
    for number in range(world.nodes):
        clock = DriftingClock(
            true,
            seed=draw.randrange(2**32),
            error_us=world.error_us,
            drift_rate=world.drift_rate,
            granularity_us=world.granularity_us,
            adjustment_us=world.adjustment_us,
            resync_s=world.resync_s,
        )
        nodes.append((node or honest)(number, source(number, clock), world))
    happenings = []
    for _ in range(world.events):
        # Now and then a long silence, in which clocks drift apart; often hardly any time at all.
        gap_us = draw.choice((1, world.gap_us, world.gap_us, 100 * world.gap_us))
        true.advance(draw.randint(1, max(1, 2 * gap_us)) / 1_000_000)
        now_us = round((true.now() - EPOCH).total_seconds() * 1_000_000)
        occurred_us = now_us - draw.choice(
            (0, world.detection_delay_us, draw.randint(0, world.detection_delay_us))
        )
        happenings.append(Happening(occurred_us, draw.choice(nodes).stamp()))
    return happenings


def honest(number: int, clock: ClockSource, world: World) -> Node:
    """Return a node that knows what `world` is like."""
    return Node(
        f"node-{number}",
        clock,
        detection_delay_us=world.detection_delay_us,
        drift_rate=world.drift_rate,
        granularity_us=world.granularity_us,
        adjustment_us=world.adjustment_us,
        incarnation=f"boot-{number}",
    )


@dataclass(frozen=True)
class Arrival:
    """A message to the composing node: an event, or a heartbeat (of no event)."""

    producer: str
    stamp: AccuracyInterval
    event: Occurrence | None


def deliver(
    happenings: list[Happening], draw: random.Random, *, beats: float = 0.3
) -> list[Arrival]:
    """Return the messages in an order of arrival: any, but each producer's own as sent.

    Of the stamps a share of `beats` are heartbeats; the type of an event is A or B.
    """
    queues: dict[str, list[Arrival]] = {}
    for number, happening in enumerate(happenings):
        stamp = happening.stamp
        assert stamp.node is not None
        is_beat = draw.random() < beats
        event = None if is_beat else Occurrence(draw.choice("AB"), stamp, {"n": number})
        queues.setdefault(stamp.node, []).append(Arrival(stamp.node, stamp, event))
    for queue in queues.values():
        assert all(a.stamp.lower_us <= b.stamp.lower_us for a, b in pairwise(queue))
    arrivals = []
    while queues:
        name = draw.choice(sorted(queues))
        # In runs: one producer is often far ahead of the others.
        for _ in range(draw.randint(1, 6)):
            if queues[name]:
                arrivals.append(queues[name].pop(0))
        if not queues[name]:
            del queues[name]
    return arrivals
