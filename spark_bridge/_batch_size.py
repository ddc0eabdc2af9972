"""How large the next batch may be, so that batches take no longer than they should.

Additive increase, multiplicative decrease, as TCP fits its window to a network: it comes to rest
near the largest size that holds the bound, and finds it again when the cost of a row changes.

::

    size
      │          ╱│    ╱│   ╱│        too long:  cut to the share that would have been in time
      │         ╱ │   ╱ │  ╱ │        full:      doubled until the first cut, then a little more
      │    ┌───┘  └──╱  └─╱  └─ …     near enough, or not full: as it was
      │ ┌──┘
      └──────────────────────────── batches
"""

from __future__ import annotations

_AIM = 0.5  # of the bound: a row that comes just after a batch was cut waits for that one, too
_CUT_MIN = 0.1  # never to less than this share at once: one slow batch may be bad luck
_CUT_MAX = 0.8  # a cut that is none would be repeated at the next batch
_NEAR = 0.85  # of what a batch may take is near enough: a larger one would often be too long
_STEPS = 16  # how many increases there are between a size and its double


class BatchSize:
    """The size of the next batch, fitted to how long the last ones took.

    Parameters
    ----------
    first : int
        The size of the first batch.
    latency_max_s : float or None
        How long a row may take, from when it can be read to when it has been processed. None: the
        size stays as it is.
    most : int
        The size is never larger.

    Notes
    -----
    A batch may take half of `latency_max_s`: a row may have to wait for the end of the batch before
    its own. If rows come faster than they can be processed, no size is small enough: they wait in
    the source, which is what a bound on the batches is for.

    Not thread-safe: one thread notes; others may read `size`.
    """

    def __init__(self, first: int, latency_max_s: float | None, *, most: int = 1_000_000) -> None:
        assert first >= 1
        self._aim_s = None if latency_max_s is None else latency_max_s * _AIM
        self._most = max(most, first)
        self._size = first
        self._has_cut = False

    @property
    def size(self) -> int:
        """How large the next batch may be; at least 1."""
        return self._size

    def note(self, count: int, seconds: float) -> None:
        """Take note of a batch of `count` that took so long; O(1).

        Parameters
        ----------
        count : int
            How large it was: one that is not full tells nothing about a larger size.
        seconds : float
            From when it was cut to when it had been processed.
        """
        if self._aim_s is None or count < 1:
            return
        if seconds > self._aim_s:
            share = min(max(self._aim_s / seconds, _CUT_MIN), _CUT_MAX)
            # A batch may be smaller than was allowed, and later than that: cut what was there.
            self._size = max(1, int(min(count, self._size) * share))
            self._has_cut = True
        elif count >= self._size and seconds < self._aim_s * _NEAR:
            step = max(1, self._size // _STEPS) if self._has_cut else self._size
            self._size = min(self._size + step, self._most)
