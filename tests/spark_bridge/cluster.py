"""Spark with executors in processes of their own, for a module of tests.

It takes some 13 s to start, so a test module that needs one has one:
``from tests.spark_bridge.cluster import cluster`` and a parameter ``cluster``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_bridge import session

__all__ = ["CLUSTER", "cluster"]

CLUSTER = {"spark.master": "local-cluster[2,1,1024]"}
"""Settings of Spark: two executors with one core each."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """The Spark session, with two executor processes."""
    with session(CLUSTER) as spark:
        yield spark
