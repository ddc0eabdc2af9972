"""The executions of figures 1 to 5 of Vidyasankar 2016, with the paper's own names.

The composition is always P1, P2, P3 in a row; a, b and c are the batches that they read, with a
prime those that they give out. The drawings are lost in our copy of the text: what is in them is
taken from the sentences around them. Where these leave something open, the function says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from activedb.batches import Forming, Grouping, Lineage, Piece, Program, Workflow, isolated

__all__ = ["chain", "figure_1", "figure_2", "figure_3", "figure_4", "figure_5", "isolation", "run"]


def chain(
    p1: Grouping | None = None,
    p2: Grouping | None = None,
    p3: Grouping | None = None,
    *,
    relax: Mapping[str, Iterable[str]] | None = None,
) -> Workflow:
    """The paper's example composition: three programs in a row."""
    relaxed = relax or {}
    return Workflow(
        [
            Program("P1", {"a": p1 or isolated()}, relax=relaxed.get("P1", ())),
            Program("P2", {"P1": p2 or isolated()}, relax=relaxed.get("P2", ())),
            Program("P3", {"P2": p3 or isolated()}, relax=relaxed.get("P3", ())),
        ],
        sources="a",
    )


def run(workflow: Workflow, count: int) -> Lineage:
    """Source batches 1 to `count` of a workflow with the source a, each processed at once."""
    lineage, forming = Lineage(workflow), Forming(workflow)
    for number in range(1, count + 1):
        due = list(forming.offer(lineage.arrive("a", number, id=f"a{number}")))
        while due:
            each = due.pop(0)
            name = f"{each.program.replace('P', 'T')},{each.number}"
            done = lineage.execute(each.program, each.inputs, id=name, number=each.number)
            due += forming.offer(lineage.batch(done.output))
    return lineage


def isolation() -> Lineage:
    """The example before the figures: every batch in isolation; b_i is a'_i, c_i is b'_i."""
    lineage = Lineage(chain())
    for i in (1, 2):
        lineage.arrive("a", i, id=f"a{i}")
        lineage.execute("P1", [f"a{i}"], id=f"T1,{i}", output=f"b{i}")
        lineage.execute("P2", [f"b{i}"], id=f"T2,{i}", output=f"c{i}")
        lineage.execute("P3", [f"c{i}"], id=f"T3,{i}", output=f"c'{i}")
    return lineage


def figure_1() -> Lineage:
    """Splits: a'_1 in three, each b'_1i in two."""
    lineage = Lineage(chain(p2=Grouping(parts=3), p3=Grouping(parts=2)))
    lineage.arrive("a", 1, id="a1")
    lineage.execute("P1", ["a1"], id="T1,1", output="a'1")
    for i in (1, 2, 3):
        lineage.form("P2", [Piece("a'1", i, 3)], id=f"b1{i}")
        lineage.execute("P2", [f"b1{i}"], id=f"T2,1{i}", output=f"b'1{i}")
    for i in (1, 2, 3):
        for j in (1, 2):
            lineage.form("P3", [Piece(f"b'1{i}", j, 2)], id=f"c1{i}{j}")
            lineage.execute("P3", [f"c1{i}{j}"], id=f"T3,1{i}{j}", output=f"c'1{i}{j}")
    return lineage


def figure_2() -> Lineage:
    """Merges: two of a' make a b, all three of b' make c_1."""
    lineage = Lineage(chain(p2=Grouping(size=2, step=2), p3=Grouping(size=3, step=3)))
    for i in range(1, 7):
        lineage.arrive("a", i, id=f"a{i}")
        lineage.execute("P1", [f"a{i}"], id=f"T1,{i}", output=f"a'{i}")
    for i, (older, newer) in enumerate(((1, 2), (3, 4), (5, 6)), 1):
        lineage.form("P2", [f"a'{older}", f"a'{newer}"], id=f"b{i}")
        lineage.execute("P2", [f"b{i}"], id=f"T2,{i}", output=f"b'{i}")
    lineage.form("P3", ["b'1", "b'2", "b'3"], id="c1")
    lineage.execute("P3", ["c1"], id="T3,1", output="c'1")
    return lineage


def figure_3() -> Lineage:
    """Splits and merges: each a' in three, two of the b' make a c."""
    lineage = Lineage(chain(p2=Grouping(parts=3), p3=Grouping(size=2, step=2)))
    for i in (1, 2):
        lineage.arrive("a", i, id=f"a{i}")
        lineage.execute("P1", [f"a{i}"], id=f"T1,{i}", output=f"a'{i}")
        for j in (1, 2, 3):
            lineage.form("P2", [Piece(f"a'{i}", j, 3)], id=f"b{i}{j}")
            lineage.execute("P2", [f"b{i}{j}"], id=f"T2,{i}{j}", output=f"b'{i}{j}")
    for name, pieces in (
        ("11", ["b'11", "b'12"]),
        ("12", ["b'13", "b'21"]),
        ("13", ["b'22", "b'23"]),
    ):
        lineage.form("P3", pieces, id=f"c{name}")
        lineage.execute("P3", [f"c{name}"], id=f"T3,{name}", output=f"c'{name}")
    return lineage


def figure_4() -> Lineage:
    """Overlapping batches: three of a, two of b; what the paper lists, a_5 being the newest."""
    overlapping = Grouping(size=3, step=1), Grouping(size=2, step=1)
    lineage = Lineage(chain(*overlapping))
    for i in range(1, 6):
        lineage.arrive("a", i, id=f"a{i}")
    for i in (1, 2, 3):
        pieces = [f"a{i}", f"a{i + 1}", f"a{i + 2}"]
        lineage.execute("P1", [[Piece(each) for each in pieces]], id=f"T1,{i}", output=f"b{i}")
    for i in (1, 2):
        lineage.execute("P2", [[f"b{i}", f"b{i + 1}"]], id=f"T2,{i}", output=f"c{i}")
        lineage.execute("P3", [f"c{i}"], id=f"T3,{i}", output=f"c'{i}")
    return lineage


def figure_5(groups: Iterable[tuple[int, int]] = ((1, 3), (2, 5), (4, 6))) -> Lineage:
    """Merging with relaxed batch order: six of a', two by two, not in the order of their numbers.

    The sentences say that b_1 is of a'_1 and a'_3, that nothing is merged by P3, and that the
    consecutive and independent cover of b_1 is all six. So the batch with a'_2 has a'_5 or a'_6, as
    with a'_4 it would be complete with four; which of them, they do not say.
    """
    workflow = chain(
        p2=Grouping(size=2, step=2), relax={"P1": ["batch order"], "P2": ["batch order"]}
    )
    lineage = Lineage(workflow)
    for i in range(1, 7):
        lineage.arrive("a", i, id=f"a{i}")
        lineage.execute("P1", [f"a{i}"], id=f"T1,{i}", output=f"a'{i}")
    for i, group in enumerate(groups, 1):
        lineage.form("P2", [f"a'{each}" for each in group], id=f"b{i}")
        lineage.execute("P2", [f"b{i}"], id=f"T2,{i}", output=f"b'{i}")
        lineage.execute("P3", [f"b'{i}"], id=f"T3,{i}", output=f"c'{i}")
    return lineage
