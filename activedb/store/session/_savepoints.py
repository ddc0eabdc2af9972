"""Going back to a savepoint, with what the driver believes put right."""

from __future__ import annotations

import itertools

from sqlalchemy import Connection

__all__ = ["roll_back_to"]

_numbers = itertools.count(1)


def roll_back_to(connection: Connection, savepoint: str) -> None:
    """Undo what was done since `savepoint`, which stays.

    psycopg 3.3 takes a statement for prepared although a failure before it in the same pipeline
    kept the server from preparing it. It looks again at each rollback that it has not seen
    before, so no two are alike.
    """
    connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {savepoint} /* {next(_numbers)} */")
