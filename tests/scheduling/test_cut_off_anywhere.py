"""Feeds that Ctrl-C cuts off at any line, in detection too, take the whole batch or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest

from activedb.events import AccuracyInterval, Detector, Expression, Occurrence
from activedb.scheduling import Access, Program, ProgramRun, SerialOrder, SharedTable, View
from tests.drawing import SCALE, Worlds
from tests.events.generation import CONTEXTS, EVERYTHING, Plan, random_expression
from tests.scheduling.cutting import cut_before, lines_of

SECOND_US = 1_000_000
_LINES_MAX = 100_000
"""Bound on the lines of a step that is cut off; tracing more takes too long."""
PLANS = {
    "any": EVERYTHING,
    "plain": Plan(kleene=False),
    "memoryless": Plan(selections=("any", "next", "strict")),
    "skipping": Plan(contexts=CONTEXTS, skips=("to_next", "past_last", "to_first", "to_last")),
    "timed": Plan(timed=True, ending=True, contexts=("unrestricted", *CONTEXTS)),
}


def program_of(expressions: list[Expression], policy: str) -> tuple[Program, SharedTable]:
    found = SharedTable("found", key=str, initial=(), history=100)
    program = Program("found", [found])

    @program.on("A")
    def count(e: Mapping[str, Any], access: Access) -> None:
        access.write(found["A"], lambda before: (*before, e["x"]))

    for number, expression in enumerate(expressions):

        def writes(o: Occurrence, number: int = number) -> list[Any]:
            return [found[f"{number}"]]

        @program.rule(expression, name=f"rule {number}", writes=writes, on_uncertain=policy)
        def matched(t: View, o: Occurrence, number: int = number) -> None:
            ref = found[f"{number}"]
            t.write(ref, (*t.read(ref), text_of(o)))

    return program, found


def text_of(o: Any) -> str:
    if isinstance(o, tuple):
        return f"({', '.join(map(text_of, o))})"
    inner = {name: text_of(part) for name, part in o.parts.items()}
    return f"{o.id or o.us}{inner or ''}"


def events_of(random: Random, first: int, count: int, *, inexact: float) -> list[Occurrence]:
    """Return the events of three seconds; some lack an attribute that a term needs, some repeat."""
    found: list[Occurrence] = []
    for number in range(count):
        us = (first + random.randrange(6)) * SECOND_US // 2
        stamp: Any = us / SECOND_US
        if random.random() < inexact:
            early, late = random.choice([0, 1, SECOND_US]), random.choice([0, 1, SECOND_US])
            stamp = AccuracyInterval(us, max(us - early, first * SECOND_US // 2), us + late)
        params = {"w": random.randrange(2), "x": random.randrange(3)}
        if random.random() < 0.05:
            del params["x"]
        found.append(Occurrence(random.choice("ABC"), stamp, params, id=f"{first}.{number}"))
    return found + random.sample(found, random.randrange(2))


def detectors_of(run: ProgramRun) -> list[Detector]:
    return [] if run._detection is None else [each for _, each in run._detection._detectors]


def kept(detector: Detector) -> Any:
    """Return the state of a detector, and check its count of partial matches.

    Entries that no match can need any more are left out: they may have been forgotten or not.
    """
    entries = [list(node.kept()) for node in detector._nodes]
    assert detector.partials == sum(map(len, entries))
    trimmed_us, horizon_us = detector._trimmed_us, detector.horizon_us
    of_use_us = trimmed_us - horizon_us if trimmed_us is not None and horizon_us is not None else 0
    return (
        [sorted(text_of(e[3]) for e in own if e[3].high_us >= of_use_us) for own in entries],
        detector.due_us,
        [each.identity for each in detector.undecided],
        (detector.dropped, detector.truncated),
    )


def shown(run: ProgramRun, table: SharedTable) -> Any:
    """Return the state of a run that an undone feed must leave unchanged."""
    return (
        run.state.of(table).all(),
        run.waiting,
        run.punctuation_us,
        [(each.rule, each.undecided.identity) for each in run.undecided],
        [kept(detector) for detector in detectors_of(run)],
    )


def told(results: Any) -> Any:
    return (
        [(t.at.us, t.at.id, t.type, repr(t.outcome)) for t in results.transactions],
        [repr(output) for output in results.outputs],
        [refusal.reason for refusal in results.refused],
        [(each.rule, each.undecided.identity) for each in results.undecided],
    )


Step = Callable[[ProgramRun], Any]


def steps_of(random: Random, *, inexact: float) -> list[Step]:
    """Return four feeds, some with a punctuation, and the end of the stream."""
    found: list[Step] = []
    for number in range(4):
        # Of events with uncertain times there are many worlds, and each is looked at.
        count = random.randint(2, 4) if inexact else random.randint(4, 8)
        batch = events_of(random, 6 * number, count, inexact=inexact)
        until_us = None
        if random.random() < 0.7:
            until_us = (6 * number + random.randrange(2, 7)) * SECOND_US // 2

        def step(run: ProgramRun, batch: Any = batch, until_us: int | None = until_us) -> Any:
            return run.feed(batch, until_us)

        found.append(step)
    return [*found, lambda run: run.finish()]


def check_cut(
    random: Random,
    expressions: list[Expression],
    policy: str,
    steps: list[Step],
) -> int:
    """Cut off one step at four lines; return how many of these were in detection."""
    program, table = program_of(expressions, policy)
    cut_step = random.randrange(1, len(steps))
    whole = ProgramRun(program, SerialOrder())
    expected: list[Any] = []
    afterwards: Any = None
    for number, step in enumerate(steps):
        if number == cut_step:
            before = shown(whole, table)
            with lines_of() as met:
                results = step(whole)
            afterwards = shown(whole, table)
        else:
            results = step(whole)
        expected.append(told(results))
    last = shown(whole, table)
    if sum(met.values()) > _LINES_MAX:
        return 0
    in_detection = 0
    for _ in range(4):
        line = random.choice([*met])
        time = random.randint(1, met[line])
        run = ProgramRun(program, SerialOrder())
        for step in steps[:cut_step]:
            step(run)
        where = f"{expressions} {policy}, step {cut_step} cut off at {line[0]}:{line[1]}, {time}"
        assert shown(run, table) == before, where
        try:
            with cut_before(line, time):
                steps[cut_step](run)
        except KeyboardInterrupt:
            in_detection += "/events/" in line[0]
        else:
            continue  # sets have no order: the line has run less often this time
        if (run.waiting, run.punctuation_us) == (before[1], before[2]):
            assert shown(run, table) == before, where
            assert told(steps[cut_step](run)) == expected[cut_step], where
            assert shown(run, table) == afterwards, where
        else:
            assert (run.waiting, run.punctuation_us) == (afterwards[1], afterwards[2]), where
        for number, step in enumerate(steps[cut_step + 1 :], cut_step + 1):
            assert told(step(run)) == expected[number], where
        # What was not trimmed is kept until the next punctuation.
        assert shown(run, table)[:4] == last[:4], where
    return in_detection


@pytest.mark.long
@pytest.mark.parametrize("plan", PLANS)
def test_feed_that_is_cut_off_at_any_line_is_whole_or_not_at_all(plan: str) -> None:
    worlds = Worlds(12 * SCALE, "cut off", plan, detecting=12)
    for random in worlds:
        inexact = random.choice([0.0, 0.0, 0.3])
        count = random.choice([1, 1, 2])
        expressions = [random_expression(random, PLANS[plan]) for _ in range(count)]
        policy = random.choice(["certain", "certain", "possible", "reading"])
        steps = steps_of(random, inexact=inexact)
        worlds.met["detecting"] += check_cut(random, expressions, policy, steps)


def test_feed_that_is_cut_off_at_each_line_of_scheduling_is_whole_or_not_at_all() -> None:
    program, table = program_of([], "certain")
    events = [Occurrence("A", n, {"x": n}, id=str(n)) for n in range(4)]
    whole = ProgramRun(program, SerialOrder())
    before = shown(whole, table)
    with lines_of() as met:
        results = whole.feed(events, 3 * SECOND_US)
    afterwards, last = shown(whole, table), told(whole.finish())
    assert any(file.endswith("_state.py") for file, _ in met)
    for line in (line for line in met if "/scheduling/" in line[0]):
        for time in {1, met[line]}:
            run, where = ProgramRun(program, SerialOrder()), f"{line}, {time}"
            with pytest.raises(KeyboardInterrupt), cut_before(line, time):
                run.feed(events, 3 * SECOND_US)
            if run.punctuation_us is None:
                assert shown(run, table) == before, where
                assert told(run.feed(events, 3 * SECOND_US)) == told(results), where
            assert shown(run, table) == afterwards, where
            assert told(run.finish()) == last, where
