"""Counters of a lock table and its manager."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters"]


@dataclass
class Counters:
    """Number of events since the table was created; requests are counted per resource of a path.

    Attributes
    ----------
    requests, grants : int
        Requests made, and requests granted, at once or after a wait.
    waits : int
        Calls for which a thread went to sleep.
    wait_s_total : float
        Seconds slept, over all threads.
    timeouts : int
        Waits that timed out or whose thread was interrupted, and requests without `wait` that would
        have had to wait.
    deadlocks : int
        Cycles found in the wait-for graph, whether broken by passing or by a victim.
    victims : int
        Waits that were ended to break a cycle.
    escalations : int
        Escalations of locks inside a resource to one lock on the resource.
    """

    requests: int = 0
    grants: int = 0
    waits: int = 0
    wait_s_total: float = 0.0
    timeouts: int = 0
    deadlocks: int = 0
    victims: int = 0
    escalations: int = 0
