"""Tables that the tests' texts are about."""

from __future__ import annotations

from sqlalchemy import Column, Float, Integer, MetaData, String, Table

__all__ = ["declare"]


def declare(metadata: MetaData) -> MetaData:
    """Declare the tables."""
    Table(
        "workerStatus",
        metadata,
        Column("workerID", Integer, primary_key=True),
        Column("status", String),
    )
    Table(
        "log",
        metadata,
        Column("id", Integer, primary_key=True),
        Column("worker", Integer),
        Column("note", String),
        Column("weight", Float),
    )
    return metadata
