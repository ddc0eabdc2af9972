"""Random functions of the short form, as text: tidy ones, and ones that hide what they access."""

from __future__ import annotations

import random

__all__ = ["function_text"]

_TABLES = ["A", "B", "C"]
_NAMES = ["k", "m", "n", "A", "src"]


def function_text(seed: int, wild: float) -> str:
    """A module over `TABLES` with a ``function(t, e)``; `wild`: the share of untidy parts."""
    return _Writer(seed, wild).text()


class _Writer:
    def __init__(self, seed: int, wild: float):
        self.random = random.Random(f"{seed} {wild}")
        self.wild = wild
        self.bound: list[str] = []

    def one(self, *texts: str) -> str:
        return self.random.choice(texts)

    def named(self, kind: str) -> list[str]:
        return [name for name in self.bound if name.startswith(kind)]

    def is_wild(self) -> bool:
        return self.random.random() < self.wild

    def text(self) -> str:
        lines = ["A, B, C = TABLES", "MOVING = A", ""]
        if self.is_wild():
            lines += ["def move():", "    global MOVING", "    MOVING = B", ""]
        else:
            lines += ["def move():", "    pass", ""]
        lines += ["def helper(t, e):", "    t.read(C[8])", "    e['x'] = 4", ""]
        lines += ["def made(CLOSED):", "    def function(t, e):"]
        lines += ["        " + line for line in self.block(3)]
        if self.is_wild():
            lines += ["    CLOSED = B"]
        lines += ["    return function", "", "function = made(C)", ""]
        return "\n".join(lines)

    def block(self, depth: int) -> list[str]:
        lines: list[str] = []
        for _ in range(self.random.randint(1, 4)):
            lines += self.statement(depth)
        return lines

    def statement(self, depth: int) -> list[str]:
        kind = self.random.random()
        if kind < 0.4:
            return [self.access()]
        if kind < 0.65:
            kind_of, value = self.random.choice(
                [("v", self.value(2)), ("s", self.table()), ("r", self.ref(1))]
            )
            name = f"{kind_of}{len(self.bound)}"
            if self.is_wild():
                name = self.one(*_NAMES, *self.bound)
            self.bound.append(name)
            operator = "+=" if self.is_wild() and self.random.random() < 0.3 else "="
            return [f"{name} {operator} {value}"]
        if kind < 0.8 and depth:
            head = self.one(f"if {self.value(1)}:", f"if 'x' in e and {self.value(1)}:", "if True:")
            rest = (
                ["else:", *_indented(self.block(depth - 1))] if self.random.random() < 0.4 else []
            )
            return [head, *_indented(self.block(depth - 1)), *rest]
        if self.is_wild():
            return self.trick()
        return [self.access()]

    def trick(self) -> list[str]:
        name = self.one(*_NAMES)
        inner = self.one(f"t.read(A[{name}])", self.access())
        return self.random.choice(
            [
                [f"for {name} in (1, 2):", *_indented([inner])],
                [f"for {name} in (A, B):", *_indented([f"t.read({name}[1])"])],
                [f"[{inner} for {name} in (3, 4)]"],
                [f"[{inner} for _ in (1,) if ({name} := {self.value(1)})]"],
                [f"(lambda {name}: {inner})({self.value(1)})"],
                ["def inner():", *_indented([self.access(), self.access()]), "inner()"],
                ["def inner():", f"    nonlocal {name}", f"    {name} = 2", "inner()"]
                if name in self.bound and name != "A"
                else ["move()"],
                ["helper(t, e)"],
                ["helper(t, {**e})"],
                ["e['x'] = 3"],
                ["e.update(y=2)"],
                ["f = e", "f['y'] = 9"],
                ["f = t", "f.read(A[6])"],
                ["t.read(MOVING[1])"],
                ["read = t.read", "read(B[5])"],
                [f"with open(__file__) as {name}:", *_indented([self.access(), self.access()])],
                [
                    "try:",
                    *_indented([self.access(), self.access()]),
                    f"except Exception as {name}:",
                    "    pass",
                ],
                [f"match {self.value(1)}:", f"    case {name}:", f"        {inner}"],
                ["class Inner:", "    A = B", "    t.read(A[7])"],
                [f"del {name}"] if name in self.bound and name != "A" else ["pass"],
            ]
        )

    def access(self) -> str:
        ref = self.ref(2)
        if self.random.random() < 0.5:
            return f"t.read({ref})"
        return f"t.write({ref}, {self.value(1)})"

    def table(self) -> str:
        if self.is_wild():
            return self.one("MOVING", "src", "e['table']", "(A if e['x'] else B)", "[A, B][0]")
        return self.one(*_TABLES, "CLOSED", *self.named("s"))

    def ref(self, depth: int) -> str:
        table = self.table()
        return self.one(
            f"{table}[{self.value(depth)}]",
            f"{table}[{self.value(depth)}]",
            f"{table}[{self.value(depth)}].window({self.value(0)})",
            f"{table}.range({self.value(0)}, high={self.value(0)})",
            f"{table}.computed(lambda k: k % 9, reads=({self.table()}[{self.value(0)}],))",
            f"(A[{self.value(1)}] if {self.value(0)} else B[{self.value(1)}])",
            f"(ref := {table}[{self.value(1)}])",
            *self.named("r"),
        )

    def value(self, depth: int) -> str:
        if self.is_wild():
            return self.one(
                *("e.get('x')", "e.pop('y', 2)", "t.read(A[1])", "len(e)", "int(3)", "e['odd'][0]"),
                *self.bound,
                "(k := 3)",
            )
        if depth and self.random.random() < 0.5:
            operator = self.one("+", "-", "*", "//", "%")
            return f"({self.value(depth - 1)} {operator} {self.value(depth - 1)})"
        return self.one("e['x']", "e['y']", "e['zero']", "1", "2", "-3", *self.named("v"))


def _indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]
