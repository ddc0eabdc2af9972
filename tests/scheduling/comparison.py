"""Schedulers held against the serial order."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from activedb.scheduling import At, ProgramRun, Results, Scheduler, SerialOrder, SharedState
from tests.scheduling.reference import Expected, ReferenceRun, same_outcome
from tests.scheduling.workloads import Workload

__all__ = ["SCALE", "check", "differences"]

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))


def check(scheduler_factory: Callable[[], Scheduler], workload: Workload) -> None:
    """Run a workload, feed by feed, and compare all that can be seen with what is right.

    Twice: with `SerialOrder`, to the last word, and with the naive reference.

    Raises
    ------
    AssertionError
        With the workload's parameters, among them its seed, and the first differences.
    """
    scheduler = scheduler_factory()
    found = differences(scheduler, workload)
    if found:
        shown = "\n  ".join(each[:600] for each in found[:12])
        raise AssertionError(
            f"scheduler {scheduler.name} is not the serial order\n"
            f"with workload({workload.parameters!r}):\n  {shown}"
        )


def differences(scheduler: Scheduler, workload: Workload) -> list[str]:
    """Return how a scheduler differs from the serial order in the first feed in which it does."""
    program = workload.program
    run = ProgramRun(program, scheduler)
    serial = ProgramRun(program, SerialOrder())
    reference = ReferenceRun(program)
    for number, (events, punctuation_us) in enumerate([*workload.pieces, (None, None)]):
        if events is None:
            results, others, expected = run.finish(), serial.finish(), reference.finish()
        else:
            results = run.feed(events, punctuation_us)
            others = serial.feed(events, punctuation_us)
            expected = reference.feed(events, punctuation_us)
        found = [
            *_compared_with_reference(results, expected),
            *_compared_with_serial(results, others),
            *_compared_states(run.state, serial.state),
            *_compared_versions(run.state, reference),
        ]
        if found:
            return [f"feed {number}: {each}" for each in found]
    return []


def _compared_with_reference(results: Results, expected: Expected) -> list[str]:
    found = []
    ats = [t.at for t in results.transactions]
    if ats != [t.at for t in expected.ended]:
        return [f"ended {ats}, not {[t.at for t in expected.ended]}"]
    for t, other in zip(results.transactions, expected.ended, strict=True):
        assert t.outcome is not None, f"{t!r} was run and has no outcome"
        if t.type != other.type or not same_outcome(t.outcome, other.outcome):
            found.append(f"{t!r} {t.at}: {t.outcome}, not {other.outcome}")
    if results.outputs != expected.outputs:
        found.append(f"outputs {results.outputs}, not {expected.outputs}")
    if [r.event for r in results.refused] != expected.refused:
        found.append(f"refused {results.refused}, not {expected.refused}")
    if results.dropped != expected.dropped:
        found.append(f"dropped {results.dropped}, not {expected.dropped}")
    return found


def _compared_with_serial(results: Results, others: Results) -> list[str]:
    found = []
    for t, other in zip(results.transactions, others.transactions, strict=True):
        assert t.outcome is not None
        assert other.outcome is not None
        if (t.outcome.results, t.outcome.reason) != (other.outcome.results, other.outcome.reason):
            found.append(f"{t!r} {t.at}: {t.outcome}, in serial order {other.outcome}")
        if type(t.outcome.error) is not type(other.outcome.error):
            found.append(f"{t!r} {t.at}: {t.outcome.error!r}, not {other.outcome.error!r}")
    return found


def _compared_states(state: SharedState, other: SharedState) -> list[str]:
    return [
        f"{versions.table} is {versions.all()}, in serial order {same.all()}"
        for versions, same in zip(state, other, strict=True)
        if versions.all() != same.all()
    ]


def _compared_versions(state: SharedState, run: ReferenceRun) -> list[str]:
    """The newest values, and the versions: those that are needed, and none that never were."""
    found = []
    for table in run.program.tables:
        versions = state.of(table)
        newest, right = versions.newest(), run.reference.newest(table)
        if newest != right:
            found.append(f"the newest of {table} is {newest}, not {right}")
        kept, ever = versions.all(), run.reference.all(table)
        mark = At(run.mark_us, "", 0) if run.mark_us is not None else At(-(2**62), "", 0)
        needed: dict[Any, list[Any]] = run.reference.needed(table, mark)
        for key, those in kept.items():
            if list(those) != ever.get(key, [])[-len(those) :]:
                found.append(f"{table}[{key!r}] has {those}, of {ever.get(key)}")
        for key, least in needed.items():
            if list(kept.get(key, ()))[-len(least) :] != least:
                found.append(f"{table}[{key!r}] has {kept.get(key)}, needed is {least}")
    return found
