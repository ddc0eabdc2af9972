from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from activedb import State
from activedb.errors import TransactionAborted, TransactionCancelled, TransactionStateError
from activedb.transactions._states import checked_move
from tests.databases import place
from tests.nodes import node_of
from tests.transactions.bank import open_bank

if TYPE_CHECKING:
    from activedb import Transaction
    from tests.transactions.bank import Bank

ALLOWED = {
    (State.ACTIVE, State.COMMITTING),
    (State.ACTIVE, State.ABORTED),
    (State.COMMITTING, State.COMMITTED),
    (State.COMMITTING, State.ABORTED),
}


@pytest.mark.parametrize(("now", "then"), list(itertools.product(State, State)))
def test_state_move_is_allowed_only_where_the_table_says(now: State, then: State) -> None:
    if (now, then) in ALLOWED:
        assert checked_move(now, then) is then
    else:
        with pytest.raises(TransactionStateError, match=f"{now} cannot become {then}"):
            checked_move(now, then)


def test_state_is_final_where_no_move_leads_out() -> None:
    assert {state for state in State if state.is_final} == {State.COMMITTED, State.ABORTED}


class Line(RuleBasedStateMachine):
    """A line of transactions, one inside the other, in which anything is tried at any level.

    The model is a list of states. Whatever the lifecycle does not allow must be refused by an
    error and leave the states as they were, save where it aborts what it was called for.
    """

    bank: Bank

    @initialize()
    def begin(self) -> None:
        self.line: list[Transaction] = []
        self.states: list[State] = []
        self.doomed: list[bool] = []

    def open_at(self, level: int) -> bool:
        """Return whether a level can do something: it lives, and is not doomed."""
        return self.states[level] is State.ACTIVE and not self.doomed[level]

    def end_from(self, level: int) -> None:
        for lower in range(level, len(self.line)):
            if self.states[lower] is State.ACTIVE:
                self.states[lower] = State.ABORTED

    @precondition(lambda self: not self.line or len(self.line) < 8)
    @rule()
    def deeper(self) -> None:
        if not self.line:
            self.line.append(self.bank.db.transaction())
        elif self.open_at(-1):
            self.line.append(self.line[-1].subtransaction())
        else:
            with pytest.raises((TransactionStateError, TransactionAborted, TransactionCancelled)):
                self.line[-1].subtransaction()
            return
        self.states.append(State.ACTIVE)
        self.doomed.append(False)

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        level = data.draw(st.integers(0, len(self.line) - 1))
        has_open = State.ACTIVE in self.states[level + 1 :]
        if self.open_at(level) and not has_open:
            node_of(self.line[level]).commit()
            self.states[level] = State.COMMITTED
            return
        was_active = self.states[level] is State.ACTIVE
        with pytest.raises((TransactionStateError, TransactionAborted, TransactionCancelled)):
            node_of(self.line[level]).commit()
        if was_active:
            self.end_from(level)

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        level = data.draw(st.integers(0, len(self.line) - 1))
        with pytest.raises(TransactionAborted):
            self.line[level].abort()
        self.doom_from(level)

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        level = data.draw(st.integers(0, len(self.line) - 1))
        self.line[level].cancel()
        self.doom_from(level)

    def doom_from(self, level: int) -> None:
        if self.states[level] is State.ACTIVE:
            for lower in range(level, len(self.line)):
                self.doomed[lower] = True

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        level = data.draw(st.integers(0, len(self.line) - 1))
        if self.open_at(level):
            self.line[level].get(self.bank.accounts, 1)
        else:
            with pytest.raises((TransactionStateError, TransactionAborted, TransactionCancelled)):
                self.line[level].get(self.bank.accounts, 1)

    @invariant()
    def states_are_those_of_the_model(self) -> None:
        if hasattr(self, "line"):
            assert [t.state for t in self.line] == self.states

    def teardown(self) -> None:
        if self.line and self.states[0] is State.ACTIVE:
            node_of(self.line[0])._abort()
        assert not self.bank.db._forest.locks.snapshot().transactions


@pytest.mark.long
def test_state_of_every_transaction_of_a_line_is_that_of_the_lifecycle(scale: int) -> None:
    with place(None) as where:
        Line.bank = open_bank(where.open(), {1: 10})
        run_state_machine_as_test(
            Line, settings=settings(max_examples=60 * scale, stateful_step_count=30)
        )
