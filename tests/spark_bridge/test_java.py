from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from activedb.errors import ConfigurationError, JavaNotFound

pytest.importorskip("pyspark", reason="no Spark: make test-all installs it")

from spark_bridge import _session
from spark_bridge._session import check_tools
from tests.patience import PATIENCE_S


def fake_java(folder: Path, says: str, code: int = 0) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    "says",
    [
        'openjdk version "17.0.15" 2025-04-15',
        'Picked up JAVA_TOOL_OPTIONS: -Dversion "8"\nopenjdk version "21" 2023-09-19',
        'java version "25-ea" 2025-09-16',
    ],
)
def test_java_new_enough_is_accepted(
    says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check_tools()


@pytest.mark.parametrize(
    ("says", "code", "said"),
    [
        ('openjdk version "11.0.2" 2019-01-15', 0, "is version 11; install"),
        ('java version "1.8.0_392"', 0, "is version 8; install"),
        ("No Java runtime present, requesting install.", 1, "does not run; install"),
        ("hello", 0, "does not run; install"),
    ],
)
@pytest.mark.parametrize("by", ["JAVA_HOME", "PATH"])
def test_java_that_will_not_do_is_refused_in_one_line(
    says: str, code: int, said: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = fake_java(tmp_path, says, code)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv(by, str(tmp_path if by == "JAVA_HOME" else java.parent))
    with pytest.raises(JavaNotFound, match=said) as raised:
        check_tools()
    assert str(java) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaNotFound, match=f"JAVA_HOME is {tmp_path}, which holds no bin/java"):
        check_tools()


@pytest.mark.long
def test_java_missing_ends_a_feed_with_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    script = f"""
from pathlib import Path
from activedb.errors import JavaNotFound
from activedb.streams import Files, StreamDeclaration
from spark_bridge import SparkFeed
types = {{"T": ()}}
stream = StreamDeclaration("s", source=Files("text"), type="'T'", timestamp="value", types=types)
try:
    SparkFeed(stream, Path({str(tmp_path / "input")!r}), Path({str(tmp_path / "checkpoint")!r}))
except JavaNotFound as error:
    print(error)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PATH": "", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout == (
        "Spark needs Java 17 or newer, but there is no java on the PATH; install one "
        "(Debian/Ubuntu: apt-get install openjdk-17-jdk-headless; macOS: brew install openjdk@17) "
        "or set JAVA_HOME to one\n"
    )


def test_pyspark_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_session, "find_spec", lambda module: None)
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[spark\]'"):
        check_tools()
