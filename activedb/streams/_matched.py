"""Matches of a stream's rules that were found on other machines and arrive with its batches.

If all events of a pattern share a key, matching needs only the events of one key at a time. It can
then be separated from the rules' actions and run for many keys in parallel, on the machines of a
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from activedb.columns import Arrival
from activedb.events import (
    MATCHES_MAX,
    Conjunction,
    Disjunction,
    Expression,
    Kleene,
    Negation,
    Occurrence,
    Primitive,
)
from activedb.events import Sequence as SequencePattern
from activedb.firing import TimeLines
from activedb.rules import Catalog, OnAbort, OnFull, Subscription
from activedb.store.journals import LedgerEntry
from activedb.streams._declaration import StreamDeclaration

__all__ = ["Completion", "KeyedRule", "Matchable", "Matched", "matchable", "needed_types"]


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
    fails_alone : bool
        Whether an error of its predicates refuses the event for this rule only.
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
    fails_alone: bool = False


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


# -- selection of the rules of a stream that can be matched elsewhere, key by key ------------------


def matchable(
    stream: StreamDeclaration,
    catalog: Catalog,
    lines: TimeLines,
    *,
    last: LedgerEntry | None,
    partials_max: int | None,
    sees_all: bool,
    keeps_here: str | None,
) -> Matchable:
    """Return the rules of a stream that can be matched elsewhere. O(rules).

    Parameters
    ----------
    last : LedgerEntry or None
        Latest ledger entry of the stream.
    partials_max : int or None
        Maximum number of occurrences a detector retains; None: unbounded.
    sees_all : bool
        Whether this process needs every event in any case, as programs run on them.
    keeps_here : str or None
        Reason why no rule of this stream can be matched elsewhere; None: some may.
    """
    rules: list[KeyedRule] = []
    here: dict[str, str] = {}
    for subscription in _listening(stream, catalog):
        if not subscription.is_stateful:
            continue
        why = keeps_here or _why_here(stream, lines, subscription)
        if why is None:
            rules.append(_keyed(subscription, partials_max))
        else:
            here[subscription.rule.name] = why

    def needs(elsewhere: Collection[str]) -> frozenset[str]:
        return frozenset(stream.types) if sees_all else needed_types(stream, catalog, elsewhere)

    return Matchable(
        rules=tuple(rules),
        here=here,
        needs=needs,
        batch_id=None if last is None else last.batch_id,
        punctuation_us=None if last is None else last.punctuation_us,
    )


def needed_types(
    stream: StreamDeclaration, catalog: Catalog, elsewhere: Collection[str]
) -> frozenset[str]:
    """Return the event types that rules not matched elsewhere listen to. O(rules)."""
    found = {
        name
        for subscription in _listening(stream, catalog)
        if subscription.rule.name not in elsewhere
        for kind, name in subscription.keys
        if kind == "event"
    }
    return frozenset(found & stream.types.keys())


def _listening(stream: StreamDeclaration, catalog: Catalog) -> list[Subscription]:
    found = catalog.listening_to_any([("event", name) for name in stream.types])
    return sorted(found, key=catalog.place)


def _why_here(
    stream: StreamDeclaration, lines: TimeLines, subscription: Subscription
) -> str | None:
    """Return why a rule must be matched in this process; None if it need not be."""
    rule = subscription.rule
    if lines.stream_of(subscription) != stream.name:
        return "it listens to more than the events of this stream"
    if any(kind != "event" for kind, _ in subscription.keys):
        return "it listens to late events, too"
    if subscription.is_timed:
        return "time alone can complete it"
    if subscription.reads:
        return "its predicates read the store"
    if rule.partials_max is not None or rule.on_full is not OnFull.DROP_OLDEST:
        return "it bounds its state of all keys together (partials_max, on_full)"
    if not isinstance(rule.on_uncertain, str):
        return "a function of its own decides about uncertain order"
    if not keys_of(rule.on):
        return "no parameter is the same in all its events: give its parts .same(…)"
    return None


def keys_of(on: Expression) -> frozenset[str]:
    """Return the parameters with equal values in all events that decide about an occurrence.

    All events with one value of such a parameter suffice to find all occurrences with that value.
    O(size of `on`).
    """
    return _keys_of(on) or frozenset()


def _keys_of(on: Expression) -> frozenset[str] | None:
    """Return `keys_of`, or None if any parameter qualifies, as `on` concerns a single event."""
    if isinstance(on, Primitive):
        return None
    inner = _common(map(_keys_of, on.children))
    if isinstance(on, SequencePattern | Conjunction):
        own = frozenset(on.attributes)
        return own if inner is None else own & inner
    # Any other operator may combine events of different keys.
    return inner if isinstance(on, Disjunction | Negation | Kleene) else frozenset()


def _common(found: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    common: frozenset[str] | None = None
    for keys in found:
        if keys is not None:
            common = keys if common is None else common & keys
    return common


def _keyed(subscription: Subscription, partials_max: int | None) -> KeyedRule:
    rule = subscription.rule
    assert isinstance(rule.on_uncertain, str)
    return KeyedRule(
        name=rule.name,
        on=rule.on,
        attributes=keys_of(rule.on),
        types=frozenset(name for _, name in subscription.keys),
        event=subscription.event,
        partials_max=partials_max,
        on_uncertain=rule.on_uncertain,
        matches_max=rule.matches_max,
        on_many=str(rule.on_many),
        fails_alone=rule.on_abort is OnAbort.RULE,
    )
