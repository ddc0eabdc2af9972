"""Rows changed by other programs as events, read from the server's log."""

from activedb.changes._changes import Follower, FollowProgress
from activedb.changes._following import follow, tables_of_rules
from activedb.changes._replication_marks import Raised

__all__ = ["FollowProgress", "Follower", "Raised", "follow", "tables_of_rules"]
