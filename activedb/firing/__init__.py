"""Rule firing: event occurrences to the committed effects of triggered rules. See README.md."""

from activedb.firing._dead_letters import DeadLetters, Outcome, Retried
from activedb.firing._decisions import (
    BY_EVENTS,
    OF_PROGRAM,
    Decisions,
    MatchDecision,
    decision_id,
    decision_row,
)
from activedb.firing._durable_detectors import DurableDetectors
from activedb.firing._feeding import Refused
from activedb.firing._firings import PendingFiring, read_pending
from activedb.firing._launcher import Launcher
from activedb.firing._letters import Letter, storable
from activedb.firing._quarantine import failure_of
from activedb.firing._queue import FiringQueue, Turn
from activedb.firing._rule_listeners import Ran, RuleFigures, RuleListener
from activedb.firing._time_lines import DueTimes, TimeLines
from activedb.firing._triggered import (
    SYSTEMIC,
    Fed,
    RecordedFiring,
    Triggered,
    is_systemic,
    moment_in,
    shortened,
)
from activedb.firing._triggering import Triggering
from activedb.firing._workers import Worker

__all__ = [
    "BY_EVENTS",
    "OF_PROGRAM",
    "SYSTEMIC",
    "DeadLetters",
    "Decisions",
    "DueTimes",
    "DurableDetectors",
    "Fed",
    "FiringQueue",
    "Launcher",
    "Letter",
    "MatchDecision",
    "Outcome",
    "PendingFiring",
    "Ran",
    "RecordedFiring",
    "Refused",
    "Retried",
    "RuleFigures",
    "RuleListener",
    "TimeLines",
    "Triggered",
    "Triggering",
    "Turn",
    "Worker",
    "decision_id",
    "decision_row",
    "failure_of",
    "is_systemic",
    "moment_in",
    "read_pending",
    "shortened",
    "storable",
]
