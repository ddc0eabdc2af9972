"""Processes that work on one database at once, some of which are killed on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import create_engine, make_url, text

from tests.patience import PATIENCE_S
from tests.store.server_users import wait_until

if TYPE_CHECKING:
    from types import TracebackType

    from sqlalchemy import Connection

REPOSITORY = Path(__file__).resolve().parents[2]
TESTS = ("ACTIVEDB_TEST_SEED", "ACTIVEDB_TEST_SCALE")  # what modules of tests read


class Worker:
    """One process that runs a module with its task as JSON, and writes to a log.

    It says ``ready`` on its output when it could begin, and begins when it is told to.
    Leaving the ``with`` ends it, by force if it still runs.
    """

    def __init__(self, module: str, task: dict[str, Any], log: Path):
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", module, json.dumps({**task, "log": str(log)})],
            cwd=REPOSITORY,
            env={k: v for k, v in os.environ.items() if k in TESTS or k[:9] != "ACTIVEDB_"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said == "ready\n", said or self._errors()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def lines(self) -> list[str]:
        """Return what it has written so far."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def kill_after(self, lines: int) -> None:
        """Kill it once it has written `lines` lines, wherever it is then."""
        wait_until(lambda: len(self.lines()) >= lines or self.process.poll() is not None)
        self.process.kill()
        self.process.wait()

    def finish(self) -> None:
        """Wait for its end, which must be a good one."""
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, f"ended with {self.process.returncode}\n{errors}"

    def _errors(self) -> str:
        return self.process.communicate(timeout=PATIENCE_S)[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass(frozen=True)
class Server:
    """Database as seen by a program without activedb."""

    url: str

    def run(self, statement: str) -> None:
        engine = create_engine(self.url, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                connection.execute(text(statement))
        finally:
            engine.dispose()

    def find_deadlocks_quickly(self) -> None:
        """Let the server look for deadlocks sooner than after its usual second."""
        name = make_url(self.url).database
        self.run(f"ALTER DATABASE \"{name}\" SET deadlock_timeout = '20ms'")

    def wait_idle(self) -> None:
        """Wait until no other session is left: what killed processes had begun has ended."""
        engine = create_engine(self.url)
        others = text(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )

        def is_idle() -> bool:
            with engine.begin() as connection:
                return not connection.scalar(others)

        try:
            wait_until(is_idle)
        finally:
            engine.dispose()

    def look(self, function: Any) -> Any:
        """Call ``function(connection)`` in a transaction of a plain connection."""
        engine = create_engine(self.url)
        try:
            with engine.begin() as connection:
                plain: Connection = connection
                return function(plain)
        finally:
            engine.dispose()
