"""The dependency graph, by example."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from coupling import (
    Answer,
    Consequences,
    Dependency,
    DependencyCycle,
    DependencyGraph,
    DependencyKind,
    DependencyUsageError,
    Verdict,
)

AD, CD, ED, SQD, WD = (DependencyKind(kind) for kind in ("AD", "CD", "ED", "SQD", "WD"))
GO: Verdict[str] = Verdict(Answer.GO)


def graph_of(*names: str, **children: str) -> DependencyGraph[str]:
    """Active transactions; children by ``child="parent"``."""
    graph: DependencyGraph[str] = DependencyGraph()
    for name, parent in [(name, None) for name in names] + list(children.items()):
        graph.add(name, parent=parent)
        assert graph.begin(name) == GO
    return graph


def wait(*edges: Dependency[str]) -> Verdict[str]:
    return Verdict(Answer.WAIT, edges)


def must_abort(*edges: Dependency[str]) -> Verdict[str]:
    return Verdict(Answer.ABORT, edges)


def commit(graph: DependencyGraph[str], name: str) -> Consequences[str]:
    assert graph.commit(name) == GO
    return graph.committed(name)


# -- kind by kind -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [CD, AD, ED])
def test_dependencies_commit_that_depends_on_a_live_one_waits(kind: DependencyKind) -> None:
    graph = graph_of("t", "d")
    graph.depend("d", kind, "t")
    assert graph.commit("d") == wait(Dependency("d", kind, "t"))


@pytest.mark.parametrize(
    ("kind", "after_commit", "after_abort"),
    [(CD, "go", "go"), (AD, "go", "abort"), (ED, "abort", "go"), (WD, "go", "abort")],
)
@pytest.mark.parametrize("has_asked", [False, True])
def test_dependencies_end_decides_what_the_dependent_may_do(
    kind: DependencyKind, after_commit: str, after_abort: str, has_asked: bool
) -> None:
    for ending, expected in (("commit", after_commit), ("abort", after_abort)):
        graph = graph_of("t", "d")
        graph.depend("d", kind, "t")
        waits = has_asked and graph.commit("d").answer is Answer.WAIT
        then = commit(graph, "t") if ending == "commit" else graph.aborted("t")
        edge = Dependency("d", kind, "t")
        assert then.must_abort == ((edge,) if expected == "abort" else ())
        assert then.may_commit == (("d",) if waits and expected == "go" else ())
        assert graph.commit("d") == (GO if expected == "go" else must_abort(edge))


def test_dependencies_sequential_begins_after_the_commit() -> None:
    graph = graph_of("t")
    graph.add("d")
    graph.depend("d", SQD, "t")
    assert graph.begin("d") == wait(Dependency("d", SQD, "t"))
    assert commit(graph, "t").may_begin == ("d",)
    assert graph.commit("d") == GO  # it has begun


def test_dependencies_sequential_never_begins_after_the_abort() -> None:
    graph = graph_of("t")
    graph.add("d")
    graph.depend("d", SQD, "t")
    graph.begin("d")
    then = graph.aborted("t")
    assert then.must_abort == (Dependency("d", SQD, "t"),)
    assert then.may_begin == ()
    assert graph.begin("d").answer is Answer.ABORT


def test_dependencies_weak_abort_spares_who_has_committed() -> None:
    graph = graph_of("t", "d")
    graph.depend("d", WD, "t")
    commit(graph, "d")
    assert graph.aborted("t") == Consequences()


def test_dependencies_dependent_that_aborts_is_forgotten() -> None:
    graph = graph_of("t", "d")
    for kind in (AD, CD, ED, WD):
        graph.depend("d", kind, "t")
    assert graph.aborted("d") == Consequences()
    assert commit(graph, "t") == Consequences()


def test_dependencies_several_hold_until_the_last_has_ended() -> None:
    graph = graph_of("a", "b", "d")
    graph.depend("d", AD, "a")
    graph.depend("d", CD, "b")
    assert graph.commit("d") == wait(Dependency("d", AD, "a"), Dependency("d", CD, "b"))
    assert commit(graph, "a").may_commit == ()
    assert graph.commit("d") == wait(Dependency("d", CD, "b"))
    assert graph.aborted("b").may_commit == ("d",)
    assert graph.committed("d") == Consequences()


def test_dependencies_doomed_transaction_is_named_once_and_for_every_reason() -> None:
    graph = graph_of("a", "b", "d")
    graph.depend("d", AD, "a")
    graph.depend("d", WD, "a")
    graph.depend("d", AD, "b")
    assert graph.aborted("a").must_abort == (Dependency("d", AD, "a"),)
    assert graph.aborted("b").must_abort == ()
    reasons = (Dependency("d", AD, "a"), Dependency("d", WD, "a"), Dependency("d", AD, "b"))
    assert graph.commit("d") == must_abort(*reasons)


def test_dependencies_added_twice_count_once() -> None:
    graph = graph_of("t", "d")
    graph.depend("d", AD, "t")
    graph.depend("d", AD, "t")
    assert graph.dependencies() == (Dependency("d", AD, "t"),)


def test_dependencies_answers_come_in_the_order_of_the_dependencies() -> None:
    names = ["z", "a", "m", "b", "y"]
    graph = graph_of("t", *sorted(names))
    for name in names:
        graph.depend(name, AD, "t")
        graph.commit(name)
    assert commit(graph, "t").may_commit == tuple(names)


# -- parents and children -----------------------------------------------------------------------


def test_dependencies_parent_waits_for_its_children_and_they_abort_with_it() -> None:
    graph = graph_of("p", c="p", d="p")
    assert graph.commit("p") == wait(Dependency("p", CD, "c"), Dependency("p", CD, "d"))
    commit(graph, "c")
    assert graph.aborted("p").must_abort == (Dependency("d", WD, "p"),)


def test_dependencies_child_that_aborts_leaves_its_parent_alone() -> None:
    graph = graph_of("p", c="p")
    graph.commit("p")
    assert graph.aborted("c") == Consequences(may_commit=("p",))


def test_dependencies_child_that_has_not_begun_holds_its_parent() -> None:
    graph = graph_of("p")
    graph.add("c", parent="p")
    assert graph.commit("p").answer is Answer.WAIT
    assert graph.aborted("c").may_commit == ("p",)


def test_dependencies_child_may_come_while_its_parent_waits_to_commit() -> None:
    graph = graph_of("p", c="p")
    graph.commit("p")
    graph.add("e", parent="p")
    assert commit(graph, "c").may_commit == ()
    assert graph.aborted("e").may_commit == ("p",)


# -- handing over -------------------------------------------------------------------------------


def test_dependencies_on_a_subtransaction_go_up_its_line() -> None:
    graph = graph_of("top", "d", p="top", t="p")
    graph.depend("d", AD, "t")
    assert graph.commit("d") == wait(Dependency("d", AD, "t"))
    for name, parent in (("t", "p"), ("p", "top")):
        then = commit(graph, name)
        assert then.handed_over == (Dependency("d", AD, parent),)
        assert then.may_commit == ()
        assert graph.waits() == (Dependency("d", AD, parent),)
    assert commit(graph, "top") == Consequences(may_commit=("d",))


@pytest.mark.parametrize(("kind", "expected"), [(AD, "abort"), (ED, "go"), (CD, "go")])
@pytest.mark.parametrize("who", ["t", "p", "top"])
def test_dependencies_line_that_aborts_anywhere_has_aborted(
    kind: DependencyKind, expected: str, who: str
) -> None:
    graph = graph_of("top", "d", p="top", t="p")
    graph.depend("d", kind, "t")
    graph.commit("d")
    for name in ("t", "p", "top"):
        if name == who:
            then = graph.aborted(name)
            break
        commit(graph, name)
    assert then.may_commit == (("d",) if expected == "go" else ())
    assert then.must_abort == ((Dependency("d", kind, who),) if expected == "abort" else ())


def test_dependencies_sequential_waits_for_the_whole_line() -> None:
    graph = graph_of("top", t="top")
    graph.add("d")
    graph.depend("d", SQD, "t")
    graph.begin("d")
    assert commit(graph, "t").may_begin == ()
    assert graph.begin("d") == wait(Dependency("d", SQD, "top"))
    assert commit(graph, "top").may_begin == ("d",)


def test_dependencies_between_siblings_end_below_their_parent() -> None:
    graph = graph_of("p", condition="p", action="p")
    graph.depend("action", AD, "condition")
    assert graph.commit("action").answer is Answer.WAIT
    assert commit(graph, "condition") == Consequences(may_commit=("action",))


def test_dependencies_between_cousins_end_below_the_first_they_share() -> None:
    graph = graph_of("top", a="top", b="top", a1="a", b1="b")
    graph.depend("b1", AD, "a1")
    graph.commit("b1")
    assert commit(graph, "a1").handed_over == (Dependency("b1", AD, "a"),)
    assert commit(graph, "a") == Consequences(may_commit=("b1",))


def test_dependencies_handed_over_to_one_that_stands_are_one() -> None:
    graph = graph_of("p", "d", t="p")
    graph.depend("d", AD, "p")
    graph.depend("d", AD, "t")
    assert graph.commit("d") == wait(Dependency("d", AD, "p"), Dependency("d", AD, "t"))
    assert commit(graph, "t").handed_over == ()
    assert graph.dependencies() == (Dependency("d", AD, "p"),)
    assert commit(graph, "p").may_commit == ("d",)


def test_dependencies_of_a_parent_on_its_child_are_about_that_child() -> None:
    graph = graph_of("p", c="p")
    graph.depend("p", AD, "c")
    assert graph.aborted("c").must_abort == (Dependency("p", AD, "c"),)


# -- waits --------------------------------------------------------------------------------------


def test_dependencies_waits_are_of_those_who_have_asked() -> None:
    graph = graph_of("t", "d", "e", c="t")
    graph.add("f")
    graph.depend("d", AD, "t")
    graph.depend("d", WD, "t")
    graph.depend("e", AD, "t")
    graph.depend("f", SQD, "t")
    assert graph.waits() == ()
    graph.commit("d")
    graph.commit("t")
    graph.begin("f")
    by_hand = (Dependency("t", CD, "c"), Dependency("d", AD, "t"), Dependency("f", SQD, "t"))
    assert graph.waits() == by_hand
    assert graph.waits_of("e") == ()


def test_dependencies_who_must_abort_waits_no_more() -> None:
    graph = graph_of("a", "b", "d")
    graph.depend("d", AD, "a")
    graph.depend("d", AD, "b")
    graph.commit("d")
    graph.aborted("a")
    assert graph.waits() == ()


# -- refusals -----------------------------------------------------------------------------------


def unchanged(graph: DependencyGraph[str], call: Callable[[], object]) -> None:
    before = graph.dependencies(), graph.waits(), len(graph)
    try:
        call()
    finally:
        assert (graph.dependencies(), graph.waits(), len(graph)) == before


@pytest.mark.parametrize("first", [CD, AD, ED])
@pytest.mark.parametrize("second", [CD, AD, ED, SQD])
def test_dependencies_two_that_would_wait_for_each_other_are_refused(
    first: DependencyKind, second: DependencyKind
) -> None:
    graph = graph_of("a")
    graph.add("b")
    graph.depend("a", first, "b")
    with pytest.raises(DependencyCycle) as caught:
        unchanged(graph, lambda: graph.depend("b", second, "a"))
    assert caught.value.cycle == (Dependency("b", second, "a"), Dependency("a", first, "b"))
    assert str(caught.value) == (
        f"b {second} a would close a cycle of transactions that wait for each other's end: "
        f"a {first} b"
    )


def test_dependencies_longer_cycle_is_refused_and_a_shortest_one_named() -> None:
    graph = graph_of("a", "b", "c", "d", "e")
    for dependent, on in ("ba", "cb", "dc", "ea", "de"):
        graph.depend(dependent, AD, on)
    with pytest.raises(DependencyCycle) as caught:
        unchanged(graph, lambda: graph.depend("a", CD, "d"))
    assert [str(edge) for edge in caught.value.cycle] == ["a CD d", "d AD e", "e AD a"]


def test_dependencies_that_make_nobody_wait_may_go_round() -> None:
    graph = graph_of("a", "b")
    graph.depend("a", WD, "b")
    graph.depend("b", WD, "a")
    graph.depend("a", AD, "b")
    assert graph.aborted("a").must_abort == (Dependency("b", WD, "a"),)


def test_dependencies_child_cannot_wait_for_its_superior() -> None:
    graph = graph_of("top", p="top", c="p")
    with pytest.raises(DependencyCycle, match=r"c AD top would .*: top CD p, p CD c$"):
        unchanged(graph, lambda: graph.depend("c", AD, "top"))


def test_dependencies_cycle_that_handing_over_would_close_is_refused_at_once() -> None:
    graph = graph_of("p", "d", t="p")
    graph.depend("p", AD, "d")
    with pytest.raises(DependencyCycle, match=r"d AD t would .*: p AD d$"):
        unchanged(graph, lambda: graph.depend("d", AD, "t"))


def test_dependencies_cycle_below_the_first_shared_superior_is_none() -> None:
    graph = graph_of("p", a="p", b="p", a1="a")
    graph.depend("b", AD, "a1")
    graph.depend("p", AD, "b")  # waits for b anyway
    assert graph.commit("b").answer is Answer.WAIT
    commit(graph, "a1")
    assert commit(graph, "a").may_commit == ("b",)


def test_dependencies_cycle_through_one_that_must_abort_is_none() -> None:
    graph = graph_of("a", "b", "t")
    graph.depend("a", AD, "t")
    graph.depend("b", AD, "a")
    graph.aborted("t")
    graph.depend("a", AD, "b")  # a aborts in any case, and so does b
    assert [e.dependent for e in graph.aborted("a").must_abort] == ["b"]


def test_dependencies_cycle_through_another_that_must_abort_is_none() -> None:
    graph = graph_of("a", "b", "t")
    graph.depend("a", AD, "b")
    graph.depend("a", AD, "t")
    graph.aborted("t")
    graph.depend("b", AD, "a")
    assert [e.dependent for e in graph.aborted("a").must_abort] == ["b"]


def test_dependencies_line_of_one_that_must_abort_goes_no_further() -> None:
    graph = graph_of("top", "d", p="top", t="p")
    graph.depend("top", AD, "d")
    assert [e.dependent for e in graph.aborted("p").must_abort] == ["t"]
    graph.depend("d", CD, "t")
    graph.commit("d")
    graph.commit("top")
    assert graph.aborted("t").may_commit == ("d",)
    assert graph.committed("d").may_commit == ("top",)


def refusals() -> Iterable[tuple[str, Callable[[DependencyGraph[str]], object], str]]:
    yield "unknown", lambda g: g.begin("x"), "x is not in the graph"
    yield "unknown dependent", lambda g: g.depend("x", AD, "a"), "x is not in the graph"
    yield "unknown on", lambda g: g.depend("a", AD, "x"), "x is not in the graph"
    yield "unknown parent", lambda g: g.add("x", parent="y"), "y is not in the graph"
    yield "ended", lambda g: g.aborted("ended"), "ended is not in the graph.* or has ended"
    yield "added twice", lambda g: g.add("a"), "a is in the graph already"
    yield "begun twice", lambda g: g.begin("a"), "a has begun before"
    yield "not begun", lambda g: g.commit("new"), "new has not begun: it cannot commit"
    yield "not asked", lambda g: g.committed("a"), "a is active: ask to commit"
    yield "still waiting", lambda g: g.committed("waiting"), "waiting waits to commit"
    yield "must abort", lambda g: g.committed("doomed"), "doomed must abort: doomed WD ended"
    yield "itself", lambda g: g.depend("a", AD, "a"), "a cannot depend on itself"
    yield "has begun", lambda g: g.depend("a", SQD, "b"), "a is active: too late for SQD on b"
    yield "may commit", lambda g: g.depend("leaving", WD, "a"), "leaving may commit: too late"
    yield "child too early", lambda g: g.add("x", parent="new"), "new has not begun: x cannot"
    yield "child too late", lambda g: g.add("x", parent="leaving"), "leaving may commit: x cannot"


@pytest.mark.parametrize(("call", "message"), [r[1:] for r in refusals()], ids=lambda x: "")
def test_dependencies_meaningless_call_is_refused_and_changes_nothing(
    call: Callable[[DependencyGraph[str]], object], message: str
) -> None:
    graph = graph_of("a", "b", "leaving", "waiting", "ended", "doomed")
    graph.add("new")
    graph.depend("waiting", AD, "a")
    graph.depend("doomed", WD, "ended")
    graph.commit("doomed")
    for name in ("leaving", "waiting"):
        graph.commit(name)
    graph.aborted("ended")
    with pytest.raises(DependencyUsageError, match=message):
        unchanged(graph, lambda: call(graph))


# -- cost ---------------------------------------------------------------------------------------


class Name:
    """A name that counts how often it is looked up."""

    looked_up = 0

    def __init__(self, number: int):
        self.number = number

    def __hash__(self) -> int:
        Name.looked_up += 1
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Name) and self.number == other.number


@pytest.mark.parametrize("of_it", [1, 8])
def test_dependencies_end_costs_its_own_edges_whatever_else_there_is(of_it: int) -> None:
    costs = []
    for others in (10, 1000):
        graph: DependencyGraph[Name] = DependencyGraph()
        names = [Name(number) for number in range(2 * others + 20)]
        for name in names:
            graph.add(name)
            graph.begin(name)
        for number in range(others):
            graph.depend(names[2 * number + 20], AD, names[2 * number + 21])
        for number in range(of_it):
            graph.depend(names[number + 1], AD, names[0])
        graph.commit(names[0])
        Name.looked_up = 0
        graph.committed(names[0])
        costs.append(Name.looked_up)
    assert costs[0] == costs[1] <= 4 * (of_it + 1)
