"""Rows of activedb itself: firings, streams, programs, workflows, decisions, staged batches."""

from activedb.store.journals._firings import (
    ABOVE,
    FiringCounts,
    Journal,
    Repeated,
)
from activedb.store.journals._overview import (
    Overview,
    database_migrations,
    lacking_rights,
    read_overview,
)
from activedb.store.journals._rules import Adopted, DecisionRows, DetectorRows, RuleRows
from activedb.store.journals._staging import (
    Sink,
    StagedAttempt,
    StagedBatch,
    StagedJournal,
    Staging,
    staging,
)
from activedb.store.journals._streams import (
    ColumnJournal,
    ColumnNote,
    LedgerEntry,
    ProgramJournal,
    StreamJournal,
)
from activedb.store.journals._workflows import (
    LineageRow,
    RecordedWorkflow,
    WorkflowChanges,
    WorkflowJournal,
    workflow_names,
)

__all__ = [
    "ABOVE",
    "Adopted",
    "ColumnJournal",
    "ColumnNote",
    "DecisionRows",
    "DetectorRows",
    "FiringCounts",
    "Journal",
    "LedgerEntry",
    "LineageRow",
    "Overview",
    "ProgramJournal",
    "RecordedWorkflow",
    "Repeated",
    "RuleRows",
    "Sink",
    "StagedAttempt",
    "StagedBatch",
    "StagedJournal",
    "Staging",
    "StreamJournal",
    "WorkflowChanges",
    "WorkflowJournal",
    "database_migrations",
    "lacking_rights",
    "read_overview",
    "staging",
    "workflow_names",
]
