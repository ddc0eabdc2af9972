"""The real streams, read once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.events.real_data import streams

if TYPE_CHECKING:
    from pathlib import Path

    from tests.events.real_data.streams import Stream


@pytest.fixture(scope="session")
def bars(data_folder: Path) -> Stream:
    """One-minute bars of four stocks on a day: UP, DOWN, FLAT."""
    return streams.nasdaq(data_folder)


@pytest.fixture(scope="session")
def weather(data_folder: Path) -> Stream:
    """A year of hourly observations at three airports: RAIN, DRY."""
    return streams.weather(data_folder)


@pytest.fixture(scope="session")
def boston(data_folder: Path) -> Stream:
    """Tweets about the bombings of Boston: TOPIC, OTHER."""
    return streams.tweets(data_folder, "2013_Boston_Bombings")
