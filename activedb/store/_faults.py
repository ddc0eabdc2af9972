"""Driver errors as errors of ours: what happened, to which table and key, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from activedb.errors import (
    ActiveDBError,
    ConnectionLost,
    ConstraintViolation,
    InvalidRow,
    LockTimeout,
    SerializationConflict,
    StoreError,
)

__all__ = ["translated"]

_GIVEN_UP = {
    "40001": "a concurrent transaction of another process conflicts",
    "40P01": "the server found a deadlock with another process",
}
_LOCK_NOT_AVAILABLE = "55P03"
_SERVER_GONE = {"57P01", "57P02", "57P03", "08000", "08003", "08006"}


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn driver errors raised inside into errors of the one tree.

    Parameters
    ----------
    doing : str
        What is being done, for the message: "read rows of accounts".
    """
    try:
        yield
    except DBAPIError as error:
        raise _translate(error, doing) from error
    except PoolTimeout as error:
        raise LockTimeout(
            f"cannot {doing}: all connections are in use; run fewer transactions at once, or "
            f"raise threads"
        ) from error
    except UnicodeError as error:
        raise InvalidRow(f"cannot {doing}: {error}") from error
    except StatementError as error:
        raise InvalidRow(f"cannot {doing}: {error.orig or error}") from error


def _translate(error: DBAPIError, doing: str) -> ActiveDBError:
    origin = error.orig
    state = getattr(origin, "sqlstate", None)
    text = str(origin).strip().splitlines()[0] if str(origin).strip() else type(origin).__name__
    if error.connection_invalidated or state in _SERVER_GONE:
        return ConnectionLost(f"the connection was lost while trying to {doing}: {text}")
    if state in _GIVEN_UP:
        return SerializationConflict(f"cannot {doing}: {_GIVEN_UP[state]}; retry the transaction")
    if state == _LOCK_NOT_AVAILABLE:
        return LockTimeout(
            f"cannot {doing}: another process holds a lock for too long (lock_timeout_ms); retry"
        )
    if isinstance(error, IntegrityError):
        return _violation(origin, doing, text)
    if isinstance(error, DataError):
        return InvalidRow(f"cannot {doing}: {text}")
    return StoreError(f"cannot {doing}: {text}")


def _violation(origin: BaseException | None, doing: str, text: str) -> ConstraintViolation:
    diagnosis = getattr(origin, "diag", None)
    table = getattr(diagnosis, "table_name", None) or ""
    constraint = getattr(diagnosis, "constraint_name", None) or ""
    detail = getattr(diagnosis, "message_detail", None) or ""
    message = f"cannot {doing}: {text}" + (f" ({detail})" if detail else "")
    return ConstraintViolation(message, table=table, constraint=constraint, detail=detail)
