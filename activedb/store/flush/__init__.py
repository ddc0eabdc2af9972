"""The write set of a top-level commit, as few statements."""

from activedb.store.flush._bulk import insert_rows
from activedb.store.flush._column_rows import ColumnRows
from activedb.store.flush._write_set import Change, Log, naming, write, write_step_by_step

__all__ = [
    "Change",
    "ColumnRows",
    "Log",
    "insert_rows",
    "naming",
    "write",
    "write_step_by_step",
]
