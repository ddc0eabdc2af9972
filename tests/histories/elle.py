"""A checker of list-append histories of nested transactions.

After "Elle: Inferring Isolation Anomalies from Experimental Observations" (Kingsbury, Alvaro 2020):
every value is appended once, so a list that was read says which writes it saw and in which order
they came. The anomalies are those of (Adya, Liskov, O'Neil 2000).

What nesting adds: transactions are compared twice. At the top, the units are hierarchies, and what
an aborted subtransaction wrote counts as a failed write within a hierarchy that committed. Below
each parent the units are its children that committed, which must be serializable among each other
as well. A read may see what was written by its own transaction, its superiors, and everything that
is committed up to one of these; a value of any other transaction is a leak.

The order of versions is that of the final list, or, where values are not in it because their
hierarchy aborted, of the longest list read.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.histories.anomaly import Anomaly
from tests.histories.history import Append, History, Node, Outcome, Read, is_committed
from tests.histories.levels import Level

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def check(history: History) -> list[Anomaly]:
    """Return all anomalies of a history; with none, it is strictly serializable at every level."""
    _resolve(history)
    found: dict[Anomaly, None] = {}
    for read in history.reads:
        found.update(dict.fromkeys(_judged_read(history, read)))
    found.update(dict.fromkeys(_judged_end(history)))
    for parent in _parents(history):
        found.update(dict.fromkeys(Level(history, parent).anomalies()))
    return list(found)


def _resolve(history: History) -> None:
    """Count an unreported outcome as committed if a transaction outside of it saw its value."""
    for read in history.reads:
        for value in read.values:
            if value in history.appends:
                _seen_by(history.appends[value], read.node)
    for values in history.final.values():
        for value in values:
            if value in history.appends:
                _seen_by(history.appends[value], None)


def _seen_by(append: Append, reader: Node | None) -> None:
    for node in append.node.outside(reader):
        if node.outcome is Outcome.UNKNOWN:
            node.outcome = Outcome.COMMITTED
            node.committing = node.began


def _parents(history: History) -> list[Node | None]:
    """Return the parents of several committed children; first None, the parent of hierarchies."""
    children = Counter(
        node.parent.name
        for node in history.nodes.values()
        if node.parent is not None and node.outcome is Outcome.COMMITTED
    )
    return [None, *(history.nodes[name] for name, count in children.items() if count > 1)]


# -- single reads ------------------------------------------------------------------------------


def _judged_read(history: History, read: Read) -> Iterator[Anomaly]:
    what = f"{read.node} read {read.key} = {list(read.values)}"
    seen = set(read.values)
    if len(seen) < len(read.values):
        yield Anomaly("duplicate", f"{what}, where a value is twice")
    torn: set[str] = set()
    for value in read.values:
        append = history.appends.get(value)
        if append is None or append.key != read.key:
            yield Anomaly("garbage", f"{what}, but no transaction appended {value} to {read.key}")
            continue
        line = append.node.outside(read.node)
        aborted = [node for node in line if node.outcome is Outcome.ABORTED]
        if aborted:
            yield Anomaly("G1a", f"{what}, but {value} is of {append.node}, and {_fate(aborted)}")
        elif any(node.committing > read.ended for node in line):
            yield Anomaly(
                "early read",
                f"{what} before {line[-1]}, which appended {value}, had begun to commit",
            )
        elif line and line[-1].name not in torn:
            rest = _of_unit(history, read.key, line[-1]) - seen
            if rest:
                torn.add(line[-1].name)
                yield Anomaly(
                    "G1b", f"{what}, with {value} of {line[-1]}, which also appended {_list(rest)}"
                )
    yield from _missing(history, read, what, seen)


def _missing(history: History, read: Read, what: str, seen: set[int]) -> Iterator[Anomaly]:
    """Yield what the read should have seen, as it was committed to where the reader is."""
    top = read.node.top
    for append in history.appends_to(read.key):
        if append.value in seen or append.ended >= read.began:
            continue
        line = append.node.outside(read.node)
        if not is_committed(line):
            continue
        if append.node.top is top:
            if all(node.ended < read.began for node in line):
                yield Anomaly(
                    "internal", f"{what}, without {append.value}, which {append.node} appended"
                )
        elif line[-1].ended < top.began:
            yield Anomaly(
                "stale read",
                f"{what}, without {append.value} of {line[-1]}, "
                f"which had committed before {top} began",
            )


def _of_unit(history: History, key: str, unit: Node) -> set[int]:
    """Values that a unit appended to a list, as far as they are part of its effect."""
    return {
        append.value
        for append in history.appends_to(key)
        if any(node is unit for node in append.node.line())
        and is_committed(append.node.outside(unit))
        and append.ended < unit.ended
    }


def _fate(aborted: list[Node]) -> str:
    return f"{aborted[0]} aborted"


def _list(values: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(values)))


# -- the end -----------------------------------------------------------------------------------


def _judged_end(history: History) -> Iterator[Anomaly]:
    for key, values in history.final.items():
        what = f"at the end {key} = {list(values)}"
        if len(set(values)) < len(values):
            yield Anomaly("duplicate", f"{what}, where a value is twice")
        for value in values:
            append = history.appends.get(value)
            if append is None or append.key != key:
                yield Anomaly("garbage", f"{what}, but no transaction appended {value} to {key}")
                continue
            line = append.node.outside(None)
            aborted = [node for node in line if node.outcome is Outcome.ABORTED]
            if aborted:
                yield Anomaly(
                    "G1a", f"{what}, but {value} is of {append.node}, and {_fate(aborted)}"
                )
    if not history.final:
        return
    for append in history.appends.values():
        there = history.final.get(append.key, ())
        line = append.node.outside(None)
        if append.value not in there and is_committed(line) and append.ended < line[-1].ended:
            yield Anomaly(
                "lost append",
                f"{append.node} appended {append.value} to {append.key} and {line[-1]} committed, "
                f"but at the end {append.key} = {list(there)}",
            )
