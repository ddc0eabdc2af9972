"""A checkpoint that is lost, old or another's is refused, or gone on without: nothing twice."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.cli._report import Reporter
from activedb.cli._running import Options, run_job
from activedb.errors import BatchFailed, CheckpointMismatch
from activedb.streams import AtomicBatch
from tests.servers import fresh_database
from tests.spark_bridge.resuming import SCHEMA, Fed, lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

FILES = adb.Files("csv", schema=SCHEMA)


@pytest.fixture
def fed(database_url: str, tmp_path: Path) -> Fed:
    return Fed(database_url, tmp_path, FILES)


@pytest.fixture
def undisturbed(postgres_url: str, tmp_path: Path) -> Iterator[Callable[[Fed], Any]]:
    """Yield a function for the contents of a database that was fed the same in one go."""
    with fresh_database(postgres_url) as url:

        def contents(fed: Fed) -> Any:
            other = fed.beside(url, tmp_path / "undisturbed")
            other.run()
            return other.contents()

        yield contents


def fail(batch: AtomicBatch) -> None:
    raise ZeroDivisionError


def test_files_go_on_behind_the_last_batch_when_the_checkpoint_is_lost(
    fed: Fed, undisturbed: Callable[[Fed], Any]
) -> None:
    fed.write(0, 1, 2)
    fed.run()
    fed.lose_checkpoint()
    fed.write(3, 4, 5)
    before = fed.contents()
    with pytest.raises(CheckpointMismatch, match="--resume"):
        fed.run()
    assert fed.contents() == before
    with pytest.raises(ZeroDivisionError):
        fed.run(resume=True, stop=fail)
    batches = fed.run()  # the new checkpoint knows where it has begun
    assert [batch.batch_id for batch in batches] == [3, 4, 5]
    assert fed.contents() == undisturbed(fed)
    assert fed.contents()["late"], "the rows far back are late in any case"


def test_first_batch_that_was_cut_off_while_it_was_planned_is_planned_again(fed: Fed) -> None:
    fed.write(0)
    for name in ("offsets/.0.5b2f.tmp", "offsets/..0.5b2f.tmp.crc", "commits/.x.tmp"):
        half = fed.checkpoint / name
        half.parent.mkdir(parents=True, exist_ok=True)
        half.touch()
    assert [batch.batch_id for batch in fed.run()] == [0]


def test_checkpoints_that_are_not_the_last_one_s_are_refused_after_another_has_gone_on(
    fed: Fed, tmp_path: Path
) -> None:
    fed.write(0, 1)
    fed.run()
    old, second, third = (tmp_path / name for name in ("checkpoint", "second", "third"))
    fed.write(2)
    with pytest.raises(ZeroDivisionError):
        fed.run(resume=True, checkpoint=third, stop=fail)
    fed.run(resume=True, checkpoint=second)
    before = fed.contents()
    for checkpoint in (old, third, tmp_path / "fourth"):
        with pytest.raises(CheckpointMismatch, match="--resume"):
            fed.run(checkpoint=checkpoint)
    assert fed.contents() == before
    assert fed.run(resume=True, checkpoint=second) == []


def test_old_copy_of_a_checkpoint_is_passed_over_unless_it_plans_other_rows(
    fed: Fed, tmp_path: Path
) -> None:
    def restore(name: str) -> None:
        fed.lose_checkpoint()
        (tmp_path / name).rename(fed.checkpoint)

    fed.write(0, 1)
    fed.run()
    for name in ("copy", "other"):
        shutil.copytree(fed.checkpoint, tmp_path / name, symlinks=True)
    fed.write(2)
    fed.run()
    before = fed.contents()
    with pytest.raises(CheckpointMismatch, match="Move it back"):
        fed.run(checkpoint=tmp_path / "copy")
    restore("copy")
    assert [batch.batch_id for batch in fed.run()] == [2]
    assert fed.contents() == before
    (fed.input / "001-between.csv").write_text("\n".join(lines(9)) + "\n")
    restore("other")
    with pytest.raises(CheckpointMismatch, match=r"001-between\.csv.*--resume"):
        fed.run()
    assert fed.contents() == before
    batches = fed.run(resume=True, checkpoint=tmp_path / "new")
    assert [batch.position["source"] for batch in batches if batch.position] == [
        {"kind": "Files", "files": [str(fed.input / "001-between.csv")]}
    ]


def test_database_older_than_the_checkpoint_goes_on_from_what_it_has(
    fed: Fed, undisturbed: Callable[[Fed], Any], tmp_path: Path
) -> None:
    fed.write(0, 1, 2)
    with pytest.raises(ZeroDivisionError):
        fed.run(stop=lambda batch: fail(batch) if batch.batch_id == 1 else None)
    # Spark counts what the database has lost.
    for batch_id in (1, 2):
        for log in ("offsets", "commits"):
            shutil.copy(fed.checkpoint / log / "0", fed.checkpoint / log / str(batch_id))
    with pytest.raises(CheckpointMismatch, match="--resume"):
        fed.run()
    fed.run(resume=True, checkpoint=tmp_path / "new")
    assert fed.contents() == undisturbed(fed)


def test_batch_cut_off_between_its_parts_is_ended_as_it_would_have_been(
    fed: Fed, undisturbed: Callable[[Fed], Any]
) -> None:
    fed.batch_events_max = 1
    fed.write(0, 1, 2, 3)
    with pytest.raises(ZeroDivisionError):
        fed.run(stop_at_part=(2, 1))
    assert fed.contents()["ledger"][-1][:2] == (2, 1)
    fed.lose_checkpoint()
    fed.run(resume=True)
    assert fed.contents() == undisturbed(fed)


def test_recording_goes_on_behind_the_last_line(fed: Fed, column: Any) -> None:
    fed.write(0, 1, 2)
    fed.source = adb.Replay(fed.input, schema=SCHEMA, rows_per_batch=13)
    with pytest.raises(ZeroDivisionError):
        fed.run(stop=lambda batch: fail(batch) if batch.batch_id == 1 else None)
    fed.lose_checkpoint()
    (rest,) = fed.run(resume=True)
    assert column(rest, "p_name") == ["e2-3", "e2-x"]
    # The newest row is of the batch that the lost checkpoint had.
    assert (rest.batch_id, rest.punctuation_us) == (1, (1_080 - 15) * 1_000_000)


def test_producers_are_known_without_the_checkpoint(
    fed: Fed, undisturbed: Callable[[Fed], Any]
) -> None:
    fed.changes = {"producer": "right(name, 1)", "expected_producers": ("0", "1", "2", "3")}
    fed.write(0, 1, 2)
    fed.run()
    fed.lose_checkpoint()
    fed.write(3, 4)
    fed.run(resume=True)
    assert fed.contents() == undisturbed(fed)


def test_command_goes_on_without_the_checkpoint_if_it_is_told_to(
    fed: Fed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.py"
    job.write_text(
        "import activedb as adb\n"
        "from tests.spark_bridge.resuming import SCHEMA, declare\n"
        "db = adb.connect()\n"
        "stream = declare(db, adb.Files('csv', schema=SCHEMA))\n"
    )
    monkeypatch.setenv("ACTIVEDB_URL", fed.url)
    fed.write(0)
    given = Options(job, fed.input, None, fed.checkpoint, fail_fast=True, follow=False, resume=True)
    with pytest.raises(BatchFailed):
        run_job(given, Reporter(as_json=True))
    given = replace(given, fail_fast=False)
    run_job(given, Reporter(as_json=True))
    fed.lose_checkpoint()
    fed.write(1)
    with pytest.raises(CheckpointMismatch):
        run_job(replace(given, resume=False), Reporter(as_json=True))
    capsys.readouterr()
    run_job(given, Reporter(as_json=True))
    figures = json.loads(capsys.readouterr().out)
    assert (figures["events"], figures["events since the stream began"]) == (3, 7)
