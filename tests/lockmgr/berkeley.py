"""Lock requests to Berkeley DB, and scenes in which it lets a transaction wait for ever.

Such a scene is played in a process of its own, which ends without joining the blocked threads::

    python -m tests.lockmgr.berkeley siblings
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from lockmgr import Mode
from tests.patience import PATIENCE_S

berkeleydb = pytest.importorskip(
    "berkeleydb.db", reason="the PyPI package berkeleydb, with libdb 5.3, is not installed"
)

MODES = {
    Mode.IS: berkeleydb.DB_LOCK_IREAD,
    Mode.IX: berkeleydb.DB_LOCK_IWRITE,
    Mode.S: berkeleydb.DB_LOCK_READ,
    Mode.X: berkeleydb.DB_LOCK_WRITE,
}
POLICIES = (
    "DEFAULT",
    "MAXLOCKS",
    "MAXWRITE",
    "MINLOCKS",
    "MINWRITE",
    "OLDEST",
    "RANDOM",
    "YOUNGEST",
)

Environment: TypeAlias = Any
"""A ``DBEnv``; the package has no types."""


def open_environment() -> Environment:
    """Return an environment with locks and transactions, all in memory."""
    environment = berkeleydb.DBEnv()
    environment.log_set_config(berkeleydb.DB_LOG_IN_MEMORY, 1)
    environment.open(
        None,
        berkeleydb.DB_CREATE
        | berkeleydb.DB_PRIVATE
        | berkeleydb.DB_THREAD
        | berkeleydb.DB_INIT_TXN
        | berkeleydb.DB_INIT_LOCK
        | berkeleydb.DB_INIT_LOG
        | berkeleydb.DB_INIT_MPOOL,
    )
    return environment


def is_granted(environment: Environment, transaction: Any, resource: bytes, mode: Mode) -> bool:
    """Ask Berkeley DB for a lock, without waiting."""
    try:
        environment.lock_get(transaction.id(), resource, MODES[mode], berkeleydb.DB_LOCK_NOWAIT)
    except berkeleydb.DBLockNotGrantedError:
        return False
    return True


class Scene:
    """An environment, transactions in it, and what they are about to wait for."""

    def __init__(self) -> None:
        self.environment = open_environment()
        self.transactions: list[Any] = []
        self.wishes: list[tuple[Any, bytes, Mode]] = []

    def begin(self, parent: Any = None) -> Any:
        """Begin a transaction and keep it, as it would abort otherwise."""
        transaction = self.environment.txn_begin(parent)
        self.transactions.append(transaction)
        return transaction

    def strangers(self) -> None:
        """Let each of two top-level transactions want what the other holds."""
        self._crosswise(self.begin(), self.begin())

    def siblings(self) -> None:
        """Let each of two children want what the other holds."""
        parent = self.begin()
        self._crosswise(self.begin(parent), self.begin(parent))

    def _crosswise(self, one: Any, other: Any) -> None:
        assert is_granted(self.environment, one, b"a", Mode.X)
        assert is_granted(self.environment, other, b"b", Mode.X)
        self.wishes += [(one, b"b", Mode.X), (other, b"a", Mode.X)]

    def parent_and_child(self) -> None:
        """Let a parent want to read what its live child has written."""
        parent = self.begin()
        assert is_granted(self.environment, self.begin(parent), b"a", Mode.X)
        self.wishes += [(parent, b"a", Mode.S)]

    def victims(self, policy: str) -> int:
        """Let all wishes block, each in a thread; return how many waits the detector ends."""
        for transaction, resource, mode in self.wishes:
            wish = (transaction.id(), resource, MODES[mode])
            threading.Thread(target=self._wait, args=wish, daemon=True).start()
        until_s = time.monotonic() + PATIENCE_S
        while self.environment.lock_stat()["lock_wait"] < len(self.wishes):
            assert time.monotonic() < until_s, "they do not block"
        ended: int = self.environment.lock_detect(getattr(berkeleydb, f"DB_LOCK_{policy}"))
        return ended

    def _wait(self, *wish: object) -> None:
        with contextlib.suppress(berkeleydb.DBLockDeadlockError):
            self.environment.lock_get(*wish)


def victims_by_policy(scene: str) -> dict[str, int]:
    """Play a scene in another process, in which a thread may stay blocked."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", __name__, scene],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        timeout=PATIENCE_S,
        check=True,
    )
    found: dict[str, int] = json.loads(run.stdout)
    assert set(found) == set(POLICIES)
    return found


if __name__ == "__main__":
    scenes = {policy: Scene() for policy in POLICIES}
    for scene in scenes.values():
        getattr(scene, sys.argv[1])()
    print(json.dumps({policy: scene.victims(policy) for policy, scene in scenes.items()}))
    sys.stdout.flush()
    os._exit(0)  # threads that are blocked cannot be joined
