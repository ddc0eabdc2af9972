"""Spark's classes, loaded once for all JVMs of a run of many tests: each starts in half the time.

An archive of the JVM (class data sharing): the first test that needs Spark makes it, which takes
longer than one start, and removes it at the end. A JVM that cannot use it goes on without, and so
do all if it cannot be made.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.patience import PATIENCE_S

__all__ = ["archive_for"]

_OPTIONS = "SPARK_SUBMIT_OPTS"  # what Spark's own scripts give to the JVM of a driver

_MAKE = """
from spark_bridge import session
with session() as spark:
    rows = spark.readStream.format("rate").load()
    query = rows.writeStream.foreachBatch(lambda rows, number: rows.toArrow()).start()
    query.processAllAvailable()
    query.stop()
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
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-c", _MAKE],
            env=os.environ | {_OPTIONS: f"-XX:ArchiveClassesAtExit={new}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
    if new.exists():
        new.rename(archive)
    return archive
