"""Source covers: the source batches to drop so that some batches never happened (section 3).

A compensation that would affect other batches than those it undoes is *interfering*.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from activedb.batches._composite import composite, followers
from activedb.batches._lineage import Lineage
from activedb.batches._workflow import Requirement
from activedb.errors import LineageError
from activedb.spelling import listed

__all__ = [
    "Closing",
    "Cover",
    "Interference",
    "Round",
    "counts",
    "independent_scover",
    "interference",
    "is_independent",
    "others_of",
    "scover",
    "shared_transactions",
    "transactions_of",
]


@dataclass(frozen=True, slots=True)
class Interference:
    """A batch whose completion would be affected.

    Attributes
    ----------
    batch : str
        A source batch. If a derived batch is compensated, it may be an output or input batch, too.
    shared : tuple of str
        Transactions of its composite transaction that would be compensated.
    """

    batch: str
    shared: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {"batch": self.batch, "shared": list(self.shared)}

    def __str__(self) -> str:
        return f"{self.batch} would lose {listed(self.shared)}"


def counts(lineage: Lineage, transaction: str) -> bool:
    """Return whether the completion of batches depends on a transaction.

    It does not if the transaction is compensated already, or its program relaxes completion.
    """
    found = lineage.transaction(transaction)
    program = lineage.workflow.programs[found.program]
    return found.is_live and program.requires(Requirement.COMPLETION)


def interference(
    lineage: Lineage, transactions: Iterable[str], *, given_up: Iterable[str]
) -> tuple[Interference, ...]:
    """Return the batches whose completion the compensation of transactions affects.

    Parameters
    ----------
    lineage : Lineage
    transactions : iterable of str
        Transactions to compensate.
    given_up : iterable of str
        Batches, or transactions, that are to be dropped anyway; see `others_of`.

    Returns
    -------
    tuple of Interference
        Empty if the compensation is non-interfering (section 3).

    Notes
    -----
    O(batches found · edges of the descendants of each).
    """
    chosen = {id for id in transactions if counts(lineage, id)}
    found = []
    for batch in others_of(lineage, chosen, given_up=given_up):
        shared = lineage.in_transaction_order(chosen & lineage.descendants(batch))
        found.append(Interference(batch, shared))
    return tuple(found)


def others_of(
    lineage: Lineage, transactions: Iterable[str], *, given_up: Iterable[str]
) -> tuple[str, ...]:
    """Return the first other batches that transactions depend on; none follows from another.

    An *other batch*, source or derived, is neither given up, nor an ancestor of a node given up,
    nor derived from nodes given up alone. O(edges of the ancestors of the transactions, and of the
    descendants of nodes given up).
    """
    given = set(given_up)
    own = lineage.ancestors(given) | _following_alone(lineage, given)
    others: dict[str, None] = {}
    behind: set[str] = set()  # descendants of another batch
    for id in lineage.in_order(lineage.ancestors(transactions) - own):
        if any(other in behind for other in lineage.previous_of(id)):
            behind.add(id)
        elif not lineage.is_transaction(id):
            others[id] = None
            behind.add(id)
    return tuple(others)


def is_independent(lineage: Lineage, sources: str | Iterable[str]) -> bool:
    """Return whether compensating source batches in full is non-interfering (section 3)."""
    given = [sources] if isinstance(sources, str) else list(sources)
    return not interference(lineage, composite(lineage, given), given_up=given)


def shared_transactions(
    lineage: Lineage, first: str | Iterable[str], second: str | Iterable[str]
) -> tuple[str, ...]:
    """Return the common transactions of the composite transactions of two sets of batches.

    Two independent sets, where neither has a source of the other, have no common transaction that
    counts.
    """
    both = set(composite(lineage, first)) & set(composite(lineage, second))
    return lineage.in_transaction_order(both)


def _following_alone(lineage: Lineage, given: set[str]) -> set[str]:
    """Return some nodes with all nodes that follow from them alone."""
    found: set[str] = set()
    for id in lineage.in_order(lineage.descendants(given)):
        previous = lineage.previous_of(id)
        if id in given or (previous and found.issuperset(previous)):
            found.add(id)
    return found


class Closing(StrEnum):
    """Outcome of the construction of a cover."""

    CLOSED = "closed"
    """No further batch can enter the cover."""
    GROWING = "growing"
    """Some batches wait to be merged with later ones, so the cover will grow."""
    ENDLESS = "endless"
    """Overlapping input batches draw in every later batch: the construction never ends."""
    CUT = "cut"
    """The construction reached its limit of rounds."""


@dataclass(frozen=True, slots=True)
class Round:
    """Nodes that one round of the construction added.

    Attributes
    ----------
    downstream, upstream : tuple of str
        Transactions that are in D_i and U_i, but not in D_{i-1} and U_{i-1}.
    sources : tuple of str
        Source batches that are in s_i, the input to U_i, but not in s_{i-1}.
    """

    downstream: tuple[str, ...]
    upstream: tuple[str, ...]
    sources: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "downstream": list(self.downstream),
            "upstream": list(self.upstream),
            "sources": list(self.sources),
        }


@dataclass(frozen=True, slots=True)
class Cover:
    """A set of source batches from which some batches are derived, and its construction.

    Attributes
    ----------
    of : tuple of str
        Batches that are covered.
    sources : tuple of str
        The cover. If it is endless, a finite choice: `derivation`, made consecutive if asked.
    closing : Closing
    derivation : tuple of str
        The least cover: the sources from which the batches are derived.
    reached : tuple of str
        All source batches that the construction reached.
    rounds : tuple of Round
    is_independent : bool
        True if compensating `sources`, and all that would stand behind them, affects the completion
        of no other batch, as far as is recorded.
    reasons : tuple of str
        Sentences that say why the cover is not closed.
    """

    of: tuple[str, ...]
    sources: tuple[str, ...]
    closing: Closing
    derivation: tuple[str, ...]
    reached: tuple[str, ...]
    rounds: tuple[Round, ...]
    is_independent: bool
    reasons: tuple[str, ...] = ()

    def explain(self) -> list[str]:
        """Return the cover as human-readable sentences."""
        lines = [
            f"{listed(self.of)}: derived from {listed(self.derivation)}.",
            f"The cover is {listed(self.sources)}, "
            + ("independent" if self.is_independent else "not independent")
            + f"; its construction is {self.closing} after {len(self.rounds)} "
            + ("round." if len(self.rounds) == 1 else "rounds."),
        ]
        return [*lines, *self.reasons]

    def record(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "of": list(self.of),
            "sources": list(self.sources),
            "closing": str(self.closing),
            "derivation": list(self.derivation),
            "reached": list(self.reached),
            "rounds": [each.record() for each in self.rounds],
            "is_independent": self.is_independent,
            "reasons": list(self.reasons),
        }


def scover(
    lineage: Lineage, ids: str | Iterable[str], *, consecutive: bool = False
) -> tuple[str, ...]:
    """Return the least source covering batch set: the sources from which batches are derived.

    Parameters
    ----------
    lineage : Lineage
    ids : str or iterable of str
        Batches; also transactions, which stand for their inputs.
    consecutive : bool
        Add the batches in between, so that the batches of each source are consecutive.

    Raises
    ------
    NotRecorded
        If there is no such batch.

    Notes
    -----
    O(edges of the ancestors), and with `consecutive` O(n log n) for n source batches.
    """
    found = lineage.sources_of(ids)
    return lineage.in_order(_filled(lineage, set(found))) if consecutive else found


def independent_scover(
    lineage: Lineage,
    ids: str | Iterable[str],
    *,
    consecutive: bool = False,
    rounds: int | None = None,
) -> Cover:
    """Return the least independent scover, by the iterative construction of section 3.

    D_1 is the set of transactions that the batches trigger, U_i the transactions from which a path
    leads to D_i, s_i the source batches that are input to U_i, and D_{i+1} the transactions that a
    path from U_i reaches or that s_i triggers. The construction ends when U_i does not grow. Paths
    also follow control order, to transactions that would otherwise stand behind a compensated one
    (`followers`).

    There are two additions to the paper's text. A source batch may be input to several
    transactions, which are all drawn in. And a transaction that no batch's completion depends on
    draws in no source above it: a compensated one, or one of a program that relaxes completion.

    Parameters
    ----------
    lineage : Lineage
    ids : str or iterable of str
        Batches; also transactions.
    consecutive : bool
        Fill the gaps of s_i in each round, so that the result is independent and consecutive.
    rounds : int or None
        Maximum number of rounds; the result is s_i of the last one.

    Raises
    ------
    NotRecorded
        If there is no such batch.
    LineageError
        If `rounds` is not positive.

    Notes
    -----
    O(edges of the nodes reached), as each round searches new nodes only; with `consecutive`
    O(rounds · n log n) more for n source batches.
    """
    if rounds is not None and rounds < 1:
        raise LineageError(f"a cover is made in at least one round, not in {rounds}")
    given = lineage.in_order({ids} if isinstance(ids, str) else set(ids))
    construction = _Construction(lineage, given, consecutive=consecutive)
    found: list[Round] = []
    is_cut = False
    while not is_cut and (added := construction.next_round()) is not None:
        is_cut = len(found) == rounds
        if not is_cut:
            found.append(added)
    derivation = lineage.sources_of(given)
    sources = reached = lineage.in_order(id for each in found for id in each.sources)
    closing: Closing
    reasons: tuple[str, ...]
    if is_cut:
        closing, reasons = Closing.CUT, (f"Its construction was stopped after round {rounds}.",)
    else:
        closing, reasons = _closing(lineage, construction.visited)
    if closing is Closing.ENDLESS:
        sources = scover(lineage, given, consecutive=consecutive)
        reasons = (
            *reasons,
            "Dropping more batches would always leave others dropped in part, so the least cover "
            f"is chosen: {listed(sources)}.",
        )
    return Cover(
        given,
        sources,
        closing,
        derivation,
        reached,
        tuple(found),
        not interference(lineage, transactions_of(lineage, sources), given_up=sources),
        reasons,
    )


def transactions_of(lineage: Lineage, sources: Iterable[str]) -> tuple[str, ...]:
    """Return all transactions to compensate with the source batches of a cover, in order.

    These are the transactions that the batches trigger, and those that would stand behind them in
    control order.
    """
    found = followers(lineage, sources)
    return lineage.in_transaction_order(id for id in found if lineage.is_transaction(id))


class _Construction:
    """State between two rounds: nodes below and above so far, and the latest additions."""

    def __init__(self, lineage: Lineage, given: tuple[str, ...], *, consecutive: bool):
        self._lineage = lineage
        self._is_consecutive = consecutive
        self._sources: set[str] = set()
        # D_i and U_i, with the batches in between; then the nodes that the next round adds first.
        self._down: set[str] = set()
        self._up: set[str] = set()
        self._below = followers(lineage, (*composite(lineage, given), *given))
        self._above = lineage.ancestors(given)

    @property
    def visited(self) -> set[str]:
        """All batches and transactions that the construction reached."""
        return self._down | self._up

    def next_round(self) -> Round | None:
        """Return the additions to D_i, U_i and s_i; None if U_i has not grown."""
        lineage = self._lineage
        below = self._below
        self._down |= below
        linking = [id for id in below if lineage.is_transaction(id) and counts(lineage, id)]
        above = self._above | lineage.ancestors(linking, without=self._up)
        sources = {id for id in above if lineage.is_source(id)}
        if self._is_consecutive:
            gaps = _filled(lineage, self._sources | sources) - self._sources - sources
            sources |= gaps
            above |= gaps
        if not above:
            return None
        self._sources |= sources
        self._up |= above
        self._below = followers(lineage, above, without=self._down)
        self._above = set()
        return Round(
            self._transactions(below), self._transactions(above), lineage.in_order(sources)
        )

    def _transactions(self, ids: set[str]) -> tuple[str, ...]:
        lineage = self._lineage
        return lineage.in_transaction_order(id for id in ids if lineage.is_transaction(id))


def _closing(lineage: Lineage, visited: set[str]) -> tuple[Closing, tuple[str, ...]]:
    overlapping: dict[str, str] = {}
    waiting: dict[str, str] = {}
    batches = (id for id in visited if not lineage.is_transaction(id))
    for id in lineage.in_order(batches):
        for program in lineage.readers_still_due(id):
            if not lineage.workflow.completion_matters(program.name):
                continue
            grouping = program.reads[lineage.batch(id).stream]
            if grouping.overlaps:
                overlapping[program.name] = id
            elif grouping.gathers or len(program.reads) > 1:
                waiting[program.name] = id
    if overlapping:
        return Closing.ENDLESS, tuple(
            f"The construction never ends: input batches of {name} overlap, and the next one "
            f"shares {id}."
            for name, id in overlapping.items()
        )
    if waiting:
        return Closing.GROWING, tuple(
            f"The cover will grow: {id} waits to be merged with other batches into an input of "
            f"{name}."
            for name, id in waiting.items()
        )
    return Closing.CLOSED, ()


def _filled(lineage: Lineage, sources: set[str]) -> set[str]:
    """Return source batches with those in between, by number, of each stream."""
    bounds: dict[str, tuple[int, int]] = {}
    for id in sources:
        batch = lineage.batch(id)
        low, high = bounds.get(batch.stream, (batch.number, batch.number))
        bounds[batch.stream] = min(low, batch.number), max(high, batch.number)
    found = set(sources)
    for stream, (low, high) in bounds.items():
        found |= {b.id for b in lineage.source_batches(stream) if low <= b.number <= high}
    return found
