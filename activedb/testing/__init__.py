"""Helpers for testing rules: firings and their explanations, named crash points, test databases.

For pytest, the fixtures of `pytest_activedb` provide these; they work without pytest, too.
README.md shows both.
"""

from activedb.testing._crashes import POINTS, Crash, Crashed, Killed, crashing, run_until_killed
from activedb.testing._places import ScratchServer, scratch_url
from activedb.testing._witness import Firing, Witness

__all__ = [
    "POINTS",
    "Crash",
    "Crashed",
    "Firing",
    "Killed",
    "ScratchServer",
    "Witness",
    "crashing",
    "run_until_killed",
    "scratch_url",
]
