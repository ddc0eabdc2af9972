"""Streaming Ledger, GrepSum and Toll Processing at the sizes of (Mao et al., table 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from benchmarks._examples import load
from benchmarks._streams_by_hand import grep_sum, streaming_ledger, toll_processing

__all__ = ["APPLICATIONS", "Application", "Batches", "batches_of", "counted"]

Batches = list[tuple[Any, int | None]]
"""Batches of events in columns, each with the punctuation that follows it; None at the end."""


@dataclass(frozen=True, slots=True)
class Application:
    """A program of ``examples/streams`` and its peer.

    Attributes
    ----------
    name : str
        Prefix of its metrics.
    title : str
    file : str
        File of the program.
    by_hand : callable
        The same program as a plain loop over dicts; see `_streams_by_hand`.
    keys : str
        Name of the parameter for the number of keys.
    morphstream_per_s : float
        Events per second of MorphStream on another machine with two cores, C = 0.
    """

    name: str
    title: str
    file: str
    by_hand: Callable[[Any, Mapping[str, dict[int, float]]], None]
    keys: str
    morphstream_per_s: float

    @property
    def module(self) -> ModuleType:
        """Module of the program."""
        return load(self.file)

    @property
    def batch(self) -> int:
        """Events between two punctuations."""
        size: int = self.module.BATCH
        return size

    def of_size(self, keys: int | None) -> dict[str, int]:
        """Return the arguments that set the number of keys; None: the default."""
        return {} if keys is None else {self.keys: keys}


APPLICATIONS: Final = {
    "sl": Application(
        "sl", "Streaming Ledger", "streaming_ledger", streaming_ledger, "accounts", 71_000
    ),
    "gs": Application("gs", "GrepSum", "grep_sum", grep_sum, "keys", 132_000),
    "tp": Application(
        "tp", "Toll Processing", "toll_processing", toll_processing, "segments", 96_000
    ),
}


def batches_of(events: Any, size: int) -> Batches:
    """Return events in columns as batches for a run over columns."""
    return [(part.columns(), punctuation_us) for part, punctuation_us in events.batches(size)]


def counted(batches: Sequence[tuple[Any, int | None]]) -> int:
    """Return the number of events."""
    return sum(len(batch) for batch, _ in batches)
