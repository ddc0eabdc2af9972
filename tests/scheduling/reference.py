"""Stream transactions by their definition, as plainly as possible.

An s-transaction is all that one event triggers; a schedule is right if it gives what the serial
order by timestamp gives (Wang et al., definitions 6 and 7; Mao et al., section 2.1.1). So that is
what happens here: one after the other, over lists that are searched from end to end, with nothing
ever forgotten. Neither the versioned tables nor a scheduler of the package is used.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from activedb.errors import AccessError
from activedb.events import Occurrence
from activedb.scheduling import REMOVED, Abort, At, Operation, Outcome, Program, Ref, SharedTable
from activedb.scheduling._access import ShortFormBody
from activedb.scheduling._operations import Read, STransaction, Write
from activedb.scheduling._tables import Computed, Range

__all__ = ["Ended", "Expected", "Reference", "ReferenceRun", "same_outcome"]

Version = tuple[At, Any]


class Reference:
    """The tables, as lists of all versions ever committed; s-transactions one after the other."""

    def __init__(self, tables: Iterable[SharedTable]):
        self.tables = tuple(tables)
        self.versions: dict[str, list[tuple[Hashable, At, Any]]] = {t.name: [] for t in self.tables}

    # -- reads -----------------------------------------------------------------------------------

    def history(self, table: SharedTable, key: Hashable, before: At) -> list[Version]:
        """The versions of a key before a place, oldest first."""
        found = [(at, v) for k, at, v in self.versions[table.name] if k == key and at < before]
        return sorted(found, key=lambda version: version[0])

    def read(self, ref: Ref, before: At) -> Any:
        """The value of a reference just before a place."""
        if isinstance(ref.key, Range):
            return self._range(ref.table, ref.key, before)
        key = self.key_of(ref, before)
        history = self.history(ref.table, key, before)
        if ref.window_us is not None:
            since_us = before.us - ref.window_us
            return [value for at, value in history if at.us >= since_us and value is not REMOVED]
        if not history or history[-1][1] is REMOVED:
            return ref.table.initial
        return history[-1][1]

    def key_of(self, ref: Ref, before: At) -> Hashable:
        """The key that a reference means, or an `AccessError`."""
        key = ref.key
        if isinstance(key, Computed):
            key = key.function(*[self.read(each, before) for each in key.reads], *key.args)
        ref.table.check_key(key)
        assert isinstance(key, Hashable)
        return key

    def _range(self, table: SharedTable, bounds: Range, before: At) -> dict[Hashable, Any]:
        found: dict[Any, Any] = {}
        for key in {k for k, at, _ in self.versions[table.name] if at < before}:
            value = self.history(table, key, before)[-1][1]
            if (
                value is not REMOVED
                and (bounds.low is None or bounds.low <= key)
                and (bounds.high is None or key < bounds.high)
            ):
                found[key] = value
        return {key: found[key] for key in sorted(found)}

    # -- s-transactions --------------------------------------------------------------------------

    def run(self, transactions: Iterable[STransaction]) -> dict[At, Outcome]:
        """Run s-transactions, all later than those before, in their serial order."""
        return {t.at: self._run(t) for t in sorted(transactions, key=lambda t: t.at)}

    def _run(self, transaction: STransaction) -> Outcome:
        writes: list[tuple[SharedTable, Hashable, Any]] = []
        results = []
        try:
            for operation in transaction.operations:
                written, result = self._evaluate(operation, transaction.at)
                writes += written
                results.append(result)
            for number, (table, key, _) in enumerate(writes):
                if any(t is table and k == key for t, k, _ in writes[:number]):
                    raise AccessError(f"{table.name}[{key!r}] is written twice")
        except Exception as error:
            return Outcome(reason=_reason(error), error=error)
        for table, key, value in writes:
            self.versions[table.name].append((key, transaction.at, value))
        return Outcome(tuple(results))

    def _evaluate(
        self, operation: Operation, at: At
    ) -> tuple[list[tuple[SharedTable, Hashable, Any]], Any]:
        if isinstance(operation, Read):
            values = [self.read(ref, at) for ref in operation.direct]
            if operation.function is not None:
                return [], operation.function(*values, *operation.args)
            return [], values[0] if len(values) == 1 else tuple(values)
        if isinstance(operation, Write):
            (target,) = operation.targets
            key = self.key_of(target, at)
            values = [self.read(ref, at) for ref in operation.direct]
            value = operation.function(*values, *operation.args)
            if value is None:
                raise Abort(f"{target!r} was not written")
            value = target.table.check_value(value)
            return [(target.table, key, value)], value
        if isinstance(operation, ShortFormBody):
            view = _View(self, at, operation)
            result = operation.function(view, operation.params)  # type: ignore[arg-type]
            return [(table, key, value) for (table, key), value in view.own.items()], result
        effect = operation.evaluate(lambda ref: self.read(ref, at))
        return list(effect.writes), effect.result

    # -- the state -------------------------------------------------------------------------------

    def newest(self, table: SharedTable) -> dict[Hashable, Any]:
        """The newest value of every key that has one."""
        of = {key: versions[-1][1] for key, versions in self.all(table).items()}
        return {key: value for key, value in of.items() if value is not REMOVED}

    def all(self, table: SharedTable) -> dict[Hashable, list[Version]]:
        """Every version there ever was, by key, oldest first."""
        found: dict[Hashable, list[Version]] = {}
        for key, at, value in self.versions[table.name]:
            found.setdefault(key, []).append((at, value))
        return {key: sorted(vs, key=lambda version: version[0]) for key, vs in found.items()}

    def needed(self, table: SharedTable, mark: At) -> dict[Hashable, list[Version]]:
        """The versions that an s-transaction at or after `mark` can tell from their absence."""
        found = {}
        for key, versions in self.all(table).items():
            plain = [at for at, _ in versions if at < mark][-1:]
            kept = [
                (at, value)
                for at, value in versions
                if at >= mark or at in plain or at.us >= mark.us - table.history_us
            ]
            while kept and kept[0][0] < mark and kept[0][1] is REMOVED:
                del kept[0]  # nothing there reads as the initial value, too
            if kept:
                found[key] = kept
        return found


class _View:
    """View that a function of the short form has: its own writes above the state before it."""

    def __init__(self, reference: Reference, at: At, body: ShortFormBody):
        self._reference = reference
        self._at = at
        self._may_write = body.targets
        self._may_read = body.sources  # those that it may write among them
        self.own: dict[tuple[SharedTable, Hashable], Any] = {}

    def _plain(self, ref: Ref) -> Ref:
        """The same with its key computed, as far as it may read what that takes."""
        if isinstance(ref.key, Computed):
            key = ref.key.function(*[self.read(each) for each in ref.key.reads], *ref.key.args)
            ref = Ref(ref.table, key, ref.window_us)
        if not isinstance(ref.key, Range):
            ref.table.check_key(ref.key)
        return ref

    def read(self, ref: Ref) -> Any:
        ref = self._plain(ref)
        if not any(_allows(declared, ref) for declared in self._may_read):
            raise AccessError(f"{ref!r} is read, but not")
        value = self._reference.read(ref, self._at)
        if ref.window_us is not None:
            return value
        if not isinstance(ref.key, Range):
            value = self.own.get((ref.table, ref.key), value)
            return ref.table.initial if value is REMOVED else value
        for (table, key), own in self.own.items():
            if table is ref.table and _within(ref.key, key):
                value[key] = own
        return {key: value[key] for key in sorted(value) if value[key] is not REMOVED}

    def write(self, ref: Ref, value: Any) -> None:
        ref = self._plain(ref)
        if not any(_allows(declared, ref) for declared in self._may_write):
            raise AccessError(f"{ref!r} is written, but not")
        if ref.window_us is not None or isinstance(ref.key, Range):
            raise AccessError(f"{ref!r} is read, not written")
        value = ref.table.check_value(value)
        self.own[ref.table, ref.key] = value

    def abort(self, reason: str) -> None:
        raise Abort(reason)


def _within(bounds: Range, key: Any) -> bool:
    return (bounds.low is None or bounds.low <= key) and (bounds.high is None or key < bounds.high)


def _allows(declared: Ref, ref: Ref) -> bool:
    """Return whether a declaration allows access to a key, a window of one, or a range."""
    if declared.table is not ref.table:
        return False
    if declared.window_us is not None:  # older values than those of its window it does not give
        if ref.window_us is None or ref.window_us > declared.window_us:
            return False
    elif ref.window_us is not None and not declared.is_whole:
        return False
    if isinstance(declared.key, Computed):
        return True
    if not isinstance(declared.key, Range):
        return not isinstance(ref.key, Range) and bool(declared.key == ref.key)
    if not isinstance(ref.key, Range):
        return _within(declared.key, ref.key)
    low, high = declared.key.low, declared.key.high
    return (low is None or (ref.key.low is not None and low <= ref.key.low)) and (
        high is None or (ref.key.high is not None and ref.key.high <= high)
    )


def _reason(error: Exception) -> str:
    name, text = type(error).__name__, str(error)
    if isinstance(error, Abort):
        return text or name
    return f"{name}: {text}" if text else name


def same_outcome(found: Outcome, expected: Outcome) -> bool:
    """Return whether an outcome is that of the reference.

    The reference words refused accesses more briefly.
    """
    if found.committed or expected.committed:
        return found.committed == expected.committed and found.results == expected.results
    assert found.reason is not None
    assert expected.reason is not None
    if isinstance(expected.error, AccessError):
        return found.reason.startswith("AccessError: ")
    if isinstance(expected.error, Abort):
        return found.reason.startswith(expected.reason)
    return found.reason == expected.reason and not found.results


# -- programs ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """An s-transaction that has ended."""

    at: At
    type: str
    params: Mapping[str, Any]
    outcome: Outcome


@dataclass
class Expected:
    """Expected results of a feed: those that ended in the serial order, and what is refused."""

    ended: list[Ended] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    refused: list[Occurrence] = field(default_factory=list)
    dropped: int = 0


class ReferenceRun:
    """A program over a stream, as `ProgramRun` runs it."""

    def __init__(self, program: Program):
        self.program = program
        self.reference = Reference(program.tables)
        self.mark_us: int | None = None
        self._waiting: list[STransaction] = []
        self._arrivals = 0

    def feed(self, events: Iterable[Occurrence], punctuation_us: int | None = None) -> Expected:
        """Take events; run what is before the punctuation."""
        expected = Expected()
        for event in events:
            is_late = self.mark_us is not None and event.us < self.mark_us
            if is_late or event.name not in self.program.types:
                expected.refused.append(event)
            else:
                self._take(event, expected)
        if punctuation_us is not None and (self.mark_us is None or punctuation_us > self.mark_us):
            self.mark_us = punctuation_us
            self._run(expected, [t for t in self._waiting if t.at.us < punctuation_us])
        return expected

    def finish(self) -> Expected:
        """Run what waits."""
        expected = Expected()
        self._run(expected, list(self._waiting))
        return expected

    def _take(self, event: Occurrence, expected: Expected) -> None:
        try:
            params = self.program.parameters(event.name, event.params)
            if params is None:
                expected.dropped += 1
                return
            operations = self.program.operations(event.name, params)
        except Exception:
            expected.refused.append(event)
            return
        self._arrivals += 1
        at = At(event.us, event.id or "", self._arrivals)
        self._waiting.append(STransaction(at, event.name, params, operations))

    def _run(self, expected: Expected, passed: list[STransaction]) -> None:
        self._waiting = [t for t in self._waiting if t not in passed]
        outcomes = self.reference.run(passed)
        for t in sorted(passed, key=lambda t: t.at):
            expected.ended.append(Ended(t.at, t.type, t.params, outcomes[t.at]))
            output = self.program.output(t.type, t.params, outcomes[t.at])
            if output is not None:
                expected.outputs.append(output)
