from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from activedb.errors import DefinitionError
from activedb.streams import (
    AtomicBatch,
    Files,
    Kafka,
    Rate,
    Replay,
    Socket,
    Source,
    StreamDeclaration,
)

GOOD: dict[str, Any] = {
    "name": "tweets",
    "source": Files("csv"),
    "type": "'TWEET'",
    "timestamp": "at",
    "params": {"text": "tweet"},
    "types": {"TWEET": ("text",)},
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "xls"}, "'xls' cannot be read; give csv, json"),
        ({"schema": " "}, "schema must be a text"),
        ({"glob": ""}, "glob must be a text"),
        ({"glob": "/etc/*"}, "leaves the input folder"),
        ({"glob": "../*.csv"}, "leaves the input folder"),
        ({"options": {"header": True}}, "option 'header' must be text, not True"),
        ({"per_batch": 0}, "per_batch must be at least 1, not 0"),
        ({"per_batch": True}, "per_batch must be a whole number"),
    ],
)
def test_files_meaningless_value_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=f"^.*{said}"):
        Files(**({"format": "csv"} | changes))


@pytest.mark.parametrize(
    ("make", "given", "said"),
    [
        (Rate, {"rows_per_second": 0}, "rows_per_second must be at least 1"),
        (Rate, {"rows_per_second": 0.5}, "rows_per_second must be a whole number"),
        (Socket, {"port": 0}, "port must be at least 1"),
        (Socket, {"port": 65_536}, "port must be at most 65535"),
        (Socket, {"port": 1, "host": ""}, "host must be a text"),
        (Socket, {"port": 1, "format": "csv"}, "lines of format 'csv' need a schema"),
        (Socket, {"port": 1, "schema": "a INT"}, "are one column: leave out schema"),
        (Socket, {"port": 1, "format": "orc"}, "'orc' cannot be read; give csv, json, text"),
        (Replay, {}, "needs a schema, or options="),
        (Replay, {"format": "parquet"}, "a recording of format 'parquet' cannot be read"),
        (Replay, {"format": "text", "time": "at"}, "lines of text have no column for time"),
        (Replay, {"format": "json", "unit": "s"}, "unit is the unit of the numbers in time"),
        (Replay, {"format": "json", "time": "at", "unit": "h"}, "'h' cannot be read; give s, ms"),
        (Replay, {"format": "json", "speed_up": 0}, "speed_up must be positive"),
        (Replay, {"format": "json", "speed_up": "2"}, "speed_up must be"),
        (Replay, {"format": "json", "glob": "../x"}, "leaves the input folder"),
        (Kafka, {"servers": "", "topic": "t"}, "servers must be a text"),
        (Kafka, {"servers": "s", "topic": "t", "start": "now"}, "give earliest, latest"),
        (Kafka, {"servers": "s", "topic": "t", "rows_per_batch": 0}, "rows_per_batch must be"),
        (Kafka, {"servers": "s", "topic": "t", "connector": "a:b"}, "must be Maven coordinates"),
    ],
)
def test_source_meaningless_value_is_refused(
    make: type[Source], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(DefinitionError, match=said):
        make(**given)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accuracy": ""}, "accuracy must be a text"),
        ({"accuracy": timedelta(seconds=-1)}, "accuracy must not be negative"),
        ({"accuracy": ("a",)}, "accuracy is two expressions, for the earliest .* not 1"),
        ({"accuracy": ("a", "")}, "the latest moment in accuracy must be a text"),
        ({"accuracy": 5}, "accuracy must be a text"),
        ({"latency_max": 0}, "latency_max must be positive"),
        ({"latency_max": "1 s"}, "latency_max must be seconds or a timedelta"),
        ({"name": ""}, "'' is not a name for a stream"),
        ({"name": "my stream"}, "'my stream' is not a name for a stream"),
        ({"name": "x" * 64}, "at most 63 characters"),
        ({"type": ""}, "stream 'tweets': type is missing, the SQL expression"),
        ({"type": "", "source": Files("csv")}, "stream 'tweets': type is missing"),
        ({"type": "kind", "timestamp": ""}, "stream 'tweets': timestamp is missing"),
        ({"timestamp": " "}, "stream 'tweets': timestamp must be a text"),
        ({"id": ""}, "id must be a text"),
        ({"params": {"text": ""}}, "parameter 'text' must be a text"),
        ({"params": {"text": "a", "Text": "b"}}, "parameter 'text' is declared 2 times"),
        ({"types": {}}, "types is empty"),
        ({"types": ["TWEET"]}, "types must be a mapping such as .*, not .'TWEET'."),
        ({"types": "TWEET"}, "types must be a mapping such as .*, not 'TWEET'"),
        ({"types": {"TWEET": (5,)}}, "a parameter of event type 'TWEET' must be a text"),
        ({"params": ["text"]}, "params must be a mapping such as .*, not .'text'."),
        ({"params": "text"}, "params must be a mapping such as .*, not 'text'"),
        ({"latency_max": float("inf")}, "latency_max must be positive and finite, not inf"),
        ({"latency_max": float("nan")}, "latency_max must be positive and finite, not nan"),
        ({"latency_max": 1e308}, "latency_max must be positive and finite, not 1e.308"),
        ({"types": {"TWEET": "text"}}, "must be a tuple of names, not 'text'"),
        ({"types": {"TWEET": ("text", "lang")}}, "'TWEET' needs 'lang', which params does not"),
        ({"delay": timedelta(seconds=-1)}, "delay must not be negative"),
        ({"delay": 5}, "delay must be a timedelta, not 5"),
    ],
)
def test_stream_meaningless_value_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        StreamDeclaration(**(GOOD | changes))


def test_stream_fed_from_python_needs_no_expressions() -> None:
    stream = StreamDeclaration("clicks", types={"CLICK": ("user",)})
    with pytest.raises(DefinitionError, match="type is missing, the SQL expression by which a row"):
        stream.require_expressions()


def test_stream_without_params_may_need_any_column() -> None:
    stream = StreamDeclaration(**(GOOD | {"params": None, "types": {"TWEET": ("anything",)}}))
    assert stream.types == {"TWEET": ("anything",)}


def test_stream_does_not_change_with_what_it_was_made_of() -> None:
    params, types, options = {"text": "tweet"}, {"TWEET": ("text",)}, {"header": "true"}
    source = Files("csv", options=options)
    stream = StreamDeclaration(**(GOOD | {"params": params, "types": types, "source": source}))
    params["more"] = types["MORE"] = options["more"] = "x"  # type: ignore[assignment]  # three kinds of dict
    assert stream.params == {"text": "tweet"}
    assert stream.types == {"TWEET": ("text",)}
    assert source.options == {"header": "true"}


class Table:
    num_rows = 0
    column_names = ("event_type", "event_time_us", "event_id", "p_text", "p_p_x", "raw")


def test_batch_param_names_are_columns_without_one_prefix() -> None:
    batch = AtomicBatch("tweets", "q", 0, Table(), None)  # type: ignore[arg-type]  # a table of its own kind
    assert batch.param_names == ("text", "p_x")
