"""How many rows a batch may have, told to the process that plans the batches.

A data source written in Python plans in a process of Spark's, which is told nothing but offsets
while a query runs. A small file, replaced in one step, is what both can see.
"""

from __future__ import annotations

from pathlib import Path


def write_limit(file: Path, rows: int) -> None:
    """Let the next batches have at most so many rows."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(str(rows), encoding="ascii")
    new.replace(file)


def read_limit(file: str | None, otherwise: int) -> int:
    """Return what was written, `otherwise` if nothing was."""
    if file is None:
        return otherwise
    try:
        return max(1, int(Path(file).read_text(encoding="ascii")))
    except (FileNotFoundError, ValueError):
        return otherwise
