"""Coupling modes as pure logic: who runs when, relative to the triggering transaction.

Standard library only; no threads, no store. See ``README.md`` in this folder.
"""

from coupling._cycles import CycleBoundReached, DeferredCycles
from coupling._modes import Coupling
from coupling._order import priority_groups

__all__ = ["Coupling", "CycleBoundReached", "DeferredCycles", "priority_groups"]
