"""Workflows whose programs write down what they were given, and take it back when compensated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Integer, Table, Text, select

from activedb.batches import Grouping, Program, Workflow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from activedb import Database, Transaction
    from activedb.workflows._definition import Execution, WorkflowDefinition
    from activedb.workflows._run import BatchRun

__all__ = ["Marking", "chain", "mark_of", "marking", "rows_of"]


def mark_of(program: str, inputs: Iterable[list[dict[str, Any]]]) -> str:
    """Return what a transaction writes down: its program, and the rows that it was given."""
    given = ";".join(",".join(row["of"] for row in rows) for rows in inputs)
    return f"{program}({given})"


def rows_of(*names: str) -> list[dict[str, Any]]:
    """Return the rows of a source batch."""
    return [{"of": name} for name in names]


@dataclass
class Marking:
    """A workflow over a table of marks.

    Attributes
    ----------
    failing : callable ``(mark)``
        Whether the program that would write this mark raises instead.
    failing_actions : callable ``(mark)``
        The same of compensating actions.
    """

    db: Database
    definition: WorkflowDefinition
    marks: Table
    failing: Callable[[str], bool] = field(default=lambda mark: False)
    failing_actions: Callable[[str], bool] = field(default=lambda mark: False)

    @property
    def run(self) -> BatchRun:
        return self.db.workflows.open(self.definition)

    def written(self) -> list[str]:
        """The marks that are there, in alphabetical order."""
        with self.db.transaction() as t:
            rows = t.query(select(self.marks))
        return sorted(text for row in rows for text in [row.id] * row.times)

    def add(self, t: Transaction, text: str, times: int) -> None:
        """Write a mark down once more, or take it back once."""
        row = t.get(self.marks, text, for_update=True)
        if row is None:
            t.insert(self.marks, {"id": text, "times": times})
        else:
            t.update(self.marks, text, times=row["times"] + times)

    def states(self) -> dict[str, str]:
        """Return the states of source batches and outputs."""
        return {b.id: b.state for b in self.db.workflows.history(self.definition.name).batches()}

    def executed(self) -> list[str]:
        """Return the transactions that stand, in transaction order."""
        lineage = self.run.whole_lineage()
        ids = [each.id for each in lineage.transactions() if str(each.state) == "executed"]
        return list(lineage.in_transaction_order(ids))


def marking(
    db: Database,
    programs: Workflow | Iterable[Program],
    *,
    sources: str | Iterable[str] = "a",
    name: str = "marking",
    without_action: Iterable[str] = (),
    **given: Any,
) -> Marking:
    """Define a workflow of such programs over a database.

    Each gives out one row for each row that it was given; one whose name ends in ``0`` nothing.
    """
    marks = db.metadata.tables.get("marks")
    if marks is None:
        key, times = Column("id", Text, primary_key=True), Column("times", Integer, nullable=False)
        marks = Table("marks", db.metadata, key, times)
        db.create_all()
    if isinstance(programs, Workflow):
        sources, programs = programs.sources, programs.programs.values()
    definition = db.workflow(name, sources=sources, **given)
    found = Marking(db, definition, marks)

    def add(program: Program) -> None:
        def mark(t: Transaction, *inputs: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
            text = mark_of(program.name, inputs)
            found.add(t, text, 1)
            if found.failing(text):
                raise ZeroDivisionError(text)
            if program.name.endswith("0"):
                return None
            return [{"of": f"{program.name}:{row['of']}"} for rows in inputs for row in rows]

        def unmark(t: Transaction, execution: Execution) -> None:
            text = mark_of(program.name, execution.inputs.values())
            found.add(t, text, -1)
            if found.failing_actions(text):
                raise ZeroDivisionError(text)

        defined = definition.program(
            name=program.name,
            reads=program.reads,
            after=program.after,
            relax=[str(each) for each in program.relaxed],
        )(mark)
        if program.name not in without_action:
            defined.compensation(unmark)

    for program in programs:
        add(program)
    return found


def chain(*groupings: Grouping, relax: Iterable[str] = ()) -> list[Program]:
    """P1, P2, … in a row, as in the paper's figures; `relax` is for all of them."""
    found = []
    for number, grouping in enumerate(groupings, 1):
        stream = "a" if number == 1 else f"P{number - 1}"
        found.append(Program(f"P{number}", {stream: grouping}, relax=relax))
    return found
