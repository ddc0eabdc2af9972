"""Watcher: a program that stops an embedded server when its last user is gone.

It runs as a separate small program, without the rest of activedb. Each user of the server has
``users.pipe`` open for writing. The kernel closes that end when the user ends, by SIGTERM or
SIGKILL too, and wakes the reading end, here. The data read are irrelevant.

::

    python -I -S _watcher.py HOME PROGRAMS UID GID LOCK PIPE

LOCK and PIPE are descriptors that the starting process hands over: ``watcher.lock``, locked, which
keeps a second watcher away, and ``users.pipe``, so that there has been a writer.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import select
import subprocess
import sys
import time

_STOP_S_MAX = 60
_LOOK_AGAIN_S = 1.0  # for users without a pipe: of another account, or of an older version


def main(arguments: list[str]) -> None:
    """Start watching in the background, and return at once."""
    home, programs, uid, gid, lock, pipe = arguments
    os.chdir(home)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    reading = os.open("users.pipe", flags)
    os.close(int(pipe))
    os.set_inheritable(int(lock), False)
    if os.fork() == 0:
        as_account = {"user": int(uid), "group": int(gid), "extra_groups": []} if uid else {}
        _watch(reading, int(lock), programs, as_account)


def _watch(reading: int, lock: int, programs: str, as_account: dict[str, object]) -> None:
    poll = select.poll()
    poll.register(reading, 0)  # the hang-up of the last writer is always reported
    while True:
        poll.poll()
        start = os.open("start.lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        fcntl.flock(start, fcntl.LOCK_EX)  # no start or stop meanwhile
        users = os.open("users.lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(users)
        else:
            _stop(programs, as_account)
            fcntl.flock(lock, fcntl.LOCK_UN)  # before another start, which needs a new watcher
            return
        os.close(start)
        time.sleep(_LOOK_AGAIN_S)


def _stop(programs: str, as_account: dict[str, object]) -> None:
    """Stop the server, if it runs. REQUIRES: the start lock."""
    where = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_pidfile.py")
    spec = importlib.util.spec_from_file_location("_pidfile", where)
    assert spec is not None
    assert spec.loader is not None
    pidfile = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pidfile)
    file = pidfile.live_postmaster(pidfile.Path("data"))
    if file is None:
        return
    for mode in ("fast", "immediate"):
        done = subprocess.run(  # noqa: S603 - no shell, and the programs are the wheel's own
            [
                *(os.path.join(programs, "pg_ctl"), "stop", "-D", "data"),
                *("-m", mode, "-w", "-t", str(_STOP_S_MAX)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"LC_ALL": "C", "PATH": os.defpath},
            check=False,
            **as_account,  # type: ignore[call-overload]
        )
        if done.returncode == 0:
            break
    if file.socket_folder and not os.path.samefile(file.socket_folder, "."):
        os.rmdir(file.socket_folder)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError:  # the folder, or a file in it, is gone
        sys.exit(1)
