"""What is kept of one transaction: its place, its steps, its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import NamedTuple, TypeAlias

from lockmgr import Edge

__all__ = ["Life", "Raw", "Step"]

_ENDS_MAX = 500
_CHILDREN_MAX = 1_000
_LABELS_MAX = 100
_PATH_CHARS_MAX = 400
_LEVELS_MAX = 20  # of a path, at each of its ends


class Step(NamedTuple):
    """One thing that a transaction did, or that happened to it.

    Attributes
    ----------
    at_s : float
        When, in seconds since 1970.
    what : str
        One of the words of the table in ``_telling.py``.
    about : str
        A name that belongs to it: of a rule, an event, a child, a kind of write.
    resource : tuple or None
        What was locked, waited for or written.
    mode : str or None
        Of the lock; of an event what it is, of a rule its coupling mode.
    other : int or None
        Another transaction that it is about.
    edge : Edge or None
        Of a wait: one for whom it waits, and why.
    """

    at_s: float
    what: str
    about: str = ""
    resource: tuple[Hashable, ...] | None = None
    mode: str | None = None
    other: int | None = None
    edge: Edge | None = None


Raw: TypeAlias = tuple[
    float, str, str, tuple[Hashable, ...] | None, str | None, int | None, Edge | None
]
"""The fields of a `Step` as a plain tuple, which the garbage collector need not look at again."""


class Life:
    """One transaction, live or ended. Guarded by the latch of `Watch`.

    Attributes
    ----------
    id, top : int
    above : Life or None
        That of its parent, perhaps without its steps.
    label : str
    called : str
        Name of the function that the application runs in it, of a top-level one; may be empty.
    rule, coupling : str or None
        Of the rule that runs in it.
    state : str
        active, committing, committed or aborted.
    began_s, ended_s : float, float or None
        Seconds since 1970.
    committing_s : float
        When its work was done, of a top-level one; 0: not yet.
    thread : str
        Name of the thread on which it began.
    tries : int
        1 for the first try at its work, and so on.
    causes : tuple of int
        Transactions that triggered it or on whom it depends, and that are no superiors.
    first : list of Raw
        Its first 500 steps.
    last : deque of Raw or None
        Its last 500, if there are more.
    left_out : int
        How many steps were left out.
    children : list of int or None
        At most the first 1,000; `children_total` counts all.
    wait : tuple or None
        For which lock it waits and since when, in seconds since 1970, if it does.
    error, why : str or None
        Why it aborted: the error, and in a sentence.
    deadlock : int or None
        Number of the deadlock whose victim it was last.
    failed : dict of str to int or None
        Labels of children that have aborted, with the number of that try; bounded.
    """

    # Most transactions never set these; a begin that sets fewer fields is a faster one.
    called = ""
    rule: str | None = None
    coupling: str | None = None
    state = "active"
    ended_s: float | None = None
    committing_s = 0.0
    tries = 1
    causes: tuple[int, ...] = ()
    last: deque[Raw] | None = None
    left_out = 0
    children: list[int] | None = None
    children_total = 0
    wait: tuple[tuple[Hashable, ...], float] | None = None
    error: str | None = None
    why: str | None = None
    deadlock: int | None = None
    failed: dict[str, int] | None = None

    def __init__(self, number: int, above: Life | None, label: str, began_s: float, thread: str):
        self.id = number
        self.above = above
        self.top: int = number if above is None else above.top
        self.label = label
        self.began_s = began_s
        self.thread = thread
        self.first: list[Raw] = []

    @property
    def parent(self) -> int | None:
        """The id of its parent; None for a top-level transaction."""
        return None if self.above is None else self.above.id

    @property
    def path(self) -> str:
        """Its place in the hierarchy, shortened in the middle if that is long; O(depth)."""
        labels, life = [], self
        while True:
            labels.append(life.label)
            if life.above is None:
                break
            life = life.above
        if len(labels) > 2 * _LEVELS_MAX:
            labels[_LEVELS_MAX:-_LEVELS_MAX] = ["…"]
        path = "/".join(reversed(labels))
        if len(path) <= _PATH_CHARS_MAX:
            return path
        return f"{path[: _PATH_CHARS_MAX // 4]}…{path[-_PATH_CHARS_MAX // 2 :]}"

    # -- steps -----------------------------------------------------------------------------

    @property
    def kept(self) -> int:
        """How many steps are kept."""
        return len(self.first) + (0 if self.last is None else len(self.last))

    def add(self, step: Raw) -> bool:
        """Add a step; returns whether more are kept than before."""
        if len(self.first) < _ENDS_MAX:
            self.first.append(step)
            return True
        if self.last is None:
            self.last = deque(maxlen=_ENDS_MAX)
        is_full = len(self.last) == _ENDS_MAX
        self.left_out += is_full
        self.last.append(step)
        return not is_full

    def steps(self) -> list[Step | int]:
        """The steps in order, and in their place how many were left out, if any."""
        found: list[Step | int] = [*map(Step._make, self.first)]
        if self.left_out:
            found.append(self.left_out)
        found += map(Step._make, self.last or ())
        return found

    def forget_steps(self) -> None:
        """Keep no steps any more."""
        self.first, self.last = [], None

    # -- children --------------------------------------------------------------------------

    def begins(self, child: Life) -> None:
        """Take note of a child that has begun."""
        self.children_total += 1
        if self.children is None:
            self.children = [child.id]
        elif len(self.children) < _CHILDREN_MAX:
            self.children.append(child.id)
        if self.failed is not None:
            child.tries = self.failed.get(child.label, 0) + 1

    def has_failed(self, child: Life) -> None:
        """Take note of a child that has aborted; its next try has the same label."""
        if self.failed is None:
            self.failed = {}
        self.failed[child.label] = child.tries
        if len(self.failed) > _LABELS_MAX:
            del self.failed[next(iter(self.failed))]
