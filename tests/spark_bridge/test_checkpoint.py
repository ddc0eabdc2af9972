from __future__ import annotations

from pathlib import Path

import pytest

from spark_bridge._checkpoint import read_punctuation_us, read_query_id


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


def test_query_id_is_spark_s_own(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"7365cdd2-c57f-40aa-9c6e-15c7f0d851cd"}')
    assert read_query_id(tmp_path) == "7365cdd2-c57f-40aa-9c6e-15c7f0d851cd"
