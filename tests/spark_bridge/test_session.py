from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="no Spark: make test-all installs it")

from pyspark import SparkContext

from activedb.errors import ConfigurationError, FeedFailed
from spark_bridge import session


def test_session_beside_another_spark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", object())
    refused = pytest.raises(ConfigurationError, match=r"already runs Spark; .* spark_bridge\.feed")
    with refused, session():
        pass


def test_session_whose_jvm_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "17"\' && exit\n'
        "echo 'Error: no room for the heap' >&2\nexit 1\n"
    )
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    failed = pytest.raises(FeedFailed, match="Spark did not start: Error: no room for the heap")
    with failed, session():
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


@pytest.mark.spark
def test_session_is_shared_and_leaves_interrupts_and_environment_alone() -> None:
    handler, home = signal.getsignal(signal.SIGINT), os.environ.get("SPARK_HOME")
    with session() as outer:
        assert signal.getsignal(signal.SIGINT) is handler
        assert os.environ.get("SPARK_HOME") == home
        with session() as inner:
            assert inner is outer
        assert outer.range(3).count() == 3
        assert outer.conf.get("spark.sql.session.timeZone") == "UTC"
    assert SparkContext._active_spark_context is None
