"""Addresses of monitors: one small file for each process, in the folder of the settings."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

__all__ = ["Address", "addresses", "tell", "withdraw"]

_LOG = logging.getLogger(__name__)
_FOLDER = "monitors"
_BYTES_MAX = 10_000


class Address(NamedTuple):
    """Address of a process's monitor; the token is never written to a file.

    Attributes
    ----------
    url : str
    pid : int
    started_s : float
    """

    url: str
    pid: int
    started_s: float


def tell(folder: Path, address: Address) -> Path | None:
    """Write an address to its file; return None, and log a warning, if it cannot be written."""
    path = folder / _FOLDER / f"{address.pid}-{address.url.rpartition(':')[2]}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Replaced atomically, as others may be reading. Only its owner can read a temporary file.
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8"
        ) as file:
            json.dump(address._asdict(), file)
        os.replace(file.name, path)
    except OSError as error:
        _LOG.warning("cannot write where the monitor listens to %s: %s", path, error)
        return None
    return path


def withdraw(path: Path | None) -> None:
    """Remove the file of an address."""
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink()


def addresses(folder: Path | str) -> list[Address]:
    """Return the monitors of the live processes that use this folder, the newest first.

    Files of processes that were killed are removed. Files that were written neither by this user
    nor by root are ignored.
    """
    found = []
    for path in sorted((Path(folder) / _FOLDER).glob("*.json")):
        address = _read(path)
        if address is None:
            continue
        if _lives(address.pid):
            found.append(address)
        else:
            withdraw(path)
    return sorted(found, key=lambda address: address.started_s, reverse=True)


def _read(path: Path) -> Address | None:
    try:
        with open(path, "rb", opener=_opened) as file:
            # Other users may be able to write to the folder, and the token is sent to the URL in
            # the file.
            if os.fstat(file.fileno()).st_uid not in (os.getuid(), 0):
                return None
            data = json.loads(file.read(_BYTES_MAX))
        address = Address(str(data["url"]), int(data["pid"]), float(data["started_s"]))
        return address if address.url.startswith("http://") else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None  # being removed, or some other program's file


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe has no writer to wait for


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # the process of another user
    except OverflowError:
        return False
    return pid > 0
