"""Selection of the rules of a stream that can be matched elsewhere, key by key."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from activedb.events import (
    Conjunction,
    Disjunction,
    Expression,
    Kleene,
    Negation,
    Primitive,
    Sequence,
)
from activedb.firing import TimeLines
from activedb.rules import Catalog, OnFull, Subscription
from activedb.store.journals import LedgerEntry
from activedb.streams._declaration import StreamDeclaration
from activedb.streams._matched import KeyedRule, Matchable

__all__ = ["matchable", "needed_types"]


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
        return "it bounds what it keeps of all keys together (partials_max, on_full)"
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
    if isinstance(on, Sequence | Conjunction):
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
    )
