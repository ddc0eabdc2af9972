"""Compiled stack machine that evaluates conditions over the events of a partial match."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from activedb.compiler import jit

__all__ = ["is_true"]

Array = npt.NDArray[Any]

# Operations of a program (`activedb.columns.detect._programs`); operands are on the stack.
_CONST, _NULL, _LOAD, _EQ, _NE, _LT, _LE, _GT, _GE, _ADD, _SUB, _MUL, _NEG = range(13)
_AND, _OR, _NOT, _IS_NULL = range(13, 17)

_NULLS = 3  # the NULL-bits column of an event in the ring


@jit
def is_true(
    program: Array,
    constants: Array,
    at: Array,
    before: Array,
    ring: Array,
    values: Array,
    stack: Array,
    unknown: Array,
) -> bool:
    """Return whether a condition is true, as opposed to false or unknown.

    Parameters
    ----------
    program : array of int64, operations by 4
        Each with a constant or column, a part, and a flag for the previous element.
    at, before : arrays of int64
        Serials of each part's last event and of the event before that; -1: none.
    ring, values : arrays
        NULL bits and values of the events, by serial.
    stack, unknown : arrays of float64 and bool
        Scratch space for as many values as there are operations.
    """
    mask = ring.shape[0] - 1
    top = 0
    for i in range(program.shape[0]):
        operation = program[i, 0]
        if operation == _CONST:
            stack[top] = constants[program[i, 1]]
            unknown[top] = False
            top += 1
        elif operation == _NULL:
            unknown[top] = True
            top += 1
        elif operation == _LOAD:
            event = before[program[i, 2]] if program[i, 3] else at[program[i, 2]]
            unknown[top] = event < 0 or (ring[event & mask, _NULLS] >> program[i, 1]) & 1
            if not unknown[top]:
                stack[top] = values[event & mask, program[i, 1]]
            top += 1
        elif operation == _IS_NULL:
            stack[top - 1] = 1.0 if unknown[top - 1] else 0.0
            unknown[top - 1] = False
        elif operation == _NOT:
            stack[top - 1] = 1.0 - stack[top - 1]
        elif operation == _NEG:
            stack[top - 1] = -stack[top - 1]
        else:
            top -= 1
            a, b = stack[top - 1], stack[top]
            nothing = unknown[top - 1] or unknown[top]
            value = 0.0
            if operation in (_AND, _OR):
                decisive = 0.0 if operation == _AND else 1.0
                decided = (not unknown[top - 1] and a == decisive) or (
                    not unknown[top] and b == decisive
                )
                nothing = nothing and not decided
                value = decisive if decided else 1.0 - decisive
            elif operation == _ADD:
                value = a + b
            elif operation == _SUB:
                value = a - b
            elif operation == _MUL:
                value = a * b
            else:
                holds = (
                    (operation == _EQ and a == b)
                    or (operation == _NE and a != b)
                    or (operation == _LT and a < b)
                    or (operation == _LE and a <= b)
                    or (operation == _GT and a > b)
                    or (operation == _GE and a >= b)
                )
                value = 1.0 if holds else 0.0
            stack[top - 1] = value
            unknown[top - 1] = nothing
    return bool(not unknown[0] and stack[0] == 1.0)
