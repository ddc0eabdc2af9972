"""Writing of the write set of a top-level commit, in as few statements as possible."""

from activedb.store.flush._bulk import insert_rows
from activedb.store.flush._change import Change
from activedb.store.flush._column_rows import ColumnRows
from activedb.store.flush._opening import Asked, Opening, answer_changed
from activedb.store.flush._write_set import Log, refuse, write, write_step_by_step

__all__ = [
    "Asked",
    "Change",
    "ColumnRows",
    "Log",
    "Opening",
    "answer_changed",
    "insert_rows",
    "refuse",
    "write",
    "write_step_by_step",
]
