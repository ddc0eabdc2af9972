"""Committed rows: Postgres and its memory twin, behind one session per hierarchy."""

from sqlalchemy import Connection

from activedb.store._borrowed import BorrowedSession, borrow, connection_of, listen_to
from activedb.store._changed_rows import ChangedRows
from activedb.store._column_journal import ColumnJournal, ColumnNote
from activedb.store._column_rows import ColumnRows
from activedb.store._connect import new_metadata, open_store, wait_for_server
from activedb.store._decision_rows import DecisionRows
from activedb.store._detector_rows import Adopted, DetectorRows
from activedb.store._flushes import listen_to_flushes
from activedb.store._hints import Hints
from activedb.store._inherited import leave_sockets
from activedb.store._journal import Journal, Standing
from activedb.store._keyed_values import KeyedValues
from activedb.store._locking_reads import LockingRead, plan_locks
from activedb.store._migrations import Migrations, migration_sql
from activedb.store._overlay import Unlocked, tables_of
from activedb.store._overview import Overview, database_migrations, lacking_rights, read_overview
from activedb.store._patience import PatientLatch, limited
from activedb.store._pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Note,
    Relation,
    Truncate,
    Update,
)
from activedb.store._plain_use import PlainUse
from activedb.store._program_journal import ProgramJournal
from activedb.store._roles import Right, missing_rights, rights_of_roles, role_statements
from activedb.store._rows import named_rows
from activedb.store._rule_rows import RuleRows
from activedb.store._scratch import drop_left_schemas, scratch_schema
from activedb.store._server_facts import ServerFacts, server_facts
from activedb.store._server_waits import Backend
from activedb.store._session import Durable, Session
from activedb.store._slot import Peeked, Slot
from activedb.store._slot_tables import FollowedTable
from activedb.store._staged_journal import StagedBatch, StagedJournal
from activedb.store._staging import Attempt, Staging, staging
from activedb.store._staging_progress import Sink
from activedb.store._statements import (
    Parameters,
    StatementPlan,
    numbering,
    plan_write,
    rows_by_default,
)
from activedb.store._store import TRIGGER_POINTS, Store
from activedb.store._stream_journal import LedgerEntry, StreamJournal
from activedb.store._tables import Key, Row, Tables, TableSpec, is_storable
from activedb.store._workflow_journal import (
    Kept,
    LineageRow,
    Recorded,
    WorkflowJournal,
    workflow_names,
)
from activedb.store._write_set import Change, Log
from activedb.store._written import (
    Piece,
    delete_of,
    insert_of,
    insert_of_rows,
    select_of,
    update_of,
)

__all__ = [
    "TRIGGER_POINTS",
    "Adopted",
    "Attempt",
    "Backend",
    "Begin",
    "BorrowedSession",
    "Change",
    "ChangedRows",
    "ColumnJournal",
    "ColumnNote",
    "ColumnRows",
    "Commit",
    "Connection",
    "DecisionRows",
    "Delete",
    "DetectorRows",
    "Durable",
    "FollowedTable",
    "Hints",
    "Insert",
    "Journal",
    "Kept",
    "Key",
    "KeyedValues",
    "LedgerEntry",
    "LineageRow",
    "LockingRead",
    "Log",
    "Message",
    "Migrations",
    "Note",
    "Overview",
    "Parameters",
    "PatientLatch",
    "Peeked",
    "Piece",
    "PlainUse",
    "ProgramJournal",
    "Recorded",
    "Relation",
    "Right",
    "Row",
    "RuleRows",
    "ServerFacts",
    "Session",
    "Sink",
    "Slot",
    "StagedBatch",
    "StagedJournal",
    "Staging",
    "Standing",
    "StatementPlan",
    "Store",
    "StreamJournal",
    "TableSpec",
    "Tables",
    "Truncate",
    "Unlocked",
    "Update",
    "WorkflowJournal",
    "borrow",
    "connection_of",
    "database_migrations",
    "delete_of",
    "drop_left_schemas",
    "insert_of",
    "insert_of_rows",
    "is_storable",
    "lacking_rights",
    "leave_sockets",
    "limited",
    "listen_to",
    "listen_to_flushes",
    "migration_sql",
    "missing_rights",
    "named_rows",
    "new_metadata",
    "numbering",
    "open_store",
    "plan_locks",
    "plan_write",
    "read_overview",
    "rights_of_roles",
    "role_statements",
    "rows_by_default",
    "scratch_schema",
    "select_of",
    "server_facts",
    "staging",
    "tables_of",
    "update_of",
    "wait_for_server",
    "workflow_names",
]
