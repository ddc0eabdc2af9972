"""Serialisation of s-transactions for other processes.

An operation contains functions, and functions outside modules are slow to pickle. So operations are
not sent if they can be created again: by their program's state access, from the parameters. The
state accesses are sent with each task as one pickle, which a process reads only once.
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

_StateAccess: TypeAlias = Callable[[Mapping[str, Any], Access], object]
Accesses: TypeAlias = list[dict[str, _StateAccess]]
"""State accesses of each program, by event type."""

Sent: TypeAlias = tuple[Any, ...]
"""``(us, id, arrival, type, parameters, are they read-only, program number or operations)``."""


class Programs:
    """Programs whose s-transactions are sent, by number.

    Parameters
    ----------
    dumps : callable
        As in `TaskRunner`.

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
        """Return the number of a program; pickle a program that is new or has new types.

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
        """Return the values of an s-transaction to pickle; may register its program (`number`)."""
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
    """Rebuild an s-transaction in the other process."""
    us, id_, arrival, type_, params, is_read_only, made_by = sent
    if is_read_only:
        params = MappingProxyType(params)
    if isinstance(made_by, int):
        access = Access()
        accesses[made_by][type_](params, access)
        made_by = tuple(access.operations)
    return STransaction(At(us, id_, arrival), type_, params, made_by)


def named(transaction: STransaction) -> str:
    """Return the name of an s-transaction in error messages."""
    of = "" if transaction.program is None else f"program {transaction.program.name}, "
    return f"{of}s-transactions of type {transaction.type}"


def said(error: Exception) -> str:
    """Return the text of an error in a message."""
    return f"{type(error).__name__}: {error}"
