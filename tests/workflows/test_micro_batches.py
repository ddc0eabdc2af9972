"""Micro-batches from Spark as batches of a workflow: each once, and bad rows aside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from activedb.batches import isolated, merged
from activedb.errors import CheckpointMismatch, ConfigurationError, ProgramFailed
from activedb.streams import AtomicBatch
from tests.workflows.marking import Marking, chain, marking

if TYPE_CHECKING:
    from activedb import Database
    from tests.databases import Place


class Columns:
    """Rows with one parameter ``of``; None: no event can be made of the row."""

    def __init__(self, names: list[object]):
        self._columns: dict[str, list[object]] = {
            "event_type": [None if name is None else "CALL" for name in names],
            "event_time_us": [None if name is None else 5 for name in names],
            "event_id": [None for _ in names],
            "p_of": names,
            "raw": ["torn" if name is None else None for name in names],
        }
        self.num_rows = len(names)
        self.column_names = list(self._columns)

    def column(self, name: str) -> Columns._Column:
        return self._Column(self._columns[name])

    class _Column:
        def __init__(self, values: list[object]):
            self._values = values

        def to_pylist(self) -> list[object]:
            return self._values


def batch_of(number: int, *names: object, query: str = "q") -> AtomicBatch:
    return AtomicBatch("a", query, number, Columns(list(names)), None)


def test_apply_replayed_micro_batch_changes_nothing(where: Place) -> None:
    programs = chain(isolated(), merged(2))
    of = marking(where.open(), programs)
    assert of.run.apply(batch_of(0, "x")) == "a#1"
    if not where.is_memory:
        of = marking(where.open(), programs)
    assert of.run.apply(batch_of(0, "x")) == "a#1"
    assert of.run.apply(batch_of(1, "y")) == "a#2"
    assert of.run.apply(batch_of(1, "y")) == "a#2"
    assert of.written() == ["P1(x)", "P1(y)", "P2(P1:x,P1:y)"]
    assert of.run.rows("a#1") == [
        {"of": "x", "event_type": "CALL", "event_time_us": 5, "event_id": None}
    ]


def test_apply_replayed_micro_batch_runs_what_a_failure_has_left(db: Database) -> None:
    of = marking(db, chain(isolated()))
    of.failing = lambda mark: True
    for _ in range(2):
        with pytest.raises(ProgramFailed):
            of.run.apply(batch_of(0, "x"))
    of.failing = lambda mark: False
    assert of.run.apply(batch_of(0, "x")) == "a#1"
    assert of.written() == ["P1(x)"]


def test_apply_row_of_which_no_event_can_be_made_is_a_dead_letter(db: Database) -> None:
    of = marking(db, chain(isolated()))
    of.run.apply(batch_of(0, "x", None, "y"))
    of.run.apply(batch_of(0, "x", None, "y"))
    assert of.written() == ["P1(x,y)"]
    (letter,) = db.dead_letters.list()
    assert (letter.source, letter.identity, letter.payload) == ("a", "q.0.1", {"raw": "torn"})


def test_apply_micro_batch_without_rows_is_no_batch(db: Database) -> None:
    of = marking(db, chain(isolated()))
    assert of.run.apply(batch_of(0)) is None
    assert of.run.apply(batch_of(1, None)) is None
    assert of.run.apply(batch_of(1, None)) is None
    assert of.run.apply(batch_of(2, "x")) == "a#1"
    assert of.run.apply(batch_of(0)) is None
    assert len(db.dead_letters.list()) == 1
    assert of.written() == ["P1(x)"]


def test_apply_checkpoint_of_another_query_is_refused(db: Database) -> None:
    of = marking(db, chain(isolated()))
    of.run.apply(batch_of(0, "x"))
    with pytest.raises(CheckpointMismatch, match="fed by the query q"):
        of.run.apply(batch_of(1, "y", query="other"))
    with pytest.raises(CheckpointMismatch, match="missing"):
        of.run.apply(batch_of(2, "y"))
    with pytest.raises(ConfigurationError, match="has no source"):
        of.run.apply(AtomicBatch("b", "q", 1, Columns([]), None))
    assert _written_once(of)


def _written_once(of: Marking) -> bool:
    return of.written() == ["P1(x)"] and of.run.feed("a", []) == "a#2"
