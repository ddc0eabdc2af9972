"""The real streams, read once."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.events.real_data import streams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.events.real_data.streams import Stream


@pytest.fixture(scope="session")
def bars(data_folder: Path) -> Iterator[Stream]:
    """One-minute bars of four stocks on a day: UP, DOWN, FLAT."""
    yield from _open(streams.nasdaq(data_folder))


@pytest.fixture(scope="session")
def weather(data_folder: Path) -> Iterator[Stream]:
    """A year of hourly observations at three airports: RAIN, DRY."""
    yield from _open(streams.weather(data_folder))


@pytest.fixture(scope="session")
def boston(data_folder: Path) -> Iterator[Stream]:
    """Tweets about the bombings of Boston: TOPIC, OTHER."""
    yield from _open(streams.tweets(data_folder, "2013_Boston_Bombings"))


def _open(stream: Stream) -> Iterator[Stream]:
    with closing(stream.sql):
        yield stream
