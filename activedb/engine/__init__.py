"""The engine: the database object, and how occurrences become running rules."""

from activedb.engine._changes import Follower, FollowProgress
from activedb.engine._database import Database, connect
from activedb.engine._dead_letters import Outcome, Retried
from activedb.engine._decisions import Decision, Decisions
from activedb.engine._outputs import Output
from activedb.engine._stream_run import StreamRun

__all__ = [
    "Database",
    "Decision",
    "Decisions",
    "FollowProgress",
    "Follower",
    "Outcome",
    "Output",
    "Retried",
    "StreamRun",
    "connect",
]
