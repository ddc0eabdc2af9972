"""Random rules in random modes: legal histories, and the outcome of a naive interpreter."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from coupling import ConditionAction, Coupling
from coupling.acta import audit
from tests.databases import Place, place
from tests.firing.naive_rules import Program, World
from tests.firing.played_rules import Played
from tests.firing.rule_programs import programs

if TYPE_CHECKING:
    from collections.abc import Iterator

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
TRANSACTIONS_MAX = 120
MODES = [str(mode) for mode in Coupling]
CONDITION_ACTIONS = [str(mode) for mode in ConditionAction]


def opened(where: Place) -> Played:
    """A database for programs."""
    return Played(
        where.open(
            recording="full",
            recording_events_max=10_000_000,
            threads=8,
            retries_max=60,
            retry_pause_ms_max=20.0,
            quarantine_after=0,
        )
    )


@pytest.fixture(scope="module")
def memory() -> Iterator[Played]:
    with place(None) as where:
        yield opened(where)


@pytest.fixture(scope="module")
def postgres(postgres_url: str) -> Iterator[Played]:
    with place(postgres_url) as where:
        yield opened(where)


def check(played: Played, program: Program) -> None:
    """Run a program both ways."""
    expected = World(program.rules)
    expected.play(program)
    assume(expected.transactions <= TRANSACTIONS_MAX)
    played.clear()
    played.run(program)
    found = played.outcome()
    history = played.db.admin.history()
    wrong = [str(violation) for violation in audit(history)]
    if wrong:
        note("\n".join(history.lines()))
    for row in sorted(found.rows ^ expected.rows):
        wrong.append(f"{'missing' if row in expected.rows else 'too much'}: {row}")
    if found.counters != expected.counters:
        wrong.append(f"counters {found.counters} instead of {expected.counters}")
    if found.letters != expected.letters:
        wrong.append(f"letters {found.letters} instead of {expected.letters}")
    assert not wrong, "\n".join(wrong)


any_program = programs(modes=MODES, condition_actions=CONDITION_ACTIONS)
quick = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@pytest.mark.long
@settings(quick, max_examples=150 * SCALE)
@given(st.data())
def test_random_rules_in_memory_end_as_the_naive_interpreter_says(
    memory: Played, data: st.DataObject
) -> None:
    check(memory, data.draw(any_program))


@pytest.mark.long
@settings(quick, max_examples=25 * SCALE)
@given(st.data())
def test_random_rules_on_postgres_end_as_the_naive_interpreter_says(
    postgres: Played, data: st.DataObject
) -> None:
    check(postgres, data.draw(any_program))
