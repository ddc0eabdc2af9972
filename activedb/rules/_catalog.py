"""Catalog of the rules that an event can trigger, as each transaction sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from activedb.events import Occurrence, Query
from activedb.rules._registered import RegisteredRule
from activedb.rules._rule import Rule
from activedb.rules._subscription import Subscription
from activedb.transactions import State, TransactionNode

__all__ = ["Catalog"]


class Catalog:
    """Rules by name, and the enabled ones by the primitive events they listen to.

    Committed rules are in two dicts. The changes of a transaction are in its draft. The transaction
    and its inferiors see the draft; a commit hands it to the parent, an abort drops it, and the
    commit of the top-level transaction applies it.

    Attributes
    ----------
    by_key : dict
        Event key to the `Listeners` among committed, enabled rules; a key without listeners is
        absent. To find out whether any rule listens, look here and at `drafts`.
    drafts : Drafts
        False while no transaction has changed anything or ignores a rule.
    quarantine : dict
        Name of each rule in quarantine, as committed, to the reason.
    queries : dict of str to Query
        Committed queries of texts, by name; replaced as a whole.
    version : int
        Counter that changes whenever committed rules have changed.
    """

    def __init__(
        self, on_applied: Callable[[list[Subscription]], object] = lambda subscriptions: None
    ):
        self._rules: dict[str, RegisteredRule] = {}
        self.by_key: dict[tuple[str, str], Listeners] = {}
        self._latch = threading.Condition()
        self.drafts = Drafts()
        self.quarantine: dict[str, str] = {}
        self.queries: dict[str, Query] = {}
        self.version = 0
        self._on_applied = on_applied

    # -- dispatch --------------------------------------------------------------------------

    def listening_to(
        self, key: tuple[str, str], t: TransactionNode | None = None
    ) -> tuple[Subscription, ...]:
        """Return the subscriptions to a primitive event raised in `t`, in the order of definition.

        One dict lookup; for a transaction whose hierarchy has drafts O(rules found) more.
        """
        if self.drafts and t is not None:
            drafted = self._drafted(key, t)
            if drafted is not None:
                return drafted
        found = self.by_key.get(key)
        return () if found is None else found.all

    def concerned_by(
        self, o: Occurrence, t: TransactionNode | None = None
    ) -> tuple[Subscription, ...]:
        """Return the subscriptions that must be fed `o`, raised in `t`, in order of definition.

        Rules that demand other constants of its attributes are left out: they neither take `o` nor
        fail. REQUIRES: `o` comes without contemporaries. The cost is that of `listening_to` plus
        `Listeners.concerned_by`. For a transaction with drafts, no subscription is left out.
        """
        if self.drafts and t is not None:
            drafted = self._drafted(o.key, t)
            if drafted is not None:
                return drafted
        found = self.by_key.get(o.key)
        if found is None:
            return ()
        return found.concerned_by(o) if found.is_filed else found.all

    def listening_to_any(self, keys: Iterable[tuple[str, str]]) -> list[Subscription]:
        """Return committed subscriptions to any of several primitive events, without duplicates."""
        return list(dict.fromkeys(s for key in keys for s in self.listening_to(key)))

    def _drafted(self, key: tuple[str, str], t: TransactionNode) -> tuple[Subscription, ...] | None:
        """Return the subscriptions as `t` sees them.

        None if neither `t` nor a superior has a draft: the committed ones apply.
        """
        with self._latch:
            line = self.drafts.line(t)
            if not line:
                return None
            found = self.by_key.get(key)
            return self._seen(line, key, () if found is None else found.all)

    def _seen(
        self, line: Sequence[Draft], key: tuple[str, str], committed: Iterable[Subscription]
    ) -> tuple[Subscription, ...]:
        """Return `committed` as changed by the drafts of `line`, nearest first."""
        seen: dict[str, RegisteredRule] = {}
        for draft in line:
            for name, entry in draft.by_key.get(key, {}).items():
                if _nearest(line, name) is draft:
                    seen[name] = entry
        for subscription in committed:
            name = subscription.rule.name
            if _nearest(line, name) is None:
                seen[name] = self._rules[name]
        ignored = frozenset().union(*(names for draft in line for names in draft.ignored.values()))
        found = [entry for name, entry in seen.items() if name not in ignored]
        return tuple(entry.subscription for entry in sorted(found, key=_order))

    # -- by name ---------------------------------------------------------------------------

    def rule(self, name: str) -> Rule | None:
        """Return the committed rule with this name, enabled or not, or None."""
        entry = self._rules.get(name)
        return entry.rule if entry else None

    def entry(self, name: str, t: TransactionNode | None = None) -> RegisteredRule | None:
        """Return the rule with this name as `t` sees it, or the committed one without `t`."""
        with self._latch:
            for draft in self.drafts.line(t):
                if name in draft.entries:
                    return draft.entries[name]
            return self._rules.get(name)

    def entries(self, t: TransactionNode | None = None) -> list[RegisteredRule]:
        """Return all rules as `t` sees them, or as committed, in the order of definition."""
        with self._latch:
            seen: dict[str, RegisteredRule | None] = dict(self._rules)
            for draft in reversed(self.drafts.line(t)):
                seen.update(draft.entries)
        found = [entry for entry in seen.values() if entry is not None]
        return sorted(found, key=_order)

    def committed(self) -> list[RegisteredRule]:
        """Return all committed rules in the order of definition, without taking a latch."""
        return sorted(self._rules.values(), key=_order)

    def __iter__(self) -> Iterator[Rule]:
        return iter([entry.rule for entry in self.entries()])

    # -- changes ---------------------------------------------------------------------------

    def put(self, t: TransactionNode, name: str, entry: RegisteredRule | None) -> None:
        """Draft a change of a rule, seen by `t` and its inferiors; None deletes it.

        REQUIRES: `t` holds a write lock on the row of the rule.
        """
        with self._latch:
            self.drafts.of(t).put(name, entry)

    def await_others(self, t: TransactionNode, name: str) -> None:
        """Wait until the drafts of a rule that `t` does not see are handed on, applied or dropped.

        REQUIRES: `t` holds a write lock on the row of the rule, so the transactions of these
        drafts are about to end.
        """
        with self._latch:
            self._latch.wait_for(lambda: not self.drafts.others_have(t, name))

    def queries_seen(self, t: TransactionNode | None) -> dict[str, Query]:
        """Return the queries as `t` sees them, or as committed, by name."""
        with self._latch:
            found = (draft.queries for draft in self.drafts.line(t))
            return next((queries for queries in found if queries is not None), self.queries)

    def queries_to_change(self, t: TransactionNode) -> dict[str, Query]:
        """Return a copy of the queries, once the drafts that `t` does not see have ended.

        REQUIRES: `t` holds the lock of the queries, so the transactions of these drafts are about
        to end.
        """
        with self._latch:
            self._latch.wait_for(
                lambda: all(draft.queries is None for draft in self.drafts.unseen_by(t))
            )
        return dict(self.queries_seen(t))

    def put_queries(self, t: TransactionNode, queries: dict[str, Query]) -> None:
        """Draft a change of the queries, seen by `t` and its inferiors.

        REQUIRES: `t` holds the lock of the queries.
        """
        with self._latch:
            self.drafts.of(t).queries = queries

    def add_committed(self, entry: RegisteredRule) -> bool:
        """Register a rule at once; return False if its name is taken or in a draft."""
        with self._latch:
            if entry.name in self._rules or self.drafts.others_have(None, entry.name):
                return False
            self._apply({entry.name: entry})
        self._tell({entry.name: entry})
        return True

    def given_up(self, t: TransactionNode) -> dict[str, Subscription | None]:
        """Return the rules whose detectors the commit of top-level `t` ends, with the new ones."""
        found: dict[str, Subscription | None] = {}
        with self._latch:
            for draft in self.drafts.line(t):
                for name, entry in draft.entries.items():
                    before = self._rules.get(name)
                    new = None if entry is None else entry.subscription
                    if before is None or not before.subscription.is_stateful:
                        continue
                    if new is None or not new.shares_detector(before.subscription):
                        found[name] = new
        return found

    def present(
        self, subscription: Subscription, t: TransactionNode | None = None
    ) -> Subscription | None:
        """Return the enabled version of the rule that has this detector now; None: there is none.

        The version is the one that `t` sees, or the committed one without `t`. Queues of due rules
        may hold an earlier version, whose action must not run any more.
        """
        entry = self.entry(subscription.rule.name, t)
        if entry is None or not entry.enabled:
            return None
        return entry.subscription if entry.subscription.shares_detector(subscription) else None

    def ignore(self, t: TransactionNode, names: frozenset[str]) -> object:
        """Ignore rules for events of `t` and its inferiors; return a token for `stop_ignoring`."""
        with self._latch:
            token = object()
            self.drafts.of(t).ignored[token] = names
            return token

    def stop_ignoring(self, t: TransactionNode, token: object) -> None:
        """End an `ignore`, unless `t` has ended."""
        with self._latch:
            self.drafts.stop_ignoring(t, token)

    def ended(self, t: TransactionNode) -> None:
        """Hand on, drop or apply the draft of a transaction that has ended."""
        with self._latch:
            draft = self.drafts.end(t, committed=t.state is State.COMMITTED)
            committed = {} if draft is None else draft.entries
            if committed:
                self._apply(committed)
            if draft is not None and draft.queries is not None:
                self.queries = draft.queries
            self._latch.notify_all()
        self._tell(committed)

    def _tell(self, entries: Mapping[str, RegisteredRule | None]) -> None:
        enabled = [e.subscription for e in entries.values() if e is not None and e.enabled]
        if enabled:
            self._on_applied(enabled)

    def _apply(self, entries: Mapping[str, RegisteredRule | None]) -> None:
        """Make changes committed.

        Listeners are replaced, so that readers need no latch. Each is replaced once, so that
        readers see all changes to the rules on one event together.
        """
        changed: dict[tuple[str, str], list[Subscription]] = {}
        for name, entry in entries.items():
            before = self._rules.pop(name, None) if entry is None else self._rules.get(name)
            listened = before.keys if before is not None else frozenset()
            listens = entry.keys if entry is not None else frozenset()
            if entry is not None:
                self._rules[name] = entry
            if entry is not None and entry.quarantine is not None:
                self.quarantine[name] = entry.quarantine
            else:
                self.quarantine.pop(name, None)
            for key in listened | listens:
                if key not in changed:
                    listeners = self.by_key.get(key)
                    changed[key] = [] if listeners is None else list(listeners.all)
                found = changed[key]
                if key in listened:
                    found[:] = [s for s in found if s.rule.name != name]
                if entry is not None and key in listens:
                    found.append(entry.subscription)
        for key, found in changed.items():
            if found:
                self.by_key[key] = Listeners(key, sorted(found, key=self.place))
            else:
                del self.by_key[key]
        self.version += 1  # last, for readers that keep what they have found in this version

    def place(self, subscription: Subscription) -> int:
        """Return the rule's place in the order of definition; a deleted rule comes first."""
        entry = self._rules.get(subscription.rule.name)
        return -1 if entry is None else entry.order


def _nearest(line: Sequence[Draft], name: str) -> Draft | None:
    return next((draft for draft in line if name in draft.entries), None)


def _order(entry: RegisteredRule) -> int:
    return entry.order


# -- subscriptions to one event, indexed by the constants that they demand -------------------------

_Numbered = tuple[int, Subscription]
"""Unique place of a subscription among all listeners, and the subscription."""


class Listeners:
    """Committed subscriptions to one event; immutable.

    Parameters
    ----------
    key : tuple of (str, str)
        Key of the event.
    subscriptions : sequence of Subscription
        In the order of definition.

    Attributes
    ----------
    all : tuple of Subscription
        Subscriptions, in the order of definition.
    is_filed : bool
        True if they are found by the constants that they demand.
    """

    __slots__ = ("_index", "_key", "all", "is_filed")

    def __init__(self, key: tuple[str, str], subscriptions: Sequence[Subscription]):
        self.all = tuple(subscriptions)
        self._key = key
        # An index lookup costs as much as feeding one rule.
        self.is_filed = sum([key in s.demands for s in self.all]) > 1
        self._index: _Index | None = None

    def concerned_by(self, o: Occurrence) -> tuple[Subscription, ...]:
        """Return subscriptions that may take `o`, or fail on it, in the order of definition.

        Rules that demand other constants of its attributes are left out. The first call builds the
        index: O(rules).

        Complexity: O(attributes that rules demand constants of) to look up, and O(k log k) for k
        rules found, unless all listeners are filed by the same attributes.
        """
        if not self.is_filed:
            return self.all
        index = self._index
        if index is None:  # two threads may build it, with equal results
            index = self._index = _Index(self._key, self.all)
        return index.concerned_by(o)


class _Index:
    """Subscriptions by the constants that they demand.

    A subscription with several demands, from several parts, is filed under each.
    """

    __slots__ = ("_all", "_only", "_regular", "_tables", "_unfiled")

    def __init__(self, key: tuple[str, str], subscriptions: tuple[Subscription, ...]):
        self._all = subscriptions
        self._unfiled: list[_Numbered] = []
        tables: dict[tuple[str, ...], dict[Any, list[_Numbered]]] = {}
        kinds: dict[str, frozenset[type]] = {}
        for numbered in enumerate(subscriptions):
            demands = numbered[1].demands.get(key)
            if demands is None:
                self._unfiled.append(numbered)
                continue
            for demand in demands:
                for name, kind in zip(demand.names, demand.kinds, strict=True):
                    kinds[name] = kinds.get(name, kind) & kind
                # As itemgetter returns it: for one attribute, the value itself.
                values = demand.values if len(demand.names) > 1 else demand.values[0]
                tables.setdefault(demand.names, {}).setdefault(values, []).append(numbered)
        # Types that the attributes must have for the tables to apply.
        self._regular = tuple(kinds.items())
        self._tables: list[tuple[Callable[[Any], Any], dict[Any, list[_Numbered]]]] = [
            (itemgetter(*names), table) for names, table in tables.items()
        ]
        self._only: dict[Any, tuple[Subscription, ...]] | None = None
        if len(tables) == 1 and not self._unfiled:
            ((_, table),) = self._tables
            self._only = {values: tuple([s for _, s in found]) for values, found in table.items()}

    def concerned_by(self, o: Occurrence) -> tuple[Subscription, ...]:
        """See `Listeners.concerned_by`."""
        if o.stamp is not None or o.low_us != o.high_us:
            return self._all  # such times affect detectors even if the event is not taken
        params = o.params
        try:
            for name, kind in self._regular:
                if type(params[name]) not in kind:
                    return self._all
            if self._only is not None:
                return self._only.get(self._tables[0][0](params), ())
            found = set(self._unfiled)
            for get, table in self._tables:
                found.update(table.get(get(params), ()))
        except (KeyError, TypeError):  # an attribute is missing, or is an unhashable decimal
            return self._all
        return tuple([subscription for _, subscription in sorted(found)])


# -- drafts: uncommitted changes to the catalog ------------------------------------------------


class Draft:
    """Changes of one transaction, and the rules it ignores.

    Attributes
    ----------
    entries : dict
        Rule name to the changed rule; None if it is deleted.
    by_key : dict
        Event key to the rules of `entries` that listen to it, by name.
    ignored : dict
        For each open ``ignoring`` block, names of rules that events of the transaction do not
        trigger.
    queries : dict of str to Query, or None
        All queries of texts after the change; None if it changes none.
    """

    __slots__ = ("by_key", "entries", "ignored", "queries")

    def __init__(self) -> None:
        self.entries: dict[str, RegisteredRule | None] = {}
        self.by_key: dict[tuple[str, str], dict[str, RegisteredRule]] = {}
        self.ignored: dict[object, frozenset[str]] = {}
        self.queries: dict[str, Query] | None = None

    def put(self, name: str, entry: RegisteredRule | None) -> None:
        """Record a change of a rule; O(event keys of the rule)."""
        before = self.entries.get(name)
        if before is not None:
            for key in before.keys:
                del self.by_key[key][name]
        self.entries[name] = entry
        if entry is not None:
            for key in entry.keys:
                self.by_key.setdefault(key, {})[name] = entry


class Drafts(dict[int, dict[int, Draft]]):
    """Drafts of live transactions, by id of the top-level transaction and then by transaction id.

    False as long as there is none, and tested as a dict, which is faster than a method. The
    catalog's latch guards this object.
    """

    def of(self, t: TransactionNode) -> Draft:
        """Return the draft of a live transaction, empty if it had none."""
        return self.setdefault(t.hierarchy.top_id, {}).setdefault(t.id, Draft())

    def line(self, t: TransactionNode | None) -> list[Draft]:
        """Return the drafts that `t` sees, its own and its superiors', nearest first; O(depth)."""
        if t is None:
            return []
        drafts = self.get(t.hierarchy.top_id)
        found: list[Draft] = []
        node: TransactionNode | None = t if drafts else None
        while node is not None and drafts:
            draft = drafts.get(node.id)
            if draft is not None:
                found.append(draft)
            node = node.parent
        return found

    def others_have(self, t: TransactionNode | None, name: str) -> bool:
        """Return whether a draft that `t` does not see has changed a rule."""
        return any(name in draft.entries for draft in self.unseen_by(t))

    def unseen_by(self, t: TransactionNode | None) -> Iterator[Draft]:
        """Yield the drafts that `t` does not see; O(drafts)."""
        seen = self.line(t)
        return (d for drafts in self.values() for d in drafts.values() if d not in seen)

    def stop_ignoring(self, t: TransactionNode, token: object) -> None:
        """End an ``ignoring`` block, unless `t` has ended."""
        drafts = self.get(t.hierarchy.top_id, {})
        draft = drafts.get(t.id)
        if draft is None:
            return
        draft.ignored.pop(token, None)
        if not draft.ignored and not draft.entries and draft.queries is None:
            self._drop(t)

    def end(self, t: TransactionNode, *, committed: bool) -> Draft | None:
        """Remove the draft of a transaction that has ended; return it if this commits it.

        A subtransaction that has committed hands its draft to its parent.
        """
        draft = self._drop(t)
        if draft is None or not committed:
            return None
        if t.parent is None:
            return draft
        if draft.entries or draft.queries is not None:
            above = self.of(t.parent)
            for name, entry in draft.entries.items():
                above.put(name, entry)
            if draft.queries is not None:
                above.queries = draft.queries
        return None

    def _drop(self, t: TransactionNode) -> Draft | None:
        drafts = self.get(t.hierarchy.top_id)
        if drafts is None:
            return None
        draft = drafts.pop(t.id, None)
        if not drafts:
            del self[t.hierarchy.top_id]
        return draft
