"""The engine: the database object, and how occurrences become running rules."""

from activedb.engine._database import Database, connect
from activedb.engine._stream_run import StreamRun

__all__ = ["Database", "StreamRun", "connect"]
