"""Database objects in a forked child.

A child inherits copies of the parent's sockets, of latches held by threads that do not exist in the
child, and of the parent's transactions. It must use none of them. Each database object is therefore
reopened when the child first uses it, with the same definitions; objects obtained from it before
the fork refuse any use. The parent is not affected.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

from activedb.errors import WrongProcess
from activedb.store.server import forget_limits, leave_sockets
from activedb.transactions import abandon_all

if TYPE_CHECKING:
    from activedb.database._database import Database

__all__ = ["track"]

_open: WeakSet[Database] = WeakSet()
_latch = threading.RLock()
_parent = os.getpid()
_AS_THEY_ARE = ("metadata", "settings", "close", "__class__", "__dict__", "__init__", "__doc__")


def track(db: Database) -> None:
    """Register a new database object, so that forked children reopen it."""
    _open.add(db)


def _reopening(db: Any, name: str) -> Any:
    """Reopen a database object inherited from the parent, then return the attribute."""
    if name not in _AS_THEY_ARE:
        with _latch:
            if hasattr(type(db), "_before_fork"):
                _reopen(db)
    return object.__getattribute__(db, name)


def _reopen(db: Any) -> None:
    """Reopen a database with the same settings and definitions.

    Raises
    ------
    WrongProcess
        If its rows are in the memory of the parent.
    """
    forked, before = type(db), db.__dict__
    settings = before["settings"]
    if settings.url == "memory://":
        raise WrongProcess(
            f"this database is in the memory (memory://) of process {_parent}, and this is "
            f"process {os.getpid()}, forked from it: open one in the child, or use a Postgres, "
            f"which both reach"
        )
    db.__class__ = forked._before_fork
    db.__dict__ = {}
    try:
        db.__init__(settings, before["_clock"], metadata=before["metadata"])
        db._define_again(before)
    except BaseException:
        db.__class__, db.__dict__ = forked, before
        raise


def _not_open(db: Any) -> None:
    """Do nothing: the open resources belong to the parent."""


def _refusing(part: Any, name: str) -> NoReturn:
    """Refuse any use of an object obtained from a database object before the fork."""
    raise WrongProcess(
        f"this was made by process {_parent} before it forked this one, {os.getpid()}: ask the "
        f"database object for it again, which opens new connections in the child"
    )


class _Reopened:
    """Stand-in for a forest, which reopens the database when a session is first flushed."""

    def __init__(self, db: Database):
        object.__setattr__(self, "_db", db)

    def __getattribute__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_db")._forest, name)


def _like(kind: Any, **names: object) -> Any:
    """Return a class with the name and layout of `kind`, and some attributes replaced."""
    return type(kind)(kind.__name__, (kind,), {"__slots__": (), **names})


def _in_parent_before() -> None:
    global _parent
    _parent = os.getpid()


def _in_child() -> None:
    global _latch
    _latch = threading.RLock()
    leave_sockets()
    forget_limits()
    abandon_all(_parent)
    for db in list(_open):
        of_parent: Any = db
        kind, parts = type(db), db.__dict__
        # Inherited by the parent, which has not used it; or closed, or not yet open.
        if hasattr(kind, "_before_fork") or parts.get("_closed", True):
            continue
        if parts["_monitoring"] is not None:
            parts["_monitoring"].server.close()
        parts["_watched"].moved_to(_Reopened(db))
        forest = parts["_forest"]
        for part in (forest.pool, forest, parts["_store"], parts["_launcher"]):
            part.__class__ = _like(type(part), __getattribute__=_refusing)
        of_parent.__class__ = _like(
            kind, __getattribute__=_reopening, close=_not_open, _before_fork=kind
        )


os.register_at_fork(before=_in_parent_before, after_in_child=_in_child)
