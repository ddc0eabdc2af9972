"""The hospital ward: a generated stream, the rules over it, and a recount to check the result.

The paper's running example (Wang, Rundensteiner, Ellison 2011, section 1 and figure 1)::

    Ward(…).sightings() ──► write_files ──► stream "ward", rules (define) ──► tables ──┐
            │                                                                          compare
            └────────────────────────► replay ──► what the tables must hold ───────────┘

`measure` reports the speed of small transactions, rules and events on this machine.
"""

from __future__ import annotations

from activedb.demo._generator import BEHAVIOURS, DELAY, FileFormat, Sighting, Ward, write_files
from activedb.demo._measurement import Measured, measure
from activedb.demo._replay import compare, replay
from activedb.demo._ward import WardTables, define

__all__ = [
    "BEHAVIOURS",
    "DELAY",
    "FileFormat",
    "Measured",
    "Sighting",
    "Ward",
    "WardTables",
    "compare",
    "define",
    "measure",
    "replay",
    "write_files",
]
