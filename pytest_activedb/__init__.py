"""Pytest plugin: test databases, a simulated clock, and assertions about rules.

``pytest_plugins = ["pytest_activedb"]`` in a ``conftest.py`` enables it. It imports only pytest;
activedb is imported by the first fixture that is used. `activedb.testing` implements the fixtures,
and its README describes their use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import os
    from contextlib import AbstractContextManager

    from activedb import Database, SimulatedClock
    from activedb.testing import Crash, Firing, Killed, Witness

__all__ = ["AssertFired", "CrashHere"]

_MARKER = "activedb(**settings): the settings of activedb_memory and activedb_postgres in this test"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add one option: the Postgres for the fixtures."""
    said = "URL of the Postgres for activedb's fixtures, with a role that may create schemas"
    group = parser.getgroup("activedb")
    group.addoption("--activedb-url", metavar="URL", help=f"{said} (else an embedded one)")
    parser.addini("activedb_url", f"{said}; --activedb-url comes first", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER)


class _WatchedDatabases:
    """The databases of one test, with their witnesses."""

    def __init__(self) -> None:
        self.witnesses: list[Witness] = []

    def watch(self, db: Database) -> Witness:
        from activedb.testing import Witness

        for witness in self.witnesses:
            if witness.db is db:
                return witness
        self.witnesses.append(Witness(db))
        return self.witnesses[-1]

    def one(self, db: Database | None) -> Witness:
        if db is not None:
            return self.watch(db)
        if len(self.witnesses) != 1:
            raise pytest.UsageError(
                "say which database is meant with db=: "
                + (
                    "several of activedb's fixtures are used"
                    if self.witnesses
                    else "none of activedb's fixtures is used, and no db was given to "
                    "assert_fired.watch(db) before its rules ran"
                )
            )
        return self.witnesses[0]

    def databases(self, db: Database | None) -> list[Database]:
        return [self.one(db).db] if db is not None else [each.db for each in self.witnesses]


class AssertFired:
    """Value of the fixture ``assert_fired``: call it with the name of a rule."""

    def __init__(self, watched: _WatchedDatabases):
        self._watched = watched

    def __call__(
        self,
        rule: str | Callable[..., Any],
        times: int | None = None,
        params: Mapping[str, Any] | None = None,
        *,
        db: Database | None = None,
        wait: bool = True,
    ) -> list[Firing]:
        """Assert that a rule has fired; see `activedb.testing.Witness.assert_fired`.

        Parameters
        ----------
        db : Database, optional
            The database, if the test has several; it is watched from now on, if it was not before.
        """
        __tracebackhide__ = True
        return self._watched.one(db).assert_fired(rule, times, params, wait=wait)

    def watch(self, db: Database) -> Witness:
        """Watch the rules of a database that the test has opened itself."""
        return self._watched.watch(db)

    def forget(self) -> None:
        """Count only what happens from now on."""
        for witness in self._watched.witnesses:
            witness.forget()


class CrashHere:
    """Value of the fixture ``crash_here``: errors and process deaths at named points."""

    def __init__(self, watched: _WatchedDatabases, url: Callable[[], str]):
        self._watched = watched
        self._url = url

    def __call__(
        self, point: str, *, nth: int = 1, db: Database | None = None
    ) -> AbstractContextManager[Crash]:
        """Return a block that ends with an error at a point; see `activedb.testing.crashing`.

        The databases are those of the test's fixtures, or `db`.
        """
        from activedb.testing import crashing

        databases = self._watched.databases(db)
        if not databases:
            self._watched.one(None)
        return crashing(databases, point, nth)

    def killed(
        self,
        target: Callable[..., Any] | str | os.PathLike[str],
        *arguments: Any,
        at: str,
        nth: int = 1,
        variables: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> Killed:
        """Kill a separate process at a point; see `activedb.testing.run_until_killed`.

        Its ``ACTIVEDB_URL`` is that of the fixture ``activedb_url``, unless `variables` has one.
        """
        __tracebackhide__ = True
        from activedb.testing import run_until_killed

        given = {"ACTIVEDB_URL": self._url()} | dict(variables or {})
        return run_until_killed(
            target, *arguments, at=at, nth=nth, variables=given, timeout_s=timeout_s
        )


@pytest.fixture(scope="session")
def activedb_server(pytestconfig: pytest.Config) -> Iterator[str]:
    """Yield the URL of the session's (or xdist worker's) Postgres: an embedded one, or yours."""
    from activedb.testing import ScratchServer

    url = pytestconfig.getoption("--activedb-url") or pytestconfig.getini("activedb_url") or None
    worker = getattr(pytestconfig, "workerinput", {}).get("workerid", "main")
    with _folder(pytestconfig) as folder, ScratchServer(url, folder / worker) as server:
        yield server.url


@contextmanager
def _folder(config: pytest.Config) -> Iterator[Path]:
    """Yield the embedded server's data folder: pytest's cache, so that the next start is fast."""
    cache = getattr(config, "cache", None)
    if cache is not None:
        yield cache.mkdir("activedb")
        return
    with TemporaryDirectory(prefix="activedb-") as folder:
        Path(folder).chmod(0o755)  # its contents belong to the server's account
        yield Path(folder)


@pytest.fixture
def activedb_url(activedb_server: str) -> Iterator[str]:
    """Yield the URL of an empty schema for this test; for programs that open it themselves."""
    from activedb.testing import scratch_url

    with scratch_url(activedb_server) as url:
        yield url


@pytest.fixture
def activedb_clock() -> SimulatedClock:
    """Return a clock that stands at 2026-01-01T00:00Z until ``advance(seconds)`` is called.

    In a test that requests it, the databases of the other fixtures use it.
    """
    from datetime import UTC, datetime

    from activedb import SimulatedClock

    return SimulatedClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def _activedb_watched() -> Iterator[_WatchedDatabases]:
    watched = _WatchedDatabases()
    yield watched
    for witness in watched.witnesses:  # a database that the test opened may live on
        witness.close()


@pytest.fixture
def activedb_memory(
    request: pytest.FixtureRequest, _activedb_watched: _WatchedDatabases
) -> Iterator[Database]:
    """Yield an open database in memory, empty; closed after the test."""
    yield from _opened(request, _activedb_watched, "memory://")


@pytest.fixture
def activedb_postgres(
    request: pytest.FixtureRequest, activedb_url: str, _activedb_watched: _WatchedDatabases
) -> Iterator[Database]:
    """Yield an open database on Postgres, in an empty schema for this test; closed after it."""
    yield from _opened(request, _activedb_watched, activedb_url)


@pytest.fixture
def assert_fired(_activedb_watched: _WatchedDatabases) -> AssertFired:
    """Return an assertion about a rule's firings: ``assert_fired("rule", times=2)``."""
    return AssertFired(_activedb_watched)


@pytest.fixture
def crash_here(request: pytest.FixtureRequest, _activedb_watched: _WatchedDatabases) -> CrashHere:
    """Return a helper that makes a block or process fail at a point: ``with crash_here("…"):``."""
    return CrashHere(_activedb_watched, lambda: str(request.getfixturevalue("activedb_url")))


def _opened(
    request: pytest.FixtureRequest, watched: _WatchedDatabases, url: str
) -> Iterator[Database]:
    import activedb

    settings: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("activedb"))):  # the nearest one last
        settings |= marker.kwargs
    clock = None
    if "activedb_clock" in request.fixturenames:
        clock = request.getfixturevalue("activedb_clock")
    with activedb.connect(url, clock=clock, **settings) as db:
        watched.watch(db)
        yield db
