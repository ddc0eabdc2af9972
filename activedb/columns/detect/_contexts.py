"""Consumption contexts as numbered by the kernels, and the time before all others."""

from __future__ import annotations

from activedb.events import Context

__all__ = [
    "CHRONICLE",
    "CONTEXTS",
    "CONTINUOUS",
    "CUMULATIVE",
    "NEVER_US",
    "RECENT",
    "UNRESTRICTED",
]

CONTEXTS = (
    Context.UNRESTRICTED,
    Context.RECENT,
    Context.CHRONICLE,
    Context.CONTINUOUS,
    Context.CUMULATIVE,
)
UNRESTRICTED, RECENT, CHRONICLE, CONTINUOUS, CUMULATIVE = range(5)

NEVER_US = -(2**63)
