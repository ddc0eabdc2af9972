"""The lineage: which batches there were, and which transactions made the ones of the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from activedb.batches._checks import check_causes, check_inputs, stream_of
from activedb.batches._nodes import Nodes, Numbers
from activedb.batches._records import Batch, BatchKind, Piece, State, Transaction, pieces_of
from activedb.batches._uses import Uses
from activedb.batches._workflow import Program, Workflow
from activedb.errors import LineageError, NotRecorded, RecordedTwice
from activedb.spelling import listed

__all__ = ["InputGiven", "Lineage"]

InputGiven = str | Sequence[Piece | str]
"""An input batch: one that is recorded, by its id, or the pieces of which it is formed."""


class Lineage:
    """Batches and transactions of a workflow, as they are recorded, and where each comes from.

    The ids of batches and transactions share one space of names. Recording is told what has
    happened, in any order that tells a batch before its use; it decides nothing. A call that
    raises has changed nothing. No threads; the caller sees to it that calls come one after another.

    Parameters
    ----------
    workflow : Workflow

    Notes
    -----
    Recording is O(pieces) for an input batch and O(inputs) for a transaction. Questions are
    O(edges) of what they go through, and answer in the order of recording.
    """

    def __init__(self, workflow: Workflow):
        self.workflow = workflow
        self._batches: dict[str, Batch] = {}
        self._transactions: dict[str, Transaction] = {}
        self._nodes = Nodes()
        # By source stream, by program, by (program, stream) of input batches.
        self._numbers = Numbers()
        self._uses = Uses(lambda id: self._transactions[id].is_live)
        self._ended: set[str] = set()

    @classmethod
    def of(cls, workflow: Workflow, records: Iterable[Mapping[str, Any]]) -> Lineage:
        """A lineage as `records` gave it, or a part of one that tells batches before their use.

        Of a part, questions are answered as if there were nothing else; what is still due, by the
        newest input batches in it.

        Raises
        ------
        LineageError
            If the records do not fit the workflow, or each other.
        """
        lineage = cls(workflow)
        for record in records:
            if "transaction" in record:
                lineage._record(
                    record["program"],
                    record["inputs"],
                    record["transaction"],
                    record["number"],
                    record["output"],
                    record["triggered_by"],
                    state=State(record["state"]),
                )
            elif record["kind"] == BatchKind.SOURCE:
                lineage.arrive(record["stream"], record["number"], id=record["batch"])
            elif record["kind"] == BatchKind.INPUT:
                batch = lineage._formed(
                    lineage._program(record["reader"]),
                    pieces_of(record["pieces"]),
                    record["batch"],
                    record["number"],
                )
                lineage._add_batch(batch)
            if record.get("is_withdrawn"):
                lineage.withdraw([record["batch"]])
        return lineage

    # -- recording -------------------------------------------------------------------------

    def arrive(self, stream: str, number: int | None = None, *, id: str | None = None) -> Batch:
        """Record a source batch.

        Parameters
        ----------
        stream : str
            A source of the workflow.
        number : int or None
            Its place in the stream, from 1; the next one by default. Gaps are allowed.
        id : str or None
            ``stream#number`` by default.

        Raises
        ------
        LineageError
            If there is no such source, or the id or number is taken, or the number is none.
        """
        if stream not in self.workflow.sources:
            raise LineageError(
                f"{stream!r} is no source of the workflow; there are "
                f"{listed(self.workflow.sources)}"
            )
        number = self._numbers.free(stream, number, f"source {stream!r}")
        batch = Batch(
            self._nodes.free(id or f"{stream}#{number}"), BatchKind.SOURCE, stream, number
        )
        self._add_batch(batch)
        return batch

    def form(self, program: str, pieces: Iterable[Piece | str], *, id: str | None = None) -> Batch:
        """Record an input batch: pieces of batches of one stream, oldest first.

        Parameters
        ----------
        program : str
            The reader.
        pieces : iterable of Piece or str
            An id stands for a whole batch.
        id : str or None
            ``stream>program#number`` by default.

        Raises
        ------
        LineageError
            If the program does not read the stream, or the pieces are none, unknown, of several
            streams or themselves formed.
        """
        batch = self._formed(self._program(program), pieces_of(pieces), id)
        self._add_batch(batch)
        return batch

    def execute(
        self,
        program: str,
        inputs: Iterable[InputGiven] = (),
        *,
        id: str | None = None,
        number: int | None = None,
        output: str | None = None,
        triggered_by: Iterable[str] = (),
    ) -> Transaction:
        """Record that a transaction has committed, and the batch that it gives out.

        Parameters
        ----------
        program : str
        inputs : iterable
            At most one of each stream that the program reads: a batch by its id, or pieces, of
            which an input batch is formed on the way. A whole batch alone stays what it is; an
            empty input is none.
        id : str or None
            ``program#number`` by default.
        number : int or None
            The next one by default.
        output : str or None
            The id of what it gives out, by default the transaction's with a prime; empty if it
            gives out nothing.
        triggered_by : iterable of str
            Transactions that have triggered it without a batch.

        Raises
        ------
        NotRecorded, RecordedTwice
            As they say.
        UsedTwice
            If a piece was used by the program before, its input batches do not overlap, and that
            use was not compensated.
        LineageError
            If the inputs do not fit the program.
        """
        return self._record(program, inputs, id, number, output, triggered_by, state=State.EXECUTED)

    def fail(
        self,
        program: str,
        inputs: Iterable[InputGiven] = (),
        *,
        id: str | None = None,
        number: int | None = None,
        triggered_by: Iterable[str] = (),
    ) -> Transaction:
        """Record that a transaction has aborted; as `execute`, but it gives out nothing."""
        return self._record(program, inputs, id, number, "", triggered_by, state=State.FAILED)

    def succeed(self, transaction: str, *, output: str | None = None) -> Transaction:
        """Record that a transaction that had failed was executed after all.

        Raises
        ------
        LineageError
            If it has not failed, or the output's id is taken.
        """
        old = self.transaction(transaction)
        if old.state is not State.FAILED:
            raise LineageError(f"transaction {transaction} has not failed: it is {old.state}")
        new = replace(
            old,
            state=State.EXECUTED,
            output=self._nodes.free(f"{old.id}'" if output is None else output)
            if output != ""
            else "",
        )
        self._transactions[old.id] = new
        self._give_out(new)
        return new

    def compensate(self, transactions: Iterable[str]) -> None:
        """Record that transactions were compensated; failed ones count as given up.

        Raises
        ------
        LineageError
            If one of them is compensated already.
        """
        found = [self.transaction(name) for name in dict.fromkeys(transactions)]
        for each in found:
            if not each.is_live:
                raise LineageError(f"transaction {each.id} is compensated already")
        for each in found:
            self._transactions[each.id] = replace(each, state=State.COMPENSATED)

    def withdraw(self, batches: Iterable[str]) -> None:
        """Record that batches were taken from those who waited for them (`Forming.withdraw`).

        Raises
        ------
        NotRecorded
            If there is no such batch.
        """
        for found in [self.batch(id) for id in batches]:
            self._batches[found.id] = replace(found, is_withdrawn=True)

    def end(self, source: str) -> None:
        """Record that no batch of a source is to come, and that what came has run to its end.

        Raises
        ------
        LineageError
            If there is no such source.
        """
        if source not in self.workflow.sources:
            raise LineageError(
                f"{source!r} is no source of the workflow; there are "
                f"{listed(self.workflow.sources)}"
            )
        self._ended.add(source)

    # -- what is recorded ------------------------------------------------------------------

    def __contains__(self, id: object) -> bool:
        """Whether a batch or transaction is recorded."""
        return id in self._nodes.place

    def __len__(self) -> int:
        """Count batches and transactions."""
        return len(self._nodes.place)

    def batch(self, id: str) -> Batch:
        """The batch of an id; `NotRecorded` if there is none."""
        found = self._batches.get(id)
        if found is None:
            raise NotRecorded(f"no batch {id!r} is recorded" + self._or_else(id))
        return found

    def transaction(self, id: str) -> Transaction:
        """The transaction of an id; `NotRecorded` if there is none."""
        found = self._transactions.get(id)
        if found is None:
            raise NotRecorded(f"no transaction {id!r} is recorded" + self._or_else(id))
        return found

    def is_transaction(self, id: str) -> bool:
        """Whether an id is that of a transaction."""
        return id in self._transactions

    def is_source(self, id: str) -> bool:
        """Whether an id is that of a source batch."""
        return id in self._batches and self._batches[id].kind is BatchKind.SOURCE

    def batches(self) -> tuple[Batch, ...]:
        """All batches."""
        return tuple(self._batches.values())

    def transactions(self) -> tuple[Transaction, ...]:
        """All transactions."""
        return tuple(self._transactions.values())

    def source_batches(self, stream: str) -> tuple[Batch, ...]:
        """The batches of a source stream, by number. O(n log n)."""
        found = [b for b in self._batches.values() if b.stream == stream and self.is_source(b.id)]
        return tuple(sorted(found, key=lambda batch: batch.number))

    def next_of(self, id: str) -> tuple[str, ...]:
        """What follows directly: of a batch, input batches and transactions; else what it made."""
        return tuple(self._nodes.next[self._nodes.known(id)])

    def previous_of(self, id: str) -> tuple[str, ...]:
        """What comes directly before: the batches that it is made of, the transactions."""
        return tuple(self._nodes.previous[self._nodes.known(id)])

    # -- where batches come from, and go to --------------------------------------------------

    def descendants(self, ids: str | Iterable[str], *, without: Collection[str] = ()) -> set[str]:
        """All that follows from batches or transactions, these with it.

        With `without`, what is in that set is not gone through again.
        """
        return self._nodes.reach(ids, forward=True, without=without)

    def ancestors(self, ids: str | Iterable[str], *, without: Collection[str] = ()) -> set[str]:
        """All that batches or transactions come from, these with it; see `descendants`."""
        return self._nodes.reach(ids, forward=False, without=without)

    def sources_of(self, ids: str | Iterable[str]) -> tuple[str, ...]:
        """The source batches from which batches, or what transactions used, are derived.

        The least set that is an scover in the sense of the paper's definition (section 3). A
        source batch is its own.
        """
        return self.in_order(id for id in self.ancestors(ids) if self.is_source(id))

    def derived_from(self, ids: str | Iterable[str]) -> tuple[str, ...]:
        """The batches that are derived from batches, or that transactions have made possible."""
        given = {ids} if isinstance(ids, str) else set(ids)
        found = self.descendants(given) - given
        return self.in_order(id for id in found if id in self._batches)

    def in_order(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Some ids in the order in which they were recorded. O(n log n)."""
        return tuple(sorted(ids, key=self._nodes.place_of))

    def in_transaction_order(self, transactions: Iterable[str]) -> tuple[str, ...]:
        """Some transactions by program, in the workflow's order, then by number. O(n log n).

        That is an order in which each comes after those that it follows in the transaction graph,
        as all edges of that go along the partial order of the programs.
        """

        def key(id: str) -> tuple[int, int]:
            found = self.transaction(id)
            return self.workflow.rank(found.program), found.number

        return tuple(sorted(transactions, key=key))

    def is_still_due(self, batch: str) -> bool:
        """Whether a program is to use a source batch or output once more, or has not yet.

        Overlapping input batches keep what is in the newest of them, save for the first `step`
        pieces. What is withdrawn, or was given out by a transaction that is compensated, is due to
        nobody. O(readers · pieces of an input batch).
        """
        found = self.batch(batch)
        if found.kind is BatchKind.INPUT or found.is_withdrawn or self.is_at_rest(found.stream):
            return False
        if found.producer and not self._transactions[found.producer].is_live:
            return False
        return any(
            self._has_use_for(found, program) for program in self.workflow.readers(found.stream)
        )

    def readers_still_due(self, batch: str) -> tuple[Program, ...]:
        """The programs because of which `is_still_due` is true."""
        found = self.batch(batch)
        if not self.is_still_due(batch):
            return ()
        return tuple(p for p in self.workflow.readers(found.stream) if self._has_use_for(found, p))

    def is_at_rest(self, stream: str) -> bool:
        """Whether all sources from which a stream is derived have ended."""
        return self.workflow.sources_above(stream) <= self._ended

    def records(self) -> list[dict[str, Any]]:
        """All of it as plain data, in the order of recording; `of` makes the same again.

        Which sources have ended is not told.
        """
        known: dict[str, Batch | Transaction] = {**self._batches, **self._transactions}
        return [known[id].record() for id in self._nodes.place]

    # -- inside ----------------------------------------------------------------------------

    def _record(
        self,
        program_name: str,
        inputs: Iterable[InputGiven],
        id: str | None,
        number: int | None,
        output: str | None,
        triggered_by: Iterable[str],
        *,
        state: State,
    ) -> Transaction:
        program = self._program(program_name)
        number = self._numbers.free(program.name, number, f"program {program.name!r}")
        batches = [self._input(program, given) for given in inputs if given]
        causes = tuple(dict.fromkeys(triggered_by))
        check_inputs(program, batches)
        check_causes(self.workflow, program, map(self.transaction, causes))
        used = [(batch.stream, batch.pieces or (Piece(batch.id),)) for batch in batches]
        for stream, pieces in used:
            self._uses.check(program.name, pieces, program.reads[stream])
        new_id = self._nodes.free(id or f"{program.name}#{number}")
        given_out = f"{new_id}'" if output is None else output
        new = [batch for batch in batches if batch.id not in self._nodes.place]
        named = [new_id, *([given_out] if given_out else []), *(batch.id for batch in new)]
        for name in named:
            self._nodes.free(name)
            if named.count(name) > 1:
                raise RecordedTwice(f"{name!r} would be the id of two things")
        transaction = Transaction(
            new_id, program.name, number, tuple(b.id for b in batches), given_out, causes, state
        )
        for batch in new:
            self._add_batch(batch)
        self._transactions[new_id] = transaction
        self._numbers.take(program.name, number)
        self._nodes.add(new_id, (*transaction.inputs, *causes))
        for stream, pieces in used:
            self._uses.add(program.name, stream, pieces, transaction=new_id, number=number)
        self._give_out(transaction)
        return transaction

    def _give_out(self, transaction: Transaction) -> None:
        if transaction.output:
            batch = Batch(
                transaction.output,
                BatchKind.OUTPUT,
                transaction.program,
                transaction.number,
                producer=transaction.id,
            )
            self._batches[batch.id] = batch
            self._nodes.add(batch.id, (transaction.id,))

    def _add_batch(self, batch: Batch) -> None:
        self._batches[batch.id] = batch
        self._numbers.take(_numbered_by(batch), batch.number)
        self._nodes.add(batch.id, dict.fromkeys(piece.batch for piece in batch.pieces))

    def _input(self, program: Program, given: InputGiven) -> Batch:
        if isinstance(given, str):
            return self.batch(given)
        pieces = pieces_of(given)
        if len(pieces) == 1 and pieces[0].parts == 1:
            return self.batch(pieces[0].batch)
        return self._formed(program, pieces, None)

    def _formed(
        self, program: Program, pieces: tuple[Piece, ...], id: str | None, number: int | None = None
    ) -> Batch:
        stream = stream_of(program, pieces, self.batch)
        number = self._numbers.free(
            (program.name, stream), number, f"input batches of {program.name!r}"
        )
        return Batch(
            self._nodes.free(id or f"{stream}>{program.name}#{number}"),
            BatchKind.INPUT,
            stream,
            number,
            reader=program.name,
            pieces=pieces,
        )

    def _has_use_for(self, batch: Batch, program: Program) -> bool:
        grouping = program.reads[batch.stream]
        return self._uses.are_to_come(batch.id, program.name, batch.stream, grouping)

    def _program(self, name: str) -> Program:
        program = self.workflow.programs.get(name)
        if program is None:
            raise LineageError(
                f"{name!r} is no program of the workflow; there are "
                f"{listed(self.workflow.programs)}"
            )
        return program

    def _or_else(self, id: str) -> str:
        other = "transaction" if id in self._transactions else "batch"
        return f"; it is a {other}" if id in self._nodes.place else ""


def _numbered_by(batch: Batch) -> object:
    return (batch.reader, batch.stream) if batch.kind is BatchKind.INPUT else batch.stream
