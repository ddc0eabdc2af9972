"""Lineage: the batches and transactions of a workflow, their derivation, and their validation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from activedb.batches._records import Batch, BatchKind, Piece, State, Transaction, pieces_of
from activedb.batches._workflow import Grouping, Program, Workflow
from activedb.errors import LineageError, NotRecorded, RecordedTwice, UsedTwice
from activedb.spelling import listed

__all__ = [
    "InputGiven",
    "Lineage",
    "Nodes",
    "Numbers",
    "Uses",
    "check_causes",
    "check_inputs",
    "check_reads",
    "stream_of",
]


class Nodes:
    """Ids in the order of recording, with edges in both directions. Acyclic by construction."""

    def __init__(self) -> None:
        self.place: dict[str, int] = {}
        self.next: dict[str, list[str]] = {}
        self.previous: dict[str, list[str]] = {}

    def add(self, id: str, previous: Iterable[str]) -> None:
        """Add a new node behind others, all of which exist."""
        self.place[id] = len(self.place)
        self.next[id] = []
        self.previous[id] = list(dict.fromkeys(previous))
        for other in self.previous[id]:
            self.next[other].append(id)

    def free(self, id: str) -> str:
        """Return the id after checking that it is a non-empty string and not taken."""
        if not isinstance(id, str) or not id:
            raise LineageError(f"an id must be a non-empty string, not {id!r}")
        if id in self.place:
            raise RecordedTwice(f"{id!r} is recorded already")
        return id

    def place_of(self, id: str) -> int:
        """Return the place of an id in the order of recording."""
        return self.place[self.known(id)]

    def known(self, id: str) -> str:
        """Return the id after checking that it is recorded."""
        if id not in self.place:
            raise NotRecorded(f"no batch or transaction {id!r} is recorded")
        return id

    def reach(
        self, ids: str | Iterable[str], *, forward: bool, without: Collection[str] = ()
    ) -> set[str]:
        """Return the nodes reachable forward or backward from some nodes, including these.

        O(edges found). Nodes in `without` are neither returned nor searched.
        """
        edges = self.next if forward else self.previous
        waiting = [self.known(id) for id in ([ids] if isinstance(ids, str) else ids)]
        found: set[str] = set()
        while waiting:
            id = waiting.pop()
            if id not in found and id not in without:
                found.add(id)
                waiting += edges[id]
        return found


class Numbers:
    """Numbers from 1, each taken once within its sequence."""

    def __init__(self) -> None:
        self._taken: dict[object, set[int]] = {}
        self._highest: dict[object, int] = {}

    def free(self, sequence: object, number: int | None, what: str) -> int:
        """Return the number after checking that it is free; for None, one above the highest."""
        if number is None:
            return self._highest.get(sequence, 0) + 1
        if type(number) is not int or number < 1:
            raise LineageError(f"numbers of {what} must be whole numbers from 1, not {number!r}")
        if number in self._taken.get(sequence, ()):
            raise RecordedTwice(f"number {number} of {what} is recorded already")
        return number

    def take(self, sequence: object, number: int) -> None:
        """Take a number that was free."""
        self._taken.setdefault(sequence, set()).add(number)
        self._highest[sequence] = max(number, self._highest.get(sequence, 0))


# -- record of the pieces that programs have used or have yet to use -------------------------------


class Uses:
    """Uses of pieces by programs.

    Parameters
    ----------
    is_live : callable
        Function that returns whether the transaction with an id is not compensated.
    """

    def __init__(self, is_live: Callable[[str], bool]):
        self._is_live = is_live
        # By batch and program: the transactions that have used each piece.
        self._users: dict[tuple[str, str], dict[Piece, list[str]]] = {}
        # By program and stream: the input batch of the transaction with the highest number.
        self._newest: dict[tuple[str, str], tuple[int, tuple[Piece, ...]]] = {}

    def check(self, program: str, pieces: Iterable[Piece], grouping: Grouping) -> None:
        """Raise if a program cannot use some pieces.

        Raises
        ------
        UsedTwice
            If input batches do not overlap, and a use of the same piece stands.
        LineageError
            If the batch was cut into another number of parts before.
        """
        for piece in pieces:
            users = self._users.get((piece.batch, program), {})
            cut = next((other.parts for other in users if other.parts != piece.parts), None)
            if cut is not None:
                raise LineageError(
                    f"{program!r} has used {piece.batch} cut in {cut}: it cannot use {piece}"
                )
            if grouping.overlaps:
                continue
            for user in users.get(piece, ()):
                if self._is_live(user):
                    raise UsedTwice(
                        f"{piece} was used by {program!r} before, in {user}: its input batches do "
                        "not overlap"
                    )

    def add(
        self,
        program: str,
        stream: str,
        pieces: tuple[Piece, ...],
        *,
        transaction: str,
        number: int,
    ) -> None:
        """Record the use of an input batch by the transaction of that number."""
        for piece in pieces:
            users = self._users.setdefault((piece.batch, program), {})
            users.setdefault(piece, []).append(transaction)
        newest = self._newest.get((program, stream))
        if newest is None or newest[0] < number:
            self._newest[program, stream] = number, pieces

    def are_to_come(self, batch: str, program: str, stream: str, grouping: Grouping) -> bool:
        """Return whether a program has yet to use a piece of a batch, perhaps not the first time.

        The next input batch shares the pieces of the newest one, except for its first `step`
        pieces.
        """
        users = self._users.get((batch, program))
        if not users or len(users) < next(iter(users)).parts:
            return True
        if not grouping.overlaps:
            return False
        kept = self._newest[program, stream][1][grouping.step - grouping.size :]
        return any(piece.batch == batch for piece in kept)


# -- validation of input batches against their program and its workflow ----------------------------


def stream_of(program: Program, pieces: tuple[Piece, ...], batch: Callable[[str], Batch]) -> str:
    """Return the stream whose pieces form an input batch of a program.

    Raises
    ------
    LineageError
        If there are no pieces, a piece occurs twice or is no part, a piece is of an input batch,
        or the pieces are of several streams or of one that the program does not read.
    """
    if not pieces:
        raise LineageError(f"an input batch of {program.name!r} has at least one piece")
    if len(set(pieces)) < len(pieces):
        raise LineageError(f"an input batch of {program.name!r} would have a piece twice")
    streams = set()
    cuts: dict[str, int] = {}
    for piece in pieces:
        if cuts.setdefault(piece.batch, piece.parts) != piece.parts:
            raise LineageError(
                f"an input batch of {program.name!r} would have pieces of {piece.batch} cut in "
                f"{cuts[piece.batch]} and in {piece.parts}"
            )
        found = batch(piece.batch)
        if found.kind is BatchKind.INPUT:
            raise LineageError(
                f"{piece.batch} is an input batch itself: form from the batches it is made of"
            )
        if not 1 <= piece.part <= piece.parts:
            raise LineageError(f"a batch has no such part: {piece}")
        streams.add(found.stream)
    if len(streams) > 1:
        raise LineageError(
            f"an input batch is of one stream, not of {listed(sorted(streams))}: give the program "
            "one input batch of each"
        )
    stream = streams.pop()
    check_reads(program, stream)
    return stream


def check_reads(program: Program, stream: str) -> None:
    """Raise `LineageError` if a program does not read a stream."""
    if stream not in program.reads:
        raise LineageError(
            f"program {program.name!r} does not read {stream!r}; it reads {listed(program.reads)}"
        )


def check_inputs(program: Program, batches: Iterable[Batch]) -> None:
    """Raise `LineageError` if input batches do not fit a program.

    They must exist if the program reads streams, be formed for this program, and be of distinct
    streams.
    """
    seen: set[str] = set()
    for batch in batches:
        if batch.reader not in ("", program.name):
            raise LineageError(
                f"{batch.id} was formed for {batch.reader!r}, not for {program.name!r}"
            )
        check_reads(program, batch.stream)
        if batch.stream in seen:
            raise LineageError(
                f"a transaction of {program.name!r} has one input batch of {batch.stream!r}: form "
                "one of all the pieces"
            )
        seen.add(batch.stream)
    if program.reads and not seen:
        raise LineageError(
            f"program {program.name!r} reads {listed(program.reads)}: a transaction of it has an "
            "input batch"
        )


def check_causes(workflow: Workflow, program: Program, causes: Iterable[Transaction]) -> None:
    """Raise `LineageError` if a cause is of a program that does not precede this one."""
    for cause in causes:
        if not workflow.precedes(cause.program, program.name):
            raise LineageError(
                f"{cause.id} cannot have triggered a transaction of {program.name!r}: "
                f"{cause.program!r} does not come before it; name it in after="
            )


# -- lineage: the batches and transactions of a workflow, and their derivation ---------------------


InputGiven = str | Sequence[Piece | str]
"""Input batch: the id of a recorded one, or the pieces that form it."""


class Lineage:
    """Recorded batches and transactions of a workflow, with the derivation of each.

    The ids of batches and transactions share one namespace. Events are recorded in any order in
    which a batch comes before its use. A call that raises has changed nothing. There are no
    threads; the caller must serialise calls.

    Parameters
    ----------
    workflow : Workflow

    Notes
    -----
    Recording is O(pieces) for an input batch and O(inputs) for a transaction. Queries are O(edges
    searched), and their results are in the order of recording.
    """

    def __init__(self, workflow: Workflow):
        self.workflow = workflow
        self._batches: dict[str, Batch] = {}
        self._transactions: dict[str, Transaction] = {}
        self._nodes = Nodes()
        # By source stream, by program, and by (program, stream) of input batches.
        self._numbers = Numbers()
        self._uses = Uses(lambda id: self._transactions[id].is_live)
        self._ended: set[str] = set()

    @classmethod
    def of(cls, workflow: Workflow, records: Iterable[Mapping[str, Any]]) -> Lineage:
        """Build from the result of `records`, or from a part of it with batches before their use.

        For a part, queries are answered as if there were nothing else. Batches still due are
        determined by its newest input batches.

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
            Place in the stream, from 1; the next one by default. Gaps are allowed.
        id : str or None
            ``stream#number`` by default.

        Raises
        ------
        LineageError
            If there is no such source, the id or number is taken, or the number is not valid.
        """
        if stream not in self.workflow.sources:
            raise LineageError(
                f"{stream!r} is not a source of the workflow; there are "
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
            A string is the id of a whole batch.
        id : str or None
            ``stream>program#number`` by default.

        Raises
        ------
        LineageError
            If the program does not read the stream, or there are no pieces, or they are unknown, of
            several streams or of input batches.
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
        """Record that a transaction has committed, and its output batch.

        Parameters
        ----------
        program : str
        inputs : iterable
            At most one of each stream that the program reads: the id of a batch, or pieces, from
            which an input batch is formed. A single whole batch is used as it is. Empty inputs are
            ignored.
        id : str or None
            ``program#number`` by default.
        number : int or None
            The next one by default.
        output : str or None
            Id of the output, by default the transaction's with a prime; empty if there is no
            output.
        triggered_by : iterable of str
            Transactions that have triggered it without a batch.

        Raises
        ------
        NotRecorded, RecordedTwice
            If an id is not recorded, or is recorded already.
        UsedTwice
            If the program has used a piece before, its input batches do not overlap, and that use
            was not compensated.
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
        """Record that a transaction has aborted; as `execute`, but without an output."""
        return self._record(program, inputs, id, number, "", triggered_by, state=State.FAILED)

    def succeed(self, transaction: str, *, output: str | None = None) -> Transaction:
        """Record that a failed transaction was executed after all.

        Raises
        ------
        LineageError
            If the transaction has not failed, or the output's id is taken.
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
            If one of the transactions is compensated already.
        """
        found = [self.transaction(name) for name in dict.fromkeys(transactions)]
        for each in found:
            if not each.is_live:
                raise LineageError(f"transaction {each.id} is compensated already")
        for each in found:
            self._transactions[each.id] = replace(each, state=State.COMPENSATED)

    def withdraw(self, batches: Iterable[str]) -> None:
        """Record that batches were withdrawn from their readers (`Forming.withdraw`).

        Raises
        ------
        NotRecorded
            If there is no such batch.
        """
        for found in [self.batch(id) for id in batches]:
            self._batches[found.id] = replace(found, is_withdrawn=True)

    def end(self, source: str) -> None:
        """Record that a source has ended: all its batches have arrived and are processed.

        Raises
        ------
        LineageError
            If there is no such source.
        """
        if source not in self.workflow.sources:
            raise LineageError(
                f"{source!r} is not a source of the workflow; there are "
                f"{listed(self.workflow.sources)}"
            )
        self._ended.add(source)

    # -- recorded nodes --------------------------------------------------------------------

    def __contains__(self, id: object) -> bool:
        """Return whether a batch or transaction is recorded."""
        return id in self._nodes.place

    def __len__(self) -> int:
        """Return the number of batches and transactions."""
        return len(self._nodes.place)

    def batch(self, id: str) -> Batch:
        """Return the batch with this id; raise `NotRecorded` if there is none."""
        found = self._batches.get(id)
        if found is None:
            raise NotRecorded(f"no batch {id!r} is recorded" + self._or_else(id))
        return found

    def transaction(self, id: str) -> Transaction:
        """Return the transaction with this id; raise `NotRecorded` if there is none."""
        found = self._transactions.get(id)
        if found is None:
            raise NotRecorded(f"no transaction {id!r} is recorded" + self._or_else(id))
        return found

    def is_transaction(self, id: str) -> bool:
        """Return whether an id is that of a transaction."""
        return id in self._transactions

    def is_source(self, id: str) -> bool:
        """Return whether an id is that of a source batch."""
        return id in self._batches and self._batches[id].kind is BatchKind.SOURCE

    def batches(self) -> tuple[Batch, ...]:
        """Return all batches."""
        return tuple(self._batches.values())

    def transactions(self) -> tuple[Transaction, ...]:
        """Return all transactions."""
        return tuple(self._transactions.values())

    def source_batches(self, stream: str) -> tuple[Batch, ...]:
        """Return the batches of a source stream, by number. O(n log n)."""
        found = [b for b in self._batches.values() if b.stream == stream and self.is_source(b.id)]
        return tuple(sorted(found, key=lambda batch: batch.number))

    def next_of(self, id: str) -> tuple[str, ...]:
        """Return the direct successors of a node.

        For a batch: input batches and transactions. For a transaction: its output and the
        transactions it triggered.
        """
        return tuple(self._nodes.next[self._nodes.known(id)])

    def previous_of(self, id: str) -> tuple[str, ...]:
        """Return the direct predecessors of a node: batches it is made of, and transactions."""
        return tuple(self._nodes.previous[self._nodes.known(id)])

    # -- derivation ------------------------------------------------------------------------

    def descendants(self, ids: str | Iterable[str], *, without: Collection[str] = ()) -> set[str]:
        """Return all that follows from batches or transactions, including these.

        Nodes in `without` are not searched again.
        """
        return self._nodes.reach(ids, forward=True, without=without)

    def ancestors(self, ids: str | Iterable[str], *, without: Collection[str] = ()) -> set[str]:
        """Return all nodes that some nodes derive from, including these; see `descendants`."""
        return self._nodes.reach(ids, forward=False, without=without)

    def sources_of(self, ids: str | Iterable[str]) -> tuple[str, ...]:
        """Return the source batches from which batches, or the inputs of transactions, are derived.

        The least set that is an scover by the paper's definition (section 3). A source batch is its
        own source.
        """
        return self.in_order(id for id in self.ancestors(ids) if self.is_source(id))

    def derived_from(self, ids: str | Iterable[str]) -> tuple[str, ...]:
        """Return the batches that are derived from batches or transactions."""
        given = {ids} if isinstance(ids, str) else set(ids)
        found = self.descendants(given) - given
        return self.in_order(id for id in found if id in self._batches)

    def in_order(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Return ids in the order of recording. O(n log n)."""
        return tuple(sorted(ids, key=self._nodes.place_of))

    def in_transaction_order(self, transactions: Iterable[str]) -> tuple[str, ...]:
        """Return transactions by program, in the workflow's order, then by number. O(n log n).

        In this order each transaction comes after its predecessors in the transaction graph, as all
        edges of the graph follow the partial order of the programs.
        """

        def key(id: str) -> tuple[int, int]:
            found = self.transaction(id)
            return self.workflow.rank(found.program), found.number

        return tuple(sorted(transactions, key=key))

    def is_still_due(self, batch: str) -> bool:
        """Return whether some program has yet to use a source batch or output, again or at all.

        Overlapping input batches share the pieces of the newest one, except for its first `step`
        pieces. A batch is due to no program if it is withdrawn, or if its producer is compensated.
        O(readers · pieces of an input batch).
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
        """Return the programs for which `is_still_due` holds."""
        found = self.batch(batch)
        if not self.is_still_due(batch):
            return ()
        return tuple(p for p in self.workflow.readers(found.stream) if self._has_use_for(found, p))

    def is_at_rest(self, stream: str) -> bool:
        """Return whether all sources from which a stream is derived have ended."""
        return self.workflow.sources_above(stream) <= self._ended

    def records(self) -> list[dict[str, Any]]:
        """Return all nodes as JSON-serialisable dicts, in the order of recording, for `of`.

        Ended sources are not included.
        """
        known: dict[str, Batch | Transaction] = {**self._batches, **self._transactions}
        return [known[id].record() for id in self._nodes.place]

    # -- internals -------------------------------------------------------------------------

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
                f"{name!r} is not a program of the workflow; there are "
                f"{listed(self.workflow.programs)}"
            )
        return program

    def _or_else(self, id: str) -> str:
        other = "transaction" if id in self._transactions else "batch"
        return f"; it is a {other}" if id in self._nodes.place else ""


def _numbered_by(batch: Batch) -> object:
    return (batch.reader, batch.stream) if batch.kind is BatchKind.INPUT else batch.stream
