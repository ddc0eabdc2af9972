"""Matches of a stream's rules that were found elsewhere, and come with its batches.

A pattern whose events all have the same key needs only the events of one key at a time. So it can
be matched apart from the rules' actions, many keys beside each other, on machines of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from activedb.columns import Arrival
from activedb.events import MATCHES_MAX, Expression, Occurrence

__all__ = ["Completion", "KeyedRule", "Matchable", "Matched"]


@dataclass(frozen=True)
class KeyedRule:
    """What finds the matches of a rule by key; it can be sent to another process.

    Attributes
    ----------
    name : str
        The rule's.
    on : Expression
        Its event.
    attributes : frozenset of str
        Parameters of which any one will do as the key: all events of a match, and those that stand
        in its way, have equal values of it.
    types : frozenset of str
        The event types it takes.
    event : str
        The fingerprint of what is detected.
    partials_max : int or None
        Occurrences that one detector keeps at most; None: any number.
    on_uncertain, matches_max, on_many
        As of the rule.
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
    """What of a stream can be matched elsewhere, and where the stream stands.

    Attributes
    ----------
    rules : tuple of KeyedRule
        In the order of definition.
    here : mapping of str to str
        The other rules that keep something of the stream's events, and why they are matched by the
        process that runs the actions.
    needs : callable ``(names) -> frozenset of str``
        The event types that this process must see if the rules of these names are matched
        elsewhere.
    batch_id : int or None
        The batch that was processed last; None: none yet.
    punctuation_us : int or None
        What has been reached.
    """

    rules: tuple[KeyedRule, ...]
    here: Mapping[str, str]
    needs: Callable[[Collection[str]], frozenset[str]]
    batch_id: int | None
    punctuation_us: int | None


@dataclass(frozen=True)
class Completion:
    """What one event has completed.

    Attributes
    ----------
    arrival : Arrival
        The event.
    found : mapping of str to list of Occurrence or str
        By rule, its matches in the order of its detector; or the error with which the detector has
        refused the event, as class and text.
    """

    arrival: Arrival
    found: Mapping[str, list[Occurrence] | tuple[str, str]]


@dataclass(frozen=True)
class Matched:
    """What elsewhere became of the rows of a batch that are not in its table.

    Attributes
    ----------
    rules : mapping of str to str
        The rules that were matched there, with the fingerprints of their events.
    passed : frozenset of str
        Event types of which all rows are in the batch's table. Of other types these are only the
        late ones, and those of which no event can be made.
    completions : sequence of Completion
        In no order. Their events are passed by the batch's punctuation.
    processed : int
        How many events that are not in any table the punctuation has passed.
    positions : sequence of int or None
        For each row of the table its place among all rows of the batch; None: as they stand.
    from_future : frozenset of int
        Positions of rows whose time was too far ahead when the batch was planned.
    newest_us : int or None
        Of what is left at the end of a feed: the time of the newest event.
    batch_id : int or None
        Likewise: the batch behind which that is.
    punctuation_us : int or None
        Likewise: what the rows up to that batch complete, its own counted.
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
