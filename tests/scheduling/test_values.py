"""Values that can be changed in place: who has read or written one changes nothing by that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from activedb.errors import DefinitionError
from activedb.events import Occurrence, event, occurrence
from activedb.scheduling import Access, Outcome, Program, ProgramRun, SharedTable, View
from tests.scheduling.test_schedulers import SCHEDULERS


class Uncopied:
    """A value that refuses to be copied."""

    def __deepcopy__(self, memo: object) -> Uncopied:
        raise TypeError("there is one")


def tables() -> SharedTable:
    return SharedTable("lists", key=str, initial=[], history=100)


def run_of(program: Program, name: str) -> ProgramRun:
    return ProgramRun(program, SCHEDULERS[name](2))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_value_changed_in_place_by_what_aborts_is_as_it_was(name: str) -> None:
    lists = tables()
    program = Program("changing", [lists])

    def spoil(value: list[Any], *others: Any) -> list[Any]:
        value.append("x")
        raise ValueError

    def spoil_all(window: list[list[Any]], found: dict[str, list[Any]]) -> None:
        for value in (*window, *found.values()):
            value.append({"y": []})
        raise ValueError

    def add(value: list[Any], more: Any) -> list[Any]:
        value.append(more)
        return value

    @program.on("ADD")
    def adding(e: Mapping[str, Any], access: Access) -> None:
        access.write(lists["a"], add, e["more"])

    @program.on("SPOIL")
    def spoiling(e: Mapping[str, Any], access: Access) -> None:
        access.write(lists["a"], spoil)
        access.write(lists["never written"], spoil)

    @program.on("SPOIL ALL")
    def spoiling_all(e: Mapping[str, Any], access: Access) -> None:
        access.read(lists["a"].window(50), lists.range(), function=spoil_all)

    @program.on("LOOK")
    def looking(e: Mapping[str, Any], access: Access) -> None:
        access.read(lists["a"], lists["a"].window(50), lists["never written"])

    more: dict[str, Any] = {"deep": [1]}
    run = run_of(program, name)
    results = run.feed(
        [
            occurrence("ADD", timestamp=1, more=more),
            occurrence("SPOIL", timestamp=2),
            occurrence("SPOIL ALL", timestamp=3),
            occurrence("ADD", timestamp=4, more=2),
            occurrence("LOOK", timestamp=5),
        ],
        10_000_000,
    )
    one, two = [{"deep": [1]}], [{"deep": [1]}, 2]
    assert [t.outcome.committed for t in results.transactions if t.outcome] == [
        True,
        False,
        False,
        True,
        True,
    ]
    last = results.transactions[-1].outcome
    assert last is not None
    assert last.results == ((two, [one, two], []),)
    # What was handed out, or in, is not shared.
    for transaction in results.transactions:
        assert transaction.outcome is not None
        for result in transaction.outcome.results:
            result[0].append("z") if isinstance(result, tuple) else result.append("z")
    more["deep"].append("z")
    run.state.of(lists).newest()["a"].append("z")
    assert run.state.of(lists).newest() == {"a": two}
    again = run.feed([occurrence("LOOK", timestamp=11)], 20_000_000).transactions[0].outcome
    assert again is not None
    assert again.results == ((two, [one, two], []),)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_value_changed_in_place_by_a_body_or_a_rule_is_written_only_by_writing(name: str) -> None:
    lists = tables()
    program = Program("changing", [lists])

    @program.on("TICK")
    def tick(e: Mapping[str, Any], access: Access) -> None:
        def work(t: View, e: Mapping[str, Any]) -> Any:
            value = t.read(lists["a"])
            value.append(1)
            t.write(lists["a"], value)
            value.append("not written")
            own = t.read(lists["a"])
            own.append("not written")
            t.read(lists.range())["a"].append("not written")
            return t.read(lists["a"])

        access.body(work, e, [lists.range()], [lists["a"]])

    @program.rule(event("TICK"), reads=lambda o: [lists["a"]], writes=lambda o: [lists["b"]])
    def react(t: View, o: Occurrence) -> Any:
        t.read(lists["a"]).append("not written")
        value = t.read(lists["b"])
        value.append(len(value))
        t.write(lists["b"], value)
        value.append("not written")
        return value

    run = run_of(program, name)
    results = run.feed([occurrence("TICK", timestamp=n) for n in range(3)], 10_000_000)
    assert [t.outcome.reason for t in results.transactions if t.outcome] == [None] * 3
    assert run.state.of(lists).newest() == {"a": [1, 1, 1], "b": [0, 1, 2]}


def test_what_post_processing_changes_in_place_is_not_in_the_state() -> None:
    lists = tables()
    program = Program("changing", [lists])

    @program.on("ADD")
    def adding(e: Mapping[str, Any], access: Access) -> None:
        access.write(lists["a"], lambda value: [*value, 1])

    @program.post_process
    def tell(type_: str, params: Mapping[str, Any], outcome: Outcome) -> Any:
        outcome.results[0].append("told")
        return outcome.results[0]

    run = run_of(program, "serial")
    results = run.feed([occurrence("ADD", timestamp=n) for n in range(2)], 10_000_000)
    assert results.outputs == [[1, "told"], [1, 1, "told"]]
    assert run.state.of(lists).newest() == {"a": [1, 1]}


def test_value_that_cannot_be_copied_aborts_and_says_so() -> None:
    lists = tables()
    program = Program("changing", [lists])

    @program.on("ADD")
    def adding(e: Mapping[str, Any], access: Access) -> None:
        access.write(lists["a"], lambda value: [Uncopied()])

    run = run_of(program, "serial")
    (one,) = run.feed([occurrence("ADD", timestamp=1)], 10_000_000).transactions
    assert one.outcome is not None
    assert "cannot be copied" in str(one.outcome.reason)
    with pytest.raises(DefinitionError, match="can be copied"):
        SharedTable("t", initial=[Uncopied()])


def test_partitioned_value_changed_in_place_is_as_it_was() -> None:
    from activedb.scheduling import Partitioned, SerialOrder

    lists = tables()
    program = Program("changing", [lists])

    @program.on("SPOIL")
    def spoiling(e: Mapping[str, Any], access: Access) -> None:
        def spoil(value: list[Any]) -> list[Any]:
            value.append("x")
            if e["aborts"]:
                raise ValueError
            return value

        access.write(lists[e["key"]], spoil)

    from tests.scheduling.partitioned.here import TasksHere  # skips without Spark

    run = ProgramRun(program, Partitioned(SerialOrder(), TasksHere()))
    run.feed(
        [
            occurrence("SPOIL", timestamp=n, key=key, aborts=n % 2 == 0)
            for n in range(4)
            for key in "abc"
        ],
        10_000_000,
    )
    assert run.state.of(lists).newest() == {key: ["x", "x"] for key in "abc"}
