"""Forest of nested transactions: states, threads, versions, delegation. See README.md."""

from activedb.transactions._children import Child, is_again
from activedb.transactions._deadlines import Limit
from activedb.transactions._forest import Forest, Listener, abandon_all
from activedb.transactions._locking import lock, lock_detector, lock_table, own_table
from activedb.transactions._node import TransactionNode, Version, current_transaction
from activedb.transactions._observers import Link, Log, Observer
from activedb.transactions._pool import is_stack_deep
from activedb.transactions._rows import read_locked, write_rows
from activedb.transactions._run import Run
from activedb.transactions._spawning import (
    begin_subtransaction,
    run_child,
    run_in_parallel,
    run_on_fresh_stack,
    try_child,
)
from activedb.transactions._states import State
from activedb.transactions._threads import sleeping_for
from activedb.transactions._transaction import Runs, TimedSpawns, Transaction, work_of
from activedb.transactions._watched import WatchedSessions
from lockmgr import Snapshot

__all__ = [
    "Child",
    "Forest",
    "Limit",
    "Link",
    "Listener",
    "Log",
    "Observer",
    "Run",
    "Runs",
    "Snapshot",
    "State",
    "TimedSpawns",
    "Transaction",
    "TransactionNode",
    "Version",
    "WatchedSessions",
    "abandon_all",
    "begin_subtransaction",
    "current_transaction",
    "is_again",
    "is_stack_deep",
    "lock",
    "lock_detector",
    "lock_table",
    "own_table",
    "read_locked",
    "run_child",
    "run_in_parallel",
    "run_on_fresh_stack",
    "sleeping_for",
    "try_child",
    "work_of",
    "write_rows",
]
