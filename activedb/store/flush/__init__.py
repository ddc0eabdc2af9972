"""Writing of the write set of a top-level commit, in as few statements as possible."""

from activedb.store.flush._bulk import insert_rows
from activedb.store.flush._change import Change
from activedb.store.flush._column_rows import ColumnRows
from activedb.store.flush._constraints import Log, TableConstraints, constraints_of, follows_log
from activedb.store.flush._opening import Asked, Opening, answer_changed
from activedb.store.flush._write_set import phases, refuse, steps, write, write_in_order

__all__ = [
    "Asked",
    "Change",
    "ColumnRows",
    "Log",
    "Opening",
    "TableConstraints",
    "answer_changed",
    "constraints_of",
    "follows_log",
    "insert_rows",
    "phases",
    "refuse",
    "steps",
    "write",
    "write_in_order",
]
