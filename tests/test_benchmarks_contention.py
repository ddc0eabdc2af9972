"""The contention benchmark at a tiny size: every metric is there, nothing is lost or timed."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks import contention
from benchmarks._contention_workers import Load, ours, peers, rate_of
from benchmarks._nested_rows import open_server

WAYS = [*ours, "one_row", *(f"serializable_{way}" for way in contention._SERIALIZABLE)]


@pytest.mark.long
def test_metrics_of_every_way_come_with_the_better_peer(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACTIVEDB_URL", database_url)
    monkeypatch.setattr(contention, "SHAPES", (contention.Shape(2, 2, 5),))
    contention.main(["--runs", "1", "--seconds", "0.2", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {
        f"{way}_2x2_{what}" for way in WAYS for what in ("per_s", "failed_share")
    }
    for name, summary in found.items():
        assert math.isfinite(summary["value"])
        if name.endswith("per_s"):
            assert summary["peer"] in {f"psycopg, {peer}" for peer in peers}


@pytest.mark.long
def test_additions_that_get_lost_are_an_error(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTIVEDB_URL", database_url)
    with open_server() as server:
        contention.measure(1, server, 0.1, [contention.Shape(1, 1, 3)])
        with server.connection() as connection:
            connection.execute(
                "CREATE RULE lossy AS ON UPDATE TO contended WHERE new.id = 1 DO INSTEAD NOTHING"
            )
            connection.commit()
        with pytest.raises(RuntimeError, match="additions, and"):
            rate_of(server, Load("for update", 1, 1, 2, 2, 0.5))
