"""One silent, local Spark for this process, removed without a trace after its last use.

Silent means: no output of the JVM, of Spark or of py4j reaches the terminal. The JVM's own output
goes to a file in a temporary folder, because not all of it can be configured away (`Picked up
JAVA_TOOL_OPTIONS`, `Using incubator modules`, output from before log4j is set up).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from activedb.errors import ConfigurationError, FeedFailed, JavaNotFound
from spark_bridge._failures import take_down

PACKAGES = "spark.jars.packages"
"""Setting with the packages that Spark loads, separated by commas."""

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark import SparkConf
    from pyspark.sql import SparkSession


# -- Java that Spark can run on --------------------------------------------------------------------

JAVA_VERSION_MIN = 17
_ADVICE = (
    "install one (Debian/Ubuntu: apt-get install openjdk-17-jdk-headless; "
    "macOS: brew install openjdk@17) or set JAVA_HOME to one"
)


def check_tools() -> str:
    """Check that pyspark and Java exist, before anything is started; return their versions.

    Raises
    ------
    ConfigurationError
        If pyspark or pyarrow is not installed.
    JavaNotFound
        If the Java that Spark would use is missing, broken or older than 17.
    """
    for module in ("pyspark", "pyarrow"):
        if find_spec(module) is None:
            raise ConfigurationError(
                f"{module} is not installed; install it with: pip install '.[spark]'"
            )
    return f"{_check_java()}, pyspark {version('pyspark')}"


def _check_java() -> str:
    needed = f"Spark needs Java {JAVA_VERSION_MIN} or newer"
    # The choice is Spark's own: JAVA_HOME when it is set, else the PATH.
    home = os.environ.get("JAVA_HOME")
    if home:
        java = shutil.which(os.path.join(home, "bin", "java"))
        where = f"JAVA_HOME is {home}"
    else:
        java = shutil.which("java")
        where = "there is no java on the PATH"
    if java is None:
        also = ", which holds no bin/java" if home else ""
        raise JavaNotFound(f"{needed}, but {where}{also}; {_ADVICE}")
    number = _java_version(java)
    if number is None:
        raise JavaNotFound(f"{needed}, but {java} does not run; {_ADVICE}")
    if number < JAVA_VERSION_MIN:
        raise JavaNotFound(f"{needed}, but {java} is version {number}; {_ADVICE}")
    return f"Java {number} ({java})"


def _java_version(java: str) -> int | None:
    """Return the feature version (8, 17, 21) of a java program, None when it does not run."""
    try:
        answer = subprocess.run(  # noqa: S603 - a fixed argument to the java that Spark will run
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # `openjdk version "17.0.15" 2025-04-15`; versions before 9 are written "1.8.0_392".
    found = re.search(r'^\w+ version "(?:1\.)?(\d+)', answer.stderr + answer.stdout, re.MULTILINE)
    return int(found.group(1)) if found else None


# -- one Spark for this process --------------------------------------------------------------------

_JVM_EXIT_S_MAX = 30


class _SharedSpark:
    """The running Spark and the number of its users. The latch is held while it starts or ends."""

    def __init__(self) -> None:
        self.latch = threading.Lock()
        self.users = 0
        self.spark: SparkSession | None = None
        self.closing = ExitStack()


_shared = _SharedSpark()


@contextmanager
def session(settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Yield Spark for the duration of the block, shared with blocks inside or beside it.

    The first block starts a JVM (a few seconds), the last one to end stops it and waits until its
    process is gone. Feeds that run one after another start Spark once if one block encloses them.

    Parameters
    ----------
    settings : Mapping[str, str], optional
        Additional settings of Spark, as ``{"spark.jars.packages": …}``; the first block decides.
        Those of a database are ``db.settings.of_spark``.

    Yields
    ------
    pyspark.sql.SparkSession
        Its time zone is UTC. It runs on this machine, and on the loopback interface only, unless
        ``spark.master`` says otherwise.

    Raises
    ------
    ConfigurationError
        If pyspark is missing, this process already runs another Spark, or the enclosing block has
        begun without a setting that this one needs.
    JavaNotFound
        If there is no Java 17 or newer.
    FeedFailed
        If the JVM does not start.
    """
    with _shared.latch:
        if _shared.spark is None:
            with ExitStack() as stack:
                _shared.spark = _start(stack, settings or {})
                _shared.closing = stack.pop_all()
        spark = _shared.spark
        _check_settings(spark, settings or {})
        _shared.users += 1
    try:
        yield spark
    finally:
        with _shared.latch:
            _shared.users -= 1
            if _shared.users == 0:
                _shared.spark = None
                _shared.closing.close()


def running() -> SparkSession | None:
    """Return the Spark of an open `session` block in this process; None if there is none."""
    return _shared.spark


def _check_settings(spark: SparkSession, settings: Mapping[str, str]) -> None:
    conf = spark.sparkContext.getConf()
    for name, value in settings.items():
        found = conf.get(name)
        is_there = found is not None and set(value.split(",")) <= set(found.split(","))
        if not (is_there if name == PACKAGES else found == value):
            raise ConfigurationError(
                f"Spark runs already, without {name}={value}; give it to the first: "
                f"spark_bridge.session({{{name!r}: {value!r}}})"
            )


def _start(stack: ExitStack, settings: Mapping[str, str]) -> SparkSession:
    check_tools()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # One process holds one SparkContext; the owner of the other one can use feed() with it.
    if SparkContext._active_spark_context is not None:
        raise ConfigurationError(
            "this process already runs Spark; stop it first, or give its streaming DataFrame "
            "to spark_bridge.feed()"
        )
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="activedb-spark-")))
    conf = _conf(folder, settings)
    _quiet_python()
    with _environment(folder, conf), _own_interrupt_handler():
        _launch_jvm(stack, conf, folder / "jvm.log")
        try:
            spark = SparkSession(SparkContext(conf=conf))
        except Exception as error:
            summary, failure = take_down(error)
            raise FeedFailed(f"Spark did not start: {summary}") from failure
    stack.callback(_stop, spark)
    return spark


def register_sources(spark: SparkSession) -> None:
    """Register our data sources in a Spark session.

    They are ``activedb_replay`` and ``activedb_socket`` to read from, if `has_own_sources`, and
    ``activedb`` to write to. A feed that needs them registers them itself: registration costs a
    Python process that Spark starts.
    """
    from spark_bridge._sink import ActiveDBSink

    spark.dataSource.register(ActiveDBSink)
    if has_own_sources():
        from spark_bridge._replay_source import ReplaySource
        from spark_bridge._socket_source import SocketSource

        for source in (ReplaySource, SocketSource):
            spark.dataSource.register(source)


def has_own_sources() -> bool:
    """Return whether this Spark supports our sources for reading: 4.2 does, 4.1 does not."""
    return find_spec("pyspark.sql.streaming.datasource") is not None


def _stop(spark: SparkSession) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that the JVM does not answer
        try:
            spark.stop()
        except Exception:
            # The JVM has died. Only the second call, which knows that, forgets the context.
            with suppress(Exception):
                spark.stop()


def _conf(folder: Path, given: Mapping[str, str]) -> SparkConf:
    from pyspark import SparkConf

    master = given.get("spark.master") or f"local[{max(2, min(4, os.cpu_count() or 2))}]"
    settings = {"spark.master": master} | _everywhere(folder)
    if master.startswith("local"):
        settings |= _on_this_machine(folder)
    if master.startswith("local-cluster"):
        settings |= _OF_SMALL_EXECUTORS
    conf = SparkConf(loadDefaults=False)
    for name, value in (settings | {**given}).items():
        conf.set(name, value)
    return conf


_OF_SMALL_EXECUTORS = {  # as for the driver; cluster jobs run long enough to be optimised
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def _on_this_machine(folder: Path) -> dict[str, str]:
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
    }


def _everywhere(folder: Path) -> dict[str, str]:
    return {
        "spark.app.name": "activedb",
        "spark.driver.memory": "2g",  # a micro-batch passes through the driver as a whole
        # Most runs are over before the optimising compiler has paid off: without it a first
        # micro-batch comes after half the CPU time. Spark is not the slow part of a run.
        "spark.driver.extraJavaOptions": (
            f'-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "-Djava.io.tmpdir={folder}"'
        ),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "false",  # bad input gives NULL, not an error
        "spark.sql.legacy.timeParserPolicy": "CORRECTED",  # the same for bad timestamps
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Executors keep the matching state in RocksDB and upload only changes. A batch without rows
        # would move the punctuation where one process does not.
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # The same files are cut into the same partitions on every machine, whatever its cores.
        "spark.sql.files.minPartitionNum": "1",
        # Spark's default manager starts a process for every file it writes, which on a local disk
        # is half the time of a small micro-batch. Both write a temporary file and rename it.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing"
            ".FileSystemBasedCheckpointFileManager"
        ),
    }


def _launch_jvm(stack: ExitStack, conf: SparkConf, log: Path) -> None:
    """Start the JVM; push the callback that ends it on ``stack``."""
    from pyspark import SparkContext, java_gateway
    from pyspark.errors import PySparkRuntimeError

    launch: Callable[..., Any] = java_gateway.launch_gateway
    with log.open("wb") as output, warnings.catch_warnings():
        # Python 3.12 and later warn of a fork beside threads; the child only executes a program.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            gateway = launch(conf, {"stdout": output, "stderr": output})
        except PySparkRuntimeError as error:
            # The program and its pipe remain in pyspark's frame, and would cause a warning later.
            warnings.simplefilter("ignore", ResourceWarning)
            traceback.clear_frames(error.__traceback__)
            raise FeedFailed(f"Spark did not start: {_reason(log)}") from error

    def end() -> None:
        gateway.shutdown()
        process: subprocess.Popen[bytes] = gateway.proc
        if process.stdin is not None:
            process.stdin.close()  # the JVM ends when this pipe does
        try:
            process.wait(_JVM_EXIT_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        SparkContext._gateway = None
        SparkContext._jvm = None

    stack.callback(end)
    SparkContext._gateway = gateway
    SparkContext._jvm = gateway.jvm


def _reason(log: Path) -> str:
    """Return the line of the JVM's output that most likely says why it ended."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    errors = [line for line in said if "rror" in line or "xception" in line]
    return (errors[:1] or said[-1:] or ["no reason given"])[0]


@contextmanager
def _environment(folder: Path, conf: SparkConf) -> Iterator[None]:
    """Set the environment for Spark's start: this Python for its workers, and pyspark's own Spark.

    Executors elsewhere may have another Python: ``spark.pyspark.python`` says which.
    """
    ours = {
        "PYSPARK_PYTHON": conf.get("spark.pyspark.python") or sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(_home(folder, conf)),
    }
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _home(folder: Path, conf: SparkConf) -> Path:
    """Return the home of the Spark that pyspark brings along.

    A cluster on this machine writes the output of its executors there. It gets a folder that looks
    the same and is removed with the session.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    if not conf.get("spark.master", "").startswith("local-cluster"):
        return installed
    home = folder / "home"
    home.mkdir()
    for path in installed.iterdir():
        # The output of executors; and a zip of pyspark's sources, which would be compiled each
        # time.
        if path.name not in ("work", "python"):
            (home / path.name).symlink_to(path)
    return home


@contextmanager
def _own_interrupt_handler() -> Iterator[None]:
    """Restore the interrupt handler that pyspark, on the main thread, replaces for good."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _quiet_python() -> None:
    """Keep py4j from logging a refused batch, or a JVM that died, with a traceback.

    Both reach the user as an exception, as do pyspark's own logs. The loggers stay silent: some of
    py4j's connections are closed, and log it, after the JVM has gone and as late as the end of the
    process.
    """
    from pyspark.logger import PySparkLogger

    # These log in JSON what an exception says. A Python logger of that name would have no effect.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_is_not_of_py4j)  # py4j logs errors of its connections there


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"
