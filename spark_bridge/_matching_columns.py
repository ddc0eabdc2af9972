"""Columns of rows on their way to executors and back; imports nothing."""

from __future__ import annotations

GROUP, BUCKET = "activedb_group", "activedb_bucket"
"""The parameter that is the key, and the bucket that it selects."""
BESIDE = ""
"""Group of the rows that pass through unchanged."""
IS_HOME = "activedb_is_home"
"""True on the one route on which the row is counted."""
POSITION, IS_FUTURE = "activedb_position", "activedb_is_future"
"""The place of a row in its micro-batch; whether its time was too far ahead."""
PASSED = "activedb_passed"
"""Result of passing a punctuation to a bucket, in JSON; NULL: a row that passes through."""
