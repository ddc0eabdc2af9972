"""Matches of a stream's rules that were found on other machines and arrive with its batches.

If all events of a pattern share a key, matching needs only the events of one key at a time. It can
then be separated from the rules' actions and run for many keys in parallel, on the machines of a
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from activedb.columns import Arrival
from activedb.events import MATCHES_MAX, Expression, Occurrence

__all__ = ["Completion", "KeyedRule", "Matchable", "Matched"]


@dataclass(frozen=True)
class KeyedRule:
    """Matcher description of a rule, by key; can be sent to another process.

    Attributes
    ----------
    name : str
        Name of the rule.
    on : Expression
        Event expression of the rule.
    attributes : frozenset of str
        Parameters any of which can serve as the key: all events of a match, and all events that can
        prevent it, have equal values of it.
    types : frozenset of str
        Event types it takes.
    event : str
        Fingerprint of the expression that is detected.
    partials_max : int or None
        Maximum number of occurrences that one detector retains; None: unbounded.
    on_uncertain, matches_max, on_many
        Same as the rule's.
    """

    name: str
    on: Expression
    attributes: frozenset[str]
    types: frozenset[str]
    event: str
    partials_max: int | None
    on_uncertain: str = "certain"
    matches_max: int | None = MATCHES_MAX
    on_many: str = "refuse"


@dataclass(frozen=True)
class Matchable:
    """Rules of a stream that can be matched elsewhere, and the stream's progress.

    Attributes
    ----------
    rules : tuple of KeyedRule
        In order of definition.
    here : mapping of str to str
        Other rules with state from the stream's events, each with the reason why it must be matched
        by the process that runs the actions.
    needs : callable ``(names) -> frozenset of str``
        Return the event types that this process must see if the named rules are matched elsewhere.
    batch_id : int or None
        Batch that was processed last; None: none yet.
    punctuation_us : int or None
        Punctuation reached.
    """

    rules: tuple[KeyedRule, ...]
    here: Mapping[str, str]
    needs: Callable[[Collection[str]], frozenset[str]]
    batch_id: int | None
    punctuation_us: int | None


@dataclass(frozen=True)
class Completion:
    """Matches that one event has completed.

    Attributes
    ----------
    arrival : Arrival
        The completing event.
    found : mapping of str to list of Occurrence or str
        Per rule, its matches in detector order; or the error with which the detector refused the
        event, as class name and text.
    """

    arrival: Arrival
    found: Mapping[str, list[Occurrence] | tuple[str, str]]


@dataclass(frozen=True)
class Matched:
    """Results for the rows of a batch that were matched elsewhere and are not in its table.

    Attributes
    ----------
    rules : mapping of str to str
        Rules that were matched there, with the fingerprints of their events.
    passed : frozenset of str
        Event types of which all rows are in the batch's table. Of other types the table has only
        late rows, and rows that are not valid events.
    completions : sequence of Completion
        In any order. Their events are passed by the batch's punctuation.
    processed : int
        Number of events passed by the punctuation that are in no table.
    positions : sequence of int or None
        Per row of the table, its position among all rows of the batch; None: unchanged.
    from_future : frozenset of int
        Positions of rows whose time was too far ahead when the batch was planned.
    newest_us : int or None
        For the remainder at the end of a feed: the time of the newest event.
    batch_id : int or None
        For the same: the batch it follows.
    punctuation_us : int or None
        For the same: the punctuation after that batch, with the batch's own rows counted.
    """

    rules: Mapping[str, str]
    passed: frozenset[str]
    completions: Sequence[Completion] = ()
    processed: int = 0
    positions: Sequence[int] | None = None
    from_future: frozenset[int] = field(default_factory=frozenset)
    newest_us: int | None = None
    batch_id: int | None = None
    punctuation_us: int | None = None
