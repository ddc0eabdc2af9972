"""``activedb doctor``: problems of this machine and its server, with advice."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import re
import resource
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import typer
from rich.text import Text

from activedb.cli._options import Json, Trace, Url, server_of
from activedb.cli._report import Reporter
from activedb.cli._running import feed_class
from activedb.clock import ClockStatus, KernelClock
from activedb.config import Settings, mask_url
from activedb.errors import ActiveDBError, ConfigurationError
from activedb.spelling import printable
from activedb.store.journals import database_migrations, lacking_rights
from activedb.store.server import (
    POSTGRES_VERSION,
    ServerFacts,
    check_programs,
    home_of,
    server_facts,
)

__all__ = ["Finding", "Verdict", "connections_max", "doctor", "machine_checks", "server_checks"]


Verdict: TypeAlias = Literal["ok", "note", "problem"]
"""No problem; worth knowing; activedb, or something installed for it, cannot work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes
    ----------
    what : str
        Subject of the check.
    verdict : {"ok", "note", "problem"}
    found : str
    advice : str
        Advice; empty if there is nothing to do.
    """

    what: str
    verdict: Verdict
    found: str
    advice: str = ""

    def __post_init__(self) -> None:
        assert bool(self.advice) == (self.verdict != "ok"), "each finding says what to do"

    @classmethod
    def of(cls, what: str, verdict: Verdict, error: ActiveDBError, *, otherwise: str) -> Finding:
        """Return a finding about an error, whose message ends with an advice if it has one."""
        text, advises, last = str(error).rpartition("; ")
        return cls(what, verdict, text, last) if advises else cls(what, verdict, last, otherwise)

    def record(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return asdict(self)


# -- machine checks of ``activedb doctor`` ---------------------------------------------------------


_PYTHON_TESTED = ((3, 11), (3, 13))
_HANDLES_MORE = 256  # besides the connections: Spark, files, pipes
_DISK_MIN = 200 * 2**20  # bytes
_DISK_SCARCE = 2 * 2**30
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+).*;\s*extra == ['\"]([\w-]+)['\"]")
_FOR_DEVELOPERS = ("dev", "bench", "berkeleydb", "docs", "pyright", "test")
"""Extras for those who develop activedb itself."""


def connections_max(settings: Settings) -> int:
    """Return the number of connections that one process usually needs at most.

    Causal rules under ``isolation="serializable"`` may need another ``2 * threads + 10``.
    """
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
        if extra in _FOR_DEVELOPERS:
            continue
        versions = {name: _version(name) for name in names}
        missing = [name for name, version in versions.items() if version is None]
        install = f"pip install '.[{extra}]'"
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
            "for activedb run and demo: pip install '.[spark]', and install JDK 17 or newer",
        )
        return
    try:
        yield Finding("java", "ok", feed_class().check_tools())
    except ConfigurationError as error:
        yield Finding.of("java", "problem", error, otherwise="reinstall activedb")


def _clock() -> Iterator[Finding]:
    logging.getLogger("activedb.clock").setLevel(logging.ERROR)  # the finding says the same
    try:
        reading = KernelClock(fallback_error_us=0).read()
    except ConfigurationError as error:
        yield Finding.of("clock", "note", error, otherwise="use another source of time")
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
        yield Finding.of("embedded server", "problem", error, otherwise="reinstall activedb")
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


# -- ``activedb doctor``: problems of this machine and its server, with advice ---------------------


_STYLES: dict[Verdict, str] = {"ok": "green", "note": "yellow", "problem": "bold red"}


def doctor(url: Url = None, as_json: Json = False, show_traceback: Trace = False) -> None:
    """Check this machine and the database server, and suggest fixes.

    On this machine: Python, the extras, Java and Spark, the limit of file handles, the disk, the
    clock, the folder of the embedded server. On the server: version, encryption, rights, encoding,
    time zone, clock, sessions, free connections. Nothing is changed. A note is worth knowing; a
    problem keeps activedb from working.

    Exits with 0 if there are no problems, and with 1 otherwise.
    """
    reporter = Reporter(as_json=as_json)
    found: list[Finding] = []
    try:
        settings = Settings.load(url=url)
    except ConfigurationError as error:
        found.append(Finding("settings", "problem", str(error), "correct this setting"))
        settings = None
    with reporter.looking("checking this machine"):
        for check in machine_checks(settings):
            found += _found_by(check())
        if settings is not None:
            reporter.update("checking the server")
            found += _found_by(server_checks(settings))
    counts: Counter[Verdict] = Counter(finding.verdict for finding in found)
    reporter.says(
        _text(found, counts),
        {
            "problems": counts["problem"],
            "notes": counts["note"],
            "findings": [each.record() for each in found],
        },
    )
    if counts["problem"]:
        raise typer.Exit(1)


def _found_by(check: Iterator[Finding]) -> Iterator[Finding]:
    """Yield the findings of a check; an error that stops the check is a finding, too."""
    try:
        yield from check
    except (OSError, RuntimeError) as error:  # a link that leads to itself is either of them
        text = " ".join(str(error).split())
        said = f"cannot be checked: {type(error).__name__}: {text}"
        yield Finding("machine", "problem", said, "make it readable, or choose another folder")


def _text(found: Sequence[Finding], counts: Counter[Verdict]) -> Text:
    """Return a line for each finding, its advice below it, and the totals."""
    text = Text()
    wide = max(len(each.what) for each in found)
    for each in found:
        text.append(f"{each.verdict:<8}", _STYLES[each.verdict])
        text.append(f"{each.what:<{wide}}  {printable(each.found)}\n")
        if each.advice:
            text.append(f"{'':8}{'':{wide}}  → {printable(each.advice)}\n")
    return text.append(f"{_some(counts['problem'], 'problem')}, {_some(counts['note'], 'note')}")


def _some(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


# -- server checks of ``activedb doctor`` ------------------------------------------------------


_TESTED = (15, 18)
_SKEW_S_MAX = 1.0
_READ_LOG = "read the server's log"


def server_checks(settings: Settings) -> Iterator[Finding]:
    """Yield the findings about the server; a single one if it cannot be asked."""
    if settings.url == "memory://":
        yield Finding("server", "ok", "none: memory:// keeps all data in the process")
        return
    try:
        with server_of(settings) as url:
            if url is None:
                yield Finding("server", "ok", "the embedded server, which is created when needed")
                return
            facts = server_facts(url, settings.db_schema)
            tables = _tables(url, settings, facts)
    except ActiveDBError as error:
        yield Finding.of("server", "problem", error, otherwise=_READ_LOG)
        return
    yield from version_of(facts, settings)
    for check in CHECKS:
        yield check(facts, settings)
    yield tables


def version_of(facts: ServerFacts, settings: Settings) -> Iterator[Finding]:
    """Check which server it is."""
    where = "embedded" if settings.url is None else mask_url(settings.url)
    said = f"PostgreSQL {facts.version} ({where}), as {facts.role}"
    first, last = _TESTED
    major = facts.number // 10_000
    if major < first:
        advice = f"use a server of version {first} or newer, or omit the URL"
        yield Finding("server", "problem", said, advice)
    elif major > last:
        advice = f"tested versions are {first} to {last}: if problems occur, use one of these"
        yield Finding("server", "note", said, advice)
    else:
        yield Finding("server", "ok", said)


def _writable(facts: ServerFacts, settings: Settings) -> Finding:
    if facts.is_read_only:
        return Finding(
            "writing",
            "problem",
            "the server is read-only: it is a standby, or sets default_transaction_read_only",
            "connect to the primary, for example with host=a,b&target_session_attrs=read-write",
        )
    return Finding("writing", "ok", f"database {facts.database} is writable")


def _encryption(facts: ServerFacts, settings: Settings) -> Finding:
    if not facts.is_encrypted and not facts.is_local:
        return Finding(
            "encryption",
            "note",
            "the connection crosses the network in plain text",
            "add ?sslmode=verify-full&sslrootcert=… to the URL (docs/security.md)",
        )
    said = "TLS" if facts.is_encrypted else "none, and not needed on this computer"
    return Finding("encryption", "ok", said)


def _encoding(facts: ServerFacts, settings: Settings) -> Finding:
    if facts.encoding != "UTF8":
        return Finding(
            "encoding",
            "problem",
            f"{facts.encoding}: the database cannot store every text",
            "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and use that database",
        )
    return Finding("encoding", "ok", "UTF8")


def _zone(facts: ServerFacts, settings: Settings) -> Finding:
    return Finding("time zone", "ok", f"{facts.zone}; activedb's own connections use UTC")


def _skew(facts: ServerFacts, settings: Settings) -> Finding:
    apart = abs(facts.ahead_s) - facts.uncertain_s
    way = "ahead of" if facts.ahead_s > 0 else "behind"
    said = f"the server's clock is {abs(facts.ahead_s):,.3f} s {way} this computer's"
    said += f" (± {facts.uncertain_s:,.3f} s)"
    if apart > min(settings.future_max_s, 60.0):
        advice = "correct the wrong clock; otherwise events are refused as being from the future"
        return Finding("clocks", "problem", said, advice)
    if apart > _SKEW_S_MAX:
        advice = "if times of several machines are compared, synchronise both clocks (NTP)"
        return Finding("clocks", "note", said, advice)
    return Finding("clocks", "ok", said)


def _listening(facts: ServerFacts, settings: Settings) -> Finding:
    if facts.is_pooled or not facts.may_listen:
        why = "a pooler" if facts.is_pooled else "something"
        return Finding(
            "sessions",
            "problem",
            f"{why} between this program and the server does not keep sessions; leases, locks and "
            "notifications need them",
            "connect to the server directly, or set the pooler to session pooling",
        )
    return Finding("sessions", "ok", "kept; LISTEN and NOTIFY work")


def _room(facts: ServerFacts, settings: Settings) -> Finding:
    needed = connections_max(settings)
    free = facts.connections_max - facts.connections_used
    said = f"{facts.connections_used} of {facts.connections_max} connections are in use"
    if free < needed:
        return Finding(
            "connections",
            "note",
            f"{said}; one process may need {needed} under load (threads={settings.threads})",
            "raise max_connections on the server, or lower the setting threads",
        )
    return Finding("connections", "ok", said)


def _log(facts: ServerFacts, settings: Settings) -> Finding:
    if facts.wal_level != "logical":
        return Finding(
            "activedb follow",
            "note",
            f"wal_level is {facts.wal_level}",
            "to follow changes: ALTER SYSTEM SET wal_level = logical, and restart the server",
        )
    if not facts.may_replicate:
        advice = "to follow changes: ALTER ROLE … REPLICATION, as a superuser"
        return Finding("activedb follow", "note", "the role lacks REPLICATION", advice)
    return Finding("activedb follow", "ok", "wal_level is logical, and the role has REPLICATION")


CHECKS: tuple[Callable[[ServerFacts, Settings], Finding], ...] = (
    _writable,
    _encryption,
    _encoding,
    _zone,
    _skew,
    _listening,
    _room,
    _log,
)
"""Diagnostics of the server, from its facts and the settings."""


def _tables(url: str, settings: Settings, facts: ServerFacts) -> Finding:
    """Check activedb's own tables: their version, and this role's right to create or use them."""
    try:
        found = database_migrations(url, settings.db_schema)
        lacking = [] if found.due else lacking_rights(url, settings.db_schema)
    except ActiveDBError as error:
        return Finding.of("tables", "problem", error, otherwise=_READ_LOG)
    schema = settings.db_schema or facts.schema
    if found.are_newer:
        said = f"version {found.found}; this activedb supports versions up to {found.newest}"
        return Finding("tables", "problem", said, "install the newer activedb that created them")
    if found.due:
        said = f"version {found.found or 'none'}; the newest is {found.newest}"
        if facts.may_make_tables if facts.schema_exists else facts.may_make_schemas:
            advice = (
                "none needed: the next program that connects migrates them (or activedb migrate)"
            )
            return Finding("tables", "note", said, advice)
        said += f", and {facts.role} may not create tables in schema {schema}"
        advice = "run activedb migrate as their owner, or GRANT CREATE ON SCHEMA … to this role"
        return Finding("tables", "problem", said, advice)
    if lacking:
        tables = sorted({table for table, _ in lacking})
        shown = ", ".join(tables[:3]) + (", …" if len(tables) > 3 else "")
        said = f"{facts.role} lacks rights on {shown}"
        advice = "grant them; activedb roles --sql prints what a role needs"
        return Finding("tables", "problem", said, advice)
    return Finding("tables", "ok", f"version {found.found}, in schema {schema}")
