"""Programs over dense tables: a fixed set of functions, so that they are compiled once."""

from __future__ import annotations

from typing import Any

from activedb.scheduling import Abort, Program, SharedTable

SIZE = 6


def put(value: float, amount: float) -> float:
    return value + amount


def take(value: float, amount: float) -> float | None:
    if value < amount:
        return None
    return value - amount


def receive(value: float, sender: float, amount: float) -> float | None:
    if sender < amount:
        return None
    return value + amount * 0.5


def share(value: float, other: float, amount: float) -> float:
    if amount < 0:
        raise Abort("less than nothing is shared")
    return value / other + amount


def of_two(first: float, second: float) -> float:
    return first * 3 + second


def mean(values: Any) -> float:
    total = 0.0
    for number in values:
        total += number
    return total / len(values)


def grow(value: float, values: Any, amount: float) -> float | None:
    latest = 0.0
    for number in values:
        latest = number
    if len(values) > 5:
        return None
    return value * 0.5 + latest + amount


def pick(value: float, number: int) -> int:
    return int(value + number) % 8  # two of which are no keys


def ledger() -> Program:
    """Two tables, transfers that abort, reads of several kinds."""
    accounts = SharedTable("accounts", initial=10, size=SIZE)
    assets = SharedTable("assets", initial=1, size=SIZE + 2)
    program = Program("ledger", [accounts, assets])

    @program.on("DEPOSIT")
    def deposit(e: Any, access: Any) -> None:
        access.write(accounts[e["to"]], put, e["amount"])
        access.write(assets[e["to"]], put, 1)

    @program.on("TRANSFER")
    def transfer(e: Any, access: Any) -> None:
        source, target = accounts[e["from"]], accounts[e["to"]]
        access.write(source, take, e["amount"])
        access.write(target, receive, e["amount"], reads=(target, source))
        access.write(assets[e["to"]], share, e["amount"], reads=(source, assets[e["from"]]))

    @program.on("LOOK")
    def look(e: Any, access: Any) -> None:
        access.read(accounts[e["from"]], assets[0])
        access.read(accounts[e["from"]], accounts[e["to"]], function=of_two)
        access.read(assets[e["to"]])

    return program


def windowed() -> Program:
    """Windows and computed keys."""
    levels = SharedTable("levels", initial=2, history=0.00002, size=SIZE)
    marks = SharedTable("marks", initial=0.5, history=0.00001, size=SIZE)
    program = Program("windowed", [levels, marks])

    @program.on("SET")
    def set_level(e: Any, access: Any) -> None:
        access.write(levels[e["key"]], put, e["amount"])

    @program.on("GROW")
    def grow_level(e: Any, access: Any) -> None:
        own = levels[e["key"]]
        access.write(own, grow, e["amount"], reads=(own, levels[e["other"]].window(0.00001)))
        access.write(marks[e["other"]], put, e["amount"])

    @program.on("MEAN")
    def mean_of(e: Any, access: Any) -> None:
        access.read(levels[e["key"]].window(0.00002), function=mean)

    @program.on("PICK")
    def pick_one(e: Any, access: Any) -> None:
        target = marks.computed(pick, e["other"], reads=(levels[e["key"]],))
        access.write(target, put, e["amount"])
        access.read(marks[e["key"]])

    @program.on("PICKED")
    def picked(e: Any, access: Any) -> None:
        source = levels.computed(pick, e["other"], reads=(marks[e["key"]],))
        access.write(levels[e["key"]], take, e["amount"], reads=(source,))

    return program


LEDGER, WINDOWED = ledger(), windowed()
