"""Source text of a program's kernel, which numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from activedb.columns.program._layout import Layout, Template
from activedb.columns.program._writer import Writer, table_names
from activedb.scheduling import Ref, Write

__all__ = ["Source", "source_of"]

_KERNEL = """\
def kernel(first, last, todo, done, now, first_edge, edge_to, edge_next, waits, {arguments}):
    in_turn = len(todo) == 0
    made = 0 if in_turn else first
    i = first
    while True:
        if in_turn:
            if i >= last:
                break
        elif last == 0:
            break
        else:
            last -= 1
            i = todo[last]
        slot = slots[i]
        code = codes[i]
        s = 0
{branches}
        if not in_turn:
            done[made] = i
            made += 1
        if s == BACK:
            return i, last, made
        outcomes[i] = s
        if in_turn:
            i += 1
            continue
        edge = first_edge[i]
        while edge >= 0:
            follower = edge_to[edge]
            word = waits[follower]
            if (word & COUNT) == 1 and (word >> SHIFT) <= now and made + last < len(todo):
                waits[follower] = word & ~COUNT
                todo[last] = follower
                last += 1
            edge = edge_next[edge]
    return -1, last, made
"""

_OPERATION = """\
@njit
def {name}({taken}):
    try:
        value = {function}({taken})
    except Exception:
        return BACK, 0.0
    s, number = number_of(value)
    return {given_none} if s == 1 else s, number
"""

_COMPUTED = """\
@njit
def {name}({taken}):
    try:
        key = {function}({taken})
    except Exception:
        return BACK, 0
    return key_of(key, {size})
"""


@dataclass(frozen=True, slots=True)
class Source:
    """Source text of a program's kernel, and the objects it refers to by name.

    Attributes
    ----------
    wrappers, kernel : str
        Definitions: one wrapper function per distinct call of a user's function; the kernel.
    functions, constants : dict
        Users' functions and constant arguments, by their names in the text.
    """

    wrappers: str
    kernel: str
    functions: dict[str, Callable[..., Any]]
    constants: dict[str, Any]


def source_of(layout: Layout) -> Source:
    """Generate the source text of a program's kernel.

    With `todo` empty, the kernel runs the rows from `first` to `last` in turn. Otherwise `todo` is
    a stack of `last` rows that wait for none. A row that waited only for one of these is pushed on
    the stack, as long as all have room in `done`, which already holds `first` rows. `s` is 0 while
    no operation has failed, then an outcome as in `Rows.outcomes`, or ``BACK``.
    """
    writer = _KernelWriter(layout)
    branches = writer.branches(" " * 8)
    arguments = ["codes, us, arrivals, slots, outcomes, results, base"]
    arguments.append("log_values, log_us, log_arrivals, log_before")
    arguments += [f"c{place}" for place in range(len(layout.columns))]
    arguments += table_names(layout)
    return Source(
        "\n".join(writer.wrappers),
        _KERNEL.format(arguments=", ".join(arguments), branches=branches),
        writer.functions,
        writer.constants,
    )


class _KernelWriter(Writer):
    slot = "slot"
    us = "us[i]"
    arrival = "arrivals[i]"

    def __init__(self, layout: Layout):
        super().__init__(layout)
        self.wrappers: list[str] = []
        self._wrappers: dict[str, str] = {}  # wrapper names by body; calls that are alike share one

    def column(self, place: int) -> str:
        return f"c{place}[i]"

    def computed(self, name: str, ref: Ref, function: str, taken: list[str]) -> None:
        wrapper = self._wrapper(_COMPUTED, function, taken, size=ref.table.size)
        self.lines += [
            f"{name} = 0",
            "if s == 0:",
            f"    s, {name} = {wrapper}({', '.join(taken)})",
        ]

    def operation(self, name: str, number: int, template: Template, taken: list[str]) -> None:
        assert template.function is not None
        wrapper = self._wrapper(
            _OPERATION,
            self.named(template.function),
            taken,
            given_none=1 if isinstance(template, Write) else "BACK",
        )
        self.lines += ["if s == 0:", f"    s, {name} = {wrapper}({', '.join(taken)})"]
        if number:
            self.lines += ["    if s == 1:", f"        s = {number + 1}"]

    def twice(self, key: str, other: str) -> None:
        self.lines += [f"if s == 0 and {key} == {other}:", "    s = BACK"]

    def effects(self, writes: list[str], results: list[str]) -> None:
        kept = [f"results[slot + {place}] = {value}" for place, value in enumerate(results)]
        if kept:
            self.lines += ["if s == 0:", *(f"    {line}" for line in (*writes, *kept))]

    def _wrapper(self, text: str, function: str, taken: list[str], **rest: object) -> str:
        names = ", ".join(f"a{place}" for place in range(len(taken)))
        body = text.format(name="{name}", taken=names, function=function, **rest)
        if body not in self._wrappers:
            name = f"call{len(self._wrappers)}"
            self._wrappers[body] = name
            self.wrappers.append(body.replace("{name}", name))
        return self._wrappers[body]
