from __future__ import annotations

from itertools import product

import pytest

from lockmgr import Mode, intention
from lockmgr._modes import COMPATIBLE, CONFLICTS, SUPREMUM, UNIT

IS, IX, S, SIX, X = Mode

PAIRS = list(product(Mode, repeat=2))

# What a mode lets its holder do, and what it lets others do at the same time: the meaning from
# which both tables follow.
RIGHTS = {
    IS: {"read some"},
    IX: {"read some", "write some"},
    S: {"read some", "read all"},
    SIX: {"read some", "read all", "write some"},
    X: {"read some", "read all", "write some", "write all"},
}
TOLERATED = {
    IS: {"read some", "read all", "write some"},
    IX: {"read some", "write some"},
    S: {"read some", "read all"},
    SIX: {"read some"},
    X: set[str](),
}


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_compatible_every_pair_follows_from_the_meaning_of_the_modes(
    one: Mode, other: Mode
) -> None:
    assert COMPATIBLE[one][other] == (RIGHTS[one] <= TOLERATED[other])
    assert COMPATIBLE[one][other] == COMPATIBLE[other][one]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_supremum_every_pair_is_the_weakest_mode_with_both_rights(one: Mode, other: Mode) -> None:
    both = RIGHTS[one] | RIGHTS[other]
    covering = [mode for mode in Mode if both <= RIGHTS[mode]]
    weakest = min(covering, key=lambda mode: len(RIGHTS[mode]))
    assert SUPREMUM[one][other] is weakest
    assert all(RIGHTS[weakest] <= RIGHTS[mode] for mode in covering)


@pytest.mark.parametrize(("one", "other", "third"), list(product(Mode, repeat=3)))
def test_supremum_conflicts_with_exactly_what_one_of_the_two_conflicts_with(
    one: Mode, other: Mode, third: Mode
) -> None:
    merged = COMPATIBLE[SUPREMUM[one][other]][third]
    assert merged == (COMPATIBLE[one][third] and COMPATIBLE[other][third])


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_tally_many_locks_of_one_mode_stay_apart_from_the_other_modes(
    one: Mode, other: Mode
) -> None:
    assert bool((1_000_000 * UNIT[one]) & CONFLICTS[other]) == (not COMPATIBLE[one][other])


def test_intention_readers_need_is_and_writers_ix() -> None:
    assert {mode: intention(mode) for mode in Mode} == {IS: IS, IX: IX, S: IS, SIX: IX, X: IX}
