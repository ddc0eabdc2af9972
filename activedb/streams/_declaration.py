"""What a stream is: where its rows come from and how a row becomes an event.

A declaration is a value. It is checked when it is made, knows nothing of Spark and opens nothing;
the SQL expressions in it are read by whatever feeds the stream.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from activedb.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from activedb.errors import ProducerSilent

FORMATS = ("csv", "json", "orc", "parquet", "text")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True)
class Files:
    """Files as the source of a stream, each read once, in the order of their names.

    Parameters
    ----------
    format : str
        ``"csv"``, ``"json"`` (one object per line), ``"orc"``, ``"parquet"`` or ``"text"``.
        Compressed files (``.gz``, ``.bz2``, ``.zst``) are known by their suffix.
    schema : str, optional
        Columns and their types, ``"id BIGINT, text STRING"``. Without it they are taken from the
        first files read and kept from then on.
    glob : str, optional
        Which files of the input folder to read, ``"*.csv.gz"`` or ``"**/*.json"``. Default: every
        file directly in the folder. Names that start with ``.`` or ``_`` are never read.
    options : Mapping[str, str]
        Options of Spark's reader for the format, ``{"header": "true"}``.
    per_batch : int
        How many files make one atomic batch.

    Raises
    ------
    DefinitionError
        If a value has no meaning.
    """

    format: str
    schema: str | None = None
    glob: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    per_batch: int = 1

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            known = ", ".join(FORMATS)
            raise DefinitionError(f"files of format {self.format!r} cannot be read; give {known}")
        if self.schema is not None:
            _require_text("schema", self.schema)
        if self.glob is not None:
            _require_text("glob", self.glob)
            if PurePath(self.glob).is_absolute() or ".." in PurePath(self.glob).parts:
                raise DefinitionError(f"glob {self.glob!r} leaves the input folder")
        for name, value in self.options.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise DefinitionError(f"option {name!r} must be text, not {value!r}")
        if isinstance(self.per_batch, bool) or not isinstance(self.per_batch, int):
            raise DefinitionError(f"per_batch must be a whole number, not {self.per_batch!r}")
        if self.per_batch < 1:
            raise DefinitionError(f"per_batch must be at least 1, not {self.per_batch}")
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A stream of events and the expressions that make an event of an input row.

    Expressions are Spark SQL over the input columns. One that fails on a row (an overflow, a text
    that is no number) gives NULL for that row.

    Parameters
    ----------
    name : str
        A letter or ``_``, then letters, digits and ``_``; at most 63 characters.
    source : Files, optional
        Where the rows come from. None for a stream fed from a DataFrame.
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
    delay : timedelta
        How far an event may lag behind the newest one in event time; older ones are late.
        Spark counts whole milliseconds, so a finer delay is rounded up.
    membership : {"atomic", "weak"}, optional
        The events are stamped by several producers, and each is processed when it is stable: when
        nothing still to come from any of them can precede or overlap it. Atomic: a producer is
        registered before it may send. Weak: it is discovered by its first event, and may come too
        late. None: the stream has no producers, and a punctuation tells what is complete.
    silent_after : float or timedelta, optional
        How long a producer may keep silent, in seconds; None: forever.
    on_silent : callable, optional
        Gets the `ProducerSilent` of each producer that is silent; None: the feed raises it.
    waiting_max : int
        How many events may wait until they are stable; a feed that goes beyond is refused.

    Raises
    ------
    DefinitionError
        If a value has no meaning or names a parameter that is not declared.
    """

    name: str = field(kw_only=False)
    source: Files | None = None
    type: str = ""
    timestamp: str = ""
    id: str | None = None
    params: Mapping[str, str] | None = None
    types: Mapping[str, tuple[str, ...]]
    delay: timedelta = timedelta(0)
    membership: Literal["atomic", "weak"] | None = None
    silent_after: float | timedelta | None = None
    on_silent: Callable[[ProducerSilent], object] | None = None
    waiting_max: int = 100_000

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

    def _check_membership(self) -> None:
        if self.membership is None:
            if self.silent_after is not None or self.on_silent is not None:
                raise DefinitionError(
                    'only a stream of producers knows who is silent: give membership="atomic" '
                    'or "weak", too'
                )
            return
        if self.membership not in ("atomic", "weak"):
            raise DefinitionError(f'membership is "atomic" or "weak", not {self.membership!r}')
        if self.source is not None or self.delay:
            raise DefinitionError(
                "what producers send comes stamped from Python: leave out source and delay"
            )
        silent = self.silent_after
        if isinstance(silent, bool) or not isinstance(silent, int | float | timedelta | None):
            raise DefinitionError(
                f"silent_after must be seconds or a timedelta, not {self.silent_after!r}"
            )
        if silent is not None:
            seconds = silent.total_seconds() if isinstance(silent, timedelta) else silent
            if not 0 < seconds < float("inf"):
                raise DefinitionError(f"silent_after must be positive, not {self.silent_after!r}")
        if self.on_silent is not None and not callable(self.on_silent):
            raise DefinitionError(f"on_silent must be a function, not {self.on_silent!r}")
        if isinstance(self.waiting_max, bool) or not isinstance(self.waiting_max, int):
            raise DefinitionError(f"waiting_max must be a whole number, not {self.waiting_max!r}")
        if self.waiting_max < 1:
            raise DefinitionError(f"waiting_max must be at least 1, not {self.waiting_max}")

    def _check_expressions(self) -> None:
        if self.membership is None:
            _require_text("type", self.type)
            _require_text("timestamp", self.timestamp)
        if self.id is not None:
            _require_text("id", self.id)
        if self.params is None:
            return
        for name, expression in self.params.items():
            _require_text("a parameter's name", name)
            _require_text(f"parameter {name!r}", expression)
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
            _require_text("an event type", name)
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


def _require_text(what: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise DefinitionError(f"{what} must be a text that is not empty, not {value!r}")
