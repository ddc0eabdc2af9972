"""Change capture: rows changed by other programs as events, read from a replication slot."""

from activedb.changes._capture import ChangeCapture
from activedb.changes._changes import Follower, FollowProgress, ReplicationMarks

__all__ = ["ChangeCapture", "FollowProgress", "Follower", "ReplicationMarks"]
