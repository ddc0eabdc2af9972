"""Records of transactions: place in the hierarchy, steps and end; and their bounded collection."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import NamedTuple, TypeAlias

from lockmgr import Edge

__all__ = ["Raw", "RecentTransactions", "StoryStep", "TransactionRecord"]


_ENDS_MAX = 500
_CHILDREN_MAX = 1_000
_LABELS_MAX = 100
_PATH_CHARS_MAX = 400
_LEVELS_MAX = 20  # of a path, at each end


class StoryStep(NamedTuple):
    """One action of a transaction, or one event that affected it.

    Attributes
    ----------
    at_s : float
        Time of the step, in seconds since 1970.
    what : str
        Kind of step; `_stories.py` has a text for each.
    about : str
        Name that the step refers to: a rule, an event, a child, a kind of write.
    resource : tuple or None
        Resource that was locked, waited for or written.
    mode : str or None
        Lock mode; for an event its kind, for a rule its coupling mode.
    other : int or None
        Another transaction involved in the step.
    edge : Edge or None
        For a wait: one of the edges, with the transaction waited for and the reason.
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
"""Fields of a `StoryStep` as a plain tuple, which the garbage collector need not track."""


class TransactionRecord:
    """Record of one transaction, live or ended. Guarded by the latch of `Watch`.

    Attributes
    ----------
    id, top : int
    above : TransactionRecord or None
        Record of the parent; its steps may have been dropped.
    label : str
    called : str
        For a top-level transaction, the name of the application's function that runs in it; may be
        empty.
    rule, coupling : str or None
        The rule that runs in the transaction, and its coupling mode.
    state : str
        active, committing, committed or aborted.
    began_s, ended_s : float, float or None
        Seconds since 1970.
    committing_s : float
        For a top-level transaction, the time at which its work was done; 0 before that.
    thread : str
        Name of the thread on which the transaction began.
    tries : int
        Number of the try: 1 for the first one, and so on.
    causes : tuple of int
        Transactions, other than superiors, that triggered this one or that it depends on.
    first : list of Raw
        The first 500 steps.
    last : deque of Raw or None
        The last 500 steps, if there are more.
    left_out : int
        Number of steps left out in between.
    children : list of int or None
        Ids of at most the first 1,000 children; `children_total` counts all.
    wait : tuple or None
        The lock that the transaction waits for and, in seconds since 1970, the begin of the wait.
    error, why : str or None
        Reason of the abort: the error, and a sentence.
    deadlock : int or None
        Number of the last deadlock in which this transaction was the victim.
    failed : dict of str to int or None
        Labels of children that have aborted, with the number of the last aborted try; bounded.
    """

    # Most transactions never set these fields; as class attributes they keep the begin cheap.
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

    def __init__(
        self, number: int, above: TransactionRecord | None, label: str, began_s: float, thread: str
    ):
        self.id = number
        self.above = above
        self.top: int = number if above is None else above.top
        self.label = label
        self.began_s = began_s
        self.thread = thread
        self.first: list[Raw] = []

    @property
    def parent(self) -> int | None:
        """The id of the parent; None for a top-level transaction."""
        return None if self.above is None else self.above.id

    @property
    def path(self) -> str:
        """Place in the hierarchy; in a long path, levels and labels are shortened; O(depth)."""
        labels, life = [], self
        while True:
            labels.append(life.label)
            if life.above is None:
                break
            life = life.above
        if len(labels) > 2 * _LEVELS_MAX:
            labels[_LEVELS_MAX:-_LEVELS_MAX] = ["…"]
        # The longest labels are shortened, so that none hides another.
        length_max = _PATH_CHARS_MAX
        while sum(min(len(label), length_max) + 1 for label in labels) > _PATH_CHARS_MAX:
            length_max = 3 * length_max // 4
        return "/".join(_shortened_label(label, length_max) for label in reversed(labels))

    # -- steps -----------------------------------------------------------------------------

    @property
    def kept(self) -> int:
        """Number of steps that are kept."""
        return len(self.first) + (0 if self.last is None else len(self.last))

    def add(self, step: Raw) -> bool:
        """Add a step; return whether the number of kept steps has grown."""
        if len(self.first) < _ENDS_MAX:
            self.first.append(step)
            return True
        if self.last is None:
            self.last = deque(maxlen=_ENDS_MAX)
        is_full = len(self.last) == _ENDS_MAX
        self.left_out += is_full
        self.last.append(step)
        return not is_full

    def steps(self) -> list[StoryStep | int]:
        """Return the steps in order, with the number of omitted ones in their place, if any."""
        found: list[StoryStep | int] = [*map(StoryStep._make, self.first)]
        if self.left_out:
            found.append(self.left_out)
        found += map(StoryStep._make, self.last or ())
        return found

    def forget_steps(self) -> None:
        """Drop all steps."""
        self.first, self.last = [], None

    # -- children --------------------------------------------------------------------------

    def begins(self, child: TransactionRecord) -> None:
        """Record that a child has begun."""
        self.children_total += 1
        if self.children is None:
            self.children = [child.id]
        elif len(self.children) < _CHILDREN_MAX:
            self.children.append(child.id)
        if self.failed is not None:
            child.tries = self.failed.get(child.label, 0) + 1

    def has_failed(self, child: TransactionRecord) -> None:
        """Record that a child has aborted; its next try has the same label."""
        if self.failed is None:
            self.failed = {}
        self.failed[child.label] = child.tries
        if len(self.failed) > _LABELS_MAX:
            del self.failed[next(iter(self.failed))]


def _shortened_label(label: str, length_max: int) -> str:
    """Return `label`; if it is too long, its beginning and its end."""
    if len(label) <= length_max:
        return label
    half = length_max // 2
    return f"{label[:half]}…{label[half + 1 - length_max :]}"


# -- bounded collection of the records of transactions ---------------------------------------------


_LIVE_MAX = 100_000
_COMMITTED_MAX = 4_000
_ABORTED_MAX = 1_000
_STEPS_MAX = 200_000


class RecentTransactions:
    """The live transactions, and the most recently ended ones with their steps.

    Aborted transactions have a separate bound: they are the ones that users inspect, and the many
    committed ones must not evict them.

    Not thread-safe: the owner guards it with a latch. Every method is O(1), or amortised O(1).

    Parameters
    ----------
    live_max, committed_max, aborted_max : int
        Upper bounds on the transactions that are kept. A transaction that begins while there are
        `live_max` live ones is not recorded, and neither are its inferiors.
    steps_max : int
        Upper bound on the steps of all transactions together. Beyond it, the oldest committed
        transactions are forgotten, then the oldest aborted ones; if there are none the step is left
        out.

    Attributes
    ----------
    live : dict of int to Life
        Live transactions in the order of their begin.
    unknown : int
        Number of transactions that were not recorded.
    """

    def __init__(
        self,
        live_max: int = _LIVE_MAX,
        committed_max: int = _COMMITTED_MAX,
        aborted_max: int = _ABORTED_MAX,
        steps_max: int = _STEPS_MAX,
    ):
        self._live_max = live_max
        self._committed_max = committed_max
        self._aborted_max = aborted_max
        self._steps_max = steps_max
        self.live: dict[int, TransactionRecord] = {}
        self.unknown = 0
        self._committed: OrderedDict[int, TransactionRecord] = OrderedDict()
        self._aborted: OrderedDict[int, TransactionRecord] = OrderedDict()
        self._steps = 0

    def begin(self, life: TransactionRecord) -> bool:
        """Record a transaction that has begun; return whether there was room."""
        if len(self.live) >= self._live_max:
            self.unknown += 1
            return False
        self.live[life.id] = life
        return True

    def add(self, life: TransactionRecord, step: Raw) -> None:
        """Add a step to a live transaction."""
        while self._steps >= self._steps_max:
            if not (self._committed or self._aborted):
                life.left_out += 1
                return
            self._forget_oldest(self._committed or self._aborted)
        self._steps += life.add(step)

    def end(self, life: TransactionRecord) -> None:
        """Record that a live transaction has ended."""
        del self.live[life.id]
        is_aborted = life.state == "aborted"
        ended = self._aborted if is_aborted else self._committed
        ended[life.id] = life
        if len(ended) > (self._aborted_max if is_aborted else self._committed_max):
            self._forget_oldest(ended)

    def get(self, number: int) -> TransactionRecord | None:
        """Return the transaction of this number, live or ended, or None if it is not kept."""
        for place in (self.live, self._committed, self._aborted):
            if number in place:
                return place[number]
        return None

    def _forget_oldest(self, ended: OrderedDict[int, TransactionRecord]) -> None:
        _, oldest = ended.popitem(last=False)
        self._steps -= oldest.kept
        oldest.forget_steps()  # a longer-kept inferior still refers to it, for its path
