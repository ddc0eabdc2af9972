"""Atomic batches: their lineage, the transactions they trigger, and plans to compensate them.

Pure: no database, no threads. See ``README.md`` in this folder.
"""

from activedb.batches._audit import Act, Violation, audit_batches
from activedb.batches._composite import (
    BatchLineage,
    Standing,
    batch_graph,
    composite,
    lineage_of,
    standing,
    transaction_graph,
)
from activedb.batches._cover import (
    Closing,
    Cover,
    Interference,
    Round,
    independent_scover,
    interference,
    is_independent,
    scover,
    shared_transactions,
)
from activedb.batches._forming import Due, Forming
from activedb.batches._lineage import Lineage
from activedb.batches._plan import (
    Broken,
    CompensationPlan,
    Kept,
    LostInput,
    Mode,
    Step,
    is_begun,
    plan_compensation,
)
from activedb.batches._records import Batch, BatchKind, Piece, State, Transaction
from activedb.batches._svg import draw_svg
from activedb.batches._workflow import (
    Grouping,
    Program,
    Requirement,
    Workflow,
    isolated,
    merged,
    overlapping,
    split,
)

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
