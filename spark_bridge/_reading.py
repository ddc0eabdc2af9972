"""Declared sources as streaming DataFrames."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from activedb.errors import ConfigurationError, DefinitionError
from activedb.streams import Kafka, Rate, Replay, Socket
from spark_bridge._batch_size import idle_waits_s
from spark_bridge._failures import take_down
from spark_bridge._recording import RecordedFiles
from spark_bridge._session import has_own_sources, register_sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from activedb.streams import Files, StreamDeclaration

FILE_ORDER = ("activedb_file", "activedb_block")
"""Columns that put the rows of several files into the order of the files' names."""
KAFKA_CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_CORRUPT = "columnNameOfCorruptRecord"


def read_files(
    spark: SparkSession,
    stream: StreamDeclaration,
    source: Files,
    path: Path,
    schema_file: Path,
    *,
    is_ordered: bool,
) -> tuple[DataFrame, str | None]:
    """Return the rows of arriving files, and the column that keeps text which did not parse.

    Parameters
    ----------
    path : Path
        The folder in which the files arrive.
    schema_file : Path
        File that keeps the columns that the declaration does not give.
    is_ordered : bool
        Whether to add the columns `FILE_ORDER`.

    Raises
    ------
    DefinitionError
        If Spark does not understand the schema or an option.
    """

    def infer() -> StructType:
        reader = spark.read.format(source.format).options(**source.options)
        return reader.load(str(path)).schema

    with _understood(stream):
        schema = _schema(source.schema, schema_file, infer)
        corrupt = _corrupt_column(source.format, source.options)
        df = (
            spark.readStream.format(source.format)
            .schema(_with_column(schema, corrupt))
            .options(**source.options)
            # The age of a file is irrelevant: `FileQueue` decides which files come next.
            .option("maxFileAge", "36500d")
            .load(str(path))
        )
    if not is_ordered:
        return df, corrupt
    names = ("_metadata.file_name", "_metadata.file_block_start")
    return df.selectExpr("*", *map("{} AS {}".format, names, FILE_ORDER)), corrupt


def read_replay(
    spark: SparkSession,
    stream: StreamDeclaration,
    source: Replay,
    path: Path,
    schema_file: Path,
    limit: Path,
    start: Mapping[str, Any] | None = None,
) -> tuple[DataFrame, str | None]:
    """Return the rows of a recording as they become due, and the column of text as for files.

    Parameters
    ----------
    path : Path
        The recording.
    schema_file : Path
        File that keeps the columns that the declaration does not give.
    limit : Path
        See `_batch_size`.
    start : mapping or None
        The offset behind which to begin; None: with the first line.

    Raises
    ------
    DefinitionError
        If the schema, an option or the column with the time is not understood.
    """
    recording = RecordedFiles(path, source.format, glob=source.glob)
    given = {name.lower(): value for name, value in source.options.items()}

    def infer() -> StructType:
        if source.format == "json":
            files = [str(file) for file in recording.files()]
            return spark.read.options(**source.options).json(files).schema
        names = recording.header_of(recording.files()[0])
        return StructType([StructField(name, StringType()) for name in names])

    with _understood(stream):
        schema = None if source.format == "text" else _schema(source.schema, schema_file, infer)
        columns = [] if schema is None else schema.fieldNames()
        if source.time is not None and source.time not in columns:
            raise DefinitionError(
                f"stream {stream.name!r}: the recording {path} has no column {source.time!r} for "
                f"its time; it has {', '.join(columns)}"
            )
        options = {
            "path": str(path),
            "format": source.format,
            "time": source.time,
            "unit": source.unit,
            "speedUp": str(source.speed_up),
            "header": str(source.has_header).lower(),
            "columns": json.dumps(columns),
            "sep": given.get("sep", given.get("delimiter", ",")),
            "quote": given.get("quote", '"'),
            "glob": source.glob,
            "maxRowsPerBatch": str(source.rows_per_batch),
            "limitFile": str(limit),
            "idle": json.dumps(idle_waits_s(stream.silent_after_us)),
            "startingOffset": None if start is None else json.dumps(start),
        }
        _check_own_sources()
        from spark_bridge._replay_source import NAME

        lines = _python_source(spark, NAME, options)
        return _columns_of(lines, source.format, schema, source.options)


def read_socket(
    spark: SparkSession, stream: StreamDeclaration, source: Socket, limit: Path, *, reconnect: bool
) -> tuple[DataFrame, str | None]:
    """Return the lines of a server as rows, and the column of text as for files.

    Raises
    ------
    DefinitionError
        If the schema or an option is not understood.
    """
    options = {
        "host": source.host,
        "port": str(source.port),
        "reconnect": str(reconnect).lower(),
        "maxRowsPerBatch": str(source.rows_per_batch),
        "limitFile": str(limit),
        "idle": json.dumps(idle_waits_s(stream.silent_after_us)),
    }
    with _understood(stream):
        schema = None if source.schema is None else _declared(source.schema)
        _check_own_sources()
        from spark_bridge._socket_source import NAME

        lines = _python_source(spark, NAME, options)
        return _columns_of(lines, source.format, schema, source.options)


def read_rate(spark: SparkSession, source: Rate) -> DataFrame:
    """Return rows that Spark generates by the clock, in one partition: they keep their order."""
    reader = spark.readStream.format("rate").option("numPartitions", 1)
    return reader.option("rowsPerSecond", source.rows_per_second).load()


def read_kafka(
    spark: SparkSession,
    stream: StreamDeclaration,
    source: Kafka,
    rows_per_batch: int,
    start: Mapping[str, Any] | None = None,
) -> tuple[DataFrame, str | None]:
    """Return the records of topics as rows, and the column of text as for files.

    Parameters
    ----------
    start : mapping or None
        Per topic and partition, the offset with which to begin; None: as declared.

    Raises
    ------
    ConfigurationError
        If Spark has no connector for Kafka.
    DefinitionError
        If the schema or an option is not understood.
    """
    try:
        records = (
            spark.readStream.format("kafka")
            .options(**source.options)
            .option("kafka.bootstrap.servers", source.servers)
            .option("subscribe", source.topic)
            .option("startingOffsets", source.start if start is None else json.dumps(start))
            .option("maxOffsetsPerTrigger", rows_per_batch)
            .load()
        )
    except PySparkException as error:
        if "kafka" not in str(error).lower() or "find data source" not in str(error):
            summary, failure = take_down(error)
            raise DefinitionError(f"stream {stream.name!r}: {summary}") from failure
        raise ConfigurationError(
            f"stream {stream.name!r}: Spark has no connector for Kafka; name it in the settings of "
            f"Spark: spark.jars.packages={KAFKA_CONNECTOR}:{spark.version}"
        ) from None
    with _understood(stream):
        schema = None if source.schema is None else _declared(source.schema)
        texts = records.select(
            sf.col("key").cast("string").alias("key"),
            sf.col("value").cast("string").alias("value"),
            *("topic", "partition", "offset", "timestamp"),
        )
        return _columns_of(texts, source.format, schema, source.options)


def _check_own_sources() -> None:
    if not has_own_sources():
        raise ConfigurationError(
            f"replays and sockets need Spark 4.2 or newer, and this is {pyspark.__version__}: "
            "pip install '.[spark]'"
        )


def _python_source(spark: SparkSession, name: str, options: Mapping[str, str | None]) -> DataFrame:
    register_sources(spark)
    known = {key: value for key, value in options.items() if value is not None}
    return spark.readStream.format(name).options(**known).load()


def _columns_of(
    texts: DataFrame, format: str, schema: StructType | None, options: Mapping[str, str]
) -> tuple[DataFrame, str | None]:
    """Return `texts` with the columns parsed from ``value``, and the column of bad text."""
    if schema is None:
        return texts, None
    corrupt = _corrupt_column(format, options)
    wanted = _with_column(schema, corrupt)
    given = {name: value for name, value in options.items() if name.lower() != "header"}
    if corrupt is not None:
        given[_CORRUPT] = corrupt
    text = sf.col("value")
    row = (
        sf.from_csv(text, wanted.toDDL(), given)
        if format == "csv"
        else sf.from_json(text, wanted, given)
    )
    taken = {name.casefold() for name in wanted.fieldNames()} | {"value"}
    others = [name for name in texts.columns if name.casefold() not in taken]
    return texts.select(row.alias("activedb_row"), *others).select(
        "activedb_row.*", *others
    ), corrupt


def _schema(declared: str | None, kept: Path, infer: Callable[[], StructType]) -> StructType:
    if declared is not None:
        return _declared(declared)
    # Taken once and kept: a replayed batch must read its rows as it did the first time.
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        new = kept.with_suffix(".new")
        new.write_text(infer().json(), encoding="utf-8")
        new.replace(kept)
    return StructType.fromJson(json.loads(kept.read_text(encoding="utf-8")))


def _declared(schema: str) -> StructType:
    columns = StructType.fromDDL(schema)
    if not isinstance(columns, StructType):
        raise DefinitionError(
            f'the schema must list columns, "id BIGINT, text STRING", not {schema!r}'
        )
    return columns


def _with_column(schema: StructType, name: str | None) -> StructType:
    if name is None or name in schema.fieldNames():
        return schema
    return StructType([*schema, StructField(name, StringType())])


def _corrupt_column(format: str, options: Mapping[str, str]) -> str | None:
    given = {name.lower(): value for name, value in options.items()}
    keeps_all_rows = given.get("mode", "permissive").lower() == "permissive"
    if format not in ("csv", "json") or not keeps_all_rows:
        return None
    return given.get(_CORRUPT.lower(), "_corrupt_record")


@contextmanager
def _understood(stream: StreamDeclaration) -> Iterator[None]:
    """Name the stream in errors of Spark about schemas and options."""
    try:
        yield
    except PySparkException as error:
        summary, failure = take_down(error)
        raise DefinitionError(f"stream {stream.name!r}: {summary}") from failure
