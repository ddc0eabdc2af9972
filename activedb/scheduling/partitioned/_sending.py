"""How s-transactions get from one process to another.

An operation is made of functions, and functions that no module has are slow to pickle. So
operations are not sent where they can be made again: by their program's state access, of the
parameters. The state accesses are sent with each task in one piece, which a process reads once.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from activedb.errors import DefinitionError
from activedb.scheduling._access import Access
from activedb.scheduling._program import Program
from activedb.scheduling._rules import Reactions
from activedb.scheduling._s_transactions import At, STransaction

__all__ = ["INSTEAD", "Accesses", "Programs", "Sent", "named", "received", "said"]

INSTEAD = "or run it in one process (scale_out off)"

_StateAccess: TypeAlias = Callable[[Mapping[str, Any], Access], None]
Accesses: TypeAlias = list[dict[str, _StateAccess]]
"""Per program its state accesses by the types of events."""

Sent: TypeAlias = tuple[Any, ...]
"""``(us, id, arrival, type, parameters, whether they are read-only, program or operations)``."""


class Programs:
    """The programs whose s-transactions are sent, by number.

    Parameters
    ----------
    dumps : callable
        As that of the `TaskRunner`.

    Attributes
    ----------
    pickled : bytes
        Their state accesses, `Accesses`.
    """

    def __init__(self, dumps: Callable[[Any], bytes]):
        self.pickled = pickle.dumps([])
        self._dumps = dumps
        self._numbers: dict[Program, int] = {}
        self._types: list[tuple[str, ...]] = []

    def number(self, program: Program) -> int:
        """The number of a program; a new one, or one with new types, is pickled.

        Raises
        ------
        DefinitionError
            If one of its state accesses cannot be pickled.
        """
        number = self._numbers.get(program)
        if number is None:
            number = self._numbers[program] = len(self._numbers)
            self._types.append(())
        if self._types[number] != program.types:
            self._types[number] = program.types
            self._pickle()
        return number

    def send(self, transaction: STransaction) -> Sent:
        """What is to be pickled of an s-transaction; `number` may be called."""
        params, operations, program = (
            transaction.params,
            transaction.operations,
            transaction.program,
        )
        is_read_only = type(params) is MappingProxyType
        made_by: Any = operations
        if program is not None and not (operations and type(operations[-1]) is Reactions):
            made_by = self.number(program)
        given = dict(params) if is_read_only else params
        return (*transaction.at, transaction.type, given, is_read_only, made_by)

    def _pickle(self) -> None:
        accesses = [{type_: p.access(type_) for type_ in p.types} for p in self._numbers]
        try:
            self.pickled = self._dumps(accesses)
        except Exception as error:
            for program, of_program in zip(self._numbers, accesses, strict=True):
                for type_, access in of_program.items():
                    self._check(program, type_, access)
            raise DefinitionError(f"state accesses cannot be pickled: {said(error)}") from error

    def _check(self, program: Program, type_: str, access: _StateAccess) -> None:
        try:
            self._dumps(access)
        except Exception as error:
            raise DefinitionError(
                f"program {program.name}: the state access for {type_} cannot be sent to other "
                f"processes ({said(error)}): use nothing in it but what can be pickled, {INSTEAD}"
            ) from error


def received(sent: Sent, accesses: Accesses) -> STransaction:
    """The s-transaction, in the other process."""
    us, id_, arrival, type_, params, is_read_only, made_by = sent
    if is_read_only:
        params = MappingProxyType(params)
    if isinstance(made_by, int):
        access = Access()
        accesses[made_by][type_](params, access)
        made_by = tuple(access.operations)
    return STransaction(At(us, id_, arrival), type_, params, made_by)


def named(transaction: STransaction) -> str:
    """How errors call an s-transaction."""
    of = "" if transaction.program is None else f"program {transaction.program.name}, "
    return f"{of}s-transactions of type {transaction.type}"


def said(error: Exception) -> str:
    """An error in a message."""
    return f"{type(error).__name__}: {error}"
