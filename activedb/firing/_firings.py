"""Names, rows and turns of firings; the listing of pending ones, and those of a batch."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from activedb.config import Isolation
from activedb.errors import ActiveDBError, BadEvent, RuleFailed, SerializationConflict
from activedb.events import Occurrence, decode, encode, register_type
from activedb.firing._queue import Turn
from activedb.firing._triggered import RecordedFiring, RulePart, Triggered, failed_in, shortened
from activedb.store.journals import (
    ABOVE,
    Journal,
    Repeated,
)
from activedb.store.sql import SERVER_TYPES
from activedb.transactions import Forest, Run, TransactionNode
from coupling import Coupling

__all__ = [
    "BatchFirings",
    "NamedFiring",
    "PendingFiring",
    "coupling_of",
    "in_turn",
    "is_lazy",
    "is_of_firing",
    "line_up",
    "named",
    "read_pending",
    "row_of",
    "run_of",
    "turn_of",
]


T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_NAME_MAX = 400  # characters of the column
_ORIGIN = "origin"  # key of the later `Run.origin`, beside those of the encoded occurrence
_TURN = "turn"  # key of a line of firings and the priority in it, see `Turns`
_DIGEST_BYTES = 8
_TIMES = ("timestamp", "stamp")

for _kind, _name, _taken_apart, _restored in SERVER_TYPES:
    register_type(_kind, _name, _taken_apart, _restored)


class NamedFiring(NamedTuple):
    """Named firing of a rule that an event has triggered.

    Attributes
    ----------
    name : str
        Place and occurrence: a try that does the same at the same place gives the same name; a try
        that does something else gives another name.
    item : Triggered
    occurrence : dict, or BadEvent
        The encoded occurrence, or the reason why it cannot be encoded.
    """

    name: str
    item: Triggered
    occurrence: dict[str, Any] | BadEvent


def named(
    place: str, items: list[Triggered], undated: Container[int], seen: Counter[str]
) -> Iterator[NamedFiring]:
    """Name the firings of the rules that an event at a place, a transaction's path, triggered.

    What else the event or the transaction has triggered does not matter: another try may trigger
    more, or less.

    Parameters
    ----------
    undated : container of int
        Identities (`id`) of occurrences whose times come from the clock of this try. Names ignore
        these times, so that all tries give the same names.
    seen : Counter
        How often each rule has been triggered by each occurrence at this place; counted on.
    """
    for item in items:
        data: dict[str, Any] | BadEvent
        try:
            data = encode(item.occurrence)
        except BadEvent as error:
            data, digest = error, ""
        else:
            digest = "~" + _digest(item, data, undated)
        what = item.rule.name + digest
        yield NamedFiring(shortened(f"{place}#{seen[what]}.{what}", _NAME_MAX), item, data)
        seen[what] += 1


def _digest(item: Triggered, data: dict[str, Any], undated: Container[int]) -> str:
    own = {id(o) for o in item.undated}
    if own or item.occurrence.parts:
        data = _without_times(item.occurrence, data, lambda o: id(o) in own or id(o) in undated)[0]
    text = json.dumps([item.part, data], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _without_times(
    o: Occurrence, data: dict[str, Any], is_undated: Callable[[Occurrence], bool]
) -> tuple[dict[str, Any], bool]:
    """Strip undated times from an encoded occurrence; return it, and whether its own was stripped.

    The time of a composite occurrence comes from its parts.
    """
    left_out = is_undated(o)
    if o.parts:
        parts = []
        for (name, part), (_, encoded) in zip(o.parts.items(), data["parts"], strict=True):
            of_part = part if isinstance(part, tuple) else (part,)
            each = encoded if isinstance(part, tuple) else [encoded]
            found = [_without_times(*pair, is_undated) for pair in zip(of_part, each, strict=True)]
            left_out |= any(is_left_out for _, is_left_out in found)
            parts.append([name, [rest for rest, _ in found]])
        data = {**data, "parts": parts}
    if left_out:
        data = {key: value for key, value in data.items() if key not in _TIMES}
    return data, left_out


def is_lazy(run: str) -> bool:
    """Return whether firings triggered by a run of this name commit without waiting for the disk.

    A stream's batch that is lost together with its firings starts them again. A durable batch has
    made its firings durable, too, because the server's log is written in order.
    """
    return run.startswith(Repeated.STREAM.prefix)


def is_of_firing(run: str) -> bool:
    """Return whether a run of this name is a firing, not a batch or work of the application."""
    return "#" in run


def coupling_of(item: Triggered, of_action: Coupling) -> Coupling:
    """Return the coupling mode of a firing relative to its triggering transaction."""
    return of_action if item.part is RulePart.ACTION else item.rule.coupling


def run_of(row: Mapping[str, Any], item: Triggered, isolation: Isolation, **how: Any) -> Run:
    """Return the `Run` shared by all tries at a recorded firing; `how` is passed to `Run`."""
    # The action alone follows its condition's commit if the rule is causally dependent.
    is_causal = item.rule.coupling is Coupling.CAUSAL
    coupling = coupling_of(item, Coupling.SEQUENTIAL if is_causal else Coupling.DETACHED)
    return Run(
        name=row["firing"],
        is_detached=True,
        rule=item.rule.name,
        coupling=str(coupling),
        origin=row["occurrence"].get(_ORIGIN),
        isolation=isolation,
        **how,
    )


def row_of(firing: NamedFiring, t: TransactionNode) -> dict[str, Any]:
    """Return the row of a firing of `t`; raise `RuleFailed` if its occurrence is unencodable."""
    run, item = t.hierarchy.run, firing.item
    if isinstance(firing.occurrence, BadEvent):
        error, rule = firing.occurrence, item.rule.name
        raise RuleFailed(failed_in(rule, error), rule=rule) from error
    occurrence = dict(firing.occurrence)
    if item.part is not RulePart.RULE:
        occurrence["part"] = str(item.part)
    origin = t.origin()
    if origin is not None:
        occurrence[_ORIGIN] = origin
    if run.above and not firing.name.startswith(run.name):
        occurrence[ABOVE] = "\n".join((run.name, *run.above))
    return {
        "firing": firing.name,
        "run": run.name,
        "rule": item.rule.name,
        "occurrence": occurrence,
        "keep": run.is_batch or run.is_detached,
        "done": False,
    }


def line_up(firings: Iterable[RecordedFiring], line: str, *, always: bool = False) -> None:
    """Give turns to firings that are due together, unless all have the same priority.

    With `always`, give turns in any case, because other firings may be due together with them.

    A firing that time completes is due together with all others completed at the same moment. A
    causally dependent rule has no turn, because it begins at its event.
    """
    found = [each for each in firings if each.triggered.rule.coupling is not Coupling.CAUSAL]
    differ = len({each.triggered.rule.priority for each in found}) > 1
    for each in found:
        moment = each.triggered.moment
        if moment or differ or always:
            each.row["occurrence"][_TURN] = [moment or line, each.triggered.rule.priority]


def in_turn(firings: Iterable[RecordedFiring]) -> list[RecordedFiring]:
    """Return firings in the order in which they enter their lines: higher priorities first."""
    return sorted(firings, key=_rank_of)


def _rank_of(firing: RecordedFiring) -> tuple[bool, int]:
    turn = turn_of(firing.row)
    return (False, 0) if turn is None else turn.rank


def turn_of(row: Mapping[str, Any]) -> Turn | None:
    """Return the turn of a firing in its line; None if it is due alone."""
    turn = row["occurrence"].get(_TURN)
    return None if turn is None else Turn(*turn)


# -- firings of detached rules that a stream's batch has triggered ---------------------------------


class BatchFirings:
    """Bookkeeping of the firings of batches, until all of it is in the database.

    A batch starts its firings at the event and does not record them there, because after a crash
    the batch is repeated and gives them the same names. The commit of the batch records the
    firings whose outcome is not durable by then. Batches are the parts of streams, the transactions
    of workflows, the moments of the clock, and decisions applied for another process.

    Latch: ``_latch``; no other latch is taken under it.
    """

    def __init__(self, journal: Journal):
        self._journal = journal
        self._latch = threading.Lock()
        # Firings that a repeated batch must not start, with the names of their runs; and the rows
        # of the firings that have not ended.
        self._known: dict[str, str] = {}
        self._refused: set[str] = set()  # known firings that were not recordable
        self._unfinished: dict[str, dict[str, Any]] = {}
        # Unfinished firings that have a row, because their batch has committed.
        self._settled: set[str] = set()
        # Firings that had to leave a row when done; and the rows no longer needed.
        self._staying: set[str] = set()
        self._left_over: set[str] = set()
        self._going: dict[str, set[str]] = {}  # rows that the commit of a run deletes
        self._fired_in: set[str] = set()  # names of runs that may have rows of done firings

    def is_known(self, firing: str) -> bool:
        """Return whether an earlier try at the batch has started a firing."""
        with self._latch:
            return firing in self._known

    def add(self, run: Run, triggered: Iterable[str], rows: Mapping[str, dict[str, Any]]) -> None:
        """Note what a batch has triggered, and the rows of the firings that are to run.

        A firing without a row has a dead letter.
        """
        with self._latch:
            self._fired_in.add(run.name)
            for firing in triggered:
                self._known[firing] = run.name
                if firing not in rows:
                    self._refused.add(firing)
            self._unfinished.update(rows)

    def is_unfinished(self, firing: str) -> bool:
        """Return whether a firing has no durable outcome yet."""
        with self._latch:
            return firing in self._unfinished

    def is_unrecorded(self, firing: str) -> bool:
        """Return whether a firing has no row, because its batch has not committed."""
        with self._latch:
            return firing in self._unfinished and firing not in self._settled

    def end_of(self, firing: str) -> tuple[bool, Callable[[], None] | None]:
        """Return whether a firing that ends now leaves a row, and what to call if that is new.

        Its batch finds the row if it triggers the firing again; so does the process from which the
        firing was taken over, if it still runs it. None: the firing has a row.
        """
        with self._latch:
            stays = firing not in self._settled
            (self._staying.add if stays else self._staying.discard)(firing)
            is_ours = firing in self._unfinished
        return stays, partial(self._check_unrecorded, firing) if stays and is_ours else None

    def _check_unrecorded(self, firing: str) -> None:
        """Raise `SerializationConflict` if the batch of a firing is known to have committed.

        Its commit has recorded the firing, so that a missing row means that another process has
        ended it.
        """
        if not self.is_unrecorded(firing):
            raise SerializationConflict(f"the batch of {firing} has committed meanwhile")

    def is_durable(self, firing: str) -> None:
        """Note that the outcome of a firing is durable: its batch need not record it any more."""
        with self._latch:
            self._unfinished.pop(firing, None)
            if firing in self._settled:
                self._settled.discard(firing)
                self._leave_over({firing})

    def _leave_over(self, firings: set[str]) -> None:
        """Schedule the leftover rows of firings for deletion with a later commit.

        The batch of the firings has committed and their outcome is durable. A firing that ends
        while its batch commits cannot know whether it will be triggered again, so its row stays
        until then.
        """
        staying = firings & self._staying
        self._staying -= staying
        self._left_over |= staying

    def forget_left_over(self) -> None:
        """Delete the rows that are no longer needed, in a separate transaction, if there are any.

        For the moment when no firing runs: no later commit may come. The end of a stream's feed
        does the same for the firings below those of its batches.
        """
        with self._latch:
            left = set(self._left_over)
            over = {run for run in self._fired_in if run.startswith(Repeated.WORKFLOW.prefix)}
            over = {run for run in over if not is_of_firing(run)} - set(self._known.values())
        try:
            done = self._journal.done(Repeated.WORKFLOW.prefix) if over else {}
            left |= {f for f, run in done.items() if any(_is_in(run, name) for name in over)}
            if left:
                self._journal.forget_triggered(sorted(left))
        except ActiveDBError:
            _LOG.warning("rows of done rules stay for now", exc_info=True)
            return
        with self._latch:
            self._left_over -= left
            self._fired_in -= over

    def remember_done(
        self, run_prefix: str, redoable: Callable[[], Collection[str]] | None = None
    ) -> None:
        """Read which firings are done although their batch has not committed.

        Parameters
        ----------
        run_prefix : str
        redoable : callable, optional
            Return the names of the runs that may be repeated; the rows of other runs are deleted
            later. Called after the rows were read, so that a run may safely begin meanwhile.
        """
        done = self._journal.done(run_prefix)
        over: dict[str, str] = {}
        if done and redoable is not None:
            names = redoable()
            over = {
                firing: run
                for firing, run in done.items()
                if not any(_is_in(run, name) for name in names)
            }
        of_batches = {firing: run for firing, run in done.items() if not is_of_firing(run)}
        with self._latch:
            self._fired_in.update(done.values())
            self._known |= {f: run for f, run in of_batches.items() if f not in over}
            self._left_over |= over.keys()

    def settle(self, connection: Any, run: Run) -> None:
        """Record the unfinished firings of a batch within its commit, and forget the done ones.

        The commit of a stream's firing does not wait for the disk, because the commit of its batch
        makes it durable. If the server crashes in between and this process survives, the outcome of
        the firing may be lost. The firing has left a row, so a missing row shows the loss.

        Raises
        ------
        SerializationConflict
            If a firing is lost: the batch has to be repeated, and starts it again.
        """
        with self._latch:
            if not run.fired and not self._left_over:
                return
            rows = [self._unfinished[name] for name in run.fired if name in self._unfinished]
            ended = run.fired - self._unfinished.keys()
            self._staying -= ended  # their rows go now
            gone = self._going[run.name] = ended | self._left_over
            needed = (ended & self._known.keys()) - self._refused
        if self._journal.is_queued or run.batch in (Repeated.CLOCK, Repeated.DECISION):
            # No firing has been started, or the batch is over as a whole: nothing is repeated that
            # has to find a firing done.
            rows = [row | {"keep": False} for row in rows]
        self._journal.record_on(connection, rows)
        lost = needed - self._journal.forget_done(connection, sorted(gone))
        if lost and self._journal.is_shared and is_lazy(run.name):
            with self._latch:
                for firing in lost:
                    self._known.pop(firing, None)
            raise SerializationConflict(
                f"{run.name}: the server has crashed and lost {len(lost)} of the rules that the "
                "batch has triggered; they run again"
            )

    def left_by(self, run: str) -> Run:
        """Return a run that is given up, with its unfinished firings. O(unfinished)."""
        with self._latch:
            fired = {name for name, row in self._unfinished.items() if row["run"] == run}
        return Run(name=run, batch=Repeated(run.partition("/")[0]), fired=fired)

    def committed(self, run: Run, *, is_whole: bool = True) -> None:
        """Note that a run has committed and will not be repeated.

        Parameters
        ----------
        is_whole : bool
            True if nothing is left of its batch: then firings of earlier tries that this try has
            not triggered again are no longer needed.
        """
        with self._latch:
            of_run = {firing for firing, name in self._known.items() if name == run.name}
            over = of_run - run.fired - self._unfinished.keys() if is_whole else set()
            for firing in run.fired | over:
                self._known.pop(firing, None)
                self._refused.discard(firing)
            self._left_over |= over
            if self._journal.is_queued:
                for name in run.fired:
                    self._unfinished.pop(name, None)
            self._left_over -= self._going.pop(run.name, set())
            unfinished = run.fired & self._unfinished.keys()
            self._settled |= unfinished
            self._leave_over(run.fired - unfinished)

    def run_whole(
        self, forest: Forest, run: Run, work: Callable[[TransactionNode], T], *, source: str
    ) -> T:
        """Run a batch that is one transaction, and is over with its commit.

        So are all earlier runs of its `source`, whose names begin with that.
        """

        def settle(connection: Any) -> None:
            self.settle(connection, run)
            if run.fired:
                self._journal.prune_on(connection, source)

        def body(t: TransactionNode) -> T:
            t.hierarchy.durable.append(settle)
            return work(t)

        result = forest.run(body, run)
        self.committed(run)
        with self._latch:
            self._fired_in.discard(run.name)
        return result

    def has_fired(self, run: str) -> bool:
        """Return whether runs of this name have triggered a detached rule since `forget_done`."""
        with self._latch:
            return any(_is_in(each, run) for each in self._fired_in)

    def forget_done(self, run: str) -> None:
        """Delete the done firings of runs of this name, unless a run is to be repeated."""
        if not self.has_fired(run):
            return
        with self._latch:
            if run in self._known.values():
                return
        self._journal.prune(run)
        with self._latch:
            self._fired_in = {each for each in self._fired_in if not _is_in(each, run)}


def _is_in(run: str, name: str) -> bool:
    """Return whether `run` is the run of this name, or a firing below it."""
    return run == name or run.startswith((f"{name}/", f"{name}#"))


# -- listing of firings that are recorded and not done ---------------------------------------------


@dataclass(frozen=True, slots=True)
class PendingFiring:
    """Recorded rule that is due to run in a separate top-level transaction.

    Attributes
    ----------
    firing : str
        Name of the firing, the same at every restart.
    run : str
        Name of the top-level transaction, or part of a stream's batch, that triggered it.
    rule : str
    occurrence : Occurrence
        The occurrence that triggered the rule.
    """

    firing: str
    run: str
    rule: str
    occurrence: Occurrence


def read_pending(journal: Journal) -> list[PendingFiring]:
    """Return firings that are recorded and not done, oldest occurrence first."""
    found = [
        PendingFiring(row["firing"], row["run"], row["rule"], decode(row["occurrence"]))
        for row in journal.pending()
    ]
    return sorted(found, key=lambda pending: (pending.occurrence.us, pending.firing))
