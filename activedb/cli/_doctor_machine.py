"""Machine checks of ``activedb doctor``."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import re
import resource
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from activedb.cli._findings import Finding
from activedb.cli._job import feed_class
from activedb.clock import ClockStatus, KernelClock
from activedb.config import Settings
from activedb.errors import ActiveDBError, ConfigurationError
from activedb.store.server import POSTGRES_VERSION, check_programs, home_of

__all__ = ["connections_max", "machine_checks"]

_PYTHON_TESTED = ((3, 11), (3, 13))
_HANDLES_MORE = 256  # besides the connections: Spark, files, pipes
_DISK_MIN = 200 * 2**20  # bytes
_DISK_SCARCE = 2 * 2**30
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+).*;\s*extra == ['\"]([\w-]+)['\"]")
_FOR_PEOPLE = ("dev", "bench", "berkeleydb", "docs")  # extras for developers of activedb


def connections_max(settings: Settings) -> int:
    """Return the maximum number of connections of one process."""
    return 6 * settings.threads + 25


def machine_checks(
    settings: Settings | None,
) -> tuple[Callable[[], Iterator[Finding]], ...]:
    """Return the checks, in order; without settings those that need none."""
    without = (_python, _extras, _java)
    if settings is None:
        return (*without, _clock)
    return (
        *without,
        _clock,
        lambda: _handles(settings),
        lambda: _folder(settings),
        lambda: _disk(settings),
    )


def _python() -> Iterator[Finding]:
    version = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    first, last = _PYTHON_TESTED
    if not first <= sys.version_info[:2] <= last:
        yield Finding(
            "python",
            "note",
            f"{version}; tested versions are {first[0]}.{first[1]} to {last[0]}.{last[1]}",
            f"if problems occur, use Python {last[0]}.{last[1]}",
        )
    else:
        yield Finding("python", "ok", version)


def _extras() -> Iterator[Finding]:
    """Check the extras of the package: installed completely, in part, or not at all."""
    wanted: dict[str, list[str]] = defaultdict(list)
    for requirement in importlib.metadata.requires("activedb") or ():
        found = _REQUIREMENT.match(requirement)
        if found and not found[1].lower().startswith("activedb"):
            wanted[found[2]].append(found[1])
    for extra, names in sorted(wanted.items()):
        if extra in _FOR_PEOPLE:
            continue
        versions = {name: _version(name) for name in names}
        missing = [name for name, version in versions.items() if version is None]
        install = f"pip install 'activedb[{extra}]'"
        if len(missing) == len(names):
            yield Finding(f"extra {extra}", "note", "not installed", f"if you need it: {install}")
        elif missing:
            yield Finding(
                f"extra {extra}", "note", f"incomplete: {', '.join(missing)} not installed", install
            )
        else:
            said = ", ".join(f"{name} {version}" for name, version in versions.items())
            yield Finding(f"extra {extra}", "ok", said)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _java() -> Iterator[Finding]:
    """Check Spark's requirements: a problem only if Spark is installed."""
    if _version("pyspark") is None:
        yield Finding(
            "java",
            "note",
            "not checked, because Spark is not installed",
            "for activedb run and demo: pip install 'activedb[spark]', and install JDK 17 or newer",
        )
        return
    try:
        yield Finding("java", "ok", feed_class().check_tools())
    except ConfigurationError as error:
        found, _, advice = str(error).rpartition("; ")
        yield Finding("java", "problem", found or str(error), advice or "reinstall activedb")


def _clock() -> Iterator[Finding]:
    logging.getLogger("activedb.clock").setLevel(logging.ERROR)  # the finding says the same
    try:
        reading = KernelClock(fallback_error_us=0).read()
    except ConfigurationError as error:
        found, _, advice = str(error).partition("; ")
        yield Finding("clock", "note", found, advice or "use another source of time")
        return
    if reading.status is ClockStatus.SYNCHRONIZED:
        yield Finding("clock", "ok", f"synchronised, to within {reading.error_us / 1_000:,.1f} ms")
    else:
        yield Finding(
            "clock",
            "note",
            "the kernel does not report that its clock is synchronised",
            "if timestamps of several machines matter, start ntpd, chronyd or systemd-timesyncd",
        )


def _handles(settings: Settings) -> Iterator[Finding]:
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections_max(settings) + _HANDLES_MORE
    if limit == resource.RLIM_INFINITY or limit >= needed:
        yield Finding("file handles", "ok", f"{limit:,} per process")
    else:
        yield Finding(
            "file handles",
            "problem",
            f"{limit:,} per process; threads={settings.threads} may need {needed:,}",
            f"ulimit -n {max(needed, 1_024)} before the program (at most {hard:,} without root)",
        )


def _folder(settings: Settings) -> Iterator[Finding]:
    """Check the embedded server's programs and folder, if there is no other server."""
    if settings.url is not None:
        return
    try:
        check_programs()
        home = home_of(settings.folder)
    except ActiveDBError as error:
        found, _, advice = str(error).rpartition("; ")
        yield Finding("embedded server", "problem", found or str(error), advice)
        return
    version = f"PostgreSQL {POSTGRES_VERSION}"
    if home is not None:
        yield Finding("embedded server", "ok", f"{version}; its data is in {home}")
        return
    nearest = _nearest(settings.folder)
    if os.access(nearest, os.W_OK | os.X_OK):
        yield Finding(
            "embedded server", "ok", f"{version}; {settings.folder} is created when needed"
        )
    else:
        yield Finding(
            "embedded server",
            "problem",
            f"{settings.folder} cannot be created, because {nearest} is not writable",
            "set ACTIVEDB_FOLDER to a writable folder, or ACTIVEDB_URL to your own server",
        )


def _disk(settings: Settings) -> Iterator[Finding]:
    nearest = _nearest(settings.folder)
    free = shutil.disk_usage(nearest).free
    said = f"{free / 2**30:,.1f} GiB free for {settings.folder}"
    if free < _DISK_MIN:
        yield Finding("disk", "problem", said, f"free disk space there, or move {settings.folder}")
    elif free < _DISK_SCARCE:
        yield Finding("disk", "note", said, "free disk space soon: checkpoints and data grow")
    else:
        yield Finding("disk", "ok", said)


def _nearest(folder: Path) -> Path:
    """Return the folder, or the nearest existing one above it."""
    # From os.path: the methods of Path raise if a name is too long, a link leads to itself or a
    # folder may not be entered, and doctor has to report such a folder.
    whole = Path(os.path.realpath(folder))
    return next(each for each in (whole, *whole.parents) if os.path.isdir(each))
