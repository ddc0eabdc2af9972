"""Record of what the rules of a database did during a test, and texts of failed assertions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from activedb.database import Database
from activedb.errors import ActiveDBError, DefinitionError
from activedb.events import Occurrence
from activedb.firing import Ran, RuleListener, Triggered
from activedb.rules import RegisteredRule
from activedb.spelling import clipped, counted, did_you_mean
from activedb.transactions import State, Transaction, TransactionNode, current_transaction

__all__ = ["Fate", "Firing", "Seen", "Witness", "explain", "has_params"]


# -- record of rules: events, what they triggered, and the runs ------------------------------------


Fate: TypeAlias = Literal["committed", "aborted", "open"]
"""Outcome of a transaction and of all its superiors."""


def fate_of(t: Transaction) -> Fate:
    """Return the outcome of `t` with all its superiors; O(depth)."""
    node: Transaction | None = t
    is_open = False
    while node is not None:
        if node.state is State.ABORTED:
            return "aborted"
        is_open = is_open or node.state is not State.COMMITTED
        node = node.parent
    return "open" if is_open else "committed"


@dataclass(eq=False, slots=True)
class Firing:
    """A rule that was triggered, or one run of it.

    Attributes
    ----------
    rule : str
    occurrence : Occurrence
        The occurrence that triggered it.
    transaction : Transaction
        The transaction in which it was triggered, or has run.
    coupling : str
    outcome : str
        ``"triggered"``; for a run ``"running"``, ``"acted"``, ``"condition false"``, ``"action
        later"`` or ``"failed"``.
    error : BaseException or None
    """

    rule: str
    occurrence: Occurrence
    transaction: Transaction
    coupling: str
    outcome: str
    error: BaseException | None = None

    @property
    def fate(self) -> Fate:
        """Outcome of its transaction: ``"committed"``, ``"aborted"`` or ``"open"``."""
        return fate_of(self.transaction)


@dataclass(slots=True)
class Seen:
    """All records of a witness; ``raised`` counts events by their keys."""

    raised: Counter[tuple[str, str]] = field(default_factory=Counter)
    triggered: list[Firing] = field(default_factory=list)
    runs: list[Firing] = field(default_factory=list)


def has_params(o: Occurrence, wanted: Mapping[str, Any]) -> bool:
    """Return whether an occurrence, or a part of it, has these parameters or columns."""
    if all(name in o.params and o.params[name] == value for name, value in wanted.items()):
        return True
    return any(has_params(part, wanted) for part in _parts(o))


def _parts(o: Occurrence) -> Iterable[Occurrence]:
    for part in o.parts.values():
        yield from part if isinstance(part, tuple) else (part,)


# -- text of a failed assertion: why a rule has not fired, or has fired too often ------------------


_SHOWN_MAX = 10
_VALUE_MAX = 60  # characters

_OF_OUTCOME = {
    "acted": "its action has run",
    "condition false": "its condition was false",
    "action later": "its condition was true, and its action is to run by itself",
    "running": "it has not ended yet",
}


def explain(
    db: Database,
    name: str,
    found: Sequence[Firing],
    times: int | None,
    params: Mapping[str, Any],
    seen: Seen,
) -> str:
    """Explain what a rule has done instead of firing as often as it should."""
    should = "at least once" if times is None else "not" if times == 0 else _times(times)
    of = f" with {_values(params)}" if params else ""
    has = f"has fired {_times(len(found))}" if found else "has not fired"
    lines = [f"rule {name!r}{of} {has}, and should have {should}"]
    if times is not None and len(found) > times:
        lines += ["it fired by:", *_listed([_what(firing.occurrence) for firing in found])]
    else:
        lines += _why(db, name, params, seen)
    others = Counter(
        run.rule for run in seen.runs if run.outcome == "acted" and run.fate == "committed"
    )
    del others[name]
    lines.append(f"other rules that fired: {_counted(others) or 'nothing'}")
    return "\n".join(lines)


def _why(db: Database, name: str, params: Mapping[str, Any], seen: Seen) -> Iterator[str]:
    if name not in db.rules:
        known = [rule.name for rule in db.rules]
        yield f"there is no rule {name!r}: {did_you_mean(name, known)}"
        return
    rule = db.rules[name]
    if not rule.enabled:
        yield f"it is disabled: db.rules.enable({name!r}) lets it be triggered"
    if rule.quarantine is not None:
        yield f"it is in quarantine, so it is triggered and not run: {rule.quarantine}"
    triggered = [firing for firing in seen.triggered if firing.rule == name]
    runs = [firing for firing in seen.runs if firing.rule == name]
    if triggered or runs:
        yield from _what_came_of_it(triggered, runs, params)
    else:
        yield from _why_not_triggered(db, rule, seen)
    yield from _decisions(db, name)
    yield from _letters(db, name)


def _what_came_of_it(
    triggered: Sequence[Firing], runs: Sequence[Firing], params: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the runs of a triggered rule, and the triggerings that have not run."""
    yield f"it was triggered {_times(len(triggered))}, and has run {_times(len(runs))}:"
    yield from _listed([f"{_what(run.occurrence)}: {_outcome(run, params)}" for run in runs])
    if len(runs) >= len(triggered):
        return
    fates = Counter(firing.fate for firing in triggered)
    modes = ", ".join(sorted({firing.coupling for firing in triggered}))
    if fates["aborted"]:
        yield (
            f"{_times(fates['aborted'])} it was triggered in a transaction that has aborted, which "
            f"takes along what was to run in it, or after its commit ({modes})"
        )
    if fates["open"]:
        yield (
            f"{_times(fates['open'])} it was triggered in a transaction that is still open, so "
            f"what is to run at its commit has not ({modes}): assert after the transaction"
        )
    if not fates["aborted"] and not fates["open"]:
        yield (
            f"what has not run here ({modes}) waits in db.admin.pending_firings(), perhaps for "
            f"workers (setting firings), or is a dead letter, as the rule was in quarantine"
        )


def _outcome(run: Firing, params: Mapping[str, Any]) -> str:
    if run.error is not None:
        text = " ".join(str(run.error).split())
        return f"it failed: {type(run.error).__name__}: {text}"
    said = _OF_OUTCOME[run.outcome]
    if run.fate == "aborted":
        said += ", and was undone, as its transaction or one around it has aborted"
    elif run.fate == "open":
        said += ", in a transaction that is still open"
    elif run.outcome == "acted" and not has_params(run.occurrence, params):
        said += ", with other parameters"
    return said


def _why_not_triggered(db: Database, rule: RegisteredRule, seen: Seen) -> Iterator[str]:
    yield f"it was not triggered; it listens to {rule.on!r}"
    heard = {key: seen.raised[key] for key in sorted(rule.rule.on.keys) if seen.raised[key]}
    names = {_key(key): count for key, count in seen.raised.items() if not _is_own(key)}
    if heard:
        raised = _counted({_key(key): count for key, count in heard.items()})
        yield f"of these were raised: {raised}; they do not complete its event, or it was ignored"
        if rule.partials:
            yield f"its detector keeps {counted(rule.partials, 'occurrence')} for later matches"
        if rule.subscription.is_timed:
            yield "it waits for a time, too: advance the clock, then db.wait_idle()"
    else:
        yield f"none of these was raised; the events raised: {_counted(names) or 'nothing'}"
        for kind, name in sorted(rule.rule.on.keys):
            if kind == "event" and names:
                near = did_you_mean(name, [each for of, each in seen.raised if of == kind])
                if near.startswith("did"):
                    yield f"it listens to {name!r}; {near}"
    waiting = db.admin.counters().get("events_waiting", 0)
    if waiting:
        yield (
            f"{counted(waiting, 'event')} of streams wait for punctuation: feed the stream on, or "
            f"without punctuation="
        )


def _letters(db: Database, name: str) -> Iterator[str]:
    try:
        found = db.dead_letters.list()
    except ActiveDBError as error:
        yield f"the dead letters cannot be read: {error}"
        return
    found = [x for x in found if x.kind == "event" or x.source == f"rule {name}"]
    if found:
        yield f"{counted(len(found), 'dead letter')} may tell more:"
        yield from _listed([f"{x.source}: {x.error}: {' '.join(x.reason.split())}" for x in found])


def _decisions(db: Database, name: str) -> Iterator[str]:
    try:
        found = db.decisions.list(name, open=True)
    except ActiveDBError as error:
        yield f"the decisions cannot be read: {error}"
        return
    if found:
        yield f"{counted(len(found), 'decision')} of it are open, as no order of events is known:"
        yield from _listed([f"{each.id}: {' | '.join(each.texts())}" for each in found])


def _listed(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _SHOWN_MAX
    shown = [f"  {line}" for line in lines[:_SHOWN_MAX]]
    return [*shown, f"  and {more} more"] if more > 0 else shown


def _what(o: Occurrence) -> str:
    kind, name = o.key
    head = name if kind in ("event", "composite") else f"{kind} {name}"
    if o.parts:
        names = [part for each in o.parts.values() for part in _each(each)]
        return f"{head} of {', '.join(map(_what, names[:_SHOWN_MAX]))}"
    return f"{head}({_values(o.params)})"


def _each(part: Any) -> Sequence[Occurrence]:
    return part if isinstance(part, tuple) else (part,)


def _values(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={clipped(repr(value), _VALUE_MAX)}" for name, value in params.items())


def _key(key: tuple[str, str]) -> str:
    kind, name = key
    return name if kind == "event" else f"{kind} {name}"


def _is_own(key: tuple[str, str]) -> bool:
    """Return whether an event is about activedb's own tables."""
    return key[0] in ("insert", "update", "delete") and key[1].startswith("activedb_")


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {_times(count)}" for name, count in sorted(counts.items()) if count)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


# -- record of what the rules of a database did during a test --------------------------------------


class Witness(RuleListener):
    """Listener that records events and rules of a database from now on, until it is closed.

    A rule *has fired* if its action has run and that is committed, up to the top-level transaction.
    A condition that was false, or a transaction that has aborted or is still open, does not count.

    All records are kept, without bound: it is for tests. Safe to use from many threads.

    Parameters
    ----------
    db : Database
        The database to observe. Only rules that run in this process are seen.
    """

    hears_all = True

    def __init__(self, db: Database):
        self.db = db
        self._latch = threading.Lock()
        self._seen = Seen()
        db.admin.internals.triggering.listeners.add(self)

    def close(self) -> None:
        """Stop recording."""
        self.db.admin.internals.triggering.listeners.remove(self)

    def forget(self) -> None:
        """Forget all records, so that only what happens from now on counts."""
        with self._latch:
            self._seen = Seen()

    def fired(
        self, rule: str | Callable[..., Any], params: Mapping[str, Any] | None = None
    ) -> list[Firing]:
        """Return the committed runs of a rule, in the order in which they began.

        Parameters
        ----------
        rule : str or callable
            Its name, or the function that is its action.
        params : mapping, optional
            Return only runs whose occurrence has these parameters, or columns of its row.
        """
        name = self._name_of(rule)
        with self._latch:
            runs = list(self._seen.runs)
        return [
            run
            for run in runs
            if run.rule == name
            and run.outcome == "acted"
            and run.fate == "committed"
            and has_params(run.occurrence, params or {})
        ]

    def assert_fired(
        self,
        rule: str | Callable[..., Any],
        times: int | None = None,
        params: Mapping[str, Any] | None = None,
        *,
        wait: bool = True,
    ) -> list[Firing]:
        """Assert that a rule has fired; return the firings.

        Parameters
        ----------
        rule : str or callable
            Its name, or the function that is its action.
        times : int, optional
            The exact number of firings; 0: none. By default, at least one.
        params : mapping, optional
            Count only firings whose occurrence has these parameters, or columns of its row.
        wait : bool
            Whether to wait first for detached rules and for actions that are due.

        Raises
        ------
        AssertionError
            If it has not. The message says what happened instead: which events triggered the rule,
            which condition was false, what failed or was undone, what else fired.
        """
        __tracebackhide__ = True
        name = self._name_of(rule)
        if wait and current_transaction() is None:
            self.db.wait_idle()
        found = self.fired(name, params)
        if (times is None and found) or len(found) == times:
            return found
        with self._latch:
            seen = Seen(
                Counter(self._seen.raised), list(self._seen.triggered), list(self._seen.runs)
            )
        raise AssertionError(explain(self.db, name, found, times, params or {}, seen))

    # -- as a listener ---------------------------------------------------------------------

    def raised(self, t: TransactionNode, o: Occurrence) -> None:
        with self._latch:
            self._seen.raised[o.key] += 1

    def triggered(self, t: TransactionNode, items: Sequence[Triggered]) -> None:
        with self._latch:
            self._seen.triggered += [_firing(t, item, "triggered") for item in items]

    def starts(self, s: TransactionNode, item: Triggered) -> None:
        with self._latch:
            self._seen.runs.append(_firing(s, item, "running"))

    def ran(
        self,
        s: TransactionNode,
        item: Triggered,
        outcome: Ran,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        with self._latch:
            for run in reversed(self._seen.runs):
                if run.transaction == Transaction(s) and run.outcome == "running":
                    run.outcome, run.error = outcome, error
                    return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _name_of(self, rule: str | Callable[..., Any]) -> str:
        if isinstance(rule, str):
            return rule
        names = [entry.name for entry in self.db.rules if entry.rule.action is rule]
        if len(names) == 1:
            return names[0]
        raise DefinitionError(
            f"{rule!r} is the action of {' and '.join(names)}: name the one that is meant"
            if names
            else f"{rule!r} is the action of no rule of this database; give a rule's name"
        )


def _firing(t: TransactionNode, item: Triggered, outcome: str) -> Firing:
    return Firing(item.rule.name, item.occurrence, Transaction(t), str(item.rule.coupling), outcome)
