"""The formulas of section 3.3, taken literally, and what must follow from them; brute force.

(Saygin, Ulusoy, Chakravarthy.) A history is a list of events such as ``("commit", 3)``. Nothing
here knows how the graph does it. A dependency on a subtransaction is one on its line: all of the
line have to commit, up to the top or below the first superior that it shares with the dependent;
it aborts where the first of the line aborts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

__all__ = ["Edge", "History", "Parents", "judge", "line_of", "violated"]

History: TypeAlias = list[tuple[str, int]]
Parents: TypeAlias = Mapping[int, int | None]
Edge: TypeAlias = tuple[int, str, int]  # dependent, kind, on


def superiors(parents: Parents, name: int) -> list[int]:
    line = []
    over: int | None = name
    while over is not None:
        line.append(over)
        over = parents[over]
    return line


def line_of(parents: Parents, edge: Edge) -> list[int]:
    dependent, _, on = edge
    shared = superiors(parents, dependent)
    line = superiors(parents, on)
    return line[:1] + [name for name in line[1:] if name not in shared]


def place_of(history: History, event: str, name: int) -> int | None:
    return history.index((event, name)) if (event, name) in history else None


def line_committed_at(history: History, line: list[int]) -> int | None:
    places = [place_of(history, "commit", name) for name in line]
    return None if None in places else places[-1]


def line_aborted_at(history: History, line: list[int]) -> int | None:
    for name in line:
        aborted = place_of(history, "abort", name)
        if aborted is not None:
            return aborted
        if place_of(history, "commit", name) is None:
            return None
    return None


def is_before(first: int | None, second: int | None) -> bool:
    """The arrow: both happened, in this order."""
    return first is not None and second is not None and first < second


def violated(history: History, parents: Parents, edge: Edge) -> bool:
    """Return whether a complete history violates the formula of a dependency."""
    dependent, kind, _ = edge
    line = line_of(parents, edge)
    commit_i, abort_i = line_committed_at(history, line), line_aborted_at(history, line)
    begin_j = place_of(history, "begin", dependent)
    commit_j = place_of(history, "commit", dependent)
    abort_j = place_of(history, "abort", dependent)
    holds = {
        "CD": lambda: commit_j is None or commit_i is None or is_before(commit_i, commit_j),
        "AD": lambda: abort_i is None or abort_j is not None,
        "WD": lambda: abort_i is None or is_before(commit_j, abort_i) or abort_j is not None,
        "ED": lambda: commit_i is None or abort_j is not None,
        "SQD": lambda: begin_j is None or is_before(commit_i, begin_j),
    }
    return not holds[kind]()


def as_the_line_has_it(history: History, line: list[int]) -> History:
    """The history without the ends of those above the lowest live one of the line.

    A line is judged from below: what a superior has come to counts when its inferior has ended.
    """
    ends = ("commit", "abort")
    for n, name in enumerate(line):
        if not any((end, name) in history for end in ends):
            over = line[n + 1 :]
            return [step for step in history if step[0] not in ends or step[1] not in over]
    return history


def continuations(history: History, line: list[int]) -> list[History]:
    """All that the line may freely do: commit up to some one, which aborts, or all of it."""
    if line_aborted_at(history, line) is not None:
        return [[]]
    live = [name for name in line if place_of(history, "commit", name) is None]
    commits: History = [("commit", name) for name in live]
    return [commits] + [[*commits[:n], ("abort", name)] for n, name in enumerate(live)]


def is_safe(history: History, parents: Parents, edge: Edge) -> bool:
    """Return whether the dependent can still end correctly, whatever the line does from here."""
    name, line = edge[0], line_of(parents, edge)
    history = as_the_line_has_it(history, line)
    has_ended = any(place_of(history, end, name) is not None for end in ("commit", "abort"))
    own: list[History] = [[]] if has_ended else [[("abort", name)], [("commit", name)]]
    return all(
        any(not violated(history + theirs + mine, parents, edge) for mine in own)
        for theirs in continuations(history, line)
    )


def can_commit(history: History, parents: Parents, edge: Edge) -> bool:
    """Return whether the dependent can commit correctly in any future."""
    name, line = edge[0], line_of(parents, edge)
    history = as_the_line_has_it(history, line)
    mine: History = [] if ("begin", name) in history else [("begin", name)]
    mine = [*mine, ("commit", name)]
    return any(
        not violated(history + theirs + mine, parents, edge)
        for theirs in continuations(history, line)
    )


def judge(event: str, name: int, history: History, parents: Parents, edges: Iterable[Edge]) -> str:
    """The verdict on an attempt, and nothing but the formulas to find it."""
    mine = [edge for edge in edges if edge[0] == name]
    if not all(can_commit(history, parents, edge) for edge in mine):
        return "abort"
    after = [*history, (event, name)]
    return "go" if all(is_safe(after, parents, edge) for edge in mine) else "wait"
