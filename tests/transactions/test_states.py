from __future__ import annotations

import itertools

import pytest

from activedb import State
from activedb.errors import TransactionStateError
from activedb.transactions._states import checked_move

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
