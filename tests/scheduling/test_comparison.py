"""The comparison itself: it finds schedulers that are wrong, each in a way of its own."""

from __future__ import annotations

import contextlib

import pytest

from activedb.scheduling import At, Outcome, SerialOrder, SharedState, STransaction
from activedb.scheduling._scheduler import run_alone
from tests.scheduling.comparison import check, differences
from tests.scheduling.workloads import Parameters, workload


class Wrong(SerialOrder):
    """Scheduler that hands what was added, in the serial order, to a `_run` of its own."""

    def run(self, state: SharedState) -> None:
        added, self._added = self._added, []
        self._run(sorted(added, key=lambda t: t.at), state)

    def _run(self, added: list[STransaction], state: SharedState) -> None:
        for transaction in added:
            self._run_one(transaction, state)

    def _run_one(self, transaction: STransaction, state: SharedState) -> None:
        run_alone(transaction, state)


class OrderOfArrival(Wrong):
    def _run(self, added: list[STransaction], state: SharedState) -> None:
        super()._run(sorted(added, key=lambda t: t.at.arrival), state)


class TwoSwapped(Wrong):
    def _run(self, added: list[STransaction], state: SharedState) -> None:
        added[2:4] = reversed(added[2:4])
        super()._run(added, state)


class IdsIgnored(Wrong):
    def _run(self, added: list[STransaction], state: SharedState) -> None:
        super()._run(sorted(added, key=lambda t: (t.at.us, t.at.arrival)), state)


class WritesSeenAtOnce(Wrong):
    """An operation sees what those before it in its s-transaction have written."""

    def _run_one(self, transaction: STransaction, state: SharedState) -> None:
        run_alone(transaction, state)
        if transaction.outcome is None or not transaction.outcome.committed:
            return
        us, id_, arrival = transaction.at
        with contextlib.suppress(Exception):
            for operation in transaction.operations:
                effect = operation.evaluate(state.reader(At(us, id_, arrival + 1)))
                state.write(effect.writes, transaction.at)


class AbortedHalf(Wrong):
    """An aborting s-transaction leaves what it wrote before."""

    def _run_one(self, transaction: STransaction, state: SharedState) -> None:
        run_alone(transaction, state)
        if transaction.outcome is not None and not transaction.outcome.committed:
            with contextlib.suppress(Exception):
                for operation in transaction.operations:
                    effect = operation.evaluate(state.reader(transaction.at))
                    state.write(effect.writes, transaction.at)


class OldReads(Wrong):
    """Scheduler that reads everything as it was at the last punctuation."""

    def _run(self, added: list[STransaction], state: SharedState) -> None:
        if added:
            read = state.reader(added[0].at)
            made = []
            for transaction in added:
                try:
                    effects = [operation.evaluate(read) for operation in transaction.operations]
                except Exception as error:
                    transaction.outcome = Outcome.of_error(error)
                    continue
                made.append((effects, transaction))
            for effects, transaction in made:
                for effect in effects:
                    state.write(effect.writes, transaction.at)
                transaction.outcome = Outcome(tuple(effect.result for effect in effects))


class OtherReason(Wrong):
    def _run_one(self, transaction: STransaction, state: SharedState) -> None:
        run_alone(transaction, state)
        if transaction.outcome is not None and not transaction.outcome.committed:
            transaction.outcome = Outcome(reason="it did not work", error=transaction.outcome.error)


class WritesLost(Wrong):
    """The newest value is right; a version before it is missing."""

    def _run(self, added: list[STransaction], state: SharedState) -> None:
        super()._run(added, state)
        for versions in state:
            for key, kept in versions.all().items():
                if len(kept) > 1:
                    versions.take_back(key, kept[-2][0])
                    return


@pytest.mark.long
@pytest.mark.parametrize("wrong", Wrong.__subclasses__(), ids=lambda each: each.__name__)
def test_wrong_scheduler_is_found(wrong: type[Wrong]) -> None:
    found = 0
    for seed in range(6):
        chosen = workload(Parameters(seed=seed, aborts=0.4, ties=0.4, disorder=1.0))
        assert differences(SerialOrder(), chosen) == []
        found += bool(differences(wrong(), chosen))
    assert found >= 2


def test_difference_is_told_with_the_parameters_to_see_it_again() -> None:
    with pytest.raises(AssertionError, match=r"workload\(Parameters\(seed=7, .*\n.*feed 0: "):
        check(OrderOfArrival, workload(Parameters(seed=7, pieces=1, disorder=1.0)))


def test_workload_of_the_same_parameters_is_the_same() -> None:
    one, other = (workload(Parameters(seed=5)) for _ in range(2))
    assert [len(events) for events, _ in one.pieces] == [len(events) for events, _ in other.pieces]
    for (events, punctuation_us), (others, other_us) in zip(one.pieces, other.pieces, strict=True):
        assert punctuation_us == other_us
        assert [(o.name, o.us, o.id, o.params.get("salt")) for o in events] == [
            (o.name, o.us, o.id, o.params.get("salt")) for o in others
        ]
