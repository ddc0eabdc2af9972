"""The definitions of section 3, written down once more over plain records, without any cleverness.

Nothing of `activedb.batches` is used: only the records of a lineage, and what the workflow says of
its programs. Closures are taken of the whole relation, sets are found by trying.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any

__all__ = ["Naive"]

Pairs = set[tuple[str, str]]


class Naive:
    """A lineage as relations.

    Parameters
    ----------
    records : iterable of dict
        As `Lineage.records` gives them.
    order : list of str
        The programs, in an order that agrees with the partial order.
    after : dict of str to set of str
        Control order: a program to those that it follows.
    no_completion : set of str
        Programs that relax completion.
    no_monotonic : set of str
        Programs that relax monotonic execution.
    """

    def __init__(
        self,
        records: Iterable[dict[str, Any]],
        order: list[str],
        after: dict[str, set[str]],
        no_completion: set[str],
        no_monotonic: set[str],
    ):
        self.no_completion = no_completion
        self.no_monotonic = no_monotonic
        self.after = after
        self.program: dict[str, str] = {}
        self.number: dict[str, int] = {}
        self.state: dict[str, str] = {}
        self.producer: dict[str, str] = {}
        self.stream: dict[str, str] = {}
        self.pieces: dict[str, set[str]] = {}
        self.inputs: dict[str, set[str]] = {}
        self.sources: set[str] = set()
        self.place: dict[str, int] = {}
        triggered: Pairs = set()
        for record in records:
            if "transaction" in record:
                id = record["transaction"]
                self.program[id], self.state[id] = record["program"], record["state"]
                self.number[id] = record["number"]
                self.inputs[id] = set(record["inputs"])
                triggered |= {(other, id) for other in record["triggered_by"]}
                if record["output"]:
                    self.producer[record["output"]] = id
                    self.pieces[record["output"]] = {record["output"]}
                    self.place[record["output"]] = len(self.place)
            elif record["kind"] != "output":
                id = record["batch"]
                self.pieces[id] = {piece[0] for piece in record["pieces"]} or {id}
                if record["kind"] == "source":
                    self.sources.add(id)
                    self.number[id], self.stream[id] = record["number"], record["stream"]
                self.place[id] = len(self.place)
        self.rank = {name: place for place, name in enumerate(order)}
        self.uses = {
            id: set().union(*(self.pieces[batch] for batch in batches), set())
            for id, batches in self.inputs.items()
        }
        self.triggered = triggered
        self.triggers = triggered | {
            (producer, id)
            for id, used in self.uses.items()
            for batch, producer in self.producer.items()
            if batch in used
        }
        self.ways = _closed(self.triggers, self.program)
        self.controls = self.control()

    # -- section 2 and 3 -------------------------------------------------------------------

    def consumers(self, batch: str) -> set[str]:
        """The transactions for which a batch, or a piece of it, is input."""
        return {
            id
            for id in self.program
            if batch in self.inputs[id] or (batch in self.uses[id] and not self._is_formed(batch))
        }

    def below(self, transactions: Iterable[str]) -> set[str]:
        chosen = set(transactions)
        return {second for first, second in self.ways if first in chosen}

    def above(self, transactions: Iterable[str]) -> set[str]:
        chosen = set(transactions)
        return {first for first, second in self.ways if second in chosen}

    def sources_of(self, batch: str) -> set[str]:
        """The source batches from which a batch is derived."""
        found = self.pieces[batch] & self.sources
        producers = {self.producer[b] for b in self.pieces[batch] if b in self.producer}
        return found | self.sources_used(self.above(producers))

    def sources_used(self, transactions: Iterable[str]) -> set[str]:
        return {b for id in transactions for b in self.uses[id]} & self.sources

    def control(self) -> Pairs:
        """Control order: between transactions that have a source batch in common."""
        roots = {id: self.sources_used(self.above([id])) for id in self.program}
        return {
            (first, second)
            for first in self.program
            for second in self.program
            if self.program[first] in self.after[self.program[second]]
            and roots[first] & roots[second]
        }

    def composite(self, batch: str) -> set[str]:
        """T(b): what b triggers, by control order only within what its sources trigger."""
        found = self.below(self.consumers(batch))
        whole = {
            id for source in self.sources_of(batch) for id in self.below(self.consumers(source))
        }
        while True:
            more = {s for f, s in self.controls if f in found and s in whole}
            more = self.below(found | more)
            if more == found:
                return found
            found = more

    def counts(self, transaction: str) -> bool:
        relaxed = self.program[transaction] in self.no_completion
        return self.state[transaction] != "compensated" and not relaxed

    def followers(self, transactions: set[str]) -> set[str]:
        """Return transactions and all that follow them, so that none follows one that is gone."""
        while True:
            behind = {
                s
                for f, s in self.controls
                if f in transactions
                and self.state[f] != "compensated"
                and self.state[s] == "executed"
                and self.program[s] not in self.no_monotonic
            }
            more = self.below(transactions | behind)
            if more == transactions:
                return transactions
            transactions = more

    # -- covers ------------------------------------------------------------------------------

    def rounds(self, batch: str) -> list[tuple[set[str], set[str], set[str]]]:
        """The sets D_i, U_i and s_i, each as a whole, until U_i and s_i stay what they are."""
        producers = {self.producer[b] for b in self.pieces[batch] if b in self.producer}
        always, own = self.above(producers), self.sources_of(batch)
        below = self.followers(self.composite(batch))
        found: list[tuple[set[str], set[str], set[str]]] = []
        while True:
            above = self.above(id for id in below if self.counts(id)) | always
            sources = self.sources_used(above) | own
            if found and (above, sources) == found[-1][1:]:
                return found
            found.append((below, above, sources))
            fed = {id for source in sources for id in self.consumers(source)}
            below = self.followers(below | self.below(above | fed))
            always, own = above, sources

    def is_independent(self, sources: set[str]) -> bool:
        """Return whether giving up sources, and what follows them, interferes with no others."""
        own = self.followers({id for source in sources for id in self.composite(source)})
        return not any(
            self.counts(id)
            for other in self.sources - sources
            for id in own & self.composite(other)
        )

    def least_independent(self, sources: set[str]) -> set[str]:
        """The least independent set that has all of `sources`, found by trying all sets."""
        others = sorted(self.sources - sources)
        for count in range(len(others) + 1):
            for more in combinations(others, count):
                if self.is_independent(sources | set(more)):
                    return sources | set(more)
        raise AssertionError("all source batches together are independent")

    # -- compensation ------------------------------------------------------------------------

    def others(self, transactions: set[str], given_up: set[str]) -> set[str]:
        """The batches above transactions that are neither above what is given up nor from it alone.

        From it alone is what nothing leads to any more once that is taken out.
        """
        edges = {
            (piece, id) for id, of in self.pieces.items() if self._is_formed(id) for piece in of
        }
        edges |= {(batch, id) for id, given in self.inputs.items() for batch in given}
        edges |= {(producer, batch) for batch, producer in self.producer.items()}
        edges |= {(f, s) for f, s in self.triggered}
        nodes = {*self.pieces, *self.program}
        ways = _closed(edges, nodes)
        left = _closed({(f, s) for f, s in edges if not {f, s} & given_up}, nodes)
        roots = nodes - {s for _, s in edges} - given_up
        not_alone = {s for f, s in left if f in roots} - given_up
        above = {f for f, s in ways if s in given_up}
        found = {
            f for f, s in ways if s in transactions and f in self.pieces and f in not_alone - above
        }
        return {b for b in found if not any((other, b) in ways for other in found - {b})}

    def non_intrusive(self, batch: str) -> set[str]:
        """The union of all prefixes that are non-interfering, found by trying all subsets."""
        whole = sorted(id for id in self.composite(batch) if self.state[id] != "compensated")
        edges = {(f, s) for f, s in self.triggers | self.controls if {f, s} <= set(whole)}
        others = {
            id
            for other in self.others(set(whole), {batch})
            for id in self.below(self.consumers(other))
        }
        found: set[str] = set()
        for count in range(len(whole) + 1):
            for some in combinations(whole, count):
                chosen = set(some)
                is_prefix = all(f in chosen for f, s in edges if s in chosen)
                if is_prefix and not any(self.counts(id) for id in chosen & others):
                    found |= chosen
        return found

    def interference(self, transactions: set[str], given_up: set[str]) -> dict[str, set[str]]:
        found = {}
        chosen = {id for id in transactions if self.counts(id)}
        for other in self.others(chosen, given_up):
            shared = chosen & self.below(self.consumers(other))
            if shared:
                found[other] = shared
        return found

    def _is_formed(self, batch: str) -> bool:
        return batch not in self.sources and batch not in self.producer


def _closed(pairs: Pairs, nodes: Iterable[str]) -> Pairs:
    """The reflexive transitive closure."""
    found = pairs | {(node, node) for node in nodes}
    while True:
        more = {(a, d) for a, b in found for c, d in pairs if b == c} - found
        if not more:
            return found
        found |= more
