"""Polling with wake-ups: which process checks, when, and for how long."""

from __future__ import annotations

import math
import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from activedb.store.server import _prepared as _awake
from activedb.store.server._prepared import SpinWait

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core is for the server")


@contextmanager
def watched(*, is_alone: bool = True) -> Iterator[tuple[SpinWait, socket.socket, list[int]]]:
    """A watch, the other end of what it watches, and a list that grows each time it looks."""
    looks: list[int] = []

    def asked() -> bool:
        looks.append(1)
        return is_alone

    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield SpinWait(ours.fileno(), asked), theirs, looks


def test_watch_whose_answer_is_there_looks_every_time() -> None:
    with watched() as (watch, theirs, looks):
        theirs.send(b"answer")
        assert [watch.sees_answer() for _ in range(10)] == [True] * 10
    assert len(looks) == 10


def test_watch_whose_answers_do_not_come_looks_half_as_often_each_time() -> None:
    with watched() as (watch, _, looks):
        looked = []
        for number in range(40):
            before = len(looks)
            assert not watch.sees_answer()
            if len(looks) > before:
                looked.append(number)
    assert looked == [0, 2, 6, 14, 30]


def test_watch_that_has_waited_in_vain_looks_every_time_again_when_an_answer_came() -> None:
    with watched() as (watch, theirs, looks):
        for _ in range(3):
            assert not watch.sees_answer()
        theirs.send(b"answer")
        while not watch.sees_answer():
            assert len(looks) == 2
        looks.clear()
        assert [watch.sees_answer() for _ in range(10)] == [True] * 10
    assert len(looks) == 10


def test_watch_that_is_not_alone_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_awake, "_AWAKE_S", math.inf)
    with watched(is_alone=False) as (watch, _, looks):
        assert not any(watch.sees_answer() for _ in range(100))
    assert len(looks) == 100
