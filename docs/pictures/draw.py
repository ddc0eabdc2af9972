"""Draw the pictures of the concepts: ``python docs/pictures/draw.py`` writes them beside this file.

What can be worked out is worked out: the schedules by the rules of each scheduler, the batches by
``activedb.batches``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from svg import BLUE, FILLS, GREEN, INK, PALE, RED, Picture

from activedb.batches import (
    Forming,
    Lineage,
    Program,
    Workflow,
    draw_svg,
    merged,
    plan_compensation,
    split,
)

FOLDER = Path(__file__).parent


# -- locks -------------------------------------------------------------------------------------


def spheres() -> str:
    """Draw which transactions may use a retained lock, before and after a child's commit."""
    picture = Picture(860, 350, "A lock is held by a child, then retained by its parent")
    for left, title in ((20, "while 1.1 runs"), (445, "after 1.1 has committed")):
        after = left > 20
        picture.text(left, 24, title, bold=True)
        picture.box(left, 40, 285, 190, stroke=PALE, dashed=True)
        picture.text(left + 10, 60, "sphere of 1", colour=PALE, size=12)
        words = ("1", "retains X") if after else ("1",)
        picture.box(left + 95, 66, 100, 48, *words, fill=FILLS[1] if after else "#ffffff")
        one = ("1.1", "committed") if after else ("1.1", "holds X")
        picture.box(
            left + 20,
            160,
            100,
            48,
            *one,
            fill="#ffffff" if after else FILLS[0],
            stroke=PALE if after else INK,
            dashed=after,
        )
        picture.box(left + 165, 160, 100, 48, "1.2", "wants X")
        picture.line((left + 125, 114), (left + 80, 160), colour=PALE)
        picture.line((left + 165, 114), (left + 205, 160), colour=PALE)
        picture.box(left + 315, 160, 80, 48, "2", "wants X")
        picture.box(left + 95, 280, 140, 40, "row accounts 7", fill="#eceff1")
        holder = (left + 110, 114) if after else (left + 70, 208)
        if after:
            picture.line(holder, (left + 140, 280), colour=BLUE, dashed=True)
            picture.text(left + 126, 252, "retained", colour=BLUE, size=12, anchor="end")
            picture.line((left + 215, 208), (left + 190, 280), colour=GREEN, arrow=True)
            picture.text(left + 212, 252, "granted: 1 is its superior", colour=GREEN, size=12)
        else:
            picture.line(holder, (left + 130, 280), colour=INK, arrow=True)
            picture.text(left + 86, 252, "held", size=12, anchor="end")
            picture.line((left + 215, 208), (left + 190, 280), colour=RED, arrow=True)
            picture.text(left + 212, 252, "waits for 1.1", colour=RED, size=12)
        picture.line(
            (left + 355, 208), (left + 355, 300), (left + 235, 300), colour=RED, arrow=True
        )
        picture.text(
            left + 250, 318, "waits for 1" if after else "waits for 1.1", colour=RED, size=12
        )
    return picture.document()


def deadlock() -> str:
    """A cycle of the wait-for graph that runs through a parent waiting for its child."""
    picture = Picture(860, 250, "A deadlock through a parent, and its smallest victim")
    picture.box(60, 30, 120, 48, "1", "retains A", fill=FILLS[1])
    picture.box(60, 170, 120, 48, "1.1", "wants B", fill=FILLS[5], stroke=RED)
    picture.box(430, 30, 120, 48, "2", "retains B", fill=FILLS[1])
    picture.box(430, 170, 120, 48, "2.1", "wants A", fill="#ffffff")
    picture.line((105, 78), (105, 170), arrow=True)
    picture.text(14, 118, "commit: 1 waits", size=12)
    picture.text(14, 134, "for its child", size=12)
    picture.line((490, 78), (490, 170), arrow=True)
    picture.text(500, 118, "commit: 2 waits", size=12)
    picture.text(500, 134, "for its child", size=12)
    picture.line((180, 185), (430, 62), colour=RED, arrow=True)
    picture.text(186, 212, "B is retained by 2", colour=RED, size=12)
    picture.line((430, 185), (180, 62), colour=INK, arrow=True)
    picture.text(424, 212, "A is retained by 1", size=12, anchor="end")
    words = (
        "1.1 asked last, and so closed the cycle:",
        "its side is the victim.",
        "",
        "To try 1.1 alone again is of no use, as A",
        "stays with 1. The smallest transaction",
        "whose abort breaks the cycle is 1. It is",
        "tried again as a whole, and 2 goes on.",
    )
    for number, line in enumerate(words):
        picture.text(600, 56 + 19 * number, line, size=13)
    return picture.document()


# -- coupling ----------------------------------------------------------------------------------


def coupling_modes() -> str:
    """The six modes on the time line of a transaction that commits, and of one that aborts."""
    picture = Picture(860, 520, "The six coupling modes")
    modes = ("immediate", "deferred", "detached", "causal", "sequential", "exclusive")

    def bar(x: float, y: float, width: float, words: str, fill: str) -> None:
        picture.box(x, y - 11, width, 22, words, fill=fill, size=12)

    def lanes(top: int, title: str, end: str) -> None:
        picture.text(20, top, title, bold=True)
        y = top + 32
        picture.line((150, y), (620, y), width=3)
        for x, words in ((150, "begin"), (260, "event"), (520, "commit point"), (620, end)):
            picture.dot(x, y)
            picture.text(x, y - 10, words, anchor="middle", size=12)
        for x in (260, 520, 620):
            picture.line((x, y + 6), (x, top + 32 + 26 * 7), colour=PALE, dashed=True, width=1)
        for number, mode in enumerate(modes):
            picture.text(20, y + 30 + 26 * number, mode)

    lanes(24, "the triggering transaction commits", "COMMIT")
    row = [24 + 32 + 26 + 26 * n for n in range(6)]
    bar(262, row[0], 90, "child", FILLS[0])
    bar(522, row[1], 90, "child", FILLS[0])
    bar(262, row[2], 150, "runs, commits", FILLS[2])
    bar(262, row[3], 150, "runs", FILLS[1])
    picture.line((412, row[3]), (622, row[3]), colour=BLUE, dashed=True)
    picture.text(520, row[3] - 4, "waits", size=12, colour=BLUE, anchor="middle")
    bar(622, row[3], 80, "commits", FILLS[1])
    bar(622, row[4], 150, "runs, commits", FILLS[1])
    picture.line((262, row[5]), (620, row[5]), colour=PALE, dashed=True)
    picture.text(300, row[5] - 4, "an intent is recorded …", size=12, colour=PALE)
    picture.text(630, row[5] + 4, "… and erased", size=12, colour=PALE)

    lanes(290, "the triggering transaction aborts", "ABORT")
    row = [290 + 32 + 26 + 26 * n for n in range(6)]
    bar(262, row[0], 90, "child", "#ffffff")
    picture.text(630, row[0] + 4, "undone", size=12, colour=RED)
    bar(522, row[1], 90, "child", "#ffffff")
    picture.text(630, row[1] + 4, "undone, if it had begun", size=12, colour=RED)
    bar(262, row[2], 150, "runs, commits", FILLS[2])
    picture.text(630, row[2] + 4, "stays", size=12, colour=GREEN)
    bar(262, row[3], 150, "runs", "#ffffff")
    picture.line((412, row[3]), (620, row[3]), colour=BLUE, dashed=True)
    picture.text(630, row[3] + 4, "aborts", size=12, colour=RED)
    picture.text(630, row[4] + 4, "never begins", size=12, colour=RED)
    picture.line((262, row[5]), (620, row[5]), colour=PALE, dashed=True)
    bar(622, row[5], 150, "runs, commits", FILLS[3])
    return picture.document()


# -- uncertain time ----------------------------------------------------------------------------


def intervals() -> str:
    """Draw what the intervals of two clocks determine about an order."""
    picture = Picture(860, 230, "Intervals, and the order that they determine")
    picture.text(20, 60, "door")
    picture.text(20, 110, "window")
    picture.line((90, 190), (840, 190), colour=PALE, arrow=True)
    picture.text(800, 210, "true time", size=12, colour=PALE)

    def interval(x: float, y: float, half: float, name: str, fill: str) -> None:
        picture.box(x - half, y - 12, 2 * half, 24, fill=fill)
        picture.dot(x, y, radius=3)
        picture.text(x, y - 17, name, anchor="middle", size=13)

    interval(160, 56, 45, "a", FILLS[1])
    interval(330, 106, 70, "b", FILLS[2])
    interval(570, 56, 45, "c", FILLS[1])
    interval(640, 106, 70, "d", FILLS[2])
    interval(730, 56, 45, "e", FILLS[1])
    picture.line((205, 56), (205, 140), colour=GREEN, dashed=True)
    picture.line((260, 106), (260, 140), colour=GREEN, dashed=True)
    picture.text(232, 158, "a ends before b begins:", anchor="middle", size=12, colour=GREEN)
    picture.text(232, 174, "a < b for certain", anchor="middle", size=12, colour=GREEN)
    picture.text(
        605, 150, "c and d overlap, and so do d and e:", anchor="middle", size=12, colour=RED
    )
    picture.text(605, 166, "the order is unknown", anchor="middle", size=12, colour=RED)
    picture.line((570, 22), (730, 22), colour=BLUE, arrow=True)
    picture.text(650, 16, "one clock has read both: c < e", anchor="middle", size=12, colour=BLUE)
    return picture.document()


def stability() -> str:
    """An event waits until no producer can send anything older, or overlapping."""
    picture = Picture(860, 250, "When an event is stable")
    for number, (name, sync) in enumerate((("door", 640), ("reader", 470), ("lift", 560))):
        y = 60 + 46 * number
        picture.text(20, y + 4, name)
        picture.line((90, y), (840, y), colour=PALE)
        picture.line((90, y), (sync, y), colour=GREEN, width=5)
        picture.line((sync, y - 12), (sync, y + 12), colour=GREEN, width=3)
        if not number:
            picture.text(sync + 8, y - 30, "its sync point: nothing older", size=12)
            picture.text(sync + 8, y - 15, "is still to come from it", size=12)
    picture.box(300, 48, 80, 24, "A", fill=FILLS[1])
    picture.box(510, 140, 80, 24, "B", fill=FILLS[2])
    picture.line((470, 30), (470, 200), colour=RED, dashed=True)
    picture.text(
        470, 218, "the sync point that is furthest behind", anchor="middle", size=12, colour=RED
    )
    picture.text(
        200, 218, "A ends before it: stable, processed", size=12, colour=GREEN, anchor="middle"
    )
    picture.text(720, 218, "B waits for the reader", size=12, colour=RED, anchor="middle")
    picture.line((90, 240), (840, 240), colour=PALE, arrow=True)
    return picture.document()


# -- schedulers --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """An access of an s-transaction: what it does to which key, and for how long."""

    event: int
    key: str
    is_write: bool
    length: int
    needs_result: bool = False  # of the operation before it in its s-transaction

    @property
    def shown(self) -> str:
        """Return the text, such as ``W A``."""
        return f"{'W' if self.is_write else 'R'} {self.key}"


WORK = (
    Operation(1, "A", True, 2),
    Operation(2, "A", False, 1),
    Operation(2, "B", True, 2, needs_result=True),
    Operation(3, "C", True, 2),
    Operation(4, "C", False, 1),
    Operation(4, "D", True, 1),
    Operation(5, "A", True, 2),
)
THREADS = 3
Unit = tuple[Operation, ...]


def conflict(a: Operation, b: Operation) -> bool:
    """Return whether the order of the two matters."""
    return a.key == b.key and (a.is_write or b.is_write)


def one_by_one(units: list[Unit], at: int) -> list[int]:
    """Serial: each unit waits for the one before."""
    return [at - 1] if at else []


def locked(units: list[Unit], at: int) -> list[int]:
    """S2PL: for every earlier one with which it shares a key that one of them writes."""
    return [n for n in range(at) if any(conflict(a, b) for a in units[n] for b in units[at])]


def versioned(units: list[Unit], at: int) -> list[int]:
    """Return the units that LWM waits for: earlier ones that write what this one accesses."""
    keys = {each.key for each in units[at]}
    return [n for n in range(at) if any(a.is_write and a.key in keys for a in units[n])]


def graph(units: list[Unit], at: int) -> list[int]:
    """TPG, of single operations: for the last write of its key, and for a result that it needs."""
    ((mine,),) = units[at : at + 1]
    writes = [n for n in range(at) if units[n][0].is_write and units[n][0].key == mine.key]
    return writes[-1:] + ([at - 1] if mine.needs_result else [])


def schedule(
    units: list[Unit], waits_for: Callable[[list[Unit], int], list[int]]
) -> list[tuple[int, int, Unit]]:
    """Return when and on which thread each unit begins: the earliest, on the first free one."""
    ended: dict[int, int] = {}
    free = [0] * THREADS
    found: list[tuple[int, int, Unit]] = []
    left = list(range(len(units)))
    while left:
        ready = {n: waits_for(units, n) for n in left}
        able = {
            n: max([0, *(ended[m] for m in needed)])
            for n, needed in ready.items()
            if all(m in ended for m in needed)
        }
        n, thread = min(
            ((n, thread) for n in able for thread in range(THREADS)),
            key=lambda pair: (max(able[pair[0]], free[pair[1]]), pair),
        )
        begin = max(able[n], free[thread])
        ended[n] = free[thread] = begin + sum(each.length for each in units[n])
        found.append((begin, thread, units[n]))
        left.remove(n)
    return found


def schedulers() -> str:
    """The same five s-transactions under four schedulers."""
    picture = Picture(860, 560, "Five s-transactions under four schedulers")
    whole: list[Unit] = [
        tuple(each for each in WORK if each.event == event) for event in range(1, 6)
    ]
    single: list[Unit] = [(each,) for each in WORK]
    rows = (
        ("serial", "one after the other", whole, one_by_one),
        ("S2PL", "all locks before it begins", whole, locked),
        ("LWM", "reads keep no write waiting", whole, versioned),
        ("TPG", "single operations", single, graph),
    )
    scale = 56
    for number, (name, words, units, waits_for) in enumerate(rows):
        top = 26 + 132 * number
        picture.text(20, top + 30, name, bold=True, size=15)
        picture.text(20, top + 50, words, size=12, colour=PALE)
        for thread in range(THREADS):
            y = top + 30 * thread
            picture.line((206, y + 26), (836, y + 26), colour="#cfd8dc", width=1)
        placed = schedule(units, waits_for)
        for begin, thread, unit in placed:
            x = 206 + scale * begin
            for each in unit:
                width = scale * each.length
                label = f"{each.event}: {each.shown}"
                fill = FILLS[each.event - 1]
                picture.box(x, top + 30 * thread + 2, width, 23, label, fill=fill, size=12)
                x += width
        end = max(begin + sum(each.length for each in unit) for begin, _, unit in placed)
        x = 206 + scale * end
        picture.line((x, top - 4), (x, top + 94), colour=RED, dashed=True)
        picture.text(x + 4, top + 106, f"{end}", colour=RED, size=12)
    picture.text(206, 552, "time →   three threads each; W A: writes key A, R A: reads it", size=12)
    return picture.document()


def task_graph() -> str:
    """The task precedence graph of the same work."""
    picture = Picture(860, 270, "A task precedence graph")
    places = {0: (150, 50), 1: (330, 50), 6: (510, 50), 2: (330, 190), 3: (640, 50), 4: (790, 50)}
    places[5] = (790, 190)
    for at, (x, y) in places.items():
        each = WORK[at]
        picture.box(
            x - 48, y - 20, 96, 40, f"{each.event}: {each.shown}", fill=FILLS[each.event - 1]
        )
    units: list[Unit] = [(each,) for each in WORK]
    for at, (x, y) in places.items():
        for before in graph(units, at):
            bx, by = places[before]
            if by == y and (at, before) == (6, 0):  # over the read between them
                picture.line((bx, by - 20), (bx, 18), (x, 18), (x, y - 20), arrow=True)
                picture.text((bx + x) / 2, 13, "TD", anchor="middle", size=12)
            elif by == y:
                picture.line((bx + 48, by), (x - 48, y), arrow=True)
                picture.text((bx + x) / 2, y - 6, "TD", anchor="middle", size=12)
            else:
                picture.line((bx, by + 20), (x, y - 20), colour=BLUE, arrow=True)
                picture.text(x + 8, (by + y) / 2 + 4, "PD", size=12, colour=BLUE)
    picture.line((790, 70), (790, 170), colour=PALE, dashed=True)
    picture.text(780, 124, "LD", size=12, colour=PALE, anchor="end")
    picture.text(20, 236, "TD: after the write before it, of the same key", size=12)
    picture.text(330, 236, "PD: needs the result of another operation", size=12, colour=BLUE)
    picture.text(620, 236, "LD: they abort together", size=12, colour=PALE)
    picture.text(20, 258, "Whatever has no arrow to it may begin at once.", size=12)
    return picture.document()


# -- batches -----------------------------------------------------------------------------------


def batches() -> str:
    """A workflow of three programs, and what the compensation of one batch would touch."""
    workflow = Workflow(
        [
            Program("check", "orders"),
            Program("pack", {"check": split(2)}),
            Program("ship", {"pack": merged(3)}),
        ],
        sources="orders",
    )
    lineage, forming = Lineage(workflow), Forming(workflow)
    for number in (1, 2, 3):
        due = list(forming.offer(lineage.arrive("orders", number)))
        while due:
            each = due.pop(0)
            done = lineage.execute(each.program, each.inputs, number=each.number)
            due += forming.offer(lineage.batch(done.output))
    return draw_svg(lineage, plan=plan_compensation(lineage, "orders#1"))


PICTURES: dict[str, Callable[[], str]] = {
    "spheres": spheres,
    "deadlock": deadlock,
    "coupling_modes": coupling_modes,
    "intervals": intervals,
    "stability": stability,
    "schedulers": schedulers,
    "task_graph": task_graph,
    "batches": batches,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
