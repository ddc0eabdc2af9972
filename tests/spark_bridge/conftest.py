"""One Spark for a module of tests, and small inputs for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from activedb.streams import AtomicBatch, Files, StreamDeclaration
from spark_bridge import SparkFeed, session


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with session() as running:
        yield running


def _clicks(**changes: Any) -> StreamDeclaration:
    """Rows `seconds,kind,user`, seconds since 1970."""
    given: dict[str, Any] = {
        "source": Files("csv", schema="seconds STRING, kind STRING, user STRING"),
        "type": "kind",
        "timestamp": "timestamp_seconds(CAST(seconds AS DECIMAL(20, 6)))",
        "id": "concat(user, '@', seconds)",
        "params": {"user": "user", "length": "length(user)"},
        "types": {"CLICK": ("user",), "QUIT": ()},
    }
    return StreamDeclaration("clicks", **(given | changes))


@dataclass
class Playground:
    """An input folder, a checkpoint and everything that was applied."""

    root: Path
    batches: list[AtomicBatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.input.mkdir()

    @property
    def input(self) -> Path:
        return self.root / "input"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    def write(self, name: str, *lines: str) -> Path:
        path = self.input / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    def feed(
        self, stream: StreamDeclaration, input: Path | None = None, *, follow: bool = False
    ) -> SparkFeed:
        return SparkFeed(stream, input or self.input, self.checkpoint, follow=follow)

    def run(self, stream: StreamDeclaration, input: Path | None = None) -> list[AtomicBatch]:
        """Run to the end of the input; return the batches of this run."""
        before = len(self.batches)
        self.feed(stream, input).run(self.batches.append)
        return self.batches[before:]


def _column(batches: AtomicBatch | Sequence[AtomicBatch], name: str) -> list[Any]:
    parts = [batches] if isinstance(batches, AtomicBatch) else batches
    return [value for part in parts for value in part.table.column(name).to_pylist()]


@pytest.fixture
def clicks() -> Any:
    return _clicks


@pytest.fixture
def column() -> Any:
    return _column


@pytest.fixture
def playground(tmp_path: Path) -> Playground:
    return Playground(tmp_path)


@pytest.fixture
def delayed() -> StreamDeclaration:
    return _clicks(delay=timedelta(seconds=10))
