"""Limit on the rows of a batch, passed to the process that plans the batches.

A data source written in Python plans in one of Spark's processes, which receives nothing but
offsets while a query runs. A small file, replaced in one step, is visible to both.
"""

from __future__ import annotations

from pathlib import Path


def write_limit(file: Path, rows: int) -> None:
    """Limit the next batches to this many rows."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(str(rows), encoding="ascii")
    new.replace(file)


def read_limit(file: str | None, otherwise: int) -> int:
    """Return the limit in the file, `otherwise` if there is none."""
    if file is None:
        return otherwise
    try:
        return max(1, int(Path(file).read_text(encoding="ascii")))
    except (FileNotFoundError, ValueError):
        return otherwise
