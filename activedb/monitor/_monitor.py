"""Monitor of one database object."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from activedb.config import mask_url
from activedb.errors import (
    BadEvent,
    ConfigurationError,
    DecisionClosed,
    DefinitionError,
    NotRecorded,
    RowNotFound,
    RuleFailed,
)
from activedb.events import encode
from activedb.metrics import Histogram
from activedb.monitor._deadlocks import replay, summary
from activedb.monitor._records import TransactionRecord
from activedb.monitor._redaction import Redaction
from activedb.monitor._source import ReadOnly, Subject
from activedb.monitor._stories import node, short, story
from activedb.monitor._watch import EVENTS, RECENT, RaisedEvent, Watch
from activedb.streams import StreamDeclaration
from lockmgr import EdgeKind, PartialSnapshot

__all__ = ["Monitor"]

_SHOWN_MAX = 500
_LOOK_EVERY_S = 0.2
_LETTERS_MAX = 50
_PENDING_MAX = 500
_BATCHES_MAX = 500
_DRAWN_MAX = 60
_ON_CHARS_MAX = 200
_BY = "the monitor"  # recorded as the author of changes made through the monitor


class Monitor:
    """Bounded record of one database object's activity; a `Source`.

    Answers are copied out of the engine under its latches, at most 500 entries of each kind, and
    formatted after the latches are released. The lock table is read at most five times a second,
    however many clients ask.

    Latch order: ``_looking``, then the lock manager's or that of the watch, one of them at a time.

    Parameters
    ----------
    db : Database
        The object to watch from now on; transactions that are already live are not recorded.

    Attributes
    ----------
    watch : Watch
    """

    def __init__(self, db: Subject):
        self._db = db
        self._internals = db.admin.internals
        settings = db.settings
        self._redaction = Redaction(settings.monitor_values)
        self.watch = Watch(self._redaction)
        self._started_s = time.time()
        self._version = importlib.metadata.version("activedb")
        self._totals = Totals(lambda: self._internals.launcher.journal.standing().letters)
        self._looking = threading.Lock()
        self._glance: PartialSnapshot | None = None
        self._glanced_s = 0.0
        self._internals.forest.observe(self.watch)
        self._internals.triggering.listeners.add(self.watch)

    def close(self) -> None:
        """Stop watching; what has been recorded remains available."""
        self._internals.forest.unobserve(self.watch)
        self._internals.triggering.listeners.remove(self.watch)
        self._totals.close()

    # -- the source ------------------------------------------------------------------------

    def state(self, since: int = 0) -> dict[str, Any]:
        """See `Source`. O(live transactions + rules + size of the answer)."""
        db, watch = self._db, self.watch
        glance, runs = self._look(), self._internals.runs
        with watch.latch:
            live = list(watch.lives.live.values())
            news = watch.rings.since(since)
            deadlocks, aborted = watch.deadlocks.all(), list(watch.aborted)
            unknown = watch.lives.unknown
        now_s = time.time()
        counters = db.admin.counters()
        totals, letters = self._totals.of(runs)
        return {
            "process": {
                "pid": os.getpid(),
                "host": platform.node(),
                "version": self._version,
                "url": self._place(),
                "started_s": self._started_s,
                "now_s": now_s,
                "writable": db.settings.monitor_writable,
                "values": db.settings.monitor_values,
            },
            "counters": counters,
            "latency_s": {
                "transaction": _quantiles(watch.transactions),
                "rule": _quantiles(self._internals.triggering.figures.latencies()),
                "commit": _quantiles(watch.commits),
            },
            "forest": {**self._forest(live, glance), "unknown": unknown},
            "locks": self._locks(glance),
            "deadlocks": [summary(found, self._redaction) for found in deadlocks],
            "aborted": [{**short(life), "why": life.why} for life in aborted],
            "rules": self._rules(),
            "streams": stream_rows(self._internals.streams, runs, totals, now_s),
            "letters": letters,
            "recent": [
                short(life, seq)
                for seq, life in news.entries[RECENT]
                if isinstance(life, TransactionRecord)
            ],
            "events": [
                _event(raised, seq)
                for seq, raised in news.entries[EVENTS]
                if isinstance(raised, RaisedEvent)
            ],
            "last_seq": news.last,
            "skipped": news.skipped,
        }

    def transaction(self, id: int) -> dict[str, Any] | None:
        """See `Source`. O(steps and children of the transaction)."""
        watch = self.watch
        with watch.latch:
            life = watch.lives.get(id)
            if life is None:
                return None
            steps = life.steps()
            found = (watch.lives.get(child) for child in life.children or ())
            children = [child for child in found if child is not None]
        return story(life, steps, children, self._redaction)

    def deadlock(self, n: int) -> dict[str, Any] | None:
        """See `Source`. O(waits of the deadlock)."""
        with self.watch.latch:
            found = self.watch.deadlocks.get(n)
        return None if found is None else replay(found, self._redaction)

    def batches(self, workflow: str | None = None, id: str | None = None) -> dict[str, Any]:
        """See `Source`. O(recorded rows)."""
        names = self._db.workflows.recorded()
        found: dict[str, Any] = {
            "workflows": names,
            "workflow": None,
            "batches": [],
            "total": 0,
            "svg": None,
            "trace": None,
        }
        if workflow is None and len(names) != 1:
            return found
        history = self._db.workflows.history(workflow or names[0])
        batches = history.batches()
        shown = [batch.record() for batch in batches[-_BATCHES_MAX:]]
        if not self._redaction.values:
            for batch in shown:
                batch["failed"] = dict.fromkeys(batch["failed"], "«…»")
        found |= {"workflow": history.name, "batches": shown, "total": len(batches)}
        if id is not None:
            try:
                found["trace"] = {"workflow": history.name, **history.trace(id).record()}
            except NotRecorded as error:
                raise ConfigurationError(f"{error}; look at the list of batches") from error
        if id is not None or len(batches) <= _DRAWN_MAX:
            found["svg"] = history.draw_svg(id)
        return found

    def letters(self) -> dict[str, Any]:
        """See `Source`. O(letters)."""
        journal = self._internals.launcher.journal
        counts = journal.standing().letters
        shown = [dict(letter) for letter in journal.last_letters(_LETTERS_MAX)]
        if not self._redaction.values:
            for letter in shown:
                letter["payload"], letter["reason"] = "«…»", "«…»"
        return {"counts": counts, "total": sum(counts.values()), "letters": shown}

    def decisions(self) -> dict[str, Any]:
        """See `Source`. O(decisions)."""
        found = self._db.decisions.list(open=True)
        shown = [{**each.record(), "texts": each.texts()} for each in found[:_PENDING_MAX]]
        if not self._redaction.values:
            for row in shown:
                for part in ("candidates", "certain", "why", "texts"):
                    row[part] = ["«…»"] * len(row[part])
                row["completed_by"] = "«…»"
        return {"total": len(found), "decisions": shown}

    def resolve(self, id: str, chosen: Sequence[int]) -> None:
        """See `Source`; the matches are made in a separate transaction."""
        self._check_writable("decisions cannot be made")
        try:
            self._db.decisions.resolve(id, chosen, by=_BY)
        except RowNotFound as error:
            raise DefinitionError(str(error)) from error
        except (RuleFailed, BadEvent) as error:
            if self._redaction.values:
                raise
            why = (
                f"rule {error.rule} has failed"
                if isinstance(error, RuleFailed)
                else "the chosen exclude each other, or are never made without others"
            )
            raise type(error)(f"{why}, and the decision is open as before") from error
        except DecisionClosed as error:
            if self._redaction.values or error.__cause__ is None:
                raise
            raise DecisionClosed("the decision can no longer be made", decision=id) from error

    def pending(self) -> dict[str, Any]:
        """See `Source`. O(firings)."""
        firings = self._db.admin.pending_firings()
        shown = [
            {
                "firing": each.firing,
                "rule": each.rule,
                "run": each.run,
                "occurrence": encode(each.occurrence) if self._redaction.values else "«…»",
            }
            for each in firings[:_PENDING_MAX]
        ]
        return {"total": len(firings), "pending": shown}

    def switch(self, rule: str, enabled: bool) -> None:
        """See `Source`; the switch is done in a separate transaction."""
        self._check_writable("rules cannot be switched")
        self._db.rules.switch(rule, enabled=enabled)

    def _check_writable(self, what: str) -> None:
        if not self._db.settings.monitor_writable:
            raise ReadOnly(f"{what} from here: set monitor_writable, and monitor_token")

    # -- parts of the state ----------------------------------------------------------------

    def _look(self) -> PartialSnapshot:
        """Return a recent snapshot of the lock table."""
        with self._looking:
            now_s = time.monotonic()
            if self._glance is None or now_s - self._glanced_s >= _LOOK_EVERY_S:
                self._glance = self._internals.forest.locks.glance(_SHOWN_MAX)
                self._glanced_s = now_s
            return self._glance

    def _place(self) -> str:
        settings = self._db.settings
        if settings.url is None:
            return f"the embedded server in {settings.folder}"
        return mask_url(settings.url)

    def _forest(self, live: list[TransactionRecord], glance: PartialSnapshot) -> dict[str, Any]:
        """Return whole hierarchies, the oldest first, up to a bound; the last may be cut short."""
        waits: dict[int, list[int]] = {}
        for edge in glance.edges:
            if edge.kind is not EdgeKind.COMMIT:
                waits.setdefault(edge.waiter, []).append(edge.waited_for)
        by_top: dict[int, list[TransactionRecord]] = {}
        for life in live:
            by_top.setdefault(life.top, []).append(life)
        shown: list[TransactionRecord] = []
        for members in by_top.values():
            if shown and len(shown) + len(members) > _SHOWN_MAX:
                break
            shown += islice(members, _SHOWN_MAX)
        return {
            "total": len(live),
            "shown": [node(life, waits.get(life.id, [])) for life in shown],
        }

    def _locks(self, glance: PartialSnapshot) -> dict[str, Any]:
        redaction = self._redaction
        return {
            "total": glance.locks_total,
            "waits_total": glance.waits_total,
            "shown": [
                {
                    "id": lock.tid,
                    "resource": redaction.resource(lock.resource),
                    "mode": lock.mode.name,
                    "held": lock.is_held,
                }
                for lock in glance.locks
            ],
            "queue": [
                {
                    "id": request.tid,
                    "resource": redaction.resource(request.resource),
                    "mode": request.mode.name,
                    "upgrade": request.upgrade,
                }
                for request in glance.queue
            ],
            "edges": [
                {
                    "waiter": edge.waiter,
                    "blocker": edge.waited_for,
                    "kind": str(edge.kind),
                    "resource": (
                        None if edge.resource is None else redaction.resource(edge.resource)
                    ),
                }
                for edge in glance.edges
            ],
        }

    def _rules(self) -> list[dict[str, Any]]:
        figures = self._internals.triggering.figures.of_rules()
        rows = []
        for entry in self._internals.catalog.entries():
            figure = figures.get(entry.name)
            latencies = None if figure is None else figure.latencies
            rows.append(
                {
                    "name": entry.name,
                    "on": repr(entry.on)[:_ON_CHARS_MAX],
                    "coupling": str(entry.coupling),
                    "condition_action": str(entry.condition_action),
                    "priority": entry.priority,
                    "enabled": entry.enabled,
                    "quarantined": entry.quarantine is not None,
                    "matched": 0 if figure is None else figure.matched,
                    "fired": 0 if figure is None else figure.fired,
                    "aborted": 0 if figure is None else figure.aborted + figure.failed,
                    "conditions_false": 0 if figure is None else figure.conditions_false,
                    "p50_s": 0.0 if latencies is None else latencies.quantile(0.5),
                    "p99_s": 0.0 if latencies is None else latencies.quantile(0.99),
                    "partials": entry.partials,
                    "undecided": entry.undecided,
                    "last_fired_s": (figure.last_fired_s or None) if figure else None,
                }
            )
        return rows


def _quantiles(histogram: Histogram) -> dict[str, float]:
    return {
        "p50": histogram.quantile(0.5),
        "p99": histogram.quantile(0.99),
        "count": histogram.count,
    }


def _event(raised: RaisedEvent, seq: int) -> dict[str, Any]:
    return {
        "seq": seq,
        "at_s": raised.at_s,
        "name": raised.name,
        "kind": raised.kind,
        "what": raised.what,
        "transaction": raised.transaction,
        "params": dict(raised.params),
    }


# -- state of the streams and letters, read without blocking the caller on the database ------------

_LOG = logging.getLogger(__name__)
_EVERY_S = 2.0
_FIRST_LOOK_S = 1.0
_LAST_LOOK_S = 5.0


class Totals:
    """Recorded totals of each stream since it began, and the number of dead letters now.

    The totals are those of events, late and dead ones, and open decisions. They are read on a
    separate thread, at most every two seconds and only while some client asks, as the database may
    be slow; in the meantime the previous totals are returned.

    Latch: ``_latch``; no other latch or lock is taken under it.

    Parameters
    ----------
    letters : callable
        Reads the number of dead letters by kind.
    """

    def __init__(self, letters: Callable[[], dict[str, int]]):
        self._letters_now = letters
        self._latch = threading.Lock()
        self._known: dict[str, dict[str, int]] = {}
        self._letters: dict[str, int] = {}
        self._asked: set[str] | None = None  # streams, once something was read
        self._read_at_s = -_EVERY_S
        self._is_reading = False
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """Wait for the thread that reads the database, if there is one."""
        with self._latch:
            thread = self._thread
        if thread is not None:
            thread.join(_LAST_LOOK_S)

    def of(self, runs: Mapping[str, Any]) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
        """Return the totals by stream, and the number of dead letters by kind.

        The first call waits at most a second for the database.
        """
        with self._latch:
            is_first = self._asked is None or not runs.keys() <= self._asked
            is_due = is_first or time.monotonic() - self._read_at_s >= _EVERY_S
            is_due = is_due and not self._is_reading
            if is_due:
                self._is_reading = True
                self._asked = set(runs)
        if is_due:
            thread = threading.Thread(
                target=self._read, args=(dict(runs),), name="activedb-totals", daemon=True
            )
            with self._latch:  # so that close() finds a thread that has begun
                self._thread = thread
                thread.start()
            if is_first:
                thread.join(_FIRST_LOOK_S)
        with self._latch:
            return dict(self._known), dict(self._letters)

    def _read(self, runs: Mapping[str, Any]) -> None:
        found: dict[str, dict[str, int]] = {}
        letters = None
        try:
            letters = self._letters_now()
            for name, run in runs.items():
                found[name] = {**run.totals(), "undecided": run.undecided()}
        except Exception:
            # The server may be away, or the database closed; the previous totals are returned then.
            _LOG.debug("cannot read the totals of streams", exc_info=True)
        finally:
            with self._latch:
                self._known.update(found)
                if letters is not None:
                    self._letters = letters
                self._read_at_s = time.monotonic()
                self._is_reading = False


def stream_rows(
    streams: Mapping[str, StreamDeclaration],
    runs: Mapping[str, Any],
    totals: Mapping[str, Mapping[str, int]],
    now_s: float,
) -> list[dict[str, Any]]:
    """Return the state of each stream; O(streams)."""
    rows = []
    for name in list(streams):
        run, total = runs.get(name), totals.get(name, {})
        # Read while another thread feeds the stream: an entry of the ledger does not change.
        last = None if run is None else run.last
        punctuation_s = None
        if last is not None and last.punctuation_us is not None:
            punctuation_s = last.punctuation_us / 1e6
        rows.append(
            {
                "name": name,
                "events": total.get("events", 0),
                "late": total.get("late", 0),
                "dead": total.get("dead", 0),
                "undecided": total.get("undecided", 0),
                "waiting": 0 if run is None else run.waiting,
                "batches": 0 if last is None else last.batch_id + 1,
                "punctuation_s": punctuation_s,
                "behind_s": None if punctuation_s is None else max(0.0, now_s - punctuation_s),
            }
        )
    return rows
