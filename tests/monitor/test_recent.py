"""Records of transactions stay within their bounds, whatever the transactions do."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from activedb.monitor import _records
from activedb.monitor._records import Raw, RecentTransactions, StoryStep, TransactionRecord

LIVE_MAX, COMMITTED_MAX, ABORTED_MAX, STEPS_MAX = 4, 3, 2, 12


def lock(at_s: float) -> Raw:
    return (at_s, "lock", "", ("r",), "X", None, None)


class KeepingLives(RuleBasedStateMachine):
    """Recent transactions, compared with a list of all that have begun and ended."""

    def __init__(self) -> None:
        super().__init__()
        self.lives = RecentTransactions(LIVE_MAX, COMMITTED_MAX, ABORTED_MAX, STEPS_MAX)
        self.begun = 0
        self.refused = 0
        self.live: list[TransactionRecord] = []
        self.ended: dict[str, list[TransactionRecord]] = {"committed": [], "aborted": []}

    @rule()
    def begin(self) -> None:
        self.begun += 1
        life = TransactionRecord(self.begun, None, "x", 0.0, "main")
        had_room = self.lives.begin(life)
        assert had_room == (len(self.live) < LIVE_MAX)
        if had_room:
            self.live.append(life)
        else:
            self.refused += 1

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 100), steps=st.integers(1, 9))
    def step(self, which: int, steps: int) -> None:
        life = self.live[which % len(self.live)]
        for _ in range(steps):
            self.lives.add(life, lock(0.0))

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 100), state=st.sampled_from(["committed", "aborted"]))
    def end(self, which: int, state: str) -> None:
        life = self.live.pop(which % len(self.live))
        life.state = state
        self.lives.end(life)
        self.ended[state].append(life)

    @invariant()
    def bounds_hold(self) -> None:
        assert len(self.lives.live) <= LIVE_MAX
        steps = sum(life.kept for life in self.live)
        for state, places, most in (
            ("committed", self.lives._committed, COMMITTED_MAX),
            ("aborted", self.lives._aborted, ABORTED_MAX),
        ):
            kept, ended = list(places.values()), self.ended[state]
            assert kept == ended[len(ended) - len(kept) :]  # the newest
            assert len(kept) <= most
            assert not any(life.kept for life in ended[: len(ended) - len(kept)])
            steps += sum(life.kept for life in kept)
        assert steps == self.lives._steps <= STEPS_MAX
        assert self.lives.unknown == self.refused

    @invariant()
    def who_lives_is_found(self) -> None:
        assert all(self.lives.get(life.id) is life for life in self.live)


TestLives = KeepingLives.TestCase
TestLives.settings = settings(max_examples=40, stateful_step_count=40)


def test_steps_of_a_long_transaction_keep_both_ends_and_count_the_middle() -> None:
    life = TransactionRecord(1, None, "x", 0.0, "main")
    ends = _records._ENDS_MAX
    kept = [life.add(lock(float(n))) for n in range(3 * ends)]
    assert kept == [True] * (2 * ends) + [False] * ends
    told = life.steps()
    assert life.kept == 2 * ends
    assert told[ends] == life.left_out == ends
    times = [step.at_s for step in told if isinstance(step, StoryStep)]
    assert times == [*map(float, range(ends)), *map(float, range(2 * ends, 3 * ends))]


def test_life_with_very_many_children_keeps_the_first_and_counts_all() -> None:
    parent = TransactionRecord(1, None, "p", 0.0, "main")
    for n in range(2, 2_002):
        parent.begins(TransactionRecord(n, parent, str(n), 0.0, "main"))
    assert parent.children_total == 2_000
    assert parent.children == list(range(2, 1_002))


def test_life_child_that_is_tried_again_knows_which_try_it_is() -> None:
    parent = TransactionRecord(1, None, "p", 0.0, "main")
    for number, tries in ((2, 1), (3, 2), (4, 3)):
        child = TransactionRecord(number, parent, "1", 0.0, "main")
        parent.begins(child)
        assert child.tries == tries
        parent.has_failed(child)
    other = TransactionRecord(5, parent, "2", 0.0, "main")
    parent.begins(other)
    assert other.tries == 1


@pytest.mark.parametrize("long", [{0}, {3}, {0, 3}, {0, 1, 3}], ids=str)
def test_life_path_with_long_labels_names_every_ancestor(long: set[int]) -> None:
    labels = ["top", "the rule that orders more", "its child", "the last one"]
    life = None
    for number, label in enumerate(labels):
        named = f"begin{'x' * 2_000}end" if number in long else label
        life = TransactionRecord(number, life, named, 0.0, "main")
    assert life is not None
    for number, shown in enumerate(life.path.split("/")):
        if number in long:
            assert shown.startswith("beginxx")
            assert shown.endswith("xxend")
        else:
            assert shown == labels[number]
    assert life.path.count("/") == 3
    assert len(life.path) <= _records._PATH_CHARS_MAX


def test_life_path_of_a_deep_line_stays_short() -> None:
    life = TransactionRecord(1, None, "top", 0.0, "main")
    for n in range(2, 1_000):
        life = TransactionRecord(n, life, f"child{n}", 0.0, "main")
    assert len(life.path) <= _records._PATH_CHARS_MAX
    assert life.path.startswith("top/")
    assert life.path.endswith("/child999")
