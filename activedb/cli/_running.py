"""Commands that run a file's rules: feed its stream, follow changes, work off firings."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.abc import Loader
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any
from weakref import WeakSet

from activedb._starting import INTERRUPTED
from activedb.changes import FollowProgress
from activedb.cli._report import Reporter, RunFigures
from activedb.database import Database, connect
from activedb.errors import ActiveDBError, ConfigurationError, DefinitionError
from activedb.functions import typed_text
from activedb.spelling import counted
from activedb.streams import Staged, Stream
from activedb.trust import check_trusted

__all__ = [
    "Options",
    "Stop",
    "all_opened",
    "feed_class",
    "feed_stream",
    "opened",
    "run_follower",
    "run_job",
    "run_worker",
    "stop_following",
    "told_to_stop",
]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``activedb run``."""

    file: Path
    input: Path | None
    stream: str | None
    checkpoint: Path | None
    fail_fast: bool
    follow: bool
    resume: bool


def run_job(options: Options, reporter: Reporter) -> None:
    """Load the file, feed its stream, report.

    Raises
    ------
    ConfigurationError, DefinitionError
        If file, input or stream are not valid.
    """
    if options.input is not None and not options.input.exists():
        raise ConfigurationError(f"the input {options.input} does not exist; check --input")
    with ExitStack() as opening:
        with reporter.working("opening the database"):
            databases = opening.enter_context(all_opened(options.file))
            db, stream = _chosen(options, databases)
        db.create_all()
        checkpoint = options.checkpoint or db.settings.folder / "checkpoints" / stream.name
        outcome = feed_stream(
            db,
            stream,
            options.input,
            checkpoint,
            reporter,
            fail_fast=options.fail_fast,
            follow=options.follow,
            resume=options.resume,
        )
        reporter.result(f"stream {stream.name}", outcome)


def feed_stream(
    db: Database,
    stream: Stream,
    input: Path | None,
    checkpoint: Path,
    reporter: Reporter,
    *,
    fail_fast: bool = False,
    follow: bool = False,
    resume: bool = False,
) -> RunFigures:
    """Feed a stream from its source to its end, with progress; return the figures.

    Detached rules that an earlier process left unfinished are started first. With `resume`, an
    empty checkpoint continues behind the last batch of the database.
    """
    if isinstance(stream.source, Staged):
        return take_staged(
            db, stream, input, reporter, fail_fast=fail_fast, follow=follow, resume=resume
        )
    run = stream.run
    run.fail_fast = fail_fast
    before = run.totals()
    feed = feed_class()(
        stream,
        input,
        checkpoint,
        follow=follow,
        future_max_s=db.settings.future_max_s,
        spark=db.settings.of_spark,
        matchable=run.matchable if db.settings.scale_out else None,
        resume=run.positions() if resume else None,
    )
    run.run_in_tasks(feed.tasks)
    run.check_continues(feed.query_id, feed.next_batch_id, feed.continues)
    with reporter.working("starting Spark"):
        began = time.monotonic()
        recovered = db.recover()
        if recovered:
            reporter.note(f"first finishing {recovered} detached rules of an earlier run")
        told: set[str] = set()

        def progress(events: int) -> None:
            for rule, why in feed.matched_here.items():
                if rule not in told:
                    reporter.note(f"rule {rule} is matched in this process: {why}")
            told.update(feed.matched_here)
            reporter.progress(db, run, events, feed.metrics.last)

        run.on_progress = progress
        feed.run(run.apply)
        run.finish(feed.left)
        seconds = time.monotonic() - began
    return RunFigures.of(db, run, before, seconds)


def feed_class() -> Any:
    """Return the feed class, from an entry point since its layer is above this package."""
    for entry in importlib.metadata.entry_points(group="activedb.feeds", name="spark"):
        return entry.load()
    raise ConfigurationError("nothing here feeds streams; reinstall activedb")


def _chosen(options: Options, databases: list[Database]) -> tuple[Database, Stream]:
    streams = {s.name: (db, s) for db in databases for s in db.streams}
    names = ", ".join(streams) or "none"
    if options.stream is not None:
        if options.stream not in streams:
            raise DefinitionError(
                f"{options.file} has no stream {options.stream!r}; it has: {names}"
            )
        return streams[options.stream]
    if len(streams) != 1:
        raise DefinitionError(
            f"{options.file} must declare one stream with db.stream(), or name one of several "
            f"with --stream; it has: {names}"
        )
    return next(iter(streams.values()))


@contextmanager
def opened(file: Path | None, url: str | None) -> Iterator[Database]:
    """Yield the database at a URL, or the one that a file opens."""
    if file is None:
        with connect(url) as db:
            yield db
        return
    with all_opened(file, url) as databases:
        if len(databases) > 1:
            raise DefinitionError(
                f"{file} opens {len(databases)} databases; look at one at a time, with a file of "
                f"its own"
            )
        yield databases[0]


@contextmanager
def all_opened(file: Path, url: str | None = None) -> Iterator[list[Database]]:
    """Run a user's file and yield its databases, each once; close them, also if it fails.

    Parameters
    ----------
    url : str, optional
        The URL that `connect` uses by default meanwhile.

    Raises
    ------
    ConfigurationError, DefinitionError
        If the file cannot be run, or creates no database.
    """
    module, loader = _module_of(file)
    with ExitStack() as open_ones:
        if url is not None:
            open_ones.enter_context(_by_default(url))
        open_ones.enter_context(_siblings_of(file))

        @open_ones.callback
        def close() -> None:
            with ExitStack() as closing:
                for db in _databases_in(module):
                    closing.callback(db.close)

        _execute(module, loader, file)
        databases = _databases_in(module)
        if not databases:
            raise DefinitionError(f"{file} has no database; write db = activedb.connect()")
        yield databases


def _databases_in(module: ModuleType) -> list[Database]:
    return list(dict.fromkeys(v for v in vars(module).values() if isinstance(v, Database)))


@contextmanager
def _by_default(url: str) -> Iterator[None]:
    """Make a URL the default of `connect`, then restore the environment."""
    before = os.environ.get("ACTIVEDB_URL")
    os.environ["ACTIVEDB_URL"] = url
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("ACTIVEDB_URL", None)
        else:
            os.environ["ACTIVEDB_URL"] = before


@contextmanager
def _siblings_of(file: Path) -> Iterator[None]:
    """Let the modules beside a file be imported, as Python does for a script.

    Not those of a folder into which every account may put files, such as ``/tmp``.
    """
    folder = file.resolve().parent
    if sys.flags.safe_path or folder.stat().st_mode & stat.S_IWOTH:
        yield
        return
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):  # the file itself has changed the path
            sys.path.remove(str(folder))


def _module_of(file: Path) -> tuple[ModuleType, Loader]:
    """Return a user's file as a module that is still to be run, and its loader.

    Raises
    ------
    ConfigurationError
        If there is no such Python file, or others import a module of its name.
    """
    if not file.is_file():
        raise ConfigurationError(f"there is no file {file}")
    check_trusted(file)
    if _is_taken(file):
        raise ConfigurationError(
            f"{file} has the name of the module {file.stem} of Python or of a library, which would "
            f"then import this file in its place; rename the file"
        )
    spec = importlib.util.spec_from_file_location(file.stem, file.resolve())
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{file} is not a Python file")
    return importlib.util.module_from_spec(spec), spec.loader


_of_users: WeakSet[ModuleType] = WeakSet()


def _is_taken(file: Path) -> bool:
    """Return whether a file's name is that of a module other than a user's."""
    if file.stem in sys.stdlib_module_names:  # also if it is imported only later
        return True
    found = sys.modules.get(file.stem)
    if found is None or found in _of_users:
        return False
    return getattr(found, "__file__", None) != str(file.resolve())


def _execute(module: ModuleType, loader: Loader, file: Path) -> None:
    # Under its name, as dataclasses and pickle look up the module of a class.
    sys.modules[file.stem] = module
    _of_users.add(module)
    try:
        loader.exec_module(module)
    except (ActiveDBError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise DefinitionError(f"{file} cannot be loaded: {typed_text(error)}") from error


# -- ``activedb run`` of a stream whose batches a Spark query publishes ----------------------------


def take_staged(
    db: Database,
    stream: Stream,
    input: Path | None,
    reporter: Reporter,
    *,
    fail_fast: bool,
    follow: bool,
    resume: bool,
) -> RunFigures:
    """Take the published batches of a stream, with progress; return the figures.

    Detached rules that an earlier process left unfinished are started first.
    """
    if input is not None or resume:
        raise ConfigurationError(
            f"stream {stream.name} takes what Spark publishes in the database, and has neither an "
            "input nor a checkpoint here: leave out --input and --resume"
        )
    run = stream.run
    run.fail_fast = fail_fast
    before = run.totals()
    with reporter.working(
        "waiting for batches from Spark" if follow else "taking the published batches"
    ):
        began = time.monotonic()
        recovered = db.recover()
        if recovered:
            reporter.note(f"first finishing {recovered} detached rules of an earlier run")
        run.on_progress = lambda events: reporter.progress(db, run, events)
        stream.take_staged(follow=follow)
        run.finish()
        seconds = time.monotonic() - began
    return RunFigures.of(db, run, before, seconds)


def run_worker(file: Path, url: str | None, poll_s: float, reporter: Reporter) -> None:
    """Load the file and run what other processes have recorded for its rules, until a signal.

    Raises
    ------
    ConfigurationError, DefinitionError
        If the file is not valid, or its database is in memory.
    """
    with ExitStack() as stack:
        with reporter.working("opening the database"):
            db = stack.enter_context(opened(file, url))
            db.create_all()
        began = time.monotonic()
        with reporter.working("waiting for firings"), told_to_stop() as stop:
            taken = db.run_worker(
                stop, poll_s=poll_s, on_progress=_working_progress(db, stop, reporter)
            )
        counts = db.admin.counters()
        seconds = time.monotonic() - began
        figures = {
            "firings taken": taken,
            "rules fired": counts.get("rules_fired", 0),
            "rules failed": counts.get("rules_failed", 0),
            "rules quarantined": counts.get("rules_quarantined", 0),
            "transactions retried": counts.get("transactions_retried", 0),
            "seconds": round(seconds, 2),
            "firings per second": round(taken / seconds, 1) if seconds else 0,
        }
        reporter.result(f"worker of {file}", RunFigures(figures))


def _working_progress(
    db: Database, stop: threading.Event, reporter: Reporter
) -> Callable[[int, int], None]:
    def progress(taken: int, running: int) -> None:
        if stop.is_set():
            rules = counted(running, "running rule")
            reporter.note(f"waiting for {rules} to end; a second signal stops at once")
            return
        failed = db.admin.counters().get("rules_failed", 0)
        reporter.update(f"{taken:,} firings taken, {running:,} running, {failed:,} failed")

    return progress


class Stop(threading.Event):
    """Event set when the process is told to stop; ``interrupted``: by Ctrl-C."""

    interrupted = False


@contextmanager
def told_to_stop() -> Iterator[Stop]:
    """Yield an event set by the first SIGINT or SIGTERM; the second ends the process at once."""
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            # The server rolls back what runs, and other workers take it over, as after any crash.
            if os.isatty(2):
                os.write(2, b"\x1b[?25h\n")  # the cursor, which the progress line has hidden
            os._exit(INTERRUPTED)
        stop.interrupted = number == signal.SIGINT
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- ``activedb follow``: changes made by any program trigger the rules of a file ------------------


def run_follower(
    file: Path,
    url: str | None,
    *,
    slot: str,
    tables: Sequence[str],
    poll_s: float,
    whole_rows: bool,
    reporter: Reporter,
) -> bool:
    """Load the file and follow changes for its rules, until a signal.

    Return True if the signal was Ctrl-C; SIGTERM is a normal end.

    Raises
    ------
    ConfigurationError, DefinitionError
        If the file is not valid, or its database cannot be followed.
    """
    with ExitStack() as stack:
        with reporter.working("opening the database"):
            db = stack.enter_context(opened(file, url))
            db.create_all()
        chosen = [_table(db, name) for name in tables]
        began = time.monotonic()
        with reporter.working(f"following slot {slot}"), told_to_stop() as stop:
            done = db.changes.follow(
                *chosen,
                slot=slot,
                stop=stop,
                poll_s=poll_s,
                whole_rows=whole_rows,
                on_progress=_following_progress(db, reporter),
            )
        counts = db.admin.counters()
        figures = {
            "transactions": done.transactions,
            "changes": done.changes,
            "firings": done.firings,
            "tables truncated": done.truncated,
            "rules fired": counts.get("rules_fired", 0),
            "rules failed": counts.get("rules_failed", 0),
            "lag bytes": done.lag_bytes,
            "lag seconds": round(done.lag_s, 3),
            "seconds": round(time.monotonic() - began, 2),
        }
        reporter.result(f"changes followed for {file}", RunFigures(figures))
        return stop.interrupted


def stop_following(file: Path, url: str | None, slot: str, reporter: Reporter) -> bool:
    """Drop a slot with its recorded state; return whether there was one.

    Raises
    ------
    ConfigurationError
        If it is being followed, or belongs to another program.
    """
    with opened(file, url) as db:
        is_dropped = db.changes.unfollow(slot)
    reporter.result(f"slot {slot}", RunFigures({"slot": slot, "dropped": is_dropped}))
    return is_dropped


def _table(db: Database, name: str) -> object:
    table = db.metadata.tables.get(name)
    if table is None:
        known = ", ".join(sorted(db.metadata.tables)) or "none"
        raise ConfigurationError(f"the file declares no table {name}; its tables are: {known}")
    return table


def _following_progress(db: Database, reporter: Reporter) -> Callable[[FollowProgress], None]:
    def progress(now: FollowProgress) -> None:
        failed = db.admin.counters().get("rules_failed", 0)
        reporter.update(
            f"{now.transactions:,} transactions, {now.changes:,} changes, {now.firings:,} firings, "
            f"{failed:,} failed; {now.lag_bytes:,} bytes and {now.lag_s:.1f} s behind"
        )

    return progress
