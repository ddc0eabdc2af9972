"""Histories as JSON lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coupling.acta import (
    AbortEvent,
    AbortOperation,
    BadLine,
    BeginEvent,
    CommitEvent,
    CommitOperation,
    DelegateEvent,
    History,
    ObjectOperation,
    OperationKind,
    SpawnEvent,
    SpawnMode,
)

ids = st.integers()
maybe = st.none() | st.integers()
paths = st.lists(st.text(), min_size=1).map(tuple)
READ = OperationKind.READ
events = (
    st.builds(BeginEvent, ids, maybe)
    | st.builds(SpawnEvent, ids, ids, st.sampled_from(SpawnMode), maybe, maybe, maybe)
    | st.builds(CommitEvent, ids)
    | st.builds(AbortEvent, ids)
    | st.builds(DelegateEvent, ids, ids, st.none() | st.lists(ids).map(tuple))
    | st.builds(CommitOperation, ids, ids)
    | st.builds(AbortOperation, ids, ids)
    | st.builds(ObjectOperation, ids, st.integers(1), st.just(READ), paths, maybe)
    | st.builds(ObjectOperation, ids, st.integers(1), st.sampled_from(OperationKind), paths)
)


@pytest.mark.long
@given(st.lists(events).map(tuple).map(History))
def test_history_as_lines_is_read_back_as_it_was(history: History) -> None:
    lines = list(history.lines())
    assert len(lines) == len(history)
    assert all(len(line.splitlines()) == 1 or "\n" not in line for line in lines)
    assert History.of_lines(lines) == history
    assert History.of_lines(f"{line}\n".encode("utf-8", "surrogatepass") for line in lines) == (
        history
    )


def test_history_written_to_a_file_is_read_back_and_leaves_nothing_else(tmp_path: Path) -> None:
    history = History(
        (BeginEvent(1), ObjectOperation(1, 1, READ, ("ä\n", "1"), saw=0), CommitEvent(1))
    )
    path = tmp_path / "history.jsonl"
    path.write_text("what was there before\n")
    history.write(path)
    assert History.read(path) == history
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text("utf-8").splitlines()[0] == '{"event":"begin","by":1}'


def test_history_that_cannot_be_written_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    History((BeginEvent(1),)).write(path)
    with pytest.raises(TypeError):
        History((BeginEvent(1), DelegateEvent(1, 2, (object(),)))).write(path)  # type: ignore[arg-type]
    assert History.read(path) == History((BeginEvent(1),))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "not JSON"),
        ("begin 1", "not JSON"),
        ('{"event":"begin","by":1', "not JSON"),
        ("[1]", "not a JSON object"),
        ("null", "not a JSON object"),
        ("{}", "'event' is missing"),
        ('{"event":"spawn","by":1}', 'unknown event "spawn"; known are: begin, commit'),
        ('{"event":["begin"],"by":1}', "unknown event"),
        ('{"event":"begin"}', "'by' is missing"),
        ('{"event":"begin","by":"1"}', "'by' is not a whole number: \"1\""),
        ('{"event":"begin","by":true}', "'by' is not a whole number: true"),
        ('{"event":"begin","by":1.0}', "'by' is not a whole number: 1.0"),
        ('{"event":"begin","by":1,"x":2}', "unknown field 'x'"),
        ('{"event":"spawn_imm","by":1,"child":2}', "'parent' is missing"),
        ('{"event":"delegate","by":1,"to":2,"operations":3}', "'operations' is not a list"),
        ('{"event":"delegate","by":1,"to":2,"operations":["3"]}', "'operations' is not a list"),
        ('{"event":"read","by":1,"number":0,"object":["a"]}', "'number' is less than 1"),
        ('{"event":"read","by":1,"number":1,"object":[]}', "'object' is not a list of one"),
        ('{"event":"read","by":1,"number":1,"object":"a"}', "'object' is not a list of one"),
        ('{"event":"read","by":1,"number":1,"object":[1]}', "'object' is not a list of one"),
        ('{"event":"write","by":1,"number":1,"object":["a"],"saw":1}', "unknown field 'saw'"),
        (b'{"event":"begin","by":\xff}', "decode"),
        ("[" * 100_000, ""),
    ],
)
def test_history_with_a_bad_line_is_refused_with_its_number(line: str, reason: str) -> None:
    with pytest.raises(BadLine) as raised:
        History.of_lines(['{"event":"begin","by":1}', line, "also wrong"])
    assert raised.value.line == 2
    assert reason in raised.value.reason
    assert str(raised.value) == f"line 2: {raised.value.reason}"
