"""Error tree of activedb.

Every message says what is wrong and what to do; the original error, where there is one, stays
attached as ``__cause__``::

    ActiveDBError
    ├── ConfigurationError            a setting, file or tool is missing or wrong
    │   ├── InvalidURL                the database URL cannot be understood
    │   ├── ServerUnreachable         no server answers at the URL
    │   ├── UnsuitablePooler          a pooler in between does not preserve sessions
    │   ├── JavaNotFound              Spark needs a JDK 17 or newer
    │   ├── UntrustedFile             a world-writable file of rules or settings
    │   └── CheckpointMismatch        checkpoint and ledger do not belong together
    ├── DefinitionError               a rule, pattern, stream or table is declared wrongly
    │   ├── RuleSignatureError        a rule function cannot be called as fn(t, o)
    │   ├── ConditionWrites           a rule's condition writes; it may only read
    │   ├── PatternError              an event expression is meaningless
    │   ├── RuleSyntaxError           a syntax error in the rule language, with its place
    │   └── WorkflowError             a workflow of atomic batches is declared wrongly
    │       ├── WorkflowCycle         the order of the programs is cyclic
    │       ├── UnknownName           a program names an undefined stream or program
    │       ├── DefinedTwice          one name has two definitions
    │       └── WorkflowChanged       the definition differs from that of recorded batches
    ├── TransactionError
    │   ├── TransactionAborted        the transaction, or a superior of it, aborted
    │   ├── TransactionCancelled      it was cancelled from outside
    │   ├── TransactionTimeout        it exceeded its time limit
    │   ├── TransactionStateError     an operation that the lifecycle does not allow
    │   │   ├── WrongThread           used by a thread that it does not run on
    │   │   └── WrongProcess          used by a forked child of its process
    │   ├── SelfDeadlock              a wait that only the waiting thread could end
    │   ├── Deadlock                  chosen as victim; safe to retry
    │   ├── LockTimeout               a lock was not granted in time
    │   │   └── LockNotAvailable      a lock requested with nowait was not free
    │   ├── SerializationConflict     the server aborted the transaction; safe to retry
    │   └── CycleLimitExceeded        rules keep triggering rules
    ├── StoreError
    │   ├── RowExists                 insert of a key that exists already
    │   ├── RowNotFound               update or delete of a key that does not exist
    │   ├── InvalidRow                missing value, wrong type
    │   │   └── UnknownColumn         a column that the table, or the row, does not have
    │   ├── ConstraintViolation       a constraint of the database refused the row
    │   │   ├── UniqueViolation       another row has the same key or unique value
    │   │   └── ForeignKeyViolation   a row refers to a missing row, or is referred to
    │   ├── TableOwned                another process, or a stream, owns the table
    │   ├── UnsupportedStatement      a statement not supported over the sphere
    │   ├── StatementCancelled        the server was told to stop the statement
    │   └── ConnectionLost            the server went away during a transaction
    ├── RuleError
    │   ├── RuleFailed                a rule raised; carries the rule's name and the cause
    │   │   └── RuleInQuarantine      it failed too often and no longer runs
    │   └── FiringsLeft               awaited rules have not ended
    └── StreamError
        ├── BadEvent                  an input event that cannot be interpreted
        │   ├── UncertainOrder        the result depends on an unknown order of events
        │   ├── PartialsExceeded      a pattern has reached its bound of kept events
        │   └── MatchesExceeded       one event completes too many matches of a pattern
        ├── DecisionClosed            an open decision was made, or can no longer be made
        ├── ProducerSilent            a producer has sent nothing for too long
        ├── StreamFull                the bound of events waiting for a producer is reached
        ├── AccessError               an s-transaction made a forbidden access
        ├── BatchFailed               a batch stopped at an offending event, as requested
        │   └── ProgramFailed         a program of a workflow raised; the batch waits for it
        ├── CompensationError         a compensation was not done; nothing has changed
        │   ├── AlreadyCompensated    nothing is left to compensate
        │   ├── CompensationFailed    a compensating action raised
        │   ├── HistoryForgotten      a part of the history is no longer recorded
        │   ├── Interferes            other batches would be affected without permission
        │   ├── NotCompensable        a program has no compensating action
        │   └── PlanOutdated          something has changed since the plan was made
        ├── LineageError              a report on batches and transactions is inconsistent
        │   ├── NotRecorded           no batch or transaction has that id
        │   ├── RecordedTwice         an id or a number is taken
        │   └── UsedTwice             a program would use a piece of a batch twice
        └── FeedFailed                the source of a stream failed
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

__all__ = [
    "AccessError",
    "ActiveDBError",
    "AlreadyCompensated",
    "BadEvent",
    "BatchFailed",
    "CheckpointMismatch",
    "CompensationError",
    "CompensationFailed",
    "ConditionWrites",
    "ConfigurationError",
    "ConnectionLost",
    "ConstraintViolation",
    "CycleLimitExceeded",
    "Deadlock",
    "DecisionClosed",
    "DefinedTwice",
    "DefinitionError",
    "FeedFailed",
    "FiringsLeft",
    "ForeignKeyViolation",
    "HistoryForgotten",
    "Interferes",
    "InvalidRow",
    "InvalidURL",
    "JavaNotFound",
    "LineageError",
    "LockNotAvailable",
    "LockTimeout",
    "MatchesExceeded",
    "NotCompensable",
    "NotRecorded",
    "PartialsExceeded",
    "PatternError",
    "PlanOutdated",
    "ProducerSilent",
    "ProgramFailed",
    "RecordedTwice",
    "RowExists",
    "RowNotFound",
    "RuleError",
    "RuleFailed",
    "RuleInQuarantine",
    "RuleSignatureError",
    "RuleSyntaxError",
    "SelfDeadlock",
    "SerializationConflict",
    "ServerUnreachable",
    "StatementCancelled",
    "StoreError",
    "StreamError",
    "StreamFull",
    "TableOwned",
    "TransactionAborted",
    "TransactionCancelled",
    "TransactionError",
    "TransactionStateError",
    "TransactionTimeout",
    "UncertainOrder",
    "UniqueViolation",
    "UnknownColumn",
    "UnknownName",
    "UnsuitablePooler",
    "UnsupportedStatement",
    "UntrustedFile",
    "UsedTwice",
    "WorkflowChanged",
    "WorkflowCycle",
    "WorkflowError",
    "WrongProcess",
    "WrongThread",
]


_LEFT_SHOWN = 5


class ActiveDBError(Exception):
    """Root of all errors that activedb raises deliberately."""

    def again(self) -> Self:
        """Return a copy of this error, to be raised on another thread.

        A single object would collect the tracebacks and notes of all threads that raise it.
        """
        other = copy.copy(self)
        other.__cause__ = self.__cause__
        other.__suppress_context__ = self.__suppress_context__
        if hasattr(other, "__notes__"):
            other.__notes__ = list(other.__notes__)
        return other


class ConfigurationError(ActiveDBError):
    """A setting, a file or a tool is missing or wrong."""


class InvalidURL(ConfigurationError):
    """The database URL cannot be understood."""


class ServerUnreachable(ConfigurationError):
    """No database server answers at the URL."""


class UnsuitablePooler(ConfigurationError):
    """A connection pooler in front of the server does not preserve a connection's session.

    Session locks and settings would not last, because the pooler shares the server's sessions among
    its clients, or drops settings.
    """


class JavaNotFound(ConfigurationError):
    """Spark needs a JDK 17 or newer, and none was found."""


class UntrustedFile(ConfigurationError):
    """A file of rules or settings is refused, because every account of the machine may write it."""


class CheckpointMismatch(ConfigurationError):
    """The checkpoint of a stream and the ledger in the database do not belong together."""


class DefinitionError(ActiveDBError):
    """A rule, a pattern, a stream or a table is declared wrongly."""


class RuleSignatureError(DefinitionError):
    """A rule's function cannot be called as ``fn(t, o)``."""


class ConditionWrites(DefinitionError):
    """A rule's condition wrote a row, or changed a rule; it may only read.

    Attributes
    ----------
    rule : str
        The rule's name.
    """

    def __init__(self, message: str, *, rule: str = ""):
        super().__init__(message)
        self.rule = rule


class PatternError(DefinitionError):
    """An event expression is meaningless."""


class RuleSyntaxError(DefinitionError):
    """A text in the rule language has a syntax error.

    Attributes
    ----------
    line, column : int
        Place of the error, both from 1.
    excerpt : str
        The line, with a caret below it at the column.
    """

    def __init__(self, message: str, *, line: int = 1, column: int = 1, excerpt: str = ""):
        super().__init__(message)
        self.line = line
        self.column = column
        self.excerpt = excerpt

    def of_file(self, path: object) -> RuleSyntaxError:
        """Return the same error with the name of the file that has the text."""
        return RuleSyntaxError(
            f"{path}: {self}", line=self.line, column=self.column, excerpt=self.excerpt
        )


class WorkflowError(DefinitionError):
    """A workflow is declared wrongly."""


class WorkflowCycle(WorkflowError):
    """The order of a workflow's programs is cyclic.

    Attributes
    ----------
    programs : tuple of str
        Each comes before the next one, and the last before the first.
    """

    def __init__(self, message: str, *, programs: Iterable[str] = ()):
        super().__init__(message)
        self.programs = tuple(programs)

    @classmethod
    def of(cls, programs: Sequence[str]) -> Self:
        """Return the error for a cycle of programs."""
        cycle = " before ".join([*programs, programs[0]])
        return cls(
            f"these programs would come before themselves: {cycle}; "
            "remove one of their reads= or after=",
            programs=programs,
        )


class UnknownName(WorkflowError):
    """A program names a stream or program that is not defined."""


class DefinedTwice(WorkflowError):
    """Two programs, or a program and a source stream, have the same name."""


class WorkflowChanged(WorkflowError):
    """A workflow's definition differs from the one under which its batches were recorded."""


class TransactionError(ActiveDBError):
    """An error of a transaction, not of its data."""


class TransactionAborted(TransactionError):
    """The transaction, or a superior of it, has aborted.

    Attributes
    ----------
    transaction : int
        Id of the transaction that aborted; 0 if it is not known.
    """

    def __init__(self, message: str, *, transaction: int = 0):
        super().__init__(message)
        self.transaction = transaction


class TransactionCancelled(TransactionError):
    """The transaction, or a superior of it, was cancelled from outside."""


class TransactionTimeout(TransactionError):
    """The transaction, or a superior of it, exceeded its time limit."""


class TransactionStateError(TransactionError):
    """An operation that the lifecycle of transactions does not allow."""


def database_closed() -> TransactionStateError:
    """Return the error of a use of a closed database."""
    return TransactionStateError("the database is closed; open it again with connect()")


class WrongThread(TransactionStateError):
    """A transaction was used by a thread that it does not run on."""


class WrongProcess(TransactionStateError):
    """An object of a parent process was used by a child that was forked from it."""


class SelfDeadlock(TransactionError):
    """A wait that only the waiting thread itself could end; retrying is useless."""


class Deadlock(TransactionError):
    """The transaction was chosen as the victim of a deadlock; retrying it is safe.

    Attributes
    ----------
    exhausted : bool
        True if retrying a subtransaction is useless: it was retried as often as allowed, or the
        cycle goes through another hierarchy. The top-level transaction is retried nevertheless.
    breaker : int
        Id of the smallest transaction whose abort breaks the cycle: this one, or a superior that
        retains the locks that other transactions wait for. Retrying an inferior of it would end in
        the same way.
    """

    exhausted = False
    breaker = 0


class LockTimeout(TransactionError):
    """A lock was not granted in time; retrying is safe."""


class LockNotAvailable(LockTimeout):
    """A lock was not free at once, and the request said not to wait."""


class SerializationConflict(TransactionError):
    """The server aborted the top-level transaction; retrying it as a whole is safe."""


class CycleLimitExceeded(TransactionError):
    """Rules keep triggering rules beyond the configured bound."""


class StoreError(ActiveDBError):
    """An error of stored rows or of the database server."""

    def during(self, what: str) -> Self:
        """Return the same error with the statement or rule in which it was raised.

        An error that only repeats an earlier one, as the transaction accepts no more statements, is
        returned unchanged.
        """
        if isinstance(self.__cause__, StoreError):
            return self
        other = self.again().with_traceback(self.__traceback__)
        other.args = (f"{self}; {' '.join(what.split())}",)
        return other


class RowExists(StoreError):
    """An insert of a key that exists already."""


class RowNotFound(StoreError):
    """An update or delete of a key that does not exist."""


class InvalidRow(StoreError):
    """A row with an unknown column, a missing value or a value of the wrong type."""


class UnknownColumn(InvalidRow, KeyError):
    """A column was named that the table, or the row, does not have."""

    __str__ = Exception.__str__  # a KeyError would show a repr


class ConstraintViolation(StoreError):
    """A constraint of the database refused a row.

    Attributes
    ----------
    table, constraint, detail : str
        The server's report: the table, the constraint's name, the offending key or row.
    key : mapping of str to value
        The offending values by column, as far as they are known.
    """

    def __init__(
        self,
        message: str,
        *,
        table: str = "",
        constraint: str = "",
        detail: str = "",
        key: Mapping[str, Any] | None = None,
    ):
        super().__init__(message)
        self.table = table
        self.constraint = constraint
        self.detail = detail
        self.key = dict(key or {})


class UniqueViolation(ConstraintViolation):
    """Another row has the same primary key or unique value.

    `table` and `key` identify the refused row.
    """


class ForeignKeyViolation(ConstraintViolation):
    """A row refers to a missing row, or rows refer to one that was to be deleted.

    `table` and `key` identify the refused row, either the referring one or the one that was to be
    deleted; `constraint` is the foreign key's name.
    """


class TableOwned(StoreError):
    """The table is owned by another process, which keeps it in memory, or by a stream."""


class UnsupportedStatement(StoreError):
    """A statement that this release cannot run over the versions of a sphere."""


class StatementCancelled(StoreError):
    """The server stopped a statement, because of a request or because of its own limit."""


class ConnectionLost(StoreError):
    """The server went away during a transaction.

    Attributes
    ----------
    committed : bool or None
        Whether the transaction had committed. False: none of its effects exist, so retrying it is
        safe. None: it is not known.
    """

    def __init__(self, message: str, *, committed: bool | None = False):
        super().__init__(message)
        self.committed = committed

    def during(self, what: str) -> Self:
        """Return the error itself: it applies to whatever statement ran at the time."""
        return self


class RuleError(ActiveDBError):
    """An error in the execution of a rule."""


class RuleFailed(RuleError):
    """A rule raised; the original error is ``__cause__``.

    Attributes
    ----------
    rule : str
        The rule's name.
    """

    def __init__(self, message: str, *, rule: str = ""):
        super().__init__(message)
        self.rule = rule


class RuleInQuarantine(RuleFailed):
    """A rule has failed too often in a row, and does not run until it is enabled again."""


class FiringsLeft(RuleError):
    """Awaited rules in separate transactions have not ended.

    Attributes
    ----------
    left : dict of str to str
        Reasons, by the name of what has not ended. The names of firings are those in
        ``db.admin.pending_firings()``; a firing whose occurrence cannot be stored is missing there,
        as it is about to become a dead letter. The other names are of internal work: "look for
        firings of ours", after a connection was lost while some were recorded; a firing's name with
        a suffix, for an exclusive rule that becomes due once its triggering work has failed; "rule
        … at …", for a completion by the clock; "abort of …", the event of an abort; "quarantine of
        …", "expiry of rule …", "silence in stream …"; "caller …", a caller's transaction that has
        ended, and starts its firings once activedb knows whether it has committed.
    """

    def __init__(self, message: str, *, left: Mapping[str, str] = MappingProxyType({})):
        super().__init__(message)
        self.left = dict(left)

    @classmethod
    def of(cls, left: Mapping[str, str]) -> Self:
        """Return the error for these names and reasons."""
        shown = [f"{name} ({why})" for name, why in sorted(left.items())[:_LEFT_SHOWN]]
        more = f"; and {len(left) - len(shown)} more" if len(left) > len(shown) else ""
        return cls(
            f"{len(left)} of the rules that were waited for have not ended: {'; '.join(shown)}"
            f"{more}; they continue by themselves: wait again, outside of transactions",
            left=left,
        )


class StreamError(ActiveDBError):
    """An error of a stream of events."""


class BadEvent(StreamError):
    """An input event that cannot be interpreted; it belongs in the dead-letter table."""


class UncertainOrder(BadEvent):
    """The result of an event depends on an order of events that their timestamps do not determine.

    A detector with the policy "raise" raises it after the step was taken: the event is kept, the
    certain matches were made (`made`), and the open choices are remembered (`undecided`). A policy
    function receives this error, and must not raise it.

    Attributes
    ----------
    candidates : tuple of mapping
        Possible matches that are not certain, each with its constituents by part name.
    certain : tuple of mapping
        Matches that the step has made nevertheless, because they are made in every possible order.
    made : tuple of Occurrence
        The same matches as composite occurrences: a handler of the error must not lose them.
    rivals : tuple of Rivals
        For each candidate, by its number, the reason why it is not certain.
    undecided : tuple of Undecided
        The choices that the step has left open; `Detector.resolve` decides them.
    rule : str or None
        Name of the rule that waits for the match, if any.
    """

    def __init__(
        self,
        message: str,
        *,
        candidates: tuple[Mapping[str, Any], ...] = (),
        certain: tuple[Mapping[str, Any], ...] = (),
        made: tuple[Any, ...] = (),
        rivals: tuple[Any, ...] = (),
        undecided: tuple[Any, ...] = (),
        rule: str | None = None,
    ):
        super().__init__(message)
        self.candidates = candidates
        self.certain = certain
        self.made = made
        self.rivals = rivals
        self.undecided = undecided
        self.rule = rule


class DecisionClosed(StreamError):
    """An open decision was made already, or can no longer be made.

    Attributes
    ----------
    decision : str
        Id of the decision.
    """

    def __init__(self, message: str, *, decision: str = ""):
        super().__init__(message)
        self.decision = decision


class PartialsExceeded(BadEvent):
    """A pattern has reached its bound of kept events, and its policy is to refuse more."""


class MatchesExceeded(BadEvent):
    """An event completes too many matches of a pattern, and its policy is to refuse them."""


class ProducerSilent(StreamError):
    """A producer has sent neither events nor heartbeats for longer than allowed.

    Attributes
    ----------
    producer : str
        Name of the producer.
    """

    def __init__(self, message: str, *, producer: str = ""):
        super().__init__(message)
        self.producer = producer


class StreamFull(StreamError):
    """The bound of events waiting to become stable is reached; nothing of the feed was taken."""


class AccessError(StreamError):
    """An s-transaction accessed a row without a key, or outside of its declared access."""


class BatchFailed(StreamError):
    """A batch stopped at an offending event because the run was asked to stop there."""


class ProgramFailed(BatchFailed):
    """A program of a workflow raised; the original error is ``__cause__``.

    Its transaction is undone, recorded as failed, and still due.

    Attributes
    ----------
    workflow, program, transaction : str
    batches : tuple of str
        The source batches that the program was processing.
    reason : str
    taken : str or None
        The batch that `feed` or `apply` has taken, or the transaction that `call` has executed,
        before it raises this. None if there is none, as the failed transaction was due before.
    """

    def __init__(
        self,
        message: str,
        *,
        workflow: str = "",
        program: str = "",
        transaction: str = "",
        batches: tuple[str, ...] = (),
        reason: str = "",
    ):
        super().__init__(message)
        self.workflow = workflow
        self.program = program
        self.transaction = transaction
        self.batches = batches
        self.reason = reason
        self.taken: str | None = None


class CompensationError(StreamError):
    """A compensation was not done, and nothing has changed.

    Attributes
    ----------
    plan : activedb.batches.CompensationPlan or None
        The steps that a compensation would take now.
    """

    def __init__(self, message: str, *, plan: Any = None):
        super().__init__(message)
        self.plan = plan


class AlreadyCompensated(CompensationError):
    """The batch or transaction is compensated already, as far as it can be."""


class HistoryForgotten(CompensationError):
    """A part of the history to compensate was forgotten, as it was old and complete."""


class Interferes(CompensationError):
    """The completion of other batches would be affected; ``plan.interference`` lists them.

    It is also raised if a non-intrusive compensation would do nothing, because other batches need
    every transaction; ``plan.kept`` lists what they need.
    """


class NotCompensable(CompensationError):
    """A program without a compensating action has run within the part to be undone."""


class PlanOutdated(CompensationError):
    """The situation has changed since a plan was made, in a way that matters to it."""


class CompensationFailed(CompensationError):
    """A compensating action raised; the original error is ``__cause__``.

    Attributes
    ----------
    workflow, program, transaction : str
        Identity of the action, and of the transaction that it was to compensate.
    """

    def __init__(
        self, message: str, *, workflow: str = "", program: str = "", transaction: str = ""
    ):
        super().__init__(message)
        self.workflow = workflow
        self.program = program
        self.transaction = transaction


class LineageError(StreamError):
    """A report on batches and transactions is inconsistent; nothing of it was recorded."""


class NotRecorded(LineageError):
    """No batch or transaction has that id."""


class RecordedTwice(LineageError):
    """An id, or a number within a stream or program, is taken."""


class UsedTwice(LineageError):
    """A program would use a piece of a batch twice, although its batches do not overlap."""


class FeedFailed(StreamError):
    """The source that feeds a stream failed."""
