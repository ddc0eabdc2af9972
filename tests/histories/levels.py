"""The dependencies among the transactions of one level of the forest, and the cycles in them."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.histories.anomaly import Anomaly
from tests.histories.cycles import Edge, components, part, path_between
from tests.histories.history import History, Node, Read, is_committed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Level:
    """The committed children of one parent, or all hierarchies, and who depends on whom."""

    def __init__(self, history: History, parent: Node | None):
        self._history = history
        self._parent = parent
        self._unit_of: dict[int, Node] = {}
        top = None if parent is None else parent.top
        for append in history.appends_within(top):
            unit = self._unit(append.node)
            if unit is not None:
                self._unit_of[append.value] = unit
        self._reads = [(read, self._unit(read.node)) for read in history.reads_within(top)]
        self._why: dict[Edge, str] = {}
        self._scans: set[tuple[str, str]] = set()
        self._graph: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(
            lambda: defaultdict(set)
        )

    def anomalies(self) -> list[Anomaly]:
        found = []
        orders = self._orders()
        for key, order in orders.items():
            for earlier, later in pairwise(order):
                words = f"{{b}} appended {later} to {key} after {{a}}'s {earlier}"
                self._edge(self._unit_of[earlier], self._unit_of[later], "ww", words)
        for read, unit in self._reads:
            if unit is not None:
                found += self._depend(read, unit, orders.get(read.key, []))
        return found + self._cycles()

    def _unit(self, node: Node) -> Node | None:
        """The unit whose effect the node is part of, or None."""
        line = node.outside(self._parent)
        if not line or line[-1].parent is not self._parent or not is_committed(line):
            return None
        return line[-1]

    def _orders(self) -> Mapping[str, list[int]]:
        """Order of the versions of each list, as far as the units wrote them."""
        final = self._history.final
        longest = {key: self._restricted(values) for key, values in final.items()}
        for read, _ in self._reads:
            if self._parent is None:
                is_better = read.key not in final
            else:
                is_better = any(node is self._parent for node in read.node.line())
            values = self._restricted(read.values)
            if is_better and len(values) > len(longest.get(read.key, [])):
                longest[read.key] = values
        return longest

    def _restricted(self, values: Iterable[int]) -> list[int]:
        return list(dict.fromkeys(value for value in values if value in self._unit_of))

    def _depend(self, read: Read, unit: Node, order: list[int]) -> list[Anomaly]:
        """Edges to and from the reader; an anomaly if the list fits no order."""
        found = []
        seen = [v for v in self._restricted(read.values) if self._unit_of[v] is not unit]
        others = [value for value in order if self._unit_of[value] is not unit]
        if seen != others[: len(seen)]:
            words = f"{read.node} read {read.key} = {seen} of others, but the order is {others}"
            found.append(Anomaly("order", words))
        if seen:
            words = f"{{b}} read {read.key} = {list(read.values)} with {{a}}'s {seen[-1]}"
            self._edge(self._unit_of[seen[-1]], unit, "wr", words)
        place = others.index(seen[-1]) + 1 if seen and seen[-1] in others else len(seen)
        if place < len(others):
            later = others[place]
            words = f"{{a}} read {read.key} = {list(read.values)} without {{b}}'s {later}"
            self._edge(unit, self._unit_of[later], "rw", words)
            if read.is_scan:
                self._scans.add((unit.name, self._unit_of[later].name))
        return found

    def _edge(self, a: Node, b: Node, kind: str, words: str) -> None:
        if a is not b:
            self._graph[a.name][b.name].add(kind)
            self._why.setdefault((a.name, b.name, kind), words.format(a=a, b=b))

    def _cycles(self) -> list[Anomaly]:
        """A shortest cycle of the first kind there is, in each strongly connected component."""
        found = []
        told: set[str] = set()
        for name, start, rest in (
            ("G0", "ww", ("ww",)),
            ("G1c", "wr", ("ww", "wr")),
            ("G-single", "rw", ("ww", "wr")),
            ("G2", "rw", ("ww", "wr", "rw")),
        ):
            whole = part(self._graph, {start, *rest})
            for component in components(whole):
                if component & told:
                    continue
                within = {
                    a: {b: whole[a][b] for b in whole[a] if b in component} for a in component
                }
                best: list[Edge] | None = None
                for a in sorted(within):
                    for b in sorted(within[a]):
                        if start not in within[a][b]:
                            continue
                        back = path_between(part(within, set(rest)), b, a, rest)
                        if back is None or (name == "G2" and all(k != "rw" for _, _, k in back)):
                            continue
                        cycle = [(a, b, start), *back]
                        if best is None or len(cycle) < len(best):
                            best = cycle
                if best is not None:
                    told |= component
                    found.append(self._told(name, best))
        return found

    def _told(self, name: str, cycle: list[Edge]) -> Anomaly:
        if name == "G2" and not any((a, b) in self._scans for a, b, kind in cycle if kind == "rw"):
            name = "G2-item"
        ring = " → ".join([a for a, _, _ in cycle] + [cycle[0][0]])
        why = "; ".join(f"{self._why[edge]} ({edge[2]})" for edge in cycle)
        where = "" if self._parent is None else f" among the children of {self._parent}"
        return Anomaly(name, f"{ring}{where}: {why}")
