"""The database object, and what it is made of."""

from activedb.database._database import Database, connect

__all__ = ["Database", "connect"]
