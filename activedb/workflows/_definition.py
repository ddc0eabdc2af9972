"""Definition of workflows by decorated functions, and validation of the rows of batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from activedb.batches import Grouping, Mode, Piece, Program, Workflow
from activedb.errors import BadEvent, DefinedTwice, WorkflowChanged, WorkflowError
from activedb.events import decode_params, encode_params
from activedb.functions import checked_function, checked_result
from activedb.spelling import clipped
from activedb.store.sql import is_storable
from activedb.streams import AtomicBatch
from activedb.transactions import Transaction

__all__ = [
    "Execution",
    "Row",
    "WorkflowDefinition",
    "WorkflowProgram",
    "check_unchanged",
    "decoded",
    "described",
    "encoded",
    "given_out",
    "part_of",
    "rows_of_micro_batch",
    "workflow_of",
]


Row = dict[str, Any]

_SHOWN_MAX = 60  # characters


def encoded(rows: object, whose: str) -> list[Any]:
    """Return rows as JSON-serialisable data, from which `decoded` makes equal rows. O(values).

    Raises
    ------
    BadEvent
        If they are not a list of mappings of names to encodable values; the message begins with
        `whose`, and names the row.
    """
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise BadEvent(f"{whose} is a list of rows, each a dict of values by name; not {_s(rows)}")
    found = []
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise BadEvent(f"{whose}: row {place} is not a dict of values by name, but {_s(row)}")
        try:
            found.append(encode_params(row))
        except BadEvent as error:
            raise BadEvent(f"{whose}: row {place}: {error}") from error
    return found


def decoded(rows: Iterable[Any]) -> list[Row]:
    """Return the rows given to `encoded`, as dicts. O(values)."""
    return [decode_params(row) for row in rows]


def given_out(program: str, rows: object) -> list[Any] | None:
    """Return the output of a program, encoded; None if there is none. Raises as `encoded`."""
    checked_result(rows, f"program {program}", may_yield=True)
    return None if rows is None else encoded(rows, f"the output of program {program}")


def part_of(rows: Sequence[Row], piece: Piece) -> list[Row]:
    """Return the rows of a piece: one of n equal consecutive parts, in the order of the rows."""
    count = len(rows)
    first = count * (piece.part - 1) // piece.parts
    return list(rows[first : count * piece.part // piece.parts])


def rows_of_micro_batch(
    batch: AtomicBatch,
) -> tuple[list[Any], list[tuple[int, Mapping[str, Any], BadEvent]]]:
    """Return the encoded rows of a micro-batch, and the rows that are not valid events. O(values).

    A row has the parameters by name, and ``event_type``, ``event_time_us``, ``event_id``.

    Returns
    -------
    list, list of (int, mapping, BadEvent)
        The encoded rows; and the invalid rows by position, each with its known data and the reason.
    """
    table = batch.table
    raw = table.column("raw").to_pylist()
    of_events = {name: name for name in ("event_type", "event_time_us", "event_id")}
    taken = {**{f"p_{name}": name for name in batch.param_names}, **of_events}
    columns = {name: table.column(column).to_pylist() for column, name in taken.items()}
    rows: list[Any] = []
    bad: list[tuple[int, Mapping[str, Any], BadEvent]] = []
    for place in range(table.num_rows):
        if raw[place] is not None:
            error = BadEvent(
                "no event can be made of the row: its type, its time or a parameter is missing, or "
                "cannot be understood"
            )
            bad.append((place, {"raw": raw[place]}, error))
            continue
        row = {name: values[place] for name, values in columns.items()}
        try:
            rows.append(encode_params(row))
        except BadEvent as error:
            bad.append((place, {"raw": repr(row)}, error))
    return rows, bad


def _s(value: object) -> str:
    return clipped(repr(value), _SHOWN_MAX)


# -- definition of workflows by decorated functions, with their compensating actions ---------------


@dataclass(frozen=True, slots=True)
class Execution:
    """Transaction to be compensated, as passed to its compensating action.

    Attributes
    ----------
    workflow, program, transaction : str
    number : int
        Sequence number among the transactions of its program.
    inputs : mapping of str to list of dict
        The rows that it has used, by stream, in the order in which the program reads the streams.
    input_ids : mapping of str to str
        The input batches, by stream, without those whose rows were all withdrawn.
    output : list of dict or None
        The rows of its output.
    output_id : str
        The output batch; empty if there is none.
    arguments : mapping of str to value
        The arguments of the call of an OLTP program.
    """

    workflow: str
    program: str
    transaction: str
    number: int
    inputs: Mapping[str, list[Row]]
    input_ids: Mapping[str, str]
    output: list[Row] | None
    output_id: str
    arguments: Mapping[str, Any]

    @property
    def rows(self) -> list[Row]:
        """All rows that it has used, stream by stream."""
        return [row for rows in self.inputs.values() for row in rows]


class WorkflowProgram:
    """Program of a workflow: the function of its transactions, and the compensating action.

    Attributes
    ----------
    name : str
    function : callable ``(t, batch, …)``
        Takes the transaction and, for each stream that it reads, the rows of its input batch; an
        OLTP program takes the arguments of its call. Returns the rows of its output, or None.
    action : callable ``(t, execution)`` or None
        The compensating action.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        reads: str | Iterable[str] | Mapping[str, Grouping],
        after: str | Iterable[str],
        relax: str | Iterable[str],
    ):
        self.name = name
        self.function = function
        self.action: Callable[[Transaction, Execution], Any] | None = None
        self.is_closed = False
        self._given: dict[str, Any] = {"reads": reads, "after": after, "relax": relax}
        self.declared()  # refuses invalid arguments at once

    def declared(self) -> Program:
        """Return the program for the composition."""
        return Program(self.name, **self._given, compensable=self.action is not None)

    def compensation(
        self, action: Callable[[Transaction, Execution], Any]
    ) -> Callable[[Transaction, Execution], Any]:
        """Make the decorated function ``(t, execution)`` the compensating action of this program.

        Raises
        ------
        WorkflowError
            If there is an action already, the function cannot take these arguments, or the
            workflow runs already.
        """
        if self.is_closed:
            raise WorkflowError(
                f"program {self.name!r} runs already: define its compensation first"
            )
        if self.action is not None:
            raise WorkflowError(f"program {self.name!r} has a compensating action already")
        whose = f"the compensating action of {self.name!r}"
        _check_takes(action, 2, whose, "(t, execution)", may_yield=False)
        self.action = action
        return action

    def __repr__(self) -> str:
        return f"<WorkflowProgram {self.name}>"


class WorkflowDefinition:
    """Workflow under definition; created by `Database.workflow`.

    Attributes
    ----------
    name : str
    sources : tuple of str
    programs : dict of str to WorkflowProgram
    on_failure : {"stop", "compensate"}
    mode : Mode
    allow_interference : bool
        With ``"compensate"``: how the batches of a failed transaction are compensated.
    """

    def __init__(
        self,
        name: str,
        *,
        sources: str | Iterable[str],
        on_failure: str = "stop",
        mode: Mode | str = Mode.FULL,
        allow_interference: bool = False,
    ):
        self.name = checked(name, "workflow")
        self.sources = tuple([sources] if isinstance(sources, str) else sources)
        for source in self.sources:
            checked(source, "source stream")
        if on_failure not in ("stop", "compensate"):
            raise WorkflowError(
                f"workflow {name}: on_failure is 'stop' or 'compensate', not {on_failure!r}"
            )
        if mode not in tuple(Mode):
            raise WorkflowError(
                f"workflow {name}: mode is one of {', '.join(repr(str(m)) for m in Mode)}, "
                f"not {mode!r}"
            )
        self.on_failure = on_failure
        self.mode = Mode(mode)
        self.allow_interference = allow_interference
        self.programs: dict[str, WorkflowProgram] = {}
        self._closed: Workflow | None = None

    def program(
        self,
        *,
        reads: str | Iterable[str] | Mapping[str, Grouping] = (),
        after: str | Iterable[str] = (),
        relax: str | Iterable[str] = (),
        name: str | None = None,
    ) -> Callable[[Callable[..., Any]], WorkflowProgram]:
        """Make the decorated function a program of the workflow.

        Parameters
        ----------
        reads : str, iterable of str, or mapping of str to Grouping
            The streams that it consumes, and how its input batches are formed; see
            `activedb.batches.Program`. A program that reads no stream is an OLTP program,
            executed by `BatchRun.call`.
        after, relax : str or iterable of str
            See `activedb.batches.Program`.
        name : str, optional
            The function's name by default.

        Raises
        ------
        WorkflowError
            If the program is invalid, or the workflow runs already.
        """

        def define(function: Callable[..., Any]) -> WorkflowProgram:
            chosen = checked(name or getattr(function, "__name__", ""), "program")
            if self._closed is not None:
                raise WorkflowError(
                    f"workflow {self.name} runs already: define program {chosen!r} before "
                    "db.workflows.open(…)"
                )
            if chosen in self.programs:
                raise DefinedTwice(f"workflow {self.name} has a program {chosen!r} already")
            program = WorkflowProgram(chosen, function, reads=reads, after=after, relax=relax)
            streams = program.declared().reads
            if streams:
                shape = f"(t, {', '.join(streams)})"
                _check_takes(function, 1 + len(streams), f"program {chosen!r}", shape)
            self.programs[chosen] = program
            return program

        return define

    def composed(self) -> Workflow:
        """Return the composition of all programs, which is fixed from now on.

        Raises
        ------
        WorkflowError
            If it is invalid: an unknown stream, a cycle, a source that no program reads.
        """
        if self._closed is None:
            programs = [program.declared() for program in self.programs.values()]
            self._closed = Workflow(programs, sources=self.sources)
            for program in self.programs.values():
                program.is_closed = True
        return self._closed

    def __repr__(self) -> str:
        return f"<WorkflowDefinition {self.name}>"


def described(workflow: Workflow) -> dict[str, Any]:
    """Return the record of a composition, JSON-serialisable; `workflow_of` is the inverse."""
    return {
        "sources": list(workflow.sources),
        "programs": [
            {
                "name": program.name,
                "reads": {
                    stream: [grouping.parts, grouping.size, grouping.step]
                    for stream, grouping in program.reads.items()
                },
                "after": sorted(program.after),
                "relax": sorted(map(str, program.relaxed)),
                "compensable": program.compensable,
            }
            for program in workflow.programs.values()
        ],
    }


def workflow_of(definition: Mapping[str, Any]) -> Workflow:
    """Return the composition with a record made by `described`."""
    return Workflow(
        [
            Program(
                each["name"],
                {stream: Grouping(*numbers) for stream, numbers in each["reads"].items()},
                after=each["after"],
                relax=each["relax"],
                compensable=each["compensable"],
            )
            for each in definition["programs"]
        ],
        sources=definition["sources"],
    )


def check_unchanged(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse a definition that would form input batches differently than before.

    Raises
    ------
    WorkflowChanged
        If the sources, the programs, or the streams that these read differ.
    """
    old, new = _formation(before), _formation(now)
    for what in sorted(old.keys() | new.keys()):
        if old.get(what) != new.get(what):
            raise WorkflowChanged(
                f"workflow {name} has batches of another definition: {what} was "
                f"{old.get(what, 'not there')} and is {new.get(what, 'not there')} now. Define it "
                "as before, or give the new one another name"
            )


def _formation(definition: Mapping[str, Any]) -> dict[str, Any]:
    of_programs = {f"program {each['name']}": each["reads"] for each in definition["programs"]}
    return {"sources": sorted(definition["sources"]), **of_programs}


def _check_takes(
    function: Any, count: int, whose: str, shape: str, *, may_yield: bool = True
) -> None:
    checked_function(function, whose, may_yield=may_yield)
    try:
        inspect.signature(function).bind(*[None] * count)
    except (TypeError, ValueError) as error:
        raise WorkflowError(f"{whose} cannot be called as {shape}: {error}") from error


# -- name validation for workflows, streams and programs -------------------------------------------

_NAME_MAX = 100  # characters of the columns
_SIGNS = "#>/'"  # separators in ids and names of runs


def checked(name: Any, what: str) -> str:
    """Return `name` if it is valid.

    Raises
    ------
    WorkflowError
        If it is not a string, empty, too long, or contains a separator of ids.
    """
    if not isinstance(name, str) or not name or len(name) > _NAME_MAX or not is_storable(name):
        raise WorkflowError(
            f"the name of a {what} is a text of 1 to {_NAME_MAX} characters that a database can "
            f"keep, not {name!r}"
        )
    if any(sign in name for sign in _SIGNS):
        raise WorkflowError(
            f"the name of a {what} has none of {' '.join(_SIGNS)} in it, as ids do: {name!r}"
        )
    return name
