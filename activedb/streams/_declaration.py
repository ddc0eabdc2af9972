"""Declaration of a stream: how a row of its source becomes an event.

A declaration is a value. It is checked on construction, does not depend on Spark and opens no
resources. Its SQL expressions are interpreted by the feed of the stream.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Required, TypedDict

from activedb.errors import DefinitionError
from activedb.functions import checked_function
from activedb.streams._checks import require_count, require_seconds, require_text
from activedb.streams._sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from activedb.errors import ProducerSilent

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class StreamOptions(TypedDict, total=False):
    """Options of a stream, as `Database.stream` takes them: the fields of `StreamDeclaration`."""

    source: Source | None
    type: str
    timestamp: str
    id: str | None
    params: Mapping[str, str] | None
    types: Required[Mapping[str, Sequence[str]]]
    accuracy: str | timedelta | tuple[str, str] | None
    delay: timedelta
    latency_max: float | timedelta | None
    producer: str | None
    expected_producers: tuple[str, ...]
    membership: Literal["atomic", "weak"] | None
    silent_after: float | timedelta | None
    on_silent: Callable[[ProducerSilent], object] | None
    waiting_max: int
    columns: bool


@dataclass(frozen=True, kw_only=True)
class StreamDeclaration:
    """Event stream, with the expressions that turn an input row into an event.

    Expressions are Spark SQL over the input columns. An expression that fails on a row (an
    overflow, a text that is not a number) yields NULL for that row.

    Parameters
    ----------
    name : str
        A letter or ``_``, then letters, digits and ``_``; at most 63 characters.
    source : Files, Rate, Socket, Replay, Kafka or Staged, optional
        Source of the rows. None for a stream fed from a DataFrame or from Python.
    type : str
        Expression for the event type, ``"'TWEET'"`` or ``"upper(kind)"``; not needed for a stream
        that is only fed from Python.
    timestamp : str
        Expression of type TIMESTAMP for the event time; NULL means it cannot be parsed. Not needed
        for a stream that is only fed from Python.
    id : str, optional
        Expression for the event's id, which orders events of equal time.
    params : Mapping[str, str], optional
        Parameter name to expression. Default: every input column under its own name.
    types : Mapping[str, tuple[str, ...]]
        Declared event types and, for each, the parameters that must be present (not NULL). A row of
        any other type, or without such a parameter, goes to the dead letters.
    accuracy : timedelta, str or tuple of (str, str), optional
        Error bound of the timestamp; the event time is then an interval. A timedelta, or an
        expression of type INTERVAL DAY TO SECOND: the error before and after the timestamp. Two
        expressions of type TIMESTAMP: the earliest and the latest possible time. NULL means that
        the accuracy is unknown, and the row is not a valid event. None: timestamps are exact.
    delay : timedelta
        Maximum lag of an event behind the newest one in event time; older events are late. Spark
        counts whole milliseconds, so a finer delay is rounded up.
    latency_max : float or timedelta, optional
        Target latency of a row in seconds, from when it can be read until its batch has been
        processed. The batch size is adapted to it at run time. None: the source determines the
        size.
    producer : str, optional
        Expression for the row's producer. The punctuation is then the newest time of the producer
        that is furthest behind, less `delay`, instead of the newest time overall. A row for which
        it is NULL is an event that does not advance the punctuation.
    expected_producers : tuple of str
        Producers that the stream waits for from the beginning. Others become known with their first
        row; their rows may be late.
    membership : {"atomic", "weak"}, optional
        Events are stamped by several producers, and each is processed once it is stable, i.e. once
        no future event of any producer can precede or overlap it. Atomic: a producer must be
        registered before it may send. Weak: a producer is discovered by its first event, which may
        be too late. None: the stream has no producers, and a punctuation marks completeness.
    silent_after : float or timedelta, optional
        Maximum silence of a producer in seconds; None: unbounded. With `producer`, the punctuation
        afterwards advances without the silent producer until its next row.
    on_silent : callable, optional
        Called with the `ProducerSilent` of each silent producer; None: the feed raises it. Only
        with `membership`.
    waiting_max : int
        Maximum number of events that wait to become stable; a feed that exceeds it is refused.
    columns : bool
        Whether events stay in columns from the source to the detectors of rules, which allows
        hundreds of thousands of events per second: only events that complete a pattern become
        objects. Rules on the stream are then single events, and patterns that can be detected in
        columns (docs/rules.md).

    Raises
    ------
    DefinitionError
        If a value is invalid or names a parameter that is not declared.
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
    expected_producers: tuple[str, ...] = ()
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

    def require_expressions(self) -> None:
        """Check that rows can become events.

        Raises
        ------
        DefinitionError
            If ``type`` or ``timestamp`` is missing, which only events from Python do without.
        """
        for name in ("type", "timestamp"):
            if not getattr(self, name):
                raise DefinitionError(
                    f"{name} is missing, the SQL expression by which a row becomes an event, such "
                    'as type="kind", timestamp="CAST(at AS TIMESTAMP)"'
                )
            require_text(name, getattr(self, name))

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
        if self.producer is not None or self.expected_producers:
            raise DefinitionError(
                "producer and expected_producers are for rows of Spark, membership is for events "
                "from Python: leave out one of them"
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
        elif self.expected_producers:
            raise DefinitionError(
                "producers of rows are known by an expression: give producer, too"
            )
        if not isinstance(self.expected_producers, tuple):
            raise DefinitionError(
                f"expected_producers must be a tuple of names, not {self.expected_producers!r}"
            )
        for name in self.expected_producers:
            require_text("a producer's name", name)

    def _check_expressions(self) -> None:
        if self.membership is None and (self.source or self.type or self.timestamp):
            self.require_expressions()
        if self.id is not None:
            require_text("id", self.id)
        if self.params is None:
            return
        for name, expression in self.params.items():
            require_text("a parameter's name", name)
            require_text(f"parameter {name!r}", expression)
        # SQL column names are case-insensitive.
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
