"""The database object, through which programs use everything else, and its handles."""

from activedb.database._admin import Admin
from activedb.database._database import Database, connect
from activedb.database._rules import Rules
from activedb.database._workflows import Workflows

__all__ = ["Admin", "Database", "Rules", "Workflows", "connect"]
