"""Stream transactions: programs over shared tables, and the schedulers. See README.md."""

from activedb.scheduling._access import Access, View
from activedb.scheduling._detection import DECISION, MOMENT, Detection, OpenChoice
from activedb.scheduling._operations import (
    Abort,
    At,
    Operation,
    Outcome,
    Read,
    STransaction,
    Write,
    Writes,
)
from activedb.scheduling._program import Program
from activedb.scheduling._rules import Reaction
from activedb.scheduling._run import FailedOutput, ProgramRun, Refusal, Results, build_s_transaction
from activedb.scheduling._scheduler import Scheduler, SerialOrder, evaluate, wait_for
from activedb.scheduling._state import SharedState, Versions
from activedb.scheduling._tables import (
    REMOVED,
    Computed,
    Parameter,
    Range,
    Ref,
    SharedTable,
    at_key,
)
from activedb.scheduling._tracing import NotTraceable, traced
from activedb.scheduling.locking import LWM, S2PL, SEI
from activedb.scheduling.partitioned import Partitioned, TaskRunner
from activedb.scheduling.tpg import TPG, Decision

__all__ = [
    "DECISION",
    "LWM",
    "MOMENT",
    "REMOVED",
    "S2PL",
    "SEI",
    "TPG",
    "Abort",
    "Access",
    "At",
    "Computed",
    "Decision",
    "Detection",
    "FailedOutput",
    "NotTraceable",
    "OpenChoice",
    "Operation",
    "Outcome",
    "Parameter",
    "Partitioned",
    "Program",
    "ProgramRun",
    "Range",
    "Reaction",
    "Read",
    "Ref",
    "Refusal",
    "Results",
    "STransaction",
    "Scheduler",
    "SerialOrder",
    "SharedState",
    "SharedTable",
    "TaskRunner",
    "Versions",
    "View",
    "Write",
    "Writes",
    "at_key",
    "build_s_transaction",
    "evaluate",
    "traced",
    "wait_for",
]
