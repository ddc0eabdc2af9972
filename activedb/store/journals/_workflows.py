"""Rows of a workflow: its batches, transactions and lineage, and the due transactions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, delete, insert, literal, select, union_all, update
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from activedb.store.server import translate_errors
from activedb.store.session import Store
from activedb.store.system import batch_edges, batch_transactions, batches, workflows

__all__ = ["LineageRow", "RecordedWorkflow", "WorkflowChanges", "WorkflowJournal", "workflow_names"]

_IDS_MAX = 1_000  # in one statement

_OF_BATCHES = [c for c in batches.c if c.name not in ("workflow", "rows")]


@dataclass(frozen=True, slots=True)
class RecordedWorkflow:
    """Recorded state of a workflow, except for the rows of its batches.

    Attributes
    ----------
    definition : mapping
        Definition as of the last time the workflow was opened.
    place : int
    forming, due, origins : JSON-able
    nodes : list of mapping
        Batches and transactions, in the order of recording; transactions have ``program``.
    cut : set of str
        Ids of nodes with a successor that still stands and whose row was deleted.
    """

    definition: Mapping[str, Any]
    place: int
    forming: Mapping[str, Any]
    due: list[Any]
    origins: Mapping[str, Any]
    nodes: list[Mapping[str, Any]]
    cut: set[str]


@dataclass(slots=True)
class WorkflowChanges:
    """Changes that one transaction of a workflow records with its commit.

    Attributes
    ----------
    batches, transactions : list of dict
        New rows, without ``workflow``.
    edges : list of (str, str)
    of_batches, of_transactions : dict of str to dict
        Changed columns, by id.
    forgotten : set of str
        Ids of batches and transactions to delete.
    forgotten_undone : set of str
        Subset of `forgotten` that is compensated, with all its successors.
    """

    batches: list[dict[str, Any]] = field(default_factory=list)
    transactions: list[dict[str, Any]] = field(default_factory=list)
    edges: list[tuple[str, str]] = field(default_factory=list)
    of_batches: dict[str, dict[str, Any]] = field(default_factory=dict)
    of_transactions: dict[str, dict[str, Any]] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    forgotten_undone: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class LineageRow:
    """Ancestor or descendant of a batch or transaction.

    Attributes
    ----------
    id : str
    is_before : bool
        True for ancestors. The node asked about is in both directions.
    kind : str
        ``source``, ``output`` or ``input`` of a batch; ``transaction``.
    name : str
        Stream or program.
    number : int
    state : str
    """

    id: str
    is_before: bool
    kind: str
    name: str
    number: int
    state: str


def workflow_names(store: Store) -> list[str]:
    """Return the names of the recorded workflows, sorted."""
    with translate_errors("read the workflows"), store.short() as connection:
        return list(connection.scalars(select(workflows.c.name).order_by(workflows.c.name)))


class WorkflowJournal:
    """Rows of one workflow; writes use the connection that the caller passes.

    Attributes
    ----------
    table : sqlalchemy.Table
        Table of workflows by name, for a transaction that locks the row before it begins its work.
    is_shared : bool
        True if other processes can record, too.
    """

    table: Any = workflows

    def __init__(self, store: Store, workflow: str):
        self._store = store
        self._workflow = workflow
        self.is_shared = store.is_shared

    def place(self) -> int:
        """Return the workflow's place as of now; one row."""
        with translate_errors("read a workflow"), self._store.short() as connection:
            return int(connection.execute(self._place()).scalar_one())

    def load(self) -> RecordedWorkflow | None:
        """Return the workflow's state as of one moment; None if it is not recorded. O(rows)."""
        with translate_errors("read a workflow"), self._store.short() as connection:
            if self._store.is_shared:
                connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            return self._load(connection)

    def rows(self, ids: Collection[str]) -> dict[str, list[Any]]:
        """Return the encoded rows of source and output batches, by id."""
        c = batches.c
        found: dict[str, list[Any]] = {}
        with translate_errors("read the rows of batches"), self._store.short() as connection:
            for some in _portions(ids):
                statement = select(c.id, c.rows).where(c.workflow == self._workflow, c.id.in_(some))
                found |= {row.id: row.rows or [] for row in connection.execute(statement)}
        return found

    def arguments(self, transaction: str) -> Any:
        """Return an OLTP call's encoded arguments; None for any other transaction."""
        c = batch_transactions.c
        statement = select(c.arguments).where(c.workflow == self._workflow, c.id == transaction)
        with translate_errors("read a transaction"), self._store.short() as connection:
            return connection.scalar(statement)

    def lineage(self, id: str) -> list[LineageRow]:
        """Return ancestors and descendants of a batch or transaction, in the order of recording.

        One recursive query. The node itself is in both directions. O(edges found · log edges).
        """
        name = self._workflow
        parts = []
        for is_before, here, there in (
            (True, batch_edges.c.later, batch_edges.c.earlier),
            (False, batch_edges.c.earlier, batch_edges.c.later),
        ):
            found = select(literal(id, batches.c.id.type).label("id")).cte(
                "before" if is_before else "after", recursive=True
            )
            step = select(there).where(batch_edges.c.workflow == name, here == found.c.id)
            found = found.union(step)
            for table, kind, what in (
                (batches, batches.c.kind, batches.c.stream),
                (batch_transactions, literal("transaction"), batch_transactions.c.program),
            ):
                parts.append(
                    select(
                        table.c.id,
                        literal(is_before).label("is_before"),
                        kind.label("kind"),
                        what.label("name"),
                        table.c.number,
                        table.c.state,
                        table.c.place,
                    )
                    .join(found, table.c.id == found.c.id)
                    .where(table.c.workflow == name)
                )
        every = union_all(*parts).subquery()
        statement = select(every).order_by(every.c.place, every.c.is_before.desc())
        with translate_errors("read the lineage"), self._store.short() as connection:
            return [
                LineageRow(r.id, bool(r.is_before), r.kind, r.name, r.number, r.state)
                for r in connection.execute(statement)
            ]

    def lock(self, connection: Connection) -> int:
        """Block other recorders until the transaction ends; return the workflow's place."""
        return int(connection.execute(self._place().with_for_update()).scalar_one())

    def write(
        self,
        connection: Connection,
        place: int,
        recorded: WorkflowChanges,
        *,
        forming: Any,
        due: Any,
        origins: Any,
    ) -> None:
        """Record a transaction's changes in its commit. REQUIRES: `lock`."""
        values = {"place": place, "forming": forming, "due": due, "origins": origins}
        of_name = workflows.c.name == self._workflow
        connection.execute(update(workflows).where(of_name).values(**values))
        head = {"workflow": self._workflow}
        if recorded.batches:
            connection.execute(insert(batches), [head | row for row in recorded.batches])
        if recorded.transactions:
            rows = [head | row for row in recorded.transactions]
            connection.execute(insert(batch_transactions), rows)
        if recorded.edges:
            edges = [head | {"earlier": a, "later": b} for a, b in recorded.edges]
            connection.execute(insert(batch_edges), edges)
        for table, changed in (
            (batches, recorded.of_batches),
            (batch_transactions, recorded.of_transactions),
        ):
            for id, values in changed.items():
                where = (table.c.workflow == self._workflow, table.c.id == id)
                connection.execute(update(table).where(*where).values(**values))
        self._forget(connection, recorded.forgotten, recorded.forgotten_undone)

    def begin(self, definition: Any, forming: Any) -> None:
        """Create the workflow's row, unless it exists; in a separate transaction."""
        flavour = sqlite_insert if self._store.engine.dialect.name == "sqlite" else postgres_insert
        row = {
            "name": self._workflow,
            "definition": definition,
            "place": 0,
            "forming": forming,
            "due": [],
            "origins": {},
        }
        with translate_errors("record a workflow"), self._store.short() as connection:
            connection.execute(flavour(workflows).values(**row).on_conflict_do_nothing())

    def redefine(self, definition: Any) -> None:
        """Replace the recorded definition; in a separate transaction."""
        where = workflows.c.name == self._workflow
        with translate_errors("record a workflow"), self._store.short() as connection:
            connection.execute(update(workflows).where(where).values(definition=definition))

    def _place(self) -> Any:
        return select(workflows.c.place).where(workflows.c.name == self._workflow)

    def _forget(
        self, connection: Connection, ids: Collection[str], undone: Collection[str]
    ) -> None:
        """Delete batches and transactions, with their outgoing edges.

        Incoming edges from kept nodes stay, to mark a missing successor, except for `undone` nodes.
        """
        c = batch_edges.c
        for some in _portions(ids):
            for table in (batches, batch_transactions):
                of_ids = (table.c.workflow == self._workflow, table.c.id.in_(some))
                connection.execute(delete(table).where(*of_ids))
        for end, of_end in ((c.earlier, ids), (c.later, undone)):
            for some in _portions(of_end):
                edges = delete(batch_edges).where(c.workflow == self._workflow, end.in_(some))
                connection.execute(edges)

    def _load(self, connection: Connection) -> RecordedWorkflow | None:
        name = self._workflow
        head = connection.execute(select(workflows).where(workflows.c.name == name)).first()
        if head is None:
            return None
        found: list[Mapping[str, Any]] = []
        of_transactions = [c for c in batch_transactions.c if c.name != "workflow"]
        for columns, table in ((_OF_BATCHES, batches), (of_transactions, batch_transactions)):
            statement = select(*columns).where(table.c.workflow == name)
            found += [dict(row) for row in connection.execute(statement).mappings()]
        found.sort(key=lambda row: int(row["place"]))
        known = {row["id"] for row in found}
        edges = select(batch_edges.c.earlier, batch_edges.c.later)
        edges = edges.where(batch_edges.c.workflow == name)
        cut = {edge.earlier for edge in connection.execute(edges) if edge.later not in known}
        return RecordedWorkflow(
            head.definition, head.place, head.forming, head.due, head.origins, found, cut
        )


def _portions(ids: Collection[str]) -> Iterator[Sequence[str]]:
    ordered = sorted(set(ids))
    for start in range(0, len(ordered), _IDS_MAX):
        yield ordered[start : start + _IDS_MAX]
