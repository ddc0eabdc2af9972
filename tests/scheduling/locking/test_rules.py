"""Rules triggered by patterns: what becomes of events, matches and moments."""

from __future__ import annotations

import json
import operator
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from activedb.errors import AccessError, ConditionWrites, DefinitionError
from activedb.events import Occurrence, event, every, occurrence, seq
from activedb.scheduling import (
    Access,
    At,
    Outcome,
    Program,
    ProgramRun,
    Ref,
    Results,
    Scheduler,
    SerialOrder,
    SharedTable,
    STransaction,
    View,
)
from activedb.scheduling._detection import MOMENT, Detection
from activedb.scheduling.locking import LWM, S2PL, SEI
from tests.drawing import Worlds
from tests.patience import PATIENCE_S
from tests.scheduling.comparison import SCALE

counts = SharedTable("counts", key=str, initial=0)
other = SharedTable("other", key=int, initial=0)
SECOND = 1_000_000
PAIR = seq(event("A"), event("B")).same("k").within(10)


def program() -> Program:
    return Program("rules", [counts, other])


def refs(*keys: str) -> Callable[[Occurrence], list[Ref]]:
    return lambda o: [counts[key] for key in keys]


def adds(key: str, amount: int = 1) -> Callable[[View, Occurrence], int]:
    def action(t: View, o: Occurrence) -> int:
        value: int = t.read(counts[key]) + amount
        t.write(counts[key], value)
        return value

    return action


def e(name: str, second: float, k: int = 1, **params: Any) -> Occurrence:
    return occurrence(name, timestamp=second, id=f"{name}{second}", k=k, **params)


def fed(
    p: Program, *events: Occurrence, until: float | None = None, scheduler: Scheduler | None = None
) -> tuple[Results, ProgramRun]:
    run = ProgramRun(p, scheduler or LWM())
    results = run.feed(events, None if until is None else round(until * SECOND))
    if until is None:
        results = run.finish()
    return results, run


def outcomes(results: Results) -> list[Outcome]:
    return [t.outcome for t in results.transactions if t.outcome is not None]


def newest(run: ProgramRun) -> Mapping[Any, Any]:
    return run.state.of(counts).newest()


# -- events and matches --------------------------------------------------------------------------


def test_only_events_that_complete_a_match_have_an_s_transaction() -> None:
    p = program()
    p.rule(PAIR, writes=refs("n"), name="R")(adds("n"))
    results, run = fed(p, e("A", 1), e("A", 2, k=2), e("B", 3), e("B", 4, k=9))
    assert [(t.type, t.at.us) for t in results.transactions] == [("B", 3 * SECOND)]
    ((reaction,),) = outcomes(results)[0].results
    assert (reaction.rule, reaction.fired, reaction.result) == ("R", True, 1)
    assert reaction.occurrence.parts["A"].params["k"] == 1
    assert newest(run) == {"n": 1}


def test_rules_of_one_event_run_by_priority_then_definition_and_see_what_was_written() -> None:
    p = program()
    seen: list[str] = []

    def define(name: str, priority: int) -> None:
        @p.rule(PAIR, writes=refs("n"), name=name, priority=priority)
        def action(t: View, o: Occurrence) -> None:
            seen.append(f"{name}{o.parts['A'].us // SECOND}={t.read(counts['n'])}")
            t.write(counts["n"], t.read(counts["n"]) + 1)

    define("low", -1)
    define("first", 0)
    define("second", 0)
    define("high", 5)
    results, run = fed(p, e("B", 3), e("A", 1), e("A", 2))
    assert seen == ["high1=0", "high2=1", "first1=2", "first2=3", "second1=4", "second2=5",
                    "low1=6", "low2=7"]  # fmt: skip
    assert len(results.transactions) == 1
    assert newest(run) == {"n": 8}


def test_condition_that_does_not_hold_leaves_its_rule_out_and_no_other() -> None:
    p = program()
    p.rule(PAIR, writes=refs("n"), when=lambda t, o: t.read(counts["n"]) > 0, name="no")(adds("n"))
    p.rule(PAIR, writes=refs("m"), when=lambda t, o: o.params["k"] == 1, name="yes")(adds("m"))
    results, run = fed(p, e("A", 1), e("B", 2))
    assert [r.fired for r in outcomes(results)[0].results[0]] == [False, True]
    assert newest(run) == {"m": 1}


def test_event_with_a_state_access_and_rules_is_one_s_transaction() -> None:
    p = program()

    @p.on("B")
    def access(params: Mapping[str, Any], access: Access) -> None:
        access.write(counts["b"], operator.add, params["k"])

    @p.rule(PAIR, reads=refs("b"), writes=refs("n"), name="R")
    def note(t: View, o: Occurrence) -> None:
        t.write(counts["n"], (t.read(counts["b"]), t.read(counts["n"])))

    results, run = fed(p, e("A", 1), e("B", 0), e("B", 2))
    assert [(t.at.us // SECOND, len(t.operations)) for t in results.transactions] == [
        (0, 1),
        (2, 2),
    ]
    assert newest(run) == {"b": 2, "n": (1, 0)}  # both see the state before it


def test_state_access_and_rule_that_write_one_key_abort_together() -> None:
    p = program()
    p.on("B")(lambda params, access: access.write(counts["n"], operator.add, 1))
    p.rule(PAIR, writes=refs("n"), name="R")(adds("n"))
    results, run = fed(p, e("A", 1), e("B", 2))
    assert "written twice" in str(outcomes(results)[0].reason)
    assert newest(run) == {}


def test_rule_reads_what_an_earlier_event_has_made_another_write() -> None:
    p = program()
    p.rule(event("A"), writes=refs("n"), name="count")(adds("n"))

    @p.rule(event("B"), reads=refs("n"), writes=refs("b"), name="copy")
    def copy(t: View, o: Occurrence) -> None:
        t.write(counts["b"], t.read(counts["n"]))

    for scheduler in (SEI(), S2PL("table"), S2PL(), LWM("table"), LWM()):
        _, run = fed(p, e("B", 2.5), e("A", 3), e("A", 1), e("A", 2), scheduler=scheduler)
        assert newest(run) == {"n": 3, "b": 2}


def test_rule_without_access_sets_may_access_all_tables_of_the_program() -> None:
    p = program()

    @p.rule(event("A"), name="R")
    def both(t: View, o: Occurrence) -> None:
        t.write(counts["n"], t.read(other[1]))
        t.write(other[2], 5)

    results, run = fed(p, e("A", 1))
    assert outcomes(results)[0].committed
    assert run.state.of(other).newest() == {2: 5}


def test_pre_processing_drops_for_rules_too_and_post_processing_gets_their_outcome() -> None:
    p = program()
    p.rule(PAIR, writes=refs("n"), name="R")(adds("n"))
    p.pre_process(lambda type_, params: None if params.get("drop") else {"k": -1})
    p.post_process(lambda type_, params, outcome: (type_, dict(params), outcome.committed))
    run = ProgramRun(p, LWM())
    results = run.feed([e("A", 1, drop=True), e("A", 2), e("B", 3)])
    assert results.dropped == 1
    results = run.finish()
    assert results.outputs == [("B", {"k": -1}, True)]
    assert newest(run) == {"n": 1}


@pytest.mark.parametrize("granularity", ["table", "row"])
def test_condition_that_waits_outside_lets_later_rules_go_on_with_lwm(granularity: str) -> None:
    p, acted = program(), threading.Event()

    def asks(t: View, o: Occurrence) -> bool:
        # As of its time, then as of ours.
        return t.read(counts["n"]) == 0 and acted.wait(PATIENCE_S)

    @p.rule(
        event("A"), reads=refs("n"), writes=lambda o: [other[1]], when=asks, name="after asking"
    )
    def after_asking(t: View, o: Occurrence) -> None:
        t.write(other[1], 1)

    @p.rule(event("B"), writes=refs("n"), name="acts")
    def acts(t: View, o: Occurrence) -> None:
        t.write(counts["n"], t.read(counts["n"]) + 1)
        acted.set()

    results, run = fed(p, e("A", 1), e("B", 2), scheduler=LWM(granularity, threads=2))
    assert [o.results[0][0].fired for o in outcomes(results)] == [True, True]
    assert newest(run) == {"n": 1}


# -- time ----------------------------------------------------------------------------------------


def test_end_of_a_window_is_an_s_transaction_behind_all_events_of_its_time() -> None:
    p = program()
    alone = seq(event("A"), ~event("B")).same("k").within(5)
    p.rule(event("C"), writes=refs("n"), name="count")(adds("n", 10))
    p.rule(alone, writes=refs("n"), name="alone")(adds("n"))
    results, run = fed(
        p, e("A", 1), e("A", 2, k=2), e("B", 4), e("C", 7), e("C", 7.5), e("A", 8), until=9
    )
    assert [(t.type, t.at.us / SECOND) for t in results.transactions] == [
        ("C", 7),
        (MOMENT, 7),
        ("C", 7.5),
    ]
    assert [o.results[0][0].result for o in outcomes(results)] == [10, 11, 21]
    assert newest(run) == {"n": 21}
    assert run.feed([], 14 * SECOND).transactions[0].at.us == 13 * SECOND


def test_what_time_completes_at_one_moment_is_one_s_transaction() -> None:
    p = program()
    for name in ("one", "two"):
        alone = seq(event("A"), ~event("B")).within(5)
        p.rule(alone, writes=refs("n"), name=name)(adds("n"))
    results, _ = fed(p, e("A", 1), e("A", 1), until=9)
    assert [t.type for t in results.transactions] == [MOMENT]
    assert [r.rule for r in outcomes(results)[0].results[0]] == ["one", "one", "two", "two"]


def test_clock_event_occurs_at_its_time_also_when_no_event_comes() -> None:
    p = program()
    p.rule(every(10), writes=refs("n"), name="tick")(adds("n"))
    p.rule(event("A"), name="listens")(lambda t, o: None)
    run = ProgramRun(p, LWM())
    results = run.feed([e("A", 100)], 131 * SECOND)
    ticks = [t.at.us for t in results.transactions if t.type == MOMENT]
    assert len(ticks) == len(set(ticks)) == 3
    assert newest(run) == {"n": 3}
    assert len(run.feed([], 151 * SECOND).transactions) == 2


def test_clock_begins_with_the_first_event_wherever_punctuations_are() -> None:
    p = program()
    p.rule(every(10), writes=refs("n"), name="tick")(adds("n"))
    p.rule(event("A"), name="listens")(lambda t, o: None)
    run = ProgramRun(p, LWM())
    assert run.feed([], 55 * SECOND).transactions == []
    ended = run.feed([e("A", 72)], 91 * SECOND).transactions
    assert [t.at.us // SECOND for t in ended] == [72, 80, 90]


def test_moment_may_be_part_of_what_a_later_event_completes() -> None:
    p = program()
    p.rule(seq(event("A"), every(10), event("B")), writes=refs("n"), name="R")(adds("n"))
    results, _ = fed(p, e("A", 101), e("B", 105), e("A", 106), e("B", 112), until=113)
    assert [(t.type, t.at.us // SECOND) for t in results.transactions] == [("B", 112)]
    assert len(outcomes(results)[0].results[0]) == 2


# -- what is wrong -------------------------------------------------------------------------------


def test_condition_that_raises_aborts_its_s_transaction_with_the_reason_and_no_other() -> None:
    p = program()
    p.rule(PAIR, writes=refs("m"), name="before")(adds("m"))

    @p.rule(PAIR, writes=refs("n"), when=lambda t, o: 1 / o.params["d"] > 0, name="R")
    def count(t: View, o: Occurrence) -> None:
        t.write(counts["n"], t.read(counts["n"]) + 1)

    results, run = fed(p, e("A", 1), e("B", 2, d=0), e("B", 3, d=1))
    assert [o.reason for o in outcomes(results)] == ["ZeroDivisionError: division by zero", None]
    assert newest(run) == {"n": 1, "m": 1}


def test_condition_that_writes_aborts() -> None:
    p = program()

    def when(t: View, o: Occurrence) -> bool:
        t.write(counts["n"], 1)
        return True

    p.rule(event("A"), writes=refs("n"), when=when, name="R")(adds("n"))
    results, run = fed(p, e("A", 1))
    (outcome,) = outcomes(results)
    assert isinstance(outcome.error, ConditionWrites)
    assert "counts['n'] in the rule's action" in str(outcome.reason)
    assert newest(run) == {}


def test_access_beyond_a_rules_own_sets_aborts_even_if_another_rule_may() -> None:
    p = program()
    p.rule(event("A"), writes=refs("m"), name="may")(adds("m"))
    p.rule(event("A"), writes=refs("n"), name="must not")(adds("m"))
    results, run = fed(p, e("A", 1))
    assert isinstance(outcomes(results)[0].error, AccessError)
    assert newest(run) == {}


@pytest.mark.parametrize(
    ("writes", "reason"),
    [
        (lambda o: [counts[o.params["missing"]]], "KeyError: 'missing'"),
        (lambda o: [counts[o.params["k"]]], "AccessError: 1 is not a key of table counts"),
        (lambda o: [SharedTable("foreign")[1]], "DefinitionError: program rules accesses foreign"),
    ],
)
def test_access_sets_that_cannot_be_told_abort(
    writes: Callable[[Occurrence], list[Ref]], reason: str
) -> None:
    p = program()
    p.rule(event("A"), writes=writes, name="R")(adds("n"))
    results, _ = fed(p, e("A", 1), e("A", 2))
    assert [str(o.reason).startswith(reason) for o in outcomes(results)] == [True, True]


def test_event_that_a_pattern_cannot_understand_is_refused_and_no_detector_has_seen_it() -> None:
    p = program()
    p.on("A")(lambda params, access: access.write(counts["a"], operator.add, 1))
    p.rule(seq(event("A"), event("B")), writes=refs("n"), name="plain")(adds("n"))
    p.rule(PAIR, writes=refs("m"), name="same")(adds("m"))
    bad = occurrence("A", timestamp=1)
    results, run = fed(p, bad, e("B", 2))
    assert [(r.event, "has no parameter 'k'" in r.reason) for r in results.refused] == [(bad, True)]
    assert newest(run) == {}
    assert results.transactions == []


def test_moment_that_cannot_be_decided_aborts_with_the_reason_and_time_goes_on() -> None:
    p = program()

    def told(parts: Mapping[str, Any]) -> bool:
        return bool(1 / parts["A"].params["d"])

    ticks = seq(event("A"), every(10)).within(25)
    p.rule(ticks.where(told), writes=refs("n"), name="R")(adds("n"))
    p.rule(every(10), writes=refs("m"), name="S")(adds("m"))

    def run(**params: Any) -> tuple[list[tuple[int, str | None]], Mapping[Any, Any]]:
        events = e("A", 101, d=0, **params), e("A", 116, d=1, **params)
        results, run = fed(p, *events, until=141)
        ended = zip(results.transactions, outcomes(results), strict=True)
        return [(t.at.us // SECOND, outcome.reason) for t, outcome in ended], newest(run)

    reason = "ZeroDivisionError: division by zero"
    assert run() == ([(110, reason), (120, reason), (130, None), (140, None)], {"m": 2, "n": 2})
    # What the detector keeps cannot be written, so it begins anew behind the first.
    ended = [(110, reason), (120, None), (130, None), (140, None)]
    assert run(odd=object()) == (ended, {"m": 3, "n": 3})


def test_event_that_neither_state_access_nor_rule_listens_to_is_refused() -> None:
    p = program()
    p.rule(event("A"), writes=refs("n"), name="R")(adds("n"))
    results = ProgramRun(p, LWM()).feed([e("C", 1), e("A", 1)])
    assert [r.event.name for r in results.refused] == ["C"]


def test_definitions_that_mean_nothing_are_refused() -> None:
    p = program()
    p.rule(event("A"), name="R")(adds("n"))
    with pytest.raises(DefinitionError, match="has a rule R already"):
        p.rule(event("A"), name="R")(adds("n"))
    with pytest.raises(DefinitionError, match="part of the condition"):
        p.rule(event("A", reading=lambda t, o: True), name="S")(adds("n"))
    with pytest.raises(DefinitionError, match="when is a function"):
        p.rule(event("A"), when=3, name="S")(adds("n"))  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="priority is a whole number"):
        p.rule(event("A"), priority=True, name="S")(adds("n"))
    with pytest.raises(DefinitionError, match="non-empty string"):
        p.rule(event("A"), name="")(adds("n"))
    with pytest.raises(DefinitionError, match="takes an event expression"):
        p.rule("A", name="S")(adds("n"))  # type: ignore[arg-type]
    assert [rule.name for rule in p.rules] == ["R"]


# -- the whole, and what is kept -----------------------------------------------------------------


def rich_program() -> Program:
    """Patterns, windows and clocks, that read and write each other's counts; some abort."""
    p = program()

    @p.on("A")
    def access(params: Mapping[str, Any], access: Access) -> None:
        access.write(other[params["k"]], operator.add, 1, reads=(other[params["k"]],))

    def fold(t: View, o: Occurrence) -> int:
        value: int = (t.read(counts["n"]) * 31 + t.read(other[o.params["k"]]) * 7 + o.us) % 9973
        if value % 11 == 0:
            t.abort("eleven")
        t.write(counts["n"], value)
        return value

    def own(o: Occurrence) -> list[Ref]:
        return [other[o.params["k"]]]

    p.rule(PAIR, reads=own, writes=refs("n"), name="pair")(fold)
    p.rule(
        seq(event("B"), ~event("C")).same("k").within(3),
        writes=refs("m", "n"),
        when=lambda t, o: t.read(counts["n"]) % 2 == 0,
        name="alone",
    )(adds("m"))
    p.rule(every(7), writes=refs("t", "n"), name="tick")(adds("t"))
    p.post_process(lambda type_, params, outcome: (type_, outcome.reason, outcome.results))
    return p


def comparable(outputs: list[Any]) -> list[Any]:
    return [
        (type_, reason, [[r._replace(occurrence=repr(r.occurrence)) for r in each]
                         if isinstance(each, tuple) else each for each in results])
        for type_, reason, results in outputs
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3 * SCALE))
def test_every_scheduler_arrival_and_cut_gives_the_same(seed: int) -> None:
    def results(scheduler: Scheduler, cuts: int) -> tuple[Any, ...]:
        run, outputs = ProgramRun(rich_program(), scheduler), []
        for number in range(cuts):
            from_us, until_us = (60 * SECOND * n // cuts for n in (number, number + 1))
            now = [o for o in events if from_us <= o.us < until_us]
            fed = run.feed(r.sample(now, len(now)), until_us)
            assert fed.refused == []
            outputs += fed.outputs
        return comparable(outputs), newest(run), run.state.of(other).newest()

    worlds = Worlds(1, "rules", seed, outputs=20)
    for r in worlds:
        events = [e(r.choice("ABC"), 10 + n * r.random(), r.choice([1, 2])) for n in range(40)]
        expected = results(SerialOrder(), 1)
        worlds.met["outputs"] = len(expected[0])
    for scheduler in (SEI(), S2PL("table"), S2PL(), LWM("table"), LWM(), SerialOrder()):
        for cuts in (1, 7, 600):
            assert results(scheduler, cuts) == expected


def test_detectors_keep_what_their_windows_need() -> None:
    p = program()
    p.rule(PAIR, writes=refs("n"), name="R")(adds("n"))
    detection = Detection(p.rules, p.check)
    run = ProgramRun(p, LWM())
    run._detection = detection
    for second in range(0, 2_000, 5):
        run.feed([e("A", second)], second * SECOND + 1)
    ((_, detector),) = detection._detectors
    assert detector.partials <= 4
    assert detection._events == {}


def test_state_of_detection_goes_on_in_another_one() -> None:
    p = program()
    p.rule(PAIR, writes=refs("n"), name="R")(adds("n"))
    p.rule(event("C"), writes=refs("n"), name="S")(adds("n"))

    def made(o: Occurrence) -> STransaction:
        return STransaction(At(o.us, o.id or "", o.us), o.name, o.params, ())

    def through(detection: Detection, *events: Occurrence) -> list[str]:
        for o in events:
            detection.take(made(o).at, o)
        found = detection.run([made(o) for o in events], None).transactions
        return [t.type for t in found]

    before = Detection(p.rules, p.check)
    assert through(before, e("A", 1)) == []
    after = Detection(p.rules, p.check)
    after.restore(json.loads(json.dumps(before.state())))
    assert through(after, e("B", 2), e("C", 3)) == ["B", "C"]
    assert through(Detection(p.rules, p.check), e("B", 2)) == []

    changed = program()
    changed.rule(event("B"), writes=refs("n"), name="R")(adds("n"))
    changed.rule(event("C"), writes=refs("n"), name="S")(adds("n"))
    anew = Detection(changed.rules, changed.check)
    anew.restore(before.state())
    assert through(anew, e("B", 2), e("C", 3)) == ["B", "C"]
