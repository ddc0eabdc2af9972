"""Committed rows: Postgres and its in-memory twin, behind one session per hierarchy.

Six subpackages, from the bottom up: `server`, `sql`, `flush`, `replication`, `session`,
`journals`. See README.md.
"""

from sqlalchemy import Connection

from activedb.store.session import Store

__all__ = ["Connection", "Store"]
