"""GrepSum: keys get sums of other keys; plain, with windows, or with computed keys.

========== ========================================================================================
variant    effect of an event
========== ========================================================================================
plain      writes one key: the sum of two keys that it reads, and of a number
computed   the same, but some events compute the key to write from a neighbouring key's value
windowed   writes one key: a number; every hundredth event sums the values of 100 keys in a window
           of one second
========== ========================================================================================

(Mao et al., sections 8.1, 8.2.4 and 8.2.5, algorithm 3.) Sums are taken modulo 1,000,003, so that
they do not grow without bound. Values are not negative: an event that would write a negative one
aborts. In the paper, timers and random numbers determine the key to write; here the state and a
random number in the event do, so that a run can be repeated. There are 12,288 keys, and one event
per millisecond.

With ``--check``, a plain loop over the same events must give the same values, aborts and sums.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from _columns import GeneratedEvents, Skewed, aborting, times
from _command import positive, ratio, report, up_to_ten, workload_parser
from _delays import delayed
from _running import exit_status
from _workload import Expected

from activedb.scheduling import Access, Outcome, Program, SharedTable

if TYPE_CHECKING:
    import argparse

VARIANTS = ("plain", "windowed", "computed")
KEYS = 12_288
BATCH = 10_240  # events between two punctuations
LENGTH = 1  # writes of an event
READS = 2  # keys that are summed per write
WINDOW_S = 1.0
EVERY = 100  # one event in this many reads windows
WINDOW_KEYS = 100  # keys whose windows it reads
WINDOWS_MAX = 10  # windows that one operation reads
MODULUS = 1_000_003.0
TOO_LITTLE = -1e9  # makes any sum negative


# -- the program -----------------------------------------------------------------------------------


def program(
    variant: str = "plain",
    *,
    keys: int = KEYS,
    length: int = LENGTH,
    reads: int = READS,
    window_s: float = WINDOW_S,
    window_keys: int = WINDOW_KEYS,
    turns: int = 0,
) -> Program:
    """Return a variant, with a separate table; outputs are the sums of windows.

    Parameters
    ----------
    variant : str
        One of `VARIANTS`.
    keys : int
        Number of keys.
    length : int
        Writes of an event.
    reads : int
        Keys that are summed per write; ignored in the windowed variant.
    window_s : float
        Length of a window in seconds.
    window_keys : int
        Keys whose windows an event reads.
    turns : int
        Iterations of the loop that slows each function down; see `delayed`.
    """
    if variant == "windowed":
        return _windowed(keys, length, window_s, window_keys, turns)
    values = SharedTable("values", initial=0, size=keys)
    grep = Program(f"grep_sum_{variant}", [values])
    adds = delayed(add, turns)

    @grep.on("SUM")
    def sums(e: Mapping[str, Any], access: Access) -> None:
        for write in range(length):
            summed = tuple(values[e[f"read{write}_{read}"]] for read in range(reads))
            access.write(values[e[f"key{write}"]], adds, e[f"number{write}"], reads=summed)

    if variant == "plain":
        return grep

    @grep.on("SUM_SOMEWHERE")
    def sums_somewhere(e: Mapping[str, Any], access: Access) -> None:
        for write in range(length):
            summed = tuple(values[e[f"read{write}_{read}"]] for read in range(reads))
            beside = (values[e[f"key{write}"]],)
            target = values.computed(somewhere, e[f"random{write}"], keys, reads=beside)
            access.write(target, adds, e[f"number{write}"], reads=summed)

    return grep


def _windowed(keys: int, length: int, window_s: float, window_keys: int, turns: int) -> Program:
    values = SharedTable("values", initial=0, size=keys, history=window_s)
    grep = Program("grep_sum_windowed", [values])
    puts, totals = delayed(put, turns), delayed(total, turns)

    @grep.on("UPDATE")
    def updates(e: Mapping[str, Any], access: Access) -> None:
        for write in range(length):
            access.write(values[e[f"key{write}"]], puts, e[f"number{write}"], reads=())

    @grep.on("SUM_WINDOWS")
    def sums_windows(e: Mapping[str, Any], access: Access) -> None:
        windows = [values[e[f"key{read}"]].window(window_s) for read in range(window_keys)]
        for first in range(0, window_keys, WINDOWS_MAX):
            access.read(*windows[first : first + WINDOWS_MAX], function=totals)

    @grep.post_process
    def sum_of_windows(type_: str, e: Mapping[str, Any], outcome: Outcome) -> float | None:
        return sum(outcome.results) if type_ == "SUM_WINDOWS" and outcome.committed else None

    return grep


def add(*values: float) -> float | None:
    """Return the sum of some keys' values and a number."""
    summed = 0.0
    for value in values:
        summed += value
    if summed < 0:
        return None
    return summed % MODULUS


def somewhere(value: float, random: int, keys: int) -> int:
    """Return the key to write."""
    return (int(value) + random) % keys


def put(number: float) -> float | None:
    """Return a number if it is a valid value, else None."""
    if number < 0:
        return None
    return number


def total(*windows: Iterable[float]) -> float:
    """Return the sum of all values in windows."""
    summed = 0.0
    for window in windows:
        for value in window:
            summed += value
    return summed


# -- the events ------------------------------------------------------------------------------------


def columns(
    events: int,
    variant: str = "plain",
    *,
    keys: int = KEYS,
    length: int = LENGTH,
    reads: int = READS,
    every: int = EVERY,
    window_keys: int = WINDOW_KEYS,
    computed: float = 0.1,
    skew: float = 0.2,
    aborts: float = 0.01,
    disorder: int = 0,
    seed: int = 1,
) -> GeneratedEvents:
    """Return generated events of a variant.

    Parameters
    ----------
    events : int
        Number of events.
    variant : str
        One of `VARIANTS`.
    keys, length, reads, window_keys : int
        As for `program`; at least `length` keys.
    every : int
        One event in this many reads windows.
    computed : float
        Share of events that compute the key to write.
    skew : float
        Theta of all keys, see `Skewed`.
    aborts : float
        Share of events with a number that makes sums negative.
    disorder : int
        Number of events that may overtake one.
    seed : int
        Seed of the generator.

    Notes
    -----
    A windowed event has `window_keys` columns of keys: 800 bytes by default. Generate long streams
    in pieces.
    """
    rng = np.random.default_rng(seed)
    skewed = Skewed(rng, keys, skew)
    bad = aborting(rng, events, aborts)
    params: dict[str, Any] = {}
    writes = range(length)
    for write, column in enumerate(skewed.distinct(events, length)):
        params[f"key{write}"] = column
    for write in writes:
        numbers = rng.integers(0, 1_000, events).astype(np.float64)
        params[f"number{write}"] = np.where(bad, TOO_LITTLE, numbers)
    updates = tuple(f"{name}{write}" for write in writes for name in ("key", "number"))
    if variant == "windowed":
        codes = np.zeros(events, np.int64)
        codes[every - 1 :: every] = 1
        reading = np.flatnonzero(codes)
        for read in range(window_keys):
            column = params.setdefault(f"key{read}", np.zeros(events, np.int64))
            column[reading] = skewed.draw(len(reading))
        windows = tuple(f"key{read}" for read in range(window_keys))
        takes = {"UPDATE": updates, "SUM_WINDOWS": windows}
        return GeneratedEvents(takes, codes, times(events), params).late(rng, disorder)
    sources = tuple(f"read{write}_{read}" for write in writes for read in range(reads))
    params |= {name: skewed.draw(events) for name in sources}
    takes = {"SUM": (*updates, *sources)}
    codes = np.zeros(events, np.int64)
    if variant == "computed":
        randoms = tuple(f"random{write}" for write in writes)
        params |= {name: rng.integers(0, keys, events, dtype=np.int64) for name in randoms}
        takes["SUM_SOMEWHERE"] = (*updates, *sources, *randoms)
        codes = (rng.random(events) < computed).astype(np.int64)
    return GeneratedEvents(takes, codes, times(events), params).late(rng, disorder)


# -- the check -------------------------------------------------------------------------------------


def replay(events: GeneratedEvents, keys: int = KEYS, window_s: float = WINDOW_S) -> Expected:
    """Return the expected result of events, computed by a plain loop."""
    ordered = events.in_order()
    rows = {name: column.tolist() for name, column in ordered.params.items()}
    takes = list(ordered.takes.items())
    values = [0.0] * keys
    written: list[deque[tuple[int, float]]] = [deque() for _ in values]
    committed, outputs = [], []
    for row, (code, us) in enumerate(zip(ordered.codes.tolist(), ordered.us.tolist(), strict=True)):
        type_, names = takes[code]
        e = {name: rows[name][row] for name in names}
        if type_ == "SUM_WINDOWS":
            summed = 0.0
            for key in e.values():
                while written[key] and written[key][0][0] < us - window_s * 1_000_000:
                    written[key].popleft()
                summed += sum(value for _, value in written[key])
            outputs.append(summed)
            committed.append(True)
            continue
        new: dict[int, float] = {}
        writes = [name.removeprefix("number") for name in names if name.startswith("number")]
        right = True
        for write in writes:
            key = e[f"key{write}"]
            if type_ == "SUM_SOMEWHERE":
                key = int(values[key] + e[f"random{write}"]) % keys
            summed = e[f"number{write}"]
            summed += sum(values[e[name]] for name in names if name.startswith(f"read{write}_"))
            right = right and summed >= 0 and key not in new
            new[key] = summed if type_ == "UPDATE" else summed % 1_000_003
        committed.append(right)
        for key, value in new.items() if right else ():
            values[key] = value
            if "SUM_WINDOWS" in ordered.takes:
                written[key].append((us, value))
    return Expected(committed, {"values": values}, outputs)


# -- the command -----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    options = workload_parser(__doc__ or "", batch=BATCH)
    options.add_argument(
        "--variant",
        choices=VARIANTS,
        default="plain",
        help="what events do, see above (default: %(default)s)",
    )
    options.add_argument(
        "--length",
        type=up_to_ten,
        default=LENGTH,
        metavar="N",
        help="writes of an event, 1 to 10 (default: %(default)s)",
    )
    options.add_argument(
        "--reads",
        type=up_to_ten,
        default=READS,
        metavar="N",
        help="keys that are summed per write, 1 to 10 (default: %(default)s)",
    )
    options.add_argument(
        "--window",
        type=positive,
        default=WINDOW_S,
        metavar="S",
        help="seconds; there is an event each millisecond (default: %(default)s)",
    )
    options.add_argument(
        "--computed",
        type=ratio,
        default=0.1,
        metavar="RATIO",
        help="the share of events that compute their key (default: %(default)s)",
    )
    return exit_status(_command, options.parse_args(arguments))


def _command(options: argparse.Namespace) -> int:
    sizes = {"length": options.length, "reads": options.reads}
    events = columns(
        options.events,
        options.variant,
        **sizes,
        computed=options.computed,
        skew=options.skew,
        aborts=options.aborts,
        disorder=options.disorder,
        seed=options.seed,
    )
    grep = program(options.variant, **sizes, window_s=options.window)
    return report(options, grep, events, partial(replay, window_s=options.window))


if __name__ == "__main__":
    sys.exit(main())
