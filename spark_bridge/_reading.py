"""Declared files as a streaming DataFrame."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructField, StructType

from activedb.errors import DefinitionError
from spark_bridge._failures import take_down

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from activedb.streams import Files, Stream
    from spark_bridge._file_queue import FileQueue

FILE_ORDER = ("activedb_file", "activedb_block")
"""Columns that put the rows of several files into the order of the files' names."""


def read_files(
    spark: SparkSession, stream: Stream, source: Files, files: FileQueue
) -> tuple[DataFrame, str | None]:
    """Return the rows of what arrives, and the column that keeps text which did not parse.

    Raises
    ------
    DefinitionError
        If Spark does not understand the schema or an option.
    """
    try:
        schema = _schema(spark, source, files)
        corrupt = _corrupt_column(source)
        if corrupt is not None and corrupt not in schema.fieldNames():
            schema = StructType([*schema, StructField(corrupt, StringType())])
        df = (
            spark.readStream.format(source.format)
            .schema(schema)
            .options(**source.options)
            # Old files are as good as new ones: which come next is decided in FileQueue.
            .option("maxFileAge", "36500d")
            .load(str(files.current))
        )
    except PySparkException as error:
        summary, failure = take_down(error)
        raise DefinitionError(f"stream {stream.name!r}: {summary}") from failure
    if source.per_batch == 1:
        return df, corrupt
    names = ("_metadata.file_name", "_metadata.file_block_start")
    return df.selectExpr("*", *map("{} AS {}".format, names, FILE_ORDER)), corrupt


def _schema(spark: SparkSession, source: Files, files: FileQueue) -> StructType:
    if source.schema is not None:
        declared = StructType.fromDDL(source.schema)
        if not isinstance(declared, StructType):
            raise DefinitionError(
                f'the schema must list columns, "id BIGINT, text STRING", not {source.schema!r}'
            )
        return declared
    # Taken once and kept: a batch that is replayed must read its files as it did the first time.
    kept: Path = files.schema
    if not kept.exists():
        reader = spark.read.format(source.format).options(**source.options)
        found = reader.load(str(files.current)).schema
        new = kept.with_suffix(".new")
        new.write_text(found.json(), encoding="utf-8")
        new.replace(kept)
    return StructType.fromJson(json.loads(kept.read_text(encoding="utf-8")))


def _corrupt_column(source: Files) -> str | None:
    options = {name.lower(): value for name, value in source.options.items()}
    keeps_all_rows = options.get("mode", "permissive").lower() == "permissive"
    if source.format not in ("csv", "json") or not keeps_all_rows:
        return None
    return options.get("columnnameofcorruptrecord", "_corrupt_record")
