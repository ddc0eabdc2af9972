"""Columns of rows on their way to executors and back; imports nothing."""

from __future__ import annotations

GROUP, BUCKET = "activedb_group", "activedb_bucket"
"""Which parameter is the key, and the bucket that it has chosen."""
BESIDE = ""
"""The group of rows that go on as they are."""
IS_HOME = "activedb_is_home"
"""Whether this is the way of the row on which it is counted."""
POSITION, IS_FUTURE = "activedb_position", "activedb_is_future"
"""The place of a row in its micro-batch; whether its time was too far ahead."""
PASSED = "activedb_passed"
"""What a bucket has made of a punctuation, in JSON; NULL: a row as it is."""
