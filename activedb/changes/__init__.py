"""Change capture: rows changed by other programs as events, read from a replication slot."""

from activedb.changes._changes import Follower, FollowProgress
from activedb.changes._following import follow, tables_of_rules
from activedb.changes._replication_marks import ReplicationMarks

__all__ = ["FollowProgress", "Follower", "ReplicationMarks", "follow", "tables_of_rules"]
