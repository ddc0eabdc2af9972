"""Results of running a program over columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from activedb.columns.events import Column, Ints
from activedb.columns.program._layout import ProgramLayout, width
from activedb.columns.program._rows import RAISED, Rows
from activedb.errors import DefinitionError
from activedb.scheduling import Abort, At, Outcome, Parameter

__all__ = ["ColumnRefusal", "ColumnResults"]


@dataclass(frozen=True, slots=True)
class ColumnRefusal:
    """Event that could not become an s-transaction, with the reason.

    Attributes
    ----------
    row : int
        Index in the batch that was fed.
    reason : str
    """

    row: int
    reason: str


@dataclass(eq=False, slots=True)
class ColumnResults:
    """Results of a feed, in columns: the completed s-transactions in the serial order.

    Attributes
    ----------
    layout : ProgramLayout
    rows : Rows
    kept : list of (tuple or None), or None
        Results of all rows, if the Python loop ran them. None where `Rows.special` has the outcome,
        or where there are no results.
    refused : list of ColumnRefusal
        Events for the dead letters.
    failed_outputs : list of (int, Exception)
        S-transactions for which `outputs` produced none, as post-processing raised.
    decision : str
        How the batch was run: ``"serial"``, ``"parallel"``, ``"python"``; or ``"none"``, no row
        was.
    not_compiled : str or None
        Reason why this batch ran in Python.
    """

    layout: ProgramLayout
    rows: Rows
    kept: list[tuple[Any, ...] | None] | None = None
    refused: list[ColumnRefusal] = field(default_factory=list)
    failed_outputs: list[tuple[int, Exception]] = field(default_factory=list)
    decision: str = "none"
    not_compiled: str | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def codes(self) -> Ints:
        """Per s-transaction the index of its event's type in ``program.types``."""
        return self.rows.codes

    @property
    def us(self) -> Ints:
        """Times of the s-transactions."""
        return self.rows.us

    @property
    def arrivals(self) -> Ints:
        """Numbers of their events among those accepted, from 1."""
        return self.rows.arrivals

    @property
    def committed(self) -> npt.NDArray[np.bool_]:
        """True for each s-transaction that committed."""
        return np.equal(self.rows.outcomes, 0)

    @property
    def reasons(self) -> Column:
        """Abort reasons: n: operation n - 1 returned None; 65535: an exception; 0: committed."""
        return self.rows.outcomes

    def of_type(self, type_: str) -> Ints:
        """Return the numbers of the s-transactions of a type."""
        return np.flatnonzero(self.rows.codes == self._code(type_))

    def values(self, type_: str, operation: int) -> Column:
        """Return one operation's results for all s-transactions of a type; O(s-transactions).

        Returns
        -------
        array of float64, of shape (s-transactions of the type,)
            NaN where the s-transaction aborted or the result is not a number. For a READ of several
            keys without a function, the shape is (s-transactions, keys).
        """
        code = self._code(type_)
        templates = self.layout.templates[code]
        if not 0 <= operation < len(templates):
            raise DefinitionError(f"{type_} has {len(templates)} operations; none is {operation}")
        before = sum(map(width, templates[:operation]))
        wide = width(templates[operation])
        chosen = self.of_type(type_)
        made = np.full((len(chosen), wide), np.nan)
        if self.kept is None:
            for place in range(wide):
                made[:, place] = self.rows.results[self.rows.slots[chosen] + before + place]
        else:
            for number, row in enumerate(chosen.tolist()):
                results = self.kept[row]
                if results is not None:
                    made[number] = [_number(value) for value in results[before : before + wide]]
        for row, outcome in self.rows.special.items():
            if outcome.committed and self.rows.codes[row] == code:
                result = outcome.results[operation]
                values = result if wide > 1 else (result,)
                made[np.searchsorted(chosen, row)] = [_number(value) for value in values]
        made[self.rows.outcomes[chosen] != 0] = np.nan
        return made[:, 0] if wide == 1 else made

    def at(self, number: int) -> At:
        """Return the place of an s-transaction in the serial order."""
        return self.rows.at(number)

    def outcome(self, number: int) -> Outcome:
        """Return the outcome of an s-transaction, as a `ProgramRun` reports it."""
        rows = self.rows
        found = rows.special.get(number)
        if found is not None:
            return found
        reason = rows.outcomes.item(number)
        if reason:
            assert reason != RAISED
            (text,) = self._refusals(rows.codes.item(number), reason - 1, np.array([number]))
            return Outcome.of_error(Abort(text))
        templates = self.layout.templates[rows.codes.item(number)]
        if self.kept is not None:
            values: Any = self.kept[number]
        else:
            slot = rows.slots.item(number)
            size = self.layout.widths[rows.codes.item(number)]
            values = rows.results[slot : slot + size].tolist()
        made = []
        place = 0
        for template in templates:
            wide = width(template)
            made.append(values[place] if wide == 1 else tuple(values[place : place + wide]))
            place += wide
        return Outcome(tuple(made))

    def aborts(self) -> tuple[Ints, list[str]]:
        """Return the numbers of the aborted s-transactions and their reasons; O(aborted)."""
        numbers = np.flatnonzero(self.rows.outcomes)
        texts = np.empty(len(numbers), object)
        kinds = np.stack([self.rows.codes[numbers], self.rows.outcomes[numbers].astype(np.int64)])
        for code, reason in np.unique(kinds, axis=1).T.tolist():
            chosen = np.flatnonzero((kinds[0] == code) & (kinds[1] == reason))
            some = numbers[chosen]
            texts[chosen] = (
                [self.rows.special[number].reason for number in some.tolist()]
                if reason == RAISED
                else self._refusals(code, reason - 1, some)
            )
        return numbers, texts.tolist()

    def outcomes(self) -> Iterator[Outcome]:
        """Return all outcomes; O(s-transactions), in Python."""
        return map(self.outcome, range(len(self)))

    def outputs(self) -> list[Any]:
        """Return the outputs of post-processing, without None; O(s-transactions), in Python.

        Exceptions go to `failed_outputs`.
        """
        program = self.layout.program
        made: list[Any] = []
        self.failed_outputs = []
        if not program.post_processes:
            return made
        for number, outcome in enumerate(self.outcomes()):
            type_ = program.types[self.rows.codes.item(number)]
            try:
                output = program.output(type_, self.rows.params_of(number), outcome)
            except Exception as error:  # raised by the user's function; the s-transaction has ended
                self.failed_outputs.append((number, error))
                continue
            if output is not None:
                made.append(output)
        return made

    def _code(self, type_: str) -> int:
        types = self.layout.program.types
        if type_ not in types:
            raise DefinitionError(f"program {self.layout.program.name} does not take {type_}")
        return types.index(type_)

    def _refusals(self, code: int, operation: int, numbers: Ints) -> list[str]:
        """Return abort reasons for s-transactions of a type whose given operation returned None."""
        target = self.layout.templates[code][operation].targets[0]
        why = "was not written: the function gave None"
        if not isinstance(target.key, Parameter):
            return [f"{target!r} {why}"] * len(numbers)
        keys = self.rows.params[target.key.name][numbers].tolist()
        return [f"{target.table!r}[{key!r}] {why}" for key in keys]


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")
