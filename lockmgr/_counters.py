"""What a lock table and its manager have counted."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters"]


@dataclass
class Counters:
    """What happened since the table was made; requests are counted per resource of a path.

    Attributes
    ----------
    requests, grants : int
        Requests made, and those granted, at once or after a wait.
    waits : int
        Calls for which a thread went to sleep.
    wait_s_total : float
        Seconds slept, over all threads.
    timeouts : int
        Waits given up because their time was up, or the waiting thread was interrupted; requests
        that did not want to wait and would have had to.
    deadlocks : int
        Cycles found in the wait-for graph, whether broken by passing or by a victim.
    victims : int
        Waits that were ended to break a cycle.
    escalations : int
        Times that locks inside a resource were exchanged for one on the resource.
    """

    requests: int = 0
    grants: int = 0
    waits: int = 0
    wait_s_total: float = 0.0
    timeouts: int = 0
    deadlocks: int = 0
    victims: int = 0
    escalations: int = 0
