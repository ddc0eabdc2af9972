"""Readers of a ring get each new entry once, or learn how many they have missed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from activedb.monitor._watch import Rings

SIZES = (3, 2)


class LookingAtRings(RuleBasedStateMachine):
    """Rings against plain lists of all that was ever added; three who look, each at his time."""

    def __init__(self) -> None:
        super().__init__()
        self.rings: Rings[int] = Rings(*SIZES)
        self.added: list[tuple[int, int]] = []  # ring and entry, by number
        self.since = [0, 0, 0]
        self.told: list[list[int]] = [[], [], []]
        self.missed = [0, 0, 0]

    @rule(ring=st.integers(0, len(SIZES) - 1))
    def add(self, ring: int) -> None:
        entry = len(self.added) + 100
        self.added.append((ring, entry))
        assert self.rings.add(ring, entry) == len(self.added)

    @rule(who=st.integers(0, 2))
    def look(self, who: int) -> None:
        since = self.since[who]
        news = self.rings.since(since)
        assert news.last == len(self.added)
        for ring, entries in enumerate(news.entries):
            after = [(n, e) for n, (r, e) in enumerate(self.added, 1) if r == ring and n > since]
            assert entries == after[-SIZES[ring] :]  # the newest ones, in order
            self.told[who] += [entry for _, entry in entries]
        assert news.last - since == sum(map(len, news.entries)) + news.skipped
        self.missed[who] += news.skipped
        self.since[who] = news.last

    @invariant()
    def nobody_is_told_twice_or_misses_unknowingly(self) -> None:
        for who in range(3):
            told = self.told[who]
            assert len(set(told)) == len(told)
            assert len(told) + self.missed[who] == self.since[who]

    @invariant()
    def no_more_is_kept_than_may_be(self) -> None:
        for ring, size in zip(self.rings._rings, SIZES, strict=True):
            assert len(ring) <= size


TestRings = LookingAtRings.TestCase
TestRings.settings = settings(max_examples=40, stateful_step_count=40)


@given(st.lists(st.integers(0, 1), max_size=10), st.integers(-5, 50))
def test_rings_number_of_another_process_tells_all_that_is_kept(
    rings: list[int], since: int
) -> None:
    kept: Rings[str] = Rings(20, 20)
    for ring in rings:
        kept.add(ring, "x")
    news = kept.since(since)
    is_ours = 0 <= since <= len(rings)
    assert sum(map(len, news.entries)) == len(rings) - (since if is_ours else 0)
    assert news.skipped == 0


def test_rings_that_nothing_was_added_to_tell_nothing() -> None:
    news = Rings[int](1, 1).since(0)
    assert (news.entries, news.last, news.skipped) == ([[], []], 0, 0)


@pytest.mark.parametrize("size", [1, 7])
def test_rings_more_than_there_is_room_for_is_counted(size: int) -> None:
    rings: Rings[int] = Rings(size)
    for entry in range(1, 21):
        rings.add(0, entry)
    assert rings.since(0).skipped == 20 - size
    assert rings.since(20 - size).skipped == 0
