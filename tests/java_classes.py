"""Spark's classes, loaded once for all JVMs of a run of many tests: each starts in half the time.

An archive of the JVM (class data sharing): the first test that needs Spark makes it, which takes
longer than one start, and removes it at the end. A JVM that cannot use it goes on without, and so
do all if it cannot be made.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_S

__all__ = ["archive_for"]

_OPTIONS = "SPARK_SUBMIT_OPTS"  # what Spark's own scripts give to the JVM of a driver

# What is streamed must have an end: of a rate, a slow machine is never through with all there is.
_MAKE = """
import sys
from spark_bridge import session
with session() as spark:
    rows = spark.readStream.text(sys.argv[1])
    written = rows.writeStream.foreachBatch(lambda rows, number: rows.toArrow())
    written.trigger(availableNow=True).start().awaitTermination()
"""


def archive_for(folder: Path) -> Path:
    """Have this process's JVMs use an archive in a folder; make it unless another process does.

    Parameters
    ----------
    folder : Path
        Shared by the processes of the run.
    """
    archive = folder / "spark.jsa"
    os.environ[_OPTIONS] = f"-XX:SharedArchiveFile={archive}"
    try:
        folder.mkdir()
    except FileExistsError:
        return archive
    new = archive.with_suffix(".new")
    rows = folder / "rows"
    rows.mkdir()
    (rows / "one.txt").write_text("one\n", encoding="utf-8")
    maker = subprocess.Popen(
        [sys.executable, "-c", _MAKE, str(rows)],
        env=os.environ | {_OPTIONS: f"-XX:ArchiveClassesAtExit={new}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        maker.communicate(timeout=PATIENCE_S)  # also until its JVM, which writes the archive, ends
    except subprocess.TimeoutExpired:
        os.killpg(maker.pid, signal.SIGKILL)
        maker.communicate()
    if new.exists():
        new.rename(archive)
    return archive
