from __future__ import annotations

from pathlib import Path

import pytest

from spark_bridge._checkpoint import (
    is_committed,
    is_planned,
    names_of_files,
    read_next_punctuation_us,
    read_punctuation_us,
    read_query_id,
)


@pytest.mark.parametrize(("watermark_ms", "punctuation_us"), [(0, None), (1, 1000), (94, 94_000)])
def test_punctuation_is_the_watermark_of_that_batch_in_microseconds(
    watermark_ms: int, punctuation_us: int | None, tmp_path: Path
) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").write_text(
        f'v1\n{{"batchWatermarkMs":{watermark_ms},"batchTimestampMs":5,"conf":{{}}}}\n'
        '{"logOffset":7}'
    )
    assert read_punctuation_us(tmp_path, 7) == punctuation_us
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "6").write_text(f'v1\n{{"nextBatchWatermarkMs":{watermark_ms}}}')
    assert read_next_punctuation_us(tmp_path, 6) == punctuation_us


def test_query_id_is_spark_s_own(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"7365cdd2-c57f-40aa-9c6e-15c7f0d851cd"}')
    assert read_query_id(tmp_path) == "7365cdd2-c57f-40aa-9c6e-15c7f0d851cd"


@pytest.mark.parametrize("log", ["9", "9.compact"])
def test_names_of_files_are_those_of_that_batch_in_a_log_of_its_own_or_of_all(
    log: str, tmp_path: Path
) -> None:
    entries = [("00000008-000000-a.csv", 8)] if log.endswith("compact") else []
    entries += [("00000009-000000-b.csv", 9), ("00000009-000001-c.csv", 9)]
    folder = tmp_path / "sources" / "0"
    folder.mkdir(parents=True)
    (folder / log).write_text(
        "v1\n"
        + "\n".join(
            f'{{"path":"file:///x/current/{name}","timestamp":1,"batchId":{number}}}'
            for name, number in entries
        )
    )
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "12").write_text('v1\n{"batchWatermarkMs":0}\n{"logOffset":9}')
    assert names_of_files(tmp_path, 12) == {"00000009-000000-b.csv", "00000009-000001-c.csv"}


def test_micro_batch_is_planned_with_its_offsets_and_committed_with_its_commit(
    tmp_path: Path,
) -> None:
    for folder, number in (("offsets", 3), ("offsets", 4), ("commits", 3)):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / str(number)).touch()
    assert [is_planned(tmp_path, n) for n in (3, 4, 5)] == [True, True, False]
    assert [is_committed(tmp_path, n) for n in (3, 4, 5)] == [True, False, False]
