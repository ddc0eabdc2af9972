"""Change capture: rows changed by other programs as events, read from a replication slot."""

from activedb.changes._capture import ChangeCapture
from activedb.changes._changes import Follower, FollowProgress
from activedb.changes._replication_marks import ReplicationMarks

__all__ = ["ChangeCapture", "FollowProgress", "Follower", "ReplicationMarks"]
