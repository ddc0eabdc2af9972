"""What a stream is: how a row of its source becomes an event.

A declaration is a value. It is checked when it is made, knows nothing of Spark and opens nothing;
the SQL expressions in it are read by whatever feeds the stream.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from activedb.errors import DefinitionError
from activedb.functions import checked_function
from activedb.streams._checks import require_count, require_seconds, require_text
from activedb.streams._sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from activedb.errors import ProducerSilent

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A stream of events and the expressions that make an event of an input row.

    Expressions are Spark SQL over the input columns. One that fails on a row (an overflow, a text
    that is no number) gives NULL for that row.

    Parameters
    ----------
    name : str
        A letter or ``_``, then letters, digits and ``_``; at most 63 characters.
    source : Files, Rate, Socket, Replay, Kafka or Staged, optional
        Where the rows come from. None for a stream fed from a DataFrame, or from Python.
    type : str
        Expression for the event type, ``"'TWEET'"`` or ``"upper(kind)"``; a stream of producers
        needs none.
    timestamp : str
        Expression of type TIMESTAMP for the event time; NULL means it cannot be understood. A
        stream of producers needs none.
    id : str, optional
        Expression for the event's id, which orders events of equal time.
    params : Mapping[str, str], optional
        Parameter name to expression. Default: every input column under its own name.
    types : Mapping[str, tuple[str, ...]]
        Declared event types and, for each, the parameters that must be present (not NULL).
        A row of any other type, or without such a parameter, goes to the dead letters.
    accuracy : timedelta, str or tuple of (str, str), optional
        How wrong the timestamp may be. An event then has an interval for a time. A timedelta, or an
        expression of type INTERVAL DAY TO SECOND: so far before and after the timestamp. Two
        expressions of type TIMESTAMP: the earliest and the latest moment at which it can have been.
        NULL means that nothing is known, and the row is no event. None: timestamps are exact.
    delay : timedelta
        How far an event may lag behind the newest one in event time; older ones are late.
        Spark counts whole milliseconds, so a finer delay is rounded up.
    latency_max : float or timedelta, optional
        How long a row may take, in seconds, from when it can be read to when its batch has been
        processed. The size of the batches is fitted to it while it runs. None: the size is what
        the source says.
    producer : str, optional
        Expression for who has sent the row. The punctuation is then the newest time of the producer
        that is furthest behind, less `delay`, and not that of the one ahead. A row of which it is
        NULL is an event that says nothing of what is complete.
    producers : tuple of str
        Producers to be waited for from the beginning. Others are known when they are first heard;
        what they send may be late.
    membership : {"atomic", "weak"}, optional
        The events are stamped by several producers, and each is processed when it is stable: when
        nothing still to come from any of them can precede or overlap it. Atomic: a producer is
        registered before it may send. Weak: it is discovered by its first event, and may come too
        late. None: the stream has no producers, and a punctuation tells what is complete.
    silent_after : float or timedelta, optional
        How long a producer may keep silent, in seconds; None: forever. With `producer`, after that
        the punctuation goes on without it until it is heard again.
    on_silent : callable, optional
        Gets the `ProducerSilent` of each producer that is silent; None: the feed raises it. Only
        with `membership`.
    waiting_max : int
        How many events may wait until they are stable; a feed that goes beyond is refused.
    columns : bool
        Whether its events stay in columns from their source to the detectors of rules, which takes
        hundreds of thousands of them a second: only what completes a pattern becomes an object.
        Rules on it are then single events and patterns that columns can find (docs/rules.md).

    Raises
    ------
    DefinitionError
        If a value has no meaning or names a parameter that is not declared.
    """

    name: str = field(kw_only=False)
    source: Source | None = None
    type: str = ""
    timestamp: str = ""
    id: str | None = None
    params: Mapping[str, str] | None = None
    types: Mapping[str, tuple[str, ...]]
    accuracy: str | timedelta | tuple[str, str] | None = None
    delay: timedelta = timedelta(0)
    latency_max: float | timedelta | None = None
    producer: str | None = None
    producers: tuple[str, ...] = ()
    membership: Literal["atomic", "weak"] | None = None
    silent_after: float | timedelta | None = None
    on_silent: Callable[[ProducerSilent], object] | None = None
    waiting_max: int = 100_000
    columns: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise DefinitionError(
                f"{self.name!r} is no name for a stream: use a letter or _, then letters, digits "
                "and _, at most 63 characters"
            )
        try:
            self._check_membership()
            self._check_expressions()
            self._check_types()
            if not isinstance(self.delay, timedelta):
                raise DefinitionError(f"delay must be a timedelta, not {self.delay!r}")
            if self.delay < timedelta(0):
                raise DefinitionError(f"delay must not be negative, not {self.delay}")
            self._check_accuracy()
            self._check_columns()
            if self.latency_max is not None:
                require_seconds("latency_max", self.latency_max)
        except DefinitionError as error:
            raise DefinitionError(f"stream {self.name!r}: {error}") from None
        if self.params is not None:
            object.__setattr__(self, "params", MappingProxyType(dict(self.params)))
        types = {name: tuple(required) for name, required in self.types.items()}
        object.__setattr__(self, "types", MappingProxyType(types))

    @property
    def silent_after_us(self) -> int | None:
        """`silent_after` in microseconds."""
        if self.silent_after is None:
            return None
        if isinstance(self.silent_after, timedelta):
            return self.silent_after // timedelta(microseconds=1)
        return round(self.silent_after * 1_000_000)

    @property
    def latency_max_s(self) -> float | None:
        """`latency_max` in seconds."""
        if isinstance(self.latency_max, timedelta):
            return self.latency_max.total_seconds()
        return self.latency_max

    def _check_columns(self) -> None:
        if not isinstance(self.columns, bool):
            raise DefinitionError(f"columns is True or False, not {self.columns!r}")
        if not self.columns:
            return
        if self.membership is not None:
            raise DefinitionError(
                "the events of producers come one by one, not in columns: leave out columns=True"
            )
        if self.accuracy is not None:
            raise DefinitionError(
                "in columns timestamps are exact: leave out accuracy, or columns=True"
            )

    def _check_accuracy(self) -> None:
        accuracy = self.accuracy
        if accuracy is None:
            return
        if isinstance(accuracy, timedelta):
            if accuracy < timedelta(0):
                raise DefinitionError(f"accuracy must not be negative, not {accuracy}")
        elif isinstance(accuracy, tuple):
            if len(accuracy) != 2:
                raise DefinitionError(
                    "accuracy is two expressions, for the earliest and the latest moment, not "
                    f"{len(accuracy)}"
                )
            require_text("the earliest moment in accuracy", accuracy[0])
            require_text("the latest moment in accuracy", accuracy[1])
        else:
            require_text("accuracy", accuracy)

    def _check_membership(self) -> None:
        if self.membership is None:
            self._check_producers()
            return
        if self.producer is not None or self.producers:
            raise DefinitionError(
                "producer and producers are for rows of Spark, membership is for events from "
                "Python: leave out one of them"
            )
        if self.membership not in ("atomic", "weak"):
            raise DefinitionError(f'membership is "atomic" or "weak", not {self.membership!r}')
        if self.source is not None or self.delay or self.accuracy is not None:
            raise DefinitionError(
                "what producers send comes stamped from Python: leave out source, delay and "
                "accuracy"
            )
        if self.silent_after is not None:
            require_seconds("silent_after", self.silent_after)
        if self.on_silent is not None and not callable(self.on_silent):
            raise DefinitionError(f"on_silent must be a function, not {self.on_silent!r}")
        if self.on_silent is not None:
            checked_function(self.on_silent, f"on_silent= of stream {self.name}")
        require_count("waiting_max", self.waiting_max)

    def _check_producers(self) -> None:
        if self.on_silent is not None or (self.silent_after is not None and self.producer is None):
            raise DefinitionError(
                'only a stream of producers knows who is silent: give membership="atomic" '
                'or "weak", too'
            )
        if self.silent_after is not None:
            require_seconds("silent_after", self.silent_after)
        if self.producer is not None:
            require_text("producer", self.producer)
        elif self.producers:
            raise DefinitionError("producers are known by the rows they send: give producer, too")
        if not isinstance(self.producers, tuple):
            raise DefinitionError(f"producers must be a tuple of names, not {self.producers!r}")
        for name in self.producers:
            require_text("a producer's name", name)

    def _check_expressions(self) -> None:
        if self.membership is None:
            require_text("type", self.type)
            require_text("timestamp", self.timestamp)
        if self.id is not None:
            require_text("id", self.id)
        if self.params is None:
            return
        for name, expression in self.params.items():
            require_text("a parameter's name", name)
            require_text(f"parameter {name!r}", expression)
        # Column names in SQL do not tell upper from lower case.
        for folded, count in Counter(name.casefold() for name in self.params).items():
            if count > 1:
                raise DefinitionError(f"parameter {folded!r} is declared {count} times")

    def _check_types(self) -> None:
        if not self.types:
            raise DefinitionError(
                'types is empty: declare the event types, {"TWEET": ("text",)}, with the '
                "parameters that must be present"
            )
        for name, required in self.types.items():
            require_text("an event type", name)
            if not isinstance(required, tuple):
                raise DefinitionError(
                    f"event type {name!r}: its parameters must be a tuple of names, "
                    f"not {required!r}"
                )
            unknown = [] if self.params is None else [p for p in required if p not in self.params]
            if unknown:
                raise DefinitionError(
                    f"event type {name!r} needs {', '.join(map(repr, unknown))}, "
                    "which params does not declare"
                )
