"""Drawing: as many worlds as asked for, and more only for what is still to be met."""

from __future__ import annotations

import pytest

from tests.drawing import Worlds, drawn


def test_drawn_from_the_same_names_is_the_same_and_from_others_is_not() -> None:
    assert drawn("a", 1).random() == drawn("a", 1).random()
    assert len({drawn(*of).random() for of in (("a", 1), ("a", 2), ("b", 1), ())}) == 4


def test_worlds_that_want_nothing_are_as_many_as_asked_for() -> None:
    assert len({world.random() for world in Worlds(10, "of this test")}) == 10


def test_worlds_are_drawn_until_everything_wanted_was_met() -> None:
    worlds = Worlds(10, early=2, late=1)
    for number, _ in enumerate(worlds, 1):
        worlds.met["early"] += number <= 5
        worlds.met["late"] += number == 37
    assert number == 37


def test_worlds_that_never_say_anything_fail_and_say_what_is_missing() -> None:
    worlds = Worlds(2, early=1, late=1)
    with pytest.raises(AssertionError, match=r"200 worlds, and too seldom: \['late'\]"):
        for _ in worlds:
            worlds.met["early"] += 1
