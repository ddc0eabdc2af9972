"""Small programs, each run through every interleaving that there is.

The threads take turns only where one could notice another: before each section that the manager's
latch guards, at each sleep, wake-up and join. Each run must end with everybody ended and nothing
left, and each answer of the table is judged (`judge.py`). An error has a note with the choices
that lead to it: ``Program(text).run(Replay([...]))`` does the same again.

How many interleavings there were is in the output (``pytest -rP``).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import combinations_with_replacement, permutations
from pathlib import Path
from typing import TypeAlias

import pytest

from lockmgr import LockManager, LockTable
from tests.drawing import Worlds
from tests.lockmgr.explore import explore
from tests.lockmgr.faults import (
    BlindInheritance,
    BlindRequest,
    BlindWriter,
    Forgetful,
    Generous,
    Jumpy,
    SilentAbort,
    SilentCancel,
)
from tests.lockmgr.judge import Judge
from tests.lockmgr.program import Outcome, Program, judged
from tests.lockmgr.scheduler import Scheduler

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
AT_MOST = 2_500

Manager: TypeAlias = Callable[[Scheduler], LockManager]


def _catalogue() -> dict[str, tuple[Program, set[str]]]:
    """Read the programs, and what happens in them beside what is meant to, by name."""
    text = Path(__file__).with_name("programs.txt").read_text()
    catalogue = {}
    for block in text.split("\n# ")[1:]:
        title, _, program = block.partition("\n")
        name, _, seen = title.partition(" -> ")
        catalogue[name] = (Program(program), set(seen.split(", ")) - {""})
    return catalogue


CATALOGUE = _catalogue()


def run(program: Program, manager: Manager = judged) -> Counter[Outcome]:
    """Run every interleaving; return how often each outcome was seen."""
    return Counter(explore(partial(program.run, new_manager=manager), at_most=AT_MOST))


def against_intent(program: Program, outcomes: Counter[Outcome]) -> set[str]:
    """Return which ends, in whichever interleavings, were not meant."""
    return set().union(*outcomes) - program.ends()


@pytest.mark.long
@pytest.mark.parametrize("name", CATALOGUE)
def test_program_every_interleaving_ends_as_it_may(name: str) -> None:
    program, seen = CATALOGUE[name]
    outcomes = run(program)
    print(f"{name}: {outcomes.total()} interleavings, {len(outcomes)} outcomes")
    assert against_intent(program, outcomes) == seen


# -- all programs of a kind ----------------------------------------------------------------------

REQUESTS = ("S a", "X a", "S b", "X b")
SCRIPTS = [pair for pair in permutations(REQUESTS, 2) if pair[0][-1] != pair[1][-1]]
SHAPES = {
    "strangers": "1: {0}; commit\n2: {1}; commit",
    "siblings": "1: spawn 2 3; commit\n2 in 1: {0}; commit\n3 in 1: {1}; commit",
    "uncle and nephew": (
        "1: spawn 3; run 2; commit\n2 in 1: {0}; commit\n3 in 1: run 4; commit\n4 in 3: {1}; commit"
    ),
}
if SCALE > 1:  # the same on more threads: ten times as many interleavings
    SHAPES |= {
        "uncle and nephew on threads of their own": (
            "1: spawn 2 3; commit\n2 in 1: {0}; commit\n"
            "3 in 1: spawn 4; commit\n4 in 3: {1}; commit"
        ),
        "children of strangers": (
            "1: spawn 3; commit\n2: spawn 4; commit\n3 in 1: {0}; commit\n4 in 2: {1}; commit"
        ),
    }


def clash(request: str, held: tuple[str, ...]) -> bool:
    return any(request[2] == other[2] and "X" in (request[0], other[0]) for other in held)


def can_deadlock(*scripts: tuple[str, ...]) -> bool:
    """Return whether some order of the requests ends where no script can have what it wants next.

    All hold what they were granted until their end; there are no queues.
    """
    seen = set()
    frontier = [(0,) * len(scripts)]
    while frontier:
        places = frontier.pop()
        held = [
            script[:place] if place <= len(script) else ()
            for script, place in zip(scripts, places, strict=True)
        ]
        moves = [
            (*places[:i], place + 1, *places[i + 1 :])
            for i, (script, place) in enumerate(zip(scripts, places, strict=True))
            if place == len(script)
            or (
                place < len(script)
                and not any(clash(script[place], other) for j, other in enumerate(held) if j != i)
            )
        ]
        if not moves and any(p <= len(s) for s, p in zip(scripts, places, strict=True)):
            return True
        frontier += [move for move in moves if move not in seen]
        seen.update(moves)
    return False


@pytest.mark.parametrize("shape", SHAPES)
def test_two_transactions_with_two_requests_each_deadlock_iff_some_order_does(shape: str) -> None:
    interleavings = deadlocks = 0
    for pair in combinations_with_replacement(SCRIPTS, 2):
        program = Program(SHAPES[shape].format(*map("; ".join, pair)))
        outcomes = run(program)
        denied = any("denied" in end for end in against_intent(program, outcomes))
        assert denied == can_deadlock(*pair), program.text
        interleavings += outcomes.total()
        deadlocks += denied
    print(f"{shape}: {interleavings} interleavings; {deadlocks} of 36 programs can deadlock")
    assert 0 < deadlocks < 36


def test_parent_and_child_with_two_requests_each_deadlock_iff_the_child_wants_what_it_holds() -> (
    None
):
    interleavings = 0
    for parent in permutations(REQUESTS, 2):
        for child in permutations(REQUESTS, 2):
            text = f"1: spawn 2; {'; '.join(parent)}; commit\n2 in 1: {'; '.join(child)}; commit"
            outcomes = run(Program(text))
            denied = against_intent(Program(text), outcomes)
            assert denied == ({"2 denied"} if any(clash(r, parent) for r in child) else set())
            interleavings += outcomes.total()
    print(f"parent and child: {interleavings} interleavings")


def test_three_transactions_on_one_resource_deadlock_iff_some_order_does() -> None:
    interleavings = 0
    scripts = [("S a",), ("X a",), ("S a", "X a")]
    for triple in combinations_with_replacement(scripts, 3):
        lines = (f"{tid}: {'; '.join(steps)}; commit" for tid, steps in enumerate(triple, 1))
        program = Program("\n".join(lines))
        outcomes = run(program)
        assert bool(against_intent(program, outcomes)) == can_deadlock(*triple), program.text
        interleavings += outcomes.total()
    print(f"three on one resource: {interleavings} interleavings")


# -- other victims -------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["blocker", "youngest", "smallest hierarchy", "least work"])
@pytest.mark.parametrize(
    "name",
    [
        "opposite orders",
        "two upgrades",
        "siblings in opposite orders",
        "uncle and nephew in opposite orders",
        "a parent's wait for its child closes the ring",
        "what a parent inherits closes a ring",
        "a parent with a live child is denied",
        "a dependent waits for the end of a cause that waits for it",
    ],
)
def test_program_every_interleaving_with_another_victim_is_as_right(name: str, victim: str) -> None:
    program, _ = CATALOGUE[name]
    outcomes = run(program, partial(judged, victim=victim))
    denied = against_intent(program, outcomes)
    assert any("denied" in end for end in denied)
    if victim == "youngest" and not any(script.tie for script in program.scripts.values()):
        assert denied == {"2 denied"}


@pytest.mark.long
def test_larger_programs_seeded_interleavings_are_judged_right() -> None:
    """A ring of four, in two hierarchies and under time: too many interleavings to run them all."""
    program = Program(
        """
        1: X a; offer; spawn 3; X b within 9; commit
        2: X c; offer; spawn 4; trigger 5; X d within 9; commit
        3 in 1: X a; X d; commit
        4 in 2: X c; S b; X t/1; commit
        5 by 2: S t; X c; await 2; commit
        """
    )
    outcomes: set[frozenset[str]] = set()
    worlds = Worlds(300 * SCALE, "larger programs", outcomes=10)
    for chance in worlds:
        outcomes.add(program.run(chance.getrandbits(32)))
        worlds.met["outcomes"] = len(outcomes)


# -- faulty tables: what the exploration is able to find -----------------------------------------


@pytest.mark.parametrize(
    ("fault", "name", "verdict", "symptom"),
    [
        (SilentAbort, "a grant races an abort", "a wake-up is lost", "every worker waits"),
        (
            SilentCancel,
            "a reader behind a writer who runs out of time",
            "a wake-up is lost",
            "every worker waits",
        ),
        (BlindRequest, "a ring of three", "a deadlock is missed", "every worker waits"),
        (
            BlindInheritance,
            "what a parent inherits closes a ring",
            "a deadlock is missed",
            "every worker waits",
        ),
        (Jumpy, "the same order", "a false edge", "denied"),
        (Generous, "opposite orders", "rule 1 is broken", "does not hold it"),
        (BlindWriter, "two write what the other has asked about", "rule 1 is broken", "denied"),
    ],
)
def test_exploration_faulty_table_is_found(
    fault: type[LockTable], name: str, verdict: str, symptom: str
) -> None:
    """The judge finds the fault; without it, the fate of the transactions shows it."""
    program, seen = CATALOGUE[name]
    judged_fault = type("JudgedFault", (Judge, fault), {})
    with pytest.raises(AssertionError, match=verdict) as caught:
        run(program, lambda s: manager_of(judged_fault(), s))
    assert any("Replay([" in note for note in caught.value.__notes__)
    with pytest.raises(AssertionError, match=symptom):
        assert against_intent(program, run(program, lambda s: manager_of(fault(), s))) == seen


def manager_of(table: LockTable, scheduler: Scheduler) -> LockManager:
    return LockManager(table, new_waiter=scheduler.new_waiter, clock=scheduler.clock)


def test_exploration_wake_up_lost_in_one_narrow_place_is_found() -> None:
    """1 has let 3 pass, and is on its way to wake it when 3, out of time, is through and wakes 1.

    So it is in half a dozen of more than a thousand interleavings.
    """
    program = Program(
        """
        1: S a; X c; commit
        2: X a; commit
        3: X c; S a within 1; commit
        """
    )

    def forgetful(scheduler: Scheduler) -> LockManager:
        return LockManager(new_waiter=lambda: Forgetful(scheduler), clock=scheduler.clock)

    with pytest.raises(AssertionError, match="every worker waits"):
        run(program, forgetful)
