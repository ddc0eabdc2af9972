"""The one error tree of activedb.

Every message says what is wrong and what to do; the original error, where there is one, stays
attached as ``__cause__``::

    ActiveDBError
    ├── ConfigurationError            a setting, file or tool is missing or wrong
    │   ├── InvalidURL                the database URL cannot be understood
    │   ├── ServerUnreachable         no server answers at the URL
    │   ├── UnsuitablePooler          a pooler in between does not keep sessions
    │   ├── JavaNotFound              Spark needs a JDK 17 or newer
    │   ├── UntrustedFile             a file of rules or settings that anybody may write
    │   └── CheckpointMismatch        checkpoint and ledger do not belong together
    ├── DefinitionError               a rule, pattern, stream or table is declared wrongly
    │   ├── RuleSignatureError        a rule function cannot be called as fn(t, o)
    │   ├── ConditionWrites           a rule's condition writes; it may only read
    │   ├── PatternError              an event expression has no meaning
    │   ├── RuleSyntaxError           a text of the rule language cannot be read, and where
    │   └── WorkflowError             a workflow of atomic batches is declared wrongly
    │       ├── WorkflowCycle         programs would have to come before themselves
    │       ├── UnknownName           a program names a stream or program that nobody defines
    │       ├── DefinedTwice          two definitions of one name
    │       └── WorkflowChanged       it is not what batches of that name were recorded of
    ├── TransactionError
    │   ├── TransactionAborted        the transaction, or a superior of it, aborted
    │   ├── TransactionCancelled      somebody cancelled it from outside
    │   ├── TransactionTimeout        it did not end in the time it was given
    │   ├── TransactionStateError     a move the lifecycle does not allow
    │   │   ├── WrongThread           used by a thread it does not run on
    │   │   └── WrongProcess          used by a child that was forked from its process
    │   ├── SelfDeadlock              a wait that only the waiting thread could end
    │   ├── Deadlock                  chosen as victim; safe to retry
    │   ├── LockTimeout               a lock was not granted in time
    │   │   └── LockNotAvailable      a lock was not free at once, as asked with nowait
    │   ├── SerializationConflict     the server gave up the transaction; safe to retry
    │   └── CycleLimitExceeded        rules keep triggering rules
    ├── StoreError
    │   ├── RowExists                 insert of a key that is there already
    │   ├── RowNotFound               update or delete of a key that is not there
    │   ├── InvalidRow                missing value, wrong type
    │   │   └── UnknownColumn         a column that the table, or the row, does not have
    │   ├── ConstraintViolation       a constraint of the database refused the row
    │   │   ├── UniqueViolation       another row has the same key or unique value
    │   │   └── ForeignKeyViolation   a row refers to what is not there, or is referred to
    │   ├── TableOwned                another process, or a stream, keeps the table to itself
    │   ├── UnsupportedStatement      a statement this release cannot run over the sphere
    │   ├── StatementCancelled        somebody told the server to stop the statement
    │   └── ConnectionLost            the server went away during a transaction
    ├── RuleError
    │   ├── RuleFailed                a rule raised; carries the rule's name and the cause
    │   │   └── RuleInQuarantine      it has failed too often, and is not run any more
    │   └── FiringsLeft               rules that were waited for have not ended
    └── StreamError
        ├── BadEvent                  an input event that cannot be understood
        │   ├── UncertainOrder        what an event completes depends on an order nobody knows
        │   ├── PartialsExceeded      a pattern keeps as many events as it may, and refuses more
        │   └── MatchesExceeded       one event completes more matches of a pattern than it may
        │   └── PartialsExceeded      a pattern keeps as many events as it may, and refuses more
        ├── DecisionClosed            an open choice has been made already, or can no longer be
        ├── ProducerSilent            a producer has not been heard of for too long
        ├── StreamFull                as many events as may wait for a producer do so
        ├── AccessError               an s-transaction accessed what it must not
        ├── BatchFailed               a batch stopped at an offending event, as asked
        │   └── ProgramFailed         a program of a workflow raised; the batch waits for it
        ├── CompensationError         a compensation was not done; everything is as it was
        │   ├── AlreadyCompensated    there is nothing left to compensate
        │   ├── CompensationFailed    a compensating action raised
        │   ├── HistoryForgotten      a part of what it is about is not recorded any more
        │   ├── Interferes            other batches would be affected, and nobody allowed it
        │   ├── NotCompensable        a program has no compensating action
        │   └── PlanOutdated          something has changed since the plan was made
        ├── LineageError              what is told of batches and transactions cannot be
        │   ├── NotRecorded           no batch or transaction has that id
        │   ├── RecordedTwice         an id or a number is taken
        │   └── UsedTwice             a program would use a piece of a batch once more
        └── FeedFailed                the source of a stream failed
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
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
    """Root of every error that activedb raises on purpose."""

    def again(self) -> Self:
        """An error like this one, to be raised on one more thread.

        One object would gather the tracebacks and notes of all threads that raise it.
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
    """A pooler between here and the server does not keep a connection's session.

    Its locks and settings would not hold: it shares the server's sessions among its clients, or
    drops settings.
    """


class JavaNotFound(ConfigurationError):
    """Spark needs a JDK 17 or newer, and none was found."""


class UntrustedFile(ConfigurationError):
    """A file of rules or settings is refused, as every account of the machine may write it."""


class CheckpointMismatch(ConfigurationError):
    """The checkpoint of a stream and the ledger in the database do not belong together."""


class DefinitionError(ActiveDBError):
    """A rule, a pattern, a stream or a table is declared wrongly."""


class RuleSignatureError(DefinitionError):
    """A rule's function cannot be called as ``fn(t, o)``."""


class ConditionWrites(DefinitionError):
    """A rule's condition wrote, or changed a rule; it may only read.

    Attributes
    ----------
    rule : str
        The rule's name.
    """

    def __init__(self, message: str, *, rule: str = ""):
        super().__init__(message)
        self.rule = rule


class PatternError(DefinitionError):
    """An event expression has no meaning."""


class RuleSyntaxError(DefinitionError):
    """A text of the rule language cannot be read.

    Attributes
    ----------
    line, column : int
        Where, both from 1.
    excerpt : str
        The line, and below it a caret at the column.
    """

    def __init__(self, message: str, *, line: int = 1, column: int = 1, excerpt: str = ""):
        super().__init__(message)
        self.line = line
        self.column = column
        self.excerpt = excerpt

    def of_file(self, path: object) -> RuleSyntaxError:
        """The same error, naming the file that has the text."""
        return RuleSyntaxError(
            f"{path}: {self}", line=self.line, column=self.column, excerpt=self.excerpt
        )


class WorkflowError(DefinitionError):
    """A workflow is declared wrongly."""


class WorkflowCycle(WorkflowError):
    """Programs would have to come before themselves.

    Attributes
    ----------
    programs : tuple of str
        Each comes before the next one, and the last before the first.
    """

    def __init__(self, programs: Iterable[str]):
        self.programs = tuple(programs)
        super().__init__(
            "these programs would come before themselves: "
            + " before ".join([*self.programs, self.programs[0]])
            + "; take one of their reads= or after= away"
        )


class UnknownName(WorkflowError):
    """A program names a stream or program that nobody defines."""


class DefinedTwice(WorkflowError):
    """Two programs, or a program and a source stream, have one name."""


class WorkflowChanged(WorkflowError):
    """A workflow is defined otherwise than when batches of that name were recorded."""


class TransactionError(ActiveDBError):
    """Something about a transaction, not about the data in it."""


class TransactionAborted(TransactionError):
    """The transaction, or a superior of it, has aborted.

    Attributes
    ----------
    transaction : int
        Id of the transaction whose abort this is; 0 where it is not known.
    """

    def __init__(self, message: str, *, transaction: int = 0):
        super().__init__(message)
        self.transaction = transaction


class TransactionCancelled(TransactionError):
    """Somebody cancelled the transaction, or a superior of it, from outside."""


class TransactionTimeout(TransactionError):
    """The transaction, or a superior of it, did not end in the time it was given."""


class TransactionStateError(TransactionError):
    """A move that the lifecycle of transactions does not allow."""


class WrongThread(TransactionStateError):
    """A transaction was used by a thread that it does not run on."""


class WrongProcess(TransactionStateError):
    """Something of a parent process was used by a child that was forked from it."""


class SelfDeadlock(TransactionError):
    """A wait that nothing but the waiting thread itself could end; trying again is of no use."""


class Deadlock(TransactionError):
    """This transaction was chosen as the victim of a deadlock; retrying it is safe.

    Attributes
    ----------
    exhausted : bool
        Whether retrying a subtransaction is of no use any more: it was retried as often as
        allowed, or the cycle goes through another hierarchy. The top-level transaction is
        retried all the same.
    breaker : int
        Id of the smallest transaction whose abort breaks the cycle: this one, or a superior that
        retains what others wait for. Trying again what is below it would end as before.
    """

    exhausted = False
    breaker = 0


class LockTimeout(TransactionError):
    """A lock was not granted in time; retrying is safe."""


class LockNotAvailable(LockTimeout):
    """A lock was not free at once, and the request said not to wait."""


class SerializationConflict(TransactionError):
    """The server gave up the top-level transaction; retrying it as a whole is safe."""


class CycleLimitExceeded(TransactionError):
    """Rules keep triggering rules beyond the configured bound."""


class StoreError(ActiveDBError):
    """Something about stored rows or the server that keeps them."""

    def during(self, what: str) -> Self:
        """The same error, saying in which statement or rule it was raised.

        One that only repeats another, as the transaction takes no more, is about none of them.
        """
        if isinstance(self.__cause__, StoreError):
            return self
        other = self.again().with_traceback(self.__traceback__)
        other.args = (f"{self}; {' '.join(what.split())}",)
        return other


class RowExists(StoreError):
    """An insert of a key that is there already."""


class RowNotFound(StoreError):
    """An update or delete of a key that is not there."""


class InvalidRow(StoreError):
    """A row with an unknown column, a missing value or a value of the wrong type."""


class UnknownColumn(InvalidRow, KeyError):
    """A column was named that the table, or the row, does not have."""

    __str__ = Exception.__str__  # that of a KeyError shows a repr


class ConstraintViolation(StoreError):
    """A constraint of the database refused a row.

    Attributes
    ----------
    table, constraint, detail : str
        What the server says: the table, the constraint's name, the offending key or row.
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

    `table` and `key` are those of the row that was refused.
    """


class ForeignKeyViolation(ConstraintViolation):
    """A row refers to a row that is not there, or rows refer to one that is to go.

    `table` and `key` are those of the row that was refused, the one that refers or the one that
    was to go; `constraint` is the foreign key's name.
    """


class TableOwned(StoreError):
    """Another process keeps the table in its memory, or a stream's programs do, and write it."""


class UnsupportedStatement(StoreError):
    """A statement that this release cannot run over the versions of a sphere."""


class StatementCancelled(StoreError):
    """The server stopped a statement because somebody told it to, or because of its own limit."""


class ConnectionLost(StoreError):
    """The server went away during a transaction.

    Attributes
    ----------
    committed : bool or None
        Whether the transaction had committed. False: nothing of it is there, so trying it again
        is safe. None: nobody knows.
    """

    def __init__(self, message: str, *, committed: bool | None = False):
        super().__init__(message)
        self.committed = committed

    def during(self, what: str) -> Self:
        """The error itself: it is about whatever ran then."""
        return self


class RuleError(ActiveDBError):
    """Something about the execution of a rule."""


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
    """A rule has failed too often in a row, and is not run until it is enabled again."""


class FiringsLeft(RuleError):
    """Rules in transactions of their own, which were waited for, have not ended.

    Attributes
    ----------
    left : dict of str to str
        Name of what has not ended, to why. The names of firings are as in
        ``db.pending_firings()``; one whose occurrence cannot be kept is not there, as it is about
        to become a dead letter. The other names are of work of activedb's own: "look for firings
        of ours", after a connection was lost while some were recorded; "… falls due" with the name
        of a firing, of an exclusive rule whose triggering work has failed; "rule … at …", what
        the clock completes; "abort of …", the event of an abort; "quarantine of …", "expiry of
        rule …", "silence in stream …".
    """

    left: Mapping[str, str]

    @classmethod
    def of(cls, left: Mapping[str, str]) -> Self:
        """The error for these."""
        shown = [f"{name} ({why})" for name, why in sorted(left.items())[:_LEFT_SHOWN]]
        more = f"; and {len(left) - len(shown)} more" if len(left) > len(shown) else ""
        error = cls(
            f"{len(left)} of the rules that were waited for have not ended: {'; '.join(shown)}"
            f"{more}; they go on by themselves: wait again, outside of transactions"
        )
        error.left = dict(left)
        return error


class StreamError(ActiveDBError):
    """Something about a stream of events."""


class BadEvent(StreamError):
    """An input event that cannot be understood; it belongs in the dead-letter table."""


class UncertainOrder(BadEvent):
    """What an event completes depends on an order of events that their timestamps do not tell.

    A detector with the policy "raise" raises it after the step was taken: the event is kept, what
    is certain was made (`made`), and what is open is remembered (`undecided`). A function that
    decides as a policy is given it, and is not to raise it.

    Attributes
    ----------
    candidates : tuple of mapping
        The matches that are possible and not certain, each the constituents by part name.
    certain : tuple of mapping
        What the step has made all the same, as it is made in every order that is possible.
    made : tuple of Occurrence
        The same as composite occurrences: who catches the error must not lose them.
    rivals : tuple of Rivals
        For each candidate, by its number, why it is not certain.
    undecided : tuple of Undecided
        The choices that the step has left open; `Detector.resolve` decides them.
    rule : str or None
        The name of the rule, if a rule waits for the match.
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
    """A choice that was open has been made already, or can no longer be made.

    Attributes
    ----------
    decision : str
        Its id.
    """

    def __init__(self, message: str, *, decision: str = ""):
        super().__init__(message)
        self.decision = decision


class PartialsExceeded(BadEvent):
    """A pattern keeps as many events as it may, and its policy is to refuse more."""


class MatchesExceeded(BadEvent):
    """One event completes more matches of a pattern than it may, and its policy is to refuse."""


class ProducerSilent(StreamError):
    """A producer has sent neither events nor heartbeats for longer than it may.

    Attributes
    ----------
    producer : str
        Its name.
    """

    def __init__(self, message: str, *, producer: str = ""):
        super().__init__(message)
        self.producer = producer


class StreamFull(StreamError):
    """As many events as may wait until they are stable do so; nothing of the feed was taken."""


class AccessError(StreamError):
    """An s-transaction accessed what it must not: no key, or outside what it declared."""


class BatchFailed(StreamError):
    """A batch stopped at an offending event because the run was asked to stop there."""


class ProgramFailed(BatchFailed):
    """A program of a workflow raised; the original error is ``__cause__``.

    Its transaction is undone, recorded as failed, and still due.

    Attributes
    ----------
    workflow, program, transaction : str
    batches : tuple of str
        The source batches that it is about.
    reason : str
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


class CompensationError(StreamError):
    """A compensation was not done, and everything is as it was.

    Attributes
    ----------
    plan : activedb.batches.CompensationPlan or None
        What would be done now.
    """

    def __init__(self, message: str, *, plan: Any = None):
        super().__init__(message)
        self.plan = plan


class AlreadyCompensated(CompensationError):
    """What was asked about is compensated already, as far as it can be."""


class HistoryForgotten(CompensationError):
    """A part of what was to be compensated has been forgotten, as it was old and complete."""


class Interferes(CompensationError):
    """The completion of other batches would be affected; ``plan.interference`` says of whom."""


class NotCompensable(CompensationError):
    """A program without a compensating action has executed what is to be undone."""


class PlanOutdated(CompensationError):
    """Something that matters to a plan has changed since it was made."""


class CompensationFailed(CompensationError):
    """A compensating action raised; the original error is ``__cause__``.

    Attributes
    ----------
    workflow, program, transaction : str
        Whose action it is, and what it was to compensate.
    """

    def __init__(
        self, message: str, *, workflow: str = "", program: str = "", transaction: str = ""
    ):
        super().__init__(message)
        self.workflow = workflow
        self.program = program
        self.transaction = transaction


class LineageError(StreamError):
    """What is told of batches and transactions cannot be; nothing of it was recorded."""


class NotRecorded(LineageError):
    """No batch or transaction has that id."""


class RecordedTwice(LineageError):
    """An id, or a number within a stream or program, is taken."""


class UsedTwice(LineageError):
    """A program would use a piece of a batch once more, although its batches do not overlap."""


class FeedFailed(StreamError):
    """The source that feeds a stream failed."""
