"""Identity of the work of a top-level transaction, across its tries."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from activedb.config import Isolation
    from activedb.store.journals import Repeated
    from activedb.store.sql import TableSpec

__all__ = ["Run"]


class _NameGenerator:
    """Generator of names that are unique across processes.

    A UUID per name would take a hundredth of the time of a small transaction.
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._process = uuid.uuid4().hex[:20]
        self._numbers = itertools.count()

    def __call__(self) -> str:
        """Return a new name, of 32 hexadecimal digits."""
        return f"{self._process}{next(self._numbers):012x}"


_new_name: Callable[[], str] = _NameGenerator()


@dataclass(slots=True)
class Run:
    """Data that stays the same across the retries of a top-level transaction.

    Attributes
    ----------
    name : str
        Identity of the work; part of the names of detached firings.
    batch : Repeated or None
        Kind of batch, if it is one; a batch is repeated after a crash.
    is_detached : bool
        True if it is a detached rule, which is repeated after a crash, too.
    is_covered : bool
        True for a detached rule that is repeated after a crash because the run that triggered it
        is, and not because it is recorded.
    above : tuple of str
        Of a firing that is not recorded: the names of what triggered it, of what triggered that,
        and so on, up to the first that is recorded or no firing.
    lazily : bool
        True if the commit need not wait for the disk, because commits lost in a crash of the
        server are replayed.
    careful : bool
        True if the server checks the rows of each child of the top-level transaction at the
        child's commit, so that a refused row aborts that child alone.
    is_retried : bool
        True if the caller makes further tries, and reports the final failure of the work.
    of_application : bool
        True if the application began it, so that its begin, commit and abort are events.
    fired : set of str
        Names of the detached firings triggered by this and earlier tries.
    upgraded : set of TableSpec
        Tables of which a try has locked rows for writing that it had read before.
    announced : frozenset of TableSpec
        Tables of which rows are locked for writing when they are read by key; see `Upgrades`.
    isolation : str
        Its isolation policy; see `Settings.isolation`.
    detectors : set of str
        Rules whose detectors a try under SERIALIZABLE has locked too late; see `lock_detector`.
    is_refused : bool
        True if the server has refused a row of a try under SERIALIZABLE.
    tries : int
        Number of top-level transactions begun for it in this process.
    called : str
        Name of the application's function that runs in it, for observers; may be empty.
    code : object or None
        Code of that function, by which its transactions are known to be the same work.
    rule, coupling : str or None
        The rule of a firing, and the mode in which it was triggered.
    origin : str or None
        Data that the record of a firing carries from its triggering transaction, for observers.
    """

    name: str = field(default_factory=_new_name)
    batch: Repeated | None = None
    is_detached: bool = False
    is_covered: bool = False
    above: tuple[str, ...] = ()
    lazily: bool = False
    careful: bool = False
    is_retried: bool = False
    of_application: bool = False
    fired: set[str] = field(default_factory=set)
    upgraded: set[TableSpec] = field(default_factory=set)
    announced: frozenset[TableSpec] = frozenset()
    isolation: Isolation = "locks"
    detectors: set[str] = field(default_factory=set)
    is_refused: bool = False
    tries: int = 0
    called: str = ""
    code: object = None
    rule: str | None = None
    coupling: str | None = None
    origin: str | None = None

    @property
    def is_batch(self) -> bool:
        """True if it is a batch."""
        return self.batch is not None

    @classmethod
    def of_function(cls, function: object, isolation: Isolation) -> Run:
        """Return the run of a function that the application has called."""
        name, code = getattr(function, "__qualname__", ""), getattr(function, "__code__", None)
        return cls(of_application=True, called=name, code=code, isolation=isolation)
