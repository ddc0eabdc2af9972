"""Translation of driver errors: cause, table, key and remedy."""

from __future__ import annotations

import sqlite3
from types import TracebackType

import psycopg
from sqlalchemy.exc import DBAPIError, PendingRollbackError, ResourceClosedError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from activedb.errors import (
    ActiveDBError,
    ConnectionLost,
    ConstraintViolation,
    ForeignKeyViolation,
    InvalidRow,
    LockTimeout,
    SerializationConflict,
    StatementCancelled,
    StoreError,
    UniqueViolation,
)

__all__ = ["converting", "is_lost", "translate_error", "translate_errors"]

_GIVEN_UP = {
    "40001": "a concurrent transaction of another process conflicts",
    "40P01": "the server found a deadlock with another process",
}
_LOCK_NOT_AVAILABLE = "55P03"
_CANCELLED = "57014"
_NO_TABLE = "42P01"
_SQLITE_NO_TABLE = "no such table: "
_RIGHT_MISSING = "42501"
_UNSUPPORTED = "0A000"  # also: a prepared statement whose table has been altered
# Shut down by an administrator, crashed, starting; limits on idle and long transactions.
_SERVER_GONE = {"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"}
_CONNECTION = "08"  # class of connection errors
_VIOLATIONS: dict[str, type[ConstraintViolation]] = {
    "23505": UniqueViolation,
    "SQLITE_CONSTRAINT_UNIQUE": UniqueViolation,
    "SQLITE_CONSTRAINT_PRIMARYKEY": UniqueViolation,
    "SQLITE_CONSTRAINT_ROWID": UniqueViolation,
    "23001": ForeignKeyViolation,
    "23503": ForeignKeyViolation,
}
_OF_CONVERSIONS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
_SQLITE_REFERENCE = "FOREIGN KEY constraint failed"  # also RESTRICT, reported as a trigger's error


class translate_errors:  # noqa: N801  # used like a function
    """Context manager that translates driver errors: ``with translate_errors(doing):``.

    It handles the drivers' own errors and those wrapped by SQLAlchemy.

    Parameters
    ----------
    doing : str
        Operation in progress, for the message: "read rows of accounts".
    """

    __slots__ = ("_doing",)

    def __init__(self, doing: str):
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            ours = translate_error(error, self._doing)
            if ours is not None:
                raise ours from error


class converting:  # noqa: N801  # used like a function
    """Context manager for code in which values are converted: ``with converting():``.

    What a type's or the driver's conversion raises becomes a `StatementError`, as in SQLAlchemy.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and isinstance(error, _OF_CONVERSIONS):
            raise StatementError(f"{type(error).__name__}: {error}", None, None, error) from error


def translate_error(error: BaseException, doing: str) -> ActiveDBError | None:
    """Return the `ActiveDBError` for a driver's or SQLAlchemy's error; None for any other error."""
    if isinstance(error, DBAPIError):
        return _translate(error.orig, doing, gone=error.connection_invalidated)
    if isinstance(error, psycopg.Error | sqlite3.Error):
        return _translate(error, doing, gone=False)
    if isinstance(error, PendingRollbackError):
        return ConnectionLost(f"the connection was lost before this could {doing}")
    if isinstance(error, PoolTimeout):
        return LockTimeout(
            f"cannot {doing}: all connections are in use; run fewer transactions at once, or "
            f"raise threads"
        )
    if isinstance(error, ResourceClosedError):
        return StoreError(f"cannot {doing}: the database object was closed; open it again")
    if isinstance(error, UnicodeError | OverflowError):  # a text or number no driver can send
        return InvalidRow(f"cannot {doing}: {error}")
    if isinstance(error, StatementError):
        return InvalidRow(f"cannot {doing}: {error.orig or error}")
    return None


def _translate(origin: BaseException | None, doing: str, *, gone: bool) -> ActiveDBError:
    state = getattr(origin, "sqlstate", None)
    text = str(origin).strip().splitlines()[0] if str(origin).strip() else type(origin).__name__
    if gone or is_lost(origin):
        return ConnectionLost(f"the connection was lost while trying to {doing}: {text}")
    if state in _GIVEN_UP:
        return SerializationConflict(f"cannot {doing}: {_GIVEN_UP[state]}; retry the transaction")
    if state == _LOCK_NOT_AVAILABLE:
        return LockTimeout(
            f"cannot {doing}: another process holds a lock for too long (lock_timeout_ms); retry"
        )
    if state == _UNSUPPORTED and "cached plan" in text:
        return SerializationConflict(
            f"cannot {doing}: the table has been altered; retry the transaction"
        )
    if state == _CANCELLED:
        return StatementCancelled(f"cannot {doing}: {text}")
    if state == _RIGHT_MISSING:
        return StoreError(
            f"cannot {doing}: {text}; grant the role the right, or let the owner do it (activedb "
            f"roles --sql prints what a role needs)"
        )
    if isinstance(origin, psycopg.IntegrityError):
        return _violation(origin, doing, text)
    if isinstance(origin, sqlite3.IntegrityError):
        kind = _VIOLATIONS.get(origin.sqlite_errorname, ConstraintViolation)
        if text == _SQLITE_REFERENCE:
            kind = ForeignKeyViolation
        return kind(f"cannot {doing}: {text}", detail=text)
    if isinstance(origin, psycopg.DataError | sqlite3.DataError):
        return InvalidRow(f"cannot {doing}: {text}")
    if state == _NO_TABLE or text.startswith(_SQLITE_NO_TABLE):
        text += "; create the declared tables that are missing with db.create_all()"
    return StoreError(f"cannot {doing}: {text}")


def is_lost(origin: BaseException | None) -> bool:
    """Return whether the connection is lost: the server, or the network, is gone.

    libpq creates its own results for a lost connection, without a SQLSTATE. psycopg raises a
    plain `DatabaseError` for them, and for nothing else.
    """
    state: str | None = getattr(origin, "sqlstate", None)
    if state:
        return state in _SERVER_GONE or state.startswith(_CONNECTION)
    return isinstance(origin, psycopg.OperationalError) or type(origin) is psycopg.DatabaseError


def _violation(origin: psycopg.IntegrityError, doing: str, text: str) -> ConstraintViolation:
    diagnosis = origin.diag
    kind = _VIOLATIONS.get(origin.sqlstate or "", ConstraintViolation)
    table = diagnosis.table_name or ""
    constraint = diagnosis.constraint_name or ""
    detail = diagnosis.message_detail or ""
    message = f"cannot {doing}: {text}" + (f" ({detail})" if detail else "")
    return kind(message, table=table, constraint=constraint, detail=detail)
