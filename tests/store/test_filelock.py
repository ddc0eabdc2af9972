from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from activedb.errors import ConfigurationError
from activedb.store.server._filelock import FileLock, exclusive

if TYPE_CHECKING:
    from pathlib import Path


def test_lock_shared_by_two_excludes_a_third(tmp_path: Path) -> None:
    one, two, third = (FileLock(tmp_path / "lock") for _ in range(3))
    assert one.try_shared()
    assert two.try_shared()
    assert not third.try_exclusive()
    one.release()
    assert not third.try_exclusive()
    two.release()
    assert third.try_exclusive()
    third.release()


@pytest.mark.parametrize("released", [True, False])
def test_lock_inherited_by_another_lives_on_unless_released(tmp_path: Path, released: bool) -> None:
    lock, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert lock.try_exclusive()
    inherited = os.dup(lock.fd)  # as a child process has it
    if released:
        lock.release()
    else:
        lock.hand_over()
    assert other.try_exclusive() == released
    os.close(inherited)
    assert other.try_exclusive()
    other.release()


def test_lock_held_by_another_ends_the_wait_with_what_to_do(tmp_path: Path) -> None:
    with (
        exclusive(tmp_path / "lock", 1),
        pytest.raises(ConfigurationError, match="wait for it or end it"),
        exclusive(tmp_path / "lock", 0.1),
    ):
        pass
    with exclusive(tmp_path / "lock", 0):
        pass


def test_lock_on_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        FileLock(tmp_path / "link")
    assert not (tmp_path / "victim").exists()
