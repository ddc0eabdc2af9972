"""Count the wrong matches among those that are made of events with uncertain times.

``python -m tests.events.measure_uncertain [--streams N] [--seed TEXT] [NAME …]`` prints a table:
for each expression (or for those named) and way of telling, *wrong / made*, and how many of the
matches at the true times were made; wrong is what is not made at the true times. Three producers,
each with errors of its own up to 3 s either way, send some 30 events each stream. They are fed as
streams with producers do (`telling.py`), by each policy; and to `detect`.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from activedb.events import (
    AccuracyInterval,
    Expression,
    Occurrence,
    all_of,
    detect,
    event,
    many,
    periodic,
    seq,
)

from .generation import CONTEXTS
from .telling import arrived, tell
from .worlds import SECOND_US, Identity, identity_of, made_at

__all__ = ["EXPRESSIONS", "WAYS", "Count", "measured"]

A, B, C = (event(name) for name in "ABC")
EVENTS = 30
ERROR_US = 3 * SECOND_US
END_US = 200 * SECOND_US
WAYS = ("certain", "raise", "possible", "reading", "detect certain")


def _expressions() -> Iterator[tuple[str, Expression]]:
    for name, expression in (
        ("seq", seq(A, B)),
        ("all_of", all_of(A, B)),
        ("negation", seq(A, ~C, B)),
        ("window", seq(A, B).within(8)),
        ("end negation", seq(A, ~B).within(8)),
    ):
        for context in ("unrestricted", *CONTEXTS):
            yield f"{name} {context}", expression.context(context)
    for selection in ("next", "strict"):
        yield f"seq {selection}", seq(A, B).selecting(selection)
    for skip in (("to_next",), ("past_last",), ("to_last", "B")):
        yield f"seq {skip[0]}", seq(A, B).skipping(*skip)
    yield "many next", seq(A, many(C), B).within(20).selecting("next")
    yield "nested chronicle", seq(seq(A, B), C).context("chronicle")
    yield "timed out", seq(A, B).within(8).timed_out()
    yield "all periodic", periodic(A, 4, B, collected=True).context("recent")


EXPRESSIONS = dict(_expressions())


@dataclass
class Count:
    """Numbers of matches, of some streams."""

    made: int = 0
    wrong: int = 0
    true: int = 0
    found: int = 0
    """Number of true matches that were made."""

    def add(self, made: Counter[Identity], true: Counter[Identity]) -> None:
        self.made += made.total()
        self.wrong += (made - true).total()
        self.true += true.total()
        self.found += (made & true).total()

    def __str__(self) -> str:
        return f"{self.wrong}/{self.made} {self.found / max(1, self.true):4.0%}"


def random_stream(random: Random) -> tuple[list[Occurrence], list[int]]:
    """Events in the order of the lower ends of their intervals, and their true times."""
    errors_us = [random.randint(0, ERROR_US) for _ in range(3)]
    now_us, events, times = 5 * SECOND_US, [], {}
    for number in range(EVENTS):
        now_us += random.randint(1, 4 * SECOND_US)
        error_us = random.choice(errors_us)
        reading_us = now_us + random.randint(-error_us, error_us)
        stamp = AccuracyInterval(reading_us, reading_us - error_us, reading_us + error_us)
        times[number] = now_us
        events.append(Occurrence(random.choice("AABBC"), stamp, {"true": number}))
    found = arrived(events, "lower ends", random)
    return found, [times[o.params["true"]] for o in found]


def measured(expression: Expression, streams: int, seed: str) -> dict[str, Count]:
    """Return the counts for each way of telling; the streams are the same for every expression."""
    counts = {way: Count() for way in WAYS}
    for number in range(streams):
        events, times = random_stream(Random(f"{seed} {number}"))
        true = made_at(expression, events, times, END_US)
        for way in WAYS:
            counts[way].add(_made(expression, events, way), true)
    return counts


def _made(expression: Expression, events: list[Occurrence], way: str) -> Counter[Identity]:
    if way != "detect certain":
        return tell(expression, events, way, END_US).made
    until = END_US // SECOND_US
    found = detect(expression, events, on_uncertain="certain", until=until)
    return Counter(identity_of(match.parts or {match.name: match}) for match in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=40)
    parser.add_argument("--seed", default="1")
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows of the table; default: all")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in EXPRESSIONS]
    if unknown:
        parser.error(f"no row is called {unknown[0]!r}; there are: {', '.join(EXPRESSIONS)}")
    print(f"{'wrong/made, share of the true ones':24}" + "".join(f"{way:>18}" for way in WAYS))
    for name in options.names or EXPRESSIONS:
        expression = EXPRESSIONS[name]
        counts = measured(expression, options.streams, options.seed)
        print(f"{name:24}" + "".join(f"{counts[way]!s:>18}" for way in WAYS), flush=True)


if __name__ == "__main__":
    main()
