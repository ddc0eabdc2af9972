"""Stream transactions: programs over shared tables, and the schedulers. See README.md."""

from activedb.scheduling._access import Access
from activedb.scheduling._body import View
from activedb.scheduling._detection import DECISION, MOMENT, Detection, LeftOpen
from activedb.scheduling._operations import Abort, Operation
from activedb.scheduling._program import Program
from activedb.scheduling._rules import Reaction
from activedb.scheduling._run import FailedOutput, ProgramRun, Refusal, Results, s_transaction_of
from activedb.scheduling._s_transactions import At, Outcome, STransaction
from activedb.scheduling._scheduler import Scheduler, SerialOrder
from activedb.scheduling._state import State, Versions
from activedb.scheduling._tables import REMOVED, Ref, SharedTable
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
    "Decision",
    "Detection",
    "FailedOutput",
    "LeftOpen",
    "Operation",
    "Outcome",
    "Partitioned",
    "Program",
    "ProgramRun",
    "Reaction",
    "Ref",
    "Refusal",
    "Results",
    "STransaction",
    "Scheduler",
    "SerialOrder",
    "SharedTable",
    "State",
    "TaskRunner",
    "Versions",
    "View",
    "s_transaction_of",
]
