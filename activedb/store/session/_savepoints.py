"""Rollback to a savepoint that keeps the driver's prepared statements consistent."""

from __future__ import annotations

import itertools

from sqlalchemy import Connection

__all__ = ["roll_back_to"]

_numbers = itertools.count(1)


def roll_back_to(connection: Connection, savepoint: str) -> None:
    """Undo all changes since `savepoint`, which remains.

    psycopg 3.3 considers a statement prepared even if an earlier failure in the same pipeline kept
    the server from preparing it. It checks again at each ROLLBACK that it has not seen before, so
    each statement here is unique.
    """
    connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {savepoint} /* {next(_numbers)} */")
