"""Text of a failed assertion: why a rule has not fired, or has fired too often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from activedb.database import Database
from activedb.errors import ActiveDBError
from activedb.events import Occurrence
from activedb.rules import RegisteredRule
from activedb.spelling import did_you_mean
from activedb.testing._seen import Firing, Seen, has_params

__all__ = ["explain"]

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
    lines.append(f"what else has fired: {_counted(others) or 'nothing'}")
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
        counted = _counted({_key(key): count for key, count in heard.items()})
        yield f"of these were raised: {counted}; they do not complete its event, or it was ignored"
        if rule.partials:
            yield f"its detector keeps {_some(rule.partials, 'occurrence')} for later matches"
        if rule.subscription.is_timed:
            yield "it waits for a time, too: advance the clock, then db.wait_idle()"
    else:
        yield f"none of these was raised; what was raised: {_counted(names) or 'nothing'}"
        for kind, name in sorted(rule.rule.on.keys):
            if kind == "event" and names:
                near = did_you_mean(name, [each for of, each in seen.raised if of == kind])
                if near.startswith("did"):
                    yield f"it listens to {name!r}; {near}"
    waiting = db.admin.counters().get("events_waiting", 0)
    if waiting:
        yield (
            f"{_some(waiting, 'event')} of streams wait for punctuation: feed the stream on, or "
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
        yield f"{_some(len(found), 'dead letter')} may tell more:"
        yield from _listed([f"{x.source}: {x.error}: {' '.join(x.reason.split())}" for x in found])


def _decisions(db: Database, name: str) -> Iterator[str]:
    try:
        found = db.decisions.list(name, open=True)
    except ActiveDBError as error:
        yield f"the decisions cannot be read: {error}"
        return
    if found:
        yield f"{_some(len(found), 'decision')} of it are open, as no order of events is known:"
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
    return ", ".join(f"{name}={_short(repr(value))}" for name, value in params.items())


def _short(text: str) -> str:
    return text if len(text) <= _VALUE_MAX else f"{text[: _VALUE_MAX - 1]}…"


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


def _some(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
