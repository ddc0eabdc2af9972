"""The 24 pairs of coupling modes, against tables written from the paper and the design."""

from __future__ import annotations

import pytest

from coupling import ConditionAction, Coupling, DependencyGraph, Plan, Role, plan
from tests.coupling.play import Play

# T is the triggering transaction, R the rule's, C the condition's own, A the action's own.
# "R<T event shares": R is a child of T, starts at the event, shares the triggering commit; without
# "<" it is top-level. Rules are recorded "by-commit", "at-event", or an intent is "erased".
# Dependencies beyond those of a parent and its child (WD and CD) are written out.
TABLE = [
    # E-C, C-A, condition in, action in, transactions, dependencies
    ("immediate", "immediate", "R", "R", "R<T event shares", ""),
    (
        *("immediate", "sequential", "C", "A"),
        "R<T event shares, C<R event shares, A<R event shares",
        "A AD C",
    ),
    (
        *("immediate", "deferred", "R", "A"),
        "R<T event shares, A<T commit-point shares",
        "A SQD R",
    ),
    ("immediate", "detached", "R", "A", "R<T event shares, A true at-event", ""),
    ("deferred", "immediate", "R", "R", "R<T commit-point shares", ""),
    (
        *("deferred", "sequential", "C", "A"),
        "R<T commit-point shares, C<R commit-point shares, A<R commit-point shares",
        "A AD C",
    ),
    (
        *("deferred", "deferred", "R", "A"),
        "R<T commit-point shares, A<T commit-point shares",
        "A SQD R",
    ),
    ("deferred", "detached", "R", "A", "R<T commit-point shares, A true at-event", ""),
    ("detached", "immediate", "R", "R", "R event at-event", ""),
    (
        *("detached", "sequential", "C", "A"),
        "R event at-event, C<R event at-event, A<R event at-event",
        "A AD C",
    ),
    ("detached", "deferred", "R", "A", "R event at-event, A<R commit-point at-event", ""),
    ("detached", "detached", "R", "A", "R event at-event, A true at-event", ""),
    ("causal", "immediate", "R", "R", "R event by-commit", "R AD T"),
    (
        *("causal", "sequential", "C", "A"),
        "R event by-commit, C<R event by-commit, A<R event by-commit",
        "R AD T, A AD C",
    ),
    ("causal", "deferred", "R", "A", "R event by-commit, A<R commit-point by-commit", "R AD T"),
    ("causal", "detached", "R", "A", "R event by-commit, A true by-commit", "R AD T, A AD T"),
    ("sequential", "immediate", "R", "R", "R after-commit by-commit", "R SQD T"),
    (
        *("sequential", "sequential", "C", "A"),
        "R after-commit by-commit, C<R after-commit by-commit, A<R after-commit by-commit",
        "R SQD T, A AD C",
    ),
    (
        *("sequential", "deferred", "R", "A"),
        "R after-commit by-commit, A<R commit-point by-commit",
        "R SQD T",
    ),
    (
        *("sequential", "detached", "R", "A"),
        "R after-commit by-commit, A true by-commit",
        "R SQD T, A SQD T",
    ),
    ("exclusive", "immediate", "R", "R", "R event-or-abort erased", "R ED T"),
    (
        *("exclusive", "sequential", "C", "A"),
        "R event-or-abort erased, C<R event-or-abort erased, A<R event-or-abort erased",
        "R ED T, A AD C",
    ),
    (
        *("exclusive", "deferred", "R", "A"),
        "R event-or-abort erased, A<R commit-point erased",
        "R ED T",
    ),
    (
        *("exclusive", "detached", "R", "A"),
        "R event-or-abort erased, A true erased",
        "R ED T, A ED T",
    ),
]
CA = list(ConditionAction)
LETTERS = {"triggering": "T", "rule": "R", "condition": "C", "action": "A"}
STARTS = {
    "at the event": "event",
    "at the commit point": "commit-point",
    "after the triggering commit": "after-commit",
    "at the event or the abort": "event-or-abort",
    "when the condition is true": "true",
}
DURABLE = {
    "with the triggering commit": "shares",
    "recorded by the triggering commit": "by-commit",
    "recorded at the event": "at-event",
    "recorded at the event, erased by the triggering commit": "erased",
}


def transactions_of(shown: Plan) -> str:
    return ", ".join(
        LETTERS[planned.role]
        + (f"<{LETTERS[planned.parent]}" if planned.parent else "")
        + f" {STARTS[planned.starts]} {DURABLE[planned.durability]}"
        for planned in shown.transactions
    )


def dependencies_of(shown: Plan) -> set[str]:
    edges = [f"{LETTERS[e.dependent]} {e.kind} {LETTERS[e.on]}" for e in shown.dependencies]
    assert len(set(edges)) == len(edges)
    return set(edges)


def both_ways(transactions: str) -> set[str]:
    """Axiom 19: the child aborts with its parent, the parent commits after its child."""
    pairs = [part.split()[0].split("<") for part in transactions.split(", ")]
    children = [pair for pair in pairs if len(pair) == 2]
    return {f"{child} WD {parent}" for child, parent in children} | {
        f"{parent} CD {child}" for child, parent in children
    }


def test_plan_table_has_every_pair_once() -> None:
    assert [row[:2] for row in TABLE] == [(str(ec), str(ca)) for ec in Coupling for ca in CA]


@pytest.mark.parametrize(
    ("ec", "ca", "condition", "action", "transactions", "dependencies"),
    TABLE,
    ids=[f"{row[0]}-{row[1]}" for row in TABLE],
)
def test_plan_of_a_pair_is_what_the_table_says(
    ec: str, ca: str, condition: str, action: str, transactions: str, dependencies: str
) -> None:
    shown = plan(Coupling(ec), ConditionAction(ca))
    assert LETTERS[shown.condition_in] == condition
    assert LETTERS[shown.action_in] == action
    assert transactions_of(shown) == transactions
    beyond = {edge for edge in dependencies.split(", ") if edge}
    assert dependencies_of(shown) == beyond | both_ways(transactions)


@pytest.mark.parametrize("ca", CA)
@pytest.mark.parametrize("ec", list(Coupling))
def test_plan_parents_come_before_their_children(ec: Coupling, ca: ConditionAction) -> None:
    known = {Role.TRIGGERING}
    for planned in plan(ec, ca).transactions:
        assert planned.parent is None or planned.parent in known
        assert planned.role not in known
        known.add(planned.role)


@pytest.mark.parametrize("ca", CA)
@pytest.mark.parametrize("ec", list(Coupling))
def test_plan_dependencies_are_those_the_graph_then_has(ec: Coupling, ca: ConditionAction) -> None:
    shown = plan(ec, ca)
    graph: DependencyGraph[str] = DependencyGraph()
    graph.add(Role.TRIGGERING)
    graph.begin(Role.TRIGGERING)
    for planned in shown.transactions:
        graph.add(planned.role, parent=planned.parent)
        if planned.role is Role.RULE:
            graph.begin(Role.RULE)
    for edge in shown.dependencies:
        if edge.kind != "SQD" or edge.dependent is not Role.RULE:
            graph.depend(edge.dependent, edge.kind, edge.on)
    sequential = {e for e in shown.dependencies if e.kind == "SQD" and e.dependent == "rule"}
    assert set(graph.dependencies()) == set(shown.dependencies) - sequential


# What becomes of the action, per E-C mode: in the order immediate, sequential, deferred, detached
# of C-A modes. The triggering transaction is a subtransaction. It commits and so does its parent;
# it commits, then its parent aborts; it aborts itself. "late": the rule starts at the abort.
OUTCOMES = {
    # E-C mode: commits | commits, then its parent aborts | aborts
    "immediate": "kept kept kept kept | undone undone undone kept | undone undone never kept",
    "deferred": "kept kept kept kept | undone undone undone kept | never never never never",
    "detached": "kept kept kept kept | kept kept kept kept | kept kept kept kept",
    "causal": "kept kept kept kept | undone undone undone undone | undone undone undone undone",
    "sequential": "kept kept kept kept | never never never never | never never never never",
    "exclusive": "undone undone undone undone | kept kept kept kept | kept kept kept kept",
    "exclusive, late": "never never never never | kept kept kept kept | kept kept kept kept",
}
ENDINGS = ["commits", "commits, then its parent aborts", "aborts"]
# If the condition is false: whether the action that starts beside it had started.
STARTED_BESIDE = {
    "immediate": "undone undone undone",
    "deferred": "undone undone never",
    "detached": "undone undone undone",
    "causal": "undone undone undone",
    "sequential": "undone never never",
    "exclusive": "undone undone undone",
    "exclusive, late": "never undone undone",
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("ca", CA)
@pytest.mark.parametrize("mode", OUTCOMES)
def test_plan_action_of_a_true_condition_is_kept_as_the_modes_promise(
    mode: str, ca: ConditionAction, ending: str
) -> None:
    ec, _, late = mode.partition(", ")
    play = Play(plan(Coupling(ec), ca), is_true=True, waits_for_abort=bool(late))
    expected = OUTCOMES[mode].split(" | ")[ENDINGS.index(ending)].split()[CA.index(ca)]
    assert play.outcome(ending) == expected


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("ca", CA)
@pytest.mark.parametrize("mode", OUTCOMES)
def test_plan_action_of_a_false_condition_is_never_kept(
    mode: str, ca: ConditionAction, ending: str
) -> None:
    ec, _, late = mode.partition(", ")
    play = Play(plan(Coupling(ec), ca), is_true=False, waits_for_abort=bool(late))
    beside = STARTED_BESIDE[mode].split()[ENDINGS.index(ending)]
    assert play.outcome(ending) == (beside if ca is ConditionAction.SEQUENTIAL else "never")
