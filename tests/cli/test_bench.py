"""``activedb bench`` measures, and leaves nothing behind."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text

from tests.cli.calling import Caller

pytestmark = pytest.mark.long


def test_bench_measures_and_leaves_nothing_behind(call: Caller, database_url: str) -> None:
    said = call("bench", "--json", "--seconds", "0.02", "--threads", "2", "--url", database_url)
    assert said.status == 0, said.err
    figures = {each["name"]: each["value"] for each in said.json["figures"]}
    assert all(value > 0 for value in figures.values())
    assert {"transactions, one thread", "transactions, 2 threads", "detached rules"} <= set(figures)
    assert said.json["threads"] == 2
    engine = create_engine(database_url)
    with engine.connect() as connection:
        schemas = connection.execute(text("SELECT nspname FROM pg_namespace")).scalars()
        assert not [name for name in schemas if name.startswith("activedb")]
    engine.dispose()


def test_bench_in_memory_prints_a_table(call: Caller) -> None:
    said = call("bench", "--seconds", "0.01", "--threads", "1", "--url", "memory://")
    assert said.status == 0, said.err
    assert "events through a pattern" in said.out
    assert "transactions, one thread" in said.out
    assert "1 threads:" not in said.out
