"""Fixtures that every test may use.

The servers are imported by the fixtures that start them: the tests of the pure packages run
without the store and its libraries.
"""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import time
from collections import Counter
from datetime import datetime
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants, constants_from_module

from tests import jitter
from tests.databases import join_threads
from tests.patience import TEST_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from activedb import Database
    from tests.cli.calling import Caller
    from tests.databases import Place
    from tests.ledger import Ledger

_SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
_UNTIL_S = float(os.environ.get("ACTIVEDB_TEST_UNTIL", "inf"))  # since 1970
_passed_over: Counter[str] = Counter()
# Always the same, so that no run fails by chance; "drawn" looks for what other seeds would find.
_SEED = os.environ.setdefault("ACTIVEDB_TEST_SEED", "1")
if _SEED == "drawn":
    _SEED = os.environ["ACTIVEDB_TEST_SEED"] = str(random.randrange(2**32))
_ORDER_SEED = os.environ.setdefault("ACTIVEDB_TEST_ORDER_SEED", str(random.randrange(2**32)))
_REPOSITORY = Path(__file__).resolve().parent.parent

hypothesis.settings.register_profile(
    "activedb",
    derandomize=False,
    print_blob=True,
    deadline=None,
    max_examples=50 * _SCALE,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],  # it measures the machine
)
hypothesis.settings.load_profile("activedb")


@cache
def _constants_of_the_product() -> Constants:
    """Return the constants that Hypothesis draws now and then: of all modules of the product."""
    found = providers._local_constants  # none yet, but sorted: the same for any PYTHONHASHSEED
    for package in ("activedb", "coupling", "lockmgr", "pytest_activedb", "spark_bridge"):
        for path in sorted((_REPOSITORY / package).rglob("*.py")):
            module = ModuleType(path.stem)
            module.__file__ = str(path)
            found |= constants_from_module(module)
    return found


# Else they are those of the modules imported by then: the values drawn from one seed would depend
# on which tests this process has run before.
providers._get_local_constants = _constants_of_the_product

# A shell's background job starts with Ctrl-C ignored, and would hand that on to every program here.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads its options
def pytest_configure(config: pytest.Config) -> None:
    """Let Hypothesis draw from the same seed; begin with the pauses between threads."""
    if os.environ.get("ACTIVEDB_TEST_JITTER"):
        jitter.install(int(_SEED))
    config.option.hypothesis_seed = _SEED


def pytest_report_header() -> str:
    """Say with which seeds the same random programs are run again, and in the same order."""
    until = f", until {datetime.fromtimestamp(_UNTIL_S):%X}" if math.isfinite(_UNTIL_S) else ""
    return f"ACTIVEDB_TEST_SEED={_SEED} ACTIVEDB_TEST_ORDER_SEED={_ORDER_SEED}{until}"


def _is_long(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("long", "spark", "crash")) or getattr(
        getattr(item, "obj", None), "is_hypothesis_test", False
    )


_SERVERS = {"postgres_url", "database_url", "plain_postgres_url"}


def _needs_server(item: pytest.Item) -> bool:
    """Return whether a test asks for a server, itself or by the parameter of a fixture."""
    params = getattr(item, "callspec", None)
    values = () if params is None else params.params.values()
    return not _SERVERS.isdisjoint(getattr(item, "fixturenames", ())) or any(
        isinstance(value, str) and value == "postgres" for value in values
    )


@pytest.hookimpl(tryfirst=True)  # before -m chooses by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let no test hang for ever; long ones come last, by module, mixed; all are if asked to."""
    for item in items:
        item.add_marker(pytest.mark.timeout(TEST_S))
        if _needs_server(item):
            item.add_marker(pytest.mark.server)
    chance = random.Random(_ORDER_SEED)
    places = {item.path: chance.random() for item in items}
    if os.environ.get("ACTIVEDB_TEST_ORDER") == "random":
        chance.shuffle(items)
        items.sort(key=lambda item: places[item.path])
    short = [item for item in items if not _is_long(item)]
    long = sorted(filter(_is_long, items), key=lambda item: places[item.path])
    # With --dist worksteal each process begins with one part of the list.
    parts = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = [
        item
        for n in range(parts)
        for kind in (short, long)
        for item in kind[len(kind) * n // parts : len(kind) * (n + 1) // parts]
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Count a test instead of running it once the time limit has passed."""
    if time.time() < _UNTIL_S:
        return None
    _passed_over["tests"] += 1
    if hasattr(item.config, "workeroutput"):
        item.config.workeroutput.update(_passed_over)
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the tests that a worker process did not run."""
    _passed_over["tests"] += getattr(node, "workeroutput", {}).get("tests", 0)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run whose time was up before any test passed: it says nothing."""
    terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    is_worker = hasattr(session.config, "workeroutput")
    if _passed_over["tests"] and not is_worker and not terminal.stats.get("passed"):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests were not run."""
    if _passed_over["tests"]:
        line = f"{_passed_over['tests']} tests were not run: time was up (make test-all runs all)"
        terminalreporter.write_line(line, yellow=True)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Report failures at once, in the process that writes what the user reads."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        session.config.pluginmanager.register(_Failures(terminal))


class _Failures:
    """Reporter of failures as they happen: a long run may be stopped before its end."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.line("")
            self._terminal.write_sep("_", f"{report.nodeid} ({report.when})", red=True)
            self._terminal.write_line(report.longreprtext)


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """Let no thread of a test outlive it."""
    yield
    join_threads()


@pytest.fixture(autouse=True)
def own_transactions() -> Iterator[None]:
    """Let no test leave a transaction open on the thread, where it would change what waits do."""
    yield
    if "activedb.transactions" in sys.modules:
        from activedb.transactions._threads import here

        left = [node.path for node in here.nodes]
        here.nodes.clear()
        assert left == []


@pytest.fixture(autouse=True)
def own_settings() -> Iterator[None]:
    """Restore the ``ACTIVEDB_`` variables that a test or what it calls has changed."""
    before = _settings()
    yield
    for name in _settings().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("ACTIVEDB_")}


@pytest.fixture(scope="session")
def scale() -> int:
    """Return the factor by which a test multiplies its default work (``ACTIVEDB_TEST_SCALE``)."""
    return _SCALE


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the folder with the real event data (``ACTIVEDB_DATA``)."""
    folder = Path(os.environ.get("ACTIVEDB_DATA") or _REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no event data in {folder}; set ACTIVEDB_DATA to the folder that has them")
    return folder


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The embedded server of this run: its default database."""
    from tests.servers import embedded_server

    with embedded_server() as url:
        yield url


@pytest.fixture
def database_url(postgres_url: str) -> Iterator[str]:
    """An empty database of this test's own, on the embedded server of this run."""
    from tests.servers import fresh_database

    with fresh_database(postgres_url) as url:
        yield url


@pytest.fixture(params=["memory", "postgres"])
def where(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Somewhere to open databases, empty at first: once in memory and once on Postgres."""
    from tests.databases import place

    url = None if request.param == "memory" else request.getfixturevalue("postgres_url")
    with place(url) as opened:
        yield opened


@pytest.fixture
def there(postgres_url: str) -> Iterator[Place]:
    """Somewhere on Postgres, for several database objects."""
    from tests.databases import place

    with place(postgres_url) as opened:
        yield opened


@pytest.fixture
def db(where: Place) -> Database:
    """An open database with the default settings and no tables."""
    return where.open()


@pytest.fixture
def ledger(db: Database) -> Ledger:
    """Accounts 1 and 2 with balances 10 and 20."""
    from tests.ledger import open_ledger

    return open_ledger(db, {1: 10, 2: 20})


@pytest.fixture(scope="session")
def plain_postgres_url() -> Iterator[str]:
    """A server over TCP with a password, from the system's own programs if it has some."""
    from tests.servers import plain_server

    with plain_server() as url:
        yield url


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Caller:
    """``activedb``, called here in an empty folder, with no settings in the environment."""
    from tests.cli.calling import Caller

    for name in _settings():
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    return Caller(monkeypatch, capsys)
