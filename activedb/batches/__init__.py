"""Atomic batches: their lineage, the transactions they trigger, and plans to compensate them.

Pure: no database, no threads. See ``README.md`` in this folder.
"""

from activedb.batches._audit import Act, Violation, audit_batches
from activedb.batches._compensation import is_begun, plan_compensation
from activedb.batches._composite import batch_graph, composite, transaction_graph
from activedb.batches._cover import Closing, Cover, Round, independent_scover, scover
from activedb.batches._forming import Due, Forming
from activedb.batches._grouping import Grouping, isolated, merged, overlapping, split
from activedb.batches._interference import (
    Interference,
    interference,
    is_independent,
    shared_transactions,
)
from activedb.batches._lineage import Lineage
from activedb.batches._plan import Broken, CompensationPlan, Kept, LostInput, Mode, Step
from activedb.batches._records import Batch, BatchKind, Piece, State, Transaction
from activedb.batches._requirements import Requirement
from activedb.batches._standing import BatchLineage, Standing, lineage_of, standing
from activedb.batches._svg import draw_svg
from activedb.batches._workflow import Program, Workflow

__all__ = [
    "Act",
    "Batch",
    "BatchKind",
    "BatchLineage",
    "Broken",
    "Closing",
    "CompensationPlan",
    "Cover",
    "Due",
    "Forming",
    "Grouping",
    "Interference",
    "Kept",
    "Lineage",
    "LostInput",
    "Mode",
    "Piece",
    "Program",
    "Requirement",
    "Round",
    "Standing",
    "State",
    "Step",
    "Transaction",
    "Violation",
    "Workflow",
    "audit_batches",
    "batch_graph",
    "composite",
    "draw_svg",
    "independent_scover",
    "interference",
    "is_begun",
    "is_independent",
    "isolated",
    "lineage_of",
    "merged",
    "overlapping",
    "plan_compensation",
    "scover",
    "shared_transactions",
    "split",
    "standing",
    "transaction_graph",
]
