"""Active rules over a SQL store.

Python functions are ECA rules; they run as parallel nested transactions, and state lives in
Postgres. Start with ``README.md``; the words are in ``docs/glossary.md``.

Names load when they are first used, so that importing the package is quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

from activedb import _starting as _starting  # first: Ctrl-C while the rest is imported

if TYPE_CHECKING:
    from activedb.clock import Clock, FixedErrorClock, KernelClock, SimulatedClock, SystemClock
    from activedb.config import Settings
    from activedb.database import Database, connect
    from activedb.events import (
        AccuracyInterval,
        Expression,
        Node,
        Occurrence,
        Producers,
        Stabilizer,
        aborted,
        all_of,
        any_of,
        aperiodic,
        at,
        attr,
        began,
        called,
        committing,
        cron,
        deleted,
        detect,
        event,
        every,
        inserted,
        late,
        many,
        occurrence,
        optional,
        part,
        periodic,
        query,
        returned,
        seq,
        some_of,
        updated,
    )
    from activedb.rules import RuleOptions
    from activedb.streams import (
        AtomicBatch,
        Files,
        Kafka,
        Rate,
        Replay,
        Socket,
        Staged,
        Stream,
        StreamDeclaration,
        StreamOptions,
    )
    from activedb.transactions import Child, State, Transaction

    __version__: str

_HOMES = {
    "activedb.clock": (
        "Clock",
        "FixedErrorClock",
        "KernelClock",
        "SimulatedClock",
        "SystemClock",
    ),
    "activedb.config": ("Settings",),
    "activedb.database": (
        "Database",
        "connect",
    ),
    "activedb.events": (
        "AccuracyInterval",
        "Expression",
        "Node",
        "Occurrence",
        "Producers",
        "Stabilizer",
        "aborted",
        "all_of",
        "any_of",
        "aperiodic",
        "at",
        "attr",
        "began",
        "called",
        "committing",
        "cron",
        "deleted",
        "detect",
        "event",
        "every",
        "inserted",
        "late",
        "many",
        "occurrence",
        "optional",
        "part",
        "periodic",
        "query",
        "returned",
        "seq",
        "some_of",
        "updated",
    ),
    "activedb.rules": ("RuleOptions",),
    "activedb.streams": (
        "AtomicBatch",
        "Files",
        "Kafka",
        "Rate",
        "Replay",
        "Socket",
        "Staged",
        "Stream",
        "StreamDeclaration",
        "StreamOptions",
    ),
    "activedb.transactions": (
        "Child",
        "State",
        "Transaction",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("errors",)  # that a program may use without importing them

__all__ = [
    "AccuracyInterval",
    "AtomicBatch",
    "Child",
    "Clock",
    "Database",
    "Expression",
    "Files",
    "FixedErrorClock",
    "Kafka",
    "KernelClock",
    "Node",
    "Occurrence",
    "Producers",
    "Rate",
    "Replay",
    "RuleOptions",
    "Settings",
    "SimulatedClock",
    "Socket",
    "Stabilizer",
    "Staged",
    "State",
    "Stream",
    "StreamDeclaration",
    "StreamOptions",
    "SystemClock",
    "Transaction",
    "aborted",
    "all_of",
    "any_of",
    "aperiodic",
    "at",
    "attr",
    "began",
    "called",
    "committing",
    "connect",
    "cron",
    "deleted",
    "detect",
    "event",
    "every",
    "inserted",
    "late",
    "many",
    "occurrence",
    "optional",
    "part",
    "periodic",
    "query",
    "returned",
    "seq",
    "some_of",
    "updated",
]


def __getattr__(name: str) -> Any:
    """Load a public name, from the module that defines it."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("activedb")
    elif name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
    elif name in _MODULES:
        return importlib.import_module(f"activedb.{name}")
    else:
        raise AttributeError(f"module 'activedb' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
