"""The database object and its parts."""

from activedb.database._database import Database, connect

__all__ = ["Database", "connect"]
