"""The auditor against histories written by hand: legal ones, and one mistake for each axiom."""

from __future__ import annotations

import pytest

from coupling.acta import AXIOMS, History, audit
from tests.coupling.acta_naive import Naive
from tests.coupling.acta_script import played

LEGAL = {
    "empty": "",
    "top-level": "begin 1; read 1 a; write 1 a; insert 1 b/1; delete 1 b/2; commit 1",
    "aborted": "begin 1; write 1 a; abort 1; begin 2; read 2 a saw=0; write 2 a; commit 2",
    "immediate": """
        begin 1; write 1 a; imm 1 2; read 2 a; write 2 a; delegate 2 1; commit 2; write 1 a
        commit 1""",
    "immediate, aborted alone": "begin 1; imm 1 2; write 2 a; abort 2; write 1 a; commit 1",
    "siblings in parallel": """
        begin 1; imm 1 2; imm 1 3; write 2 a/1; write 3 a/2; write 1 b; delegate 3 1; commit 3
        delegate 2 1; commit 2; imm 1 4; read 4 a; delegate 4 1; commit 4; commit 1""",
    "deferred": """
        begin 1; write 1 a; def 1 2 cycle=0; write 2 a; delegate 2 1; commit 2
        def 1 3 cycle=1; write 3 a; delegate 3 1; commit 3; commit 1""",
    "deferred inside an immediate one": """
        begin 1; imm 1 2; write 2 a; def 2 3; write 3 a; delegate 3 2; commit 3; delegate 2 1
        commit 2; write 1 a; commit 1""",
    "deferred by a deferred one": """
        begin 1; write 1 a; def 1 2; def 1 3; write 2 b; write 3 c; def 2 4; write 4 d
        delegate 4 2; commit 4; delegate 2 1; commit 2; delegate 3 1; commit 3; commit 1""",
    "detached": "begin 1; write 1 a; detach 1 2; begin 2; write 2 b; commit 2; abort 1",
    "causally dependent": """
        begin 1; write 1 a; caus 1 2; begin 2; write 2 a; commit 1; commit 2""",
    "causally dependent on a subtransaction": """
        begin 1; imm 1 2; write 2 a; caus 2 3; begin 3; imm 3 4; write 4 a; delegate 4 3; commit 4
        delegate 2 1; commit 2; commit 1; commit 3""",
    "causally dependent, both aborted": """
        begin 1; write 1 a; caus 1 2; begin 2; write 2 a; abort 2; abort 1""",
    "sequential": "begin 1; write 1 a; seq 1 2; commit 1; begin 2; write 2 a; commit 2",
    "sequential after an abort": "begin 1; write 1 a; seq 1 2; abort 1",
    "exclusive": "begin 1; write 1 a; exc 1 2; begin 2; write 2 b; abort 1; commit 2",
    "exclusive after a commit": "begin 1; exc 1 2; begin 2; write 2 b; commit 1; abort 2",
    "exclusive, never needed": "begin 1; exc 1 2; commit 1",
    "priorities": """
        begin 1; imm 1 2 priority=1; imm 1 3 priority=5; write 3 a; delegate 3 1; commit 3
        write 2 a; delegate 2 1; commit 2; def 1 4 priority=2; def 1 5; write 4 b; delegate 4 1
        commit 4; write 5 b; delegate 5 1; commit 5; commit 1""",
    "priority of one spawned later": """
        begin 1; imm 1 2; write 2 a; imm 1 3 priority=5; write 3 b; delegate 3 1; commit 3
        delegate 2 1; commit 2; commit 1""",
    "priorities across cycles": """
        begin 1; def 1 2 cycle=0; write 2 a; delegate 2 1; commit 2; def 1 3 priority=9 cycle=1
        write 3 b; delegate 3 1; commit 3; commit 1""",
    "outcomes of operations": """
        begin 1; write 1 a; imm 1 2; write 2 b; delegate 2 1 2; commit 2; commit_operation 1 1
        commit_operation 1 2; commit 1; begin 3; write 3 a; abort_operation 3 3; abort 3""",
    "versions": """
        begin 1; read 1 a/1 saw=0; write 1 a/1; imm 1 2; read 2 a/1 saw=2; write 2 a/1; abort 2
        read 1 a/1 saw=2; commit 1; begin 3; read 3 a/1 saw=2; commit 3""",
}


@pytest.mark.parametrize("name", LEGAL)
def test_audit_of_a_legal_history_finds_nothing(name: str) -> None:
    history = played(LEGAL[name])
    assert audit(history) == []
    assert Naive(history).violations() == set()


# Axiom, history, and for each violation of that axiom transaction, positions, part of the message.
BROKEN: list[tuple[int, str, tuple[int, tuple[int, ...], str]]] = [
    (1, "begin 1; begin 2; delegate 2 1; commit 2; commit 1", (2, (2,), "is top-level and deleg")),
    (2, "write 1 a; begin 1; commit 1", (1, (0, 1), "before it is initiated")),
    (2, "write 1 a; commit 1", (1, (0,), "transaction 1 is top-level and has no Begin")),
    (3, "begin 1; write 1 a", (1, (1,), "transaction 1 neither commits nor aborts")),
    (3, "begin 1; commit 1; abort 1", (1, (1, 2), "ends 2 times")),
    (3, "begin 1; commit 1; detach 1 2", (1, (1, 2), "does something afterwards")),
    (
        4,
        "begin 1; imm 1 2; begin 2; delegate 2 1; commit 2; commit 1",
        (2, (2,), "transaction 2 is a subtransaction and has a Begin"),
    ),
    (
        5,
        "begin 1; write 2 a; imm 1 2; delegate 2 1; commit 2; commit 1",
        (2, (1, 2), "before it is initiated"),
    ),
    (6, "begin 1; imm 1 2; abort 1", (2, (1,), "transaction 2 neither commits nor aborts")),
    (
        6,
        "begin 1; imm 1 2; delegate 2 1; commit 2; detach 2 3; commit 1",
        (2, (3, 4), "does something afterwards"),
    ),
    (7, "begin 1; begin 1; commit 1", (1, (0, 1), "begins 2 times")),
    (7, "begin 1; detach 1 2; detach 1 2; commit 1", (2, (1, 2), "is spawned 2 times")),
    (7, "begin 1; commit 1; write 1 a", (1, (1, 2), "operation 1 after its end")),
    (7, "write 1 a; begin 1; commit 1", (1, (0, 1), "operation 1 before it is initiated")),
    (7, "begin 1; write 1 a; write 1 b number=1; commit 1", (1, (1, 2), "the number 1")),
    (
        7,
        "begin 1; write 1 a; begin 2; commit_operation 2 1; commit 2; commit 1",
        (2, (1, 3), "transaction 2 commits operation 1, for which it is not responsible"),
    ),
    (
        8,
        "begin 1; write 1 a/1; commit 1; begin 2; read 2 a/1 saw=0; commit 2",
        (2, (1, 4), "sees the version of operation 0 of a/1"),
    ),
    (
        9,
        "begin 1; write 1 a/1; begin 2; read 2 a; commit 2; commit 1",
        (2, (1, 3), "invokes read on a, which conflicts with an operation of 1"),
    ),
    (
        10,
        "begin 1; write 1 a; begin 2; read 2 a; commit 2; abort 1",
        (2, (1, 3, 5), "transaction 2 invokes read on a after 1 has written it"),
    ),
    (
        11,
        "begin 1; begin 2; read 1 a; write 2 a; read 2 b; write 1 b; commit 2; commit 1",
        (1, (2, 3, 4, 5), "transaction 1 commits and is in the cycle of conflicts 1 → 2 → 1"),
    ),
    (
        11,
        """begin 1; imm 1 2; imm 1 3; write 2 a; write 3 b; write 2 b; write 3 a; delegate 2 1
        commit 2; delegate 3 1; commit 3; commit 1""",
        (2, (3, 4, 5, 6), "cycle of conflicts 2 → 3 → 2"),
    ),
    (
        12,
        "begin 1; imm 1 2; write 2 a; commit_operation 2 1; delegate 2 1; commit 2; commit 1",
        (2, (3,), "transaction 2 commits operation 1 and is not a top-level transaction"),
    ),
    (12, "begin 1; write 1 a; commit_operation 1 1; abort 1", (1, (2,), "and does not commit")),
    (
        13,
        "begin 1; write 1 a; write 1 b; commit_operation 1 1; commit 1",
        (1, (2, 4), "transaction 1 commits, but not operation 2"),
    ),
    (14, "begin 1; write 1 a; abort_operation 1 1; commit 1", (1, (2,), "and does not abort")),
    (
        15,
        "begin 1; write 1 a; write 1 b; abort_operation 1 1; abort 1",
        (1, (2, 4), "transaction 1 aborts, but not operation 2"),
    ),
    (16, "begin 1; begin 2 parent=1; commit 2; commit 1", (2, (1,), "has the parent 1")),
    (
        17,
        """begin 1; imm 1 2; imm 1 3; write 2 a; write 3 a; delegate 2 1; commit 2; delegate 3 1
        commit 3; commit 1""",
        (3, (3, 4), "transaction 3 invokes write on a, which conflicts"),
    ),
    (
        17,
        """begin 1; imm 1 2; write 2 a; delegate 2 1; commit 2; begin 3; imm 3 4; read 4 a
        delegate 4 3; commit 4; commit 3; commit 1""",
        (4, (2, 7), "an operation of 2 in progress"),
    ),
    (
        18,
        "begin 1; begin 2; imm 1 3 parent=2; delegate 3 2; commit 3; commit 2; commit 1",
        (3, (2,), "transaction 1 spawns 3 as a child, whose parent is 2"),
    ),
    (
        19,
        "begin 1; imm 1 2; commit 1; delegate 2 1; commit 2",
        (2, (1, 2, 4), "transaction 1 commits before its child 2 has ended"),
    ),
    (
        19,
        "begin 1; imm 1 2; abort 1; delegate 2 1; commit 2",
        (2, (2, 4), "its child 2, which has not committed before, does not abort"),
    ),
    (
        20,
        "begin 1; detach 1 2 parent=1; begin 2; commit 2; commit 1",
        (2, (1,), "spawns 2 as top-level, and it has the parent 1"),
    ),
    (
        21,
        "begin 1; caus 1 2; begin 2; abort 1; commit 2",
        (2, (3, 4), "2, which causally depends on it, does not abort"),
    ),
    (
        21,
        """begin 1; imm 1 2; caus 2 3; begin 3; delegate 2 1; commit 2; abort 1; commit 3""",
        (3, (6, 7), "transaction 2 is aborted, and 3"),
    ),
    (22, "begin 1; seq 1 2; begin 2; commit 1; commit 2", (2, (2, 3), "2 starts, and 1")),
    (22, "begin 1; seq 1 2; abort 1; begin 2; commit 2", (2, (3,), "2 starts, and 1")),
    (
        22,
        "begin 1; imm 1 2; seq 2 3; delegate 2 1; commit 2; begin 3; commit 3; commit 1",
        (3, (5, 7), "3 starts, and 2"),
    ),
    (23, "begin 1; exc 1 2; begin 2; commit 1; commit 2", (2, (3, 4), "is its alternative")),
    (23, "begin 1; exc 1 2; begin 2; commit 2; abort 1", (2, (3, 4), "has not aborted")),
    (
        24,
        "begin 1; imm 1 2; write 2 a; commit 2; commit 1",
        (2, (3,), "transaction 2 commits and does not delegate to its parent 1"),
    ),
    (
        24,
        "begin 1; imm 1 2; write 2 a; write 2 b; delegate 2 1 1; commit 2; commit 1",
        (2, (4,), "and keeps operation 2 of its access set"),
    ),
    (
        24,
        "begin 1; begin 2; imm 1 3; delegate 3 2; commit 3; commit 2; commit 1",
        (3, (3,), "which is not its parent 1"),
    ),
    (
        24,
        "begin 1; imm 1 2; delegate 2 1; abort 2; commit 1",
        (2, (2,), "not a subtransaction that"),
    ),
    (
        25,
        "begin 1; imm 1 2; write 2 a; read 1 a; delegate 2 1; commit 2; commit 1",
        (1, (2, 3), "its inferior 2 has not delegated"),
    ),
    (
        26,
        "imm 2 1 parent=2; imm 1 2 parent=1; delegate 1 2; commit 1; delegate 2 1; commit 2",
        (1, (0,), "among which there is no top-level transaction"),
    ),
    (26, "begin 1; begin 2 parent=1; commit 2; commit 1", (2, (1,), "which has not spawned it")),
    (
        26,
        "begin 1; imm 1 2 parent=none; delegate 2 1; commit 2; commit 1",
        (2, (1,), "transaction 2 is a subtransaction and has no superiors"),
    ),
    (
        27,
        "begin 1; def 1 2; write 2 a; write 1 b; delegate 2 1; commit 2; commit 1",
        (2, (2, 3), "transaction 2 is deferred and works before its parent 1 has finished"),
    ),
    (
        28,
        """begin 1; def 1 2; def 1 3; def 2 4; write 4 a; write 3 b; delegate 3 1; commit 3
        delegate 4 2; commit 4; delegate 2 1; commit 2; commit 1""",
        (4, (4, 5), "deferred by 2 to the next cycle and works before 3"),
    ),
    (
        28,
        """begin 1; def 1 2 cycle=0; def 1 3 cycle=1; write 3 a; write 2 b; delegate 3 1; commit 3
        delegate 2 1; commit 2; commit 1""",
        (3, (3, 4), "transaction 3 of a later cycle of 1 works before 2"),
    ),
    (
        29,
        """begin 1; def 1 2 priority=1; def 1 3 priority=2; write 2 a; write 3 b; delegate 2 1
        commit 2; delegate 3 1; commit 3; commit 1""",
        (2, (3, 4), "transaction 2, deferred by 1, works before 3, which has the higher priority"),
    ),
    (
        30,
        """begin 1; imm 1 2; imm 1 3 priority=0; write 2 a; write 3 b; delegate 2 1; commit 2
        delegate 3 1; commit 3; commit 1""",
        (2, (2, 3, 4), "works after 3, which has the higher priority, was spawned"),
    ),
]


@pytest.mark.parametrize(("axiom", "text", "expected"), BROKEN)
def test_audit_of_a_mistake_names_the_axiom_who_and_where(
    axiom: int, text: str, expected: tuple[int, tuple[int, ...], str]
) -> None:
    history = played(text)
    transaction, positions, part = expected
    found = audit(history)
    of_axiom = [violation for violation in found if violation.axiom == axiom]
    if Naive(history).has_circles():
        of_axiom = of_axiom[:1]  # all of a circle are told
    assert [(v.transaction, v.positions) for v in of_axiom] == [(transaction, positions)], found
    assert part in of_axiom[0].message
    assert str(of_axiom[0]).startswith(f"axiom {axiom}: ")
    assert Naive(history).violations() == {(v.axiom, v.transaction) for v in found} or (
        Naive(history).has_circles()
    )


def test_axioms_all_thirty_are_stated_and_each_has_a_mistake() -> None:
    assert list(AXIOMS) == list(range(1, 31))
    assert {axiom for axiom, _, _ in BROKEN} == set(AXIOMS)


# What is done to a legal history, and the axioms that must see it.
RULES = """
    begin 1; write 1 a/1; imm 1 2 priority=1; write 2 a/1; delegate 2 1; commit 2; insert 1 a/1
    def 1 3; read 3 a/1 saw=3; delegate 3 1; commit 3; seq 1 4; caus 1 5; begin 5; write 5 a/1
    commit 1; begin 4; write 4 b; commit 4; commit 5
"""


def edited(
    *, drop: str = "", swap: tuple[str, str] | None = None, add: str = "", at: str = ""
) -> History:
    steps = [step.strip() for step in RULES.replace("\n", ";").split(";") if step.strip()]
    if drop:
        steps.remove(drop)
    if swap is not None:
        i, j = map(steps.index, swap)
        steps[i], steps[j] = steps[j], steps[i]
    if add:
        steps.insert(steps.index(at), add)
    return played("; ".join(steps))


@pytest.mark.parametrize(
    ("history", "axioms"),
    [
        (edited(), set()),
        (edited(drop="begin 1"), {2}),
        (edited(drop="commit 1"), {3, 22}),
        (edited(drop="imm 1 2 priority=1"), {1, 2, 9, 24}),
        (edited(drop="delegate 2 1"), {24, 25}),
        (edited(drop="commit 3"), {6, 19, 24}),
        (edited(drop="caus 1 5"), {9}),
        (edited(swap=("commit 1", "begin 4")), {22}),
        (edited(swap=("write 2 a/1", "insert 1 a/1")), {7}),
        (edited(swap=("delegate 2 1", "insert 1 a/1")), {6, 25}),
        (edited(swap=("commit 1", "commit 3")), {3, 19}),
        (edited(add="write 1 c", at="delegate 3 1"), {27}),
        (edited(add="begin 6", at="commit 1"), {3}),
        (edited(add="abort 1", at="commit 4"), {3, 21}),
    ],
)
def test_audit_of_an_edited_history_is_caught_by_the_right_axioms(
    history: History, axioms: set[int]
) -> None:
    found = {violation.axiom for violation in audit(history)}
    assert found >= axioms
    assert bool(found) == bool(axioms)
    assert {axiom for axiom, _ in Naive(history).violations()} == found


def test_audit_orders_violations_as_they_showed() -> None:
    found = audit(played("begin 1; begin 1; commit 1; begin 2; write 2 a number=7; begin 3"))
    assert [violation.axiom for violation in found] == [7, 3, 3]
    assert [violation.positions[-1] for violation in found] == sorted(
        violation.positions[-1] for violation in found
    )
