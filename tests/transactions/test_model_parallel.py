"""Random trees of parallel children on free-running threads, against the model.

No two transactions that run at the same time touch the same row, so the threads may run as they
like: the outcome is that of the model, which plays each child where it is spawned.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy import Column, Integer, String, Table, delete, select

from activedb.errors import TransactionAborted
from tests.databases import place
from tests.transactions.model import Model, Node

if TYPE_CHECKING:
    from collections.abc import Iterator

    import activedb as adb
    from activedb import Child, Transaction

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
QUICK = settings(
    max_examples=200 * SCALE,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SLOW = settings(QUICK, max_examples=60 * SCALE)
SLOTS = 2

Seen = dict[str, list[Any]]


class OnPurposeError(Exception):
    """Raised inside a transaction that is to end so."""


@dataclass(frozen=True)
class Write:
    """Write a number into one of the transaction's own rows, or delete it (None)."""

    slot: int
    number: int | None


@dataclass(frozen=True)
class Tree:
    """A transaction: what it does in turn, and how it ends.

    Attributes
    ----------
    steps : tuple of Write or Tree
        A tree is a child; children in a row are spawned and run in parallel.
    ending : str
        ``commit``, ``abort`` or ``raise``.
    how : str
        ``joined``: a parallel child whose result is asked for; ``left``: one that the commit of
        its parent joins; ``sequential``: a subtransaction on the thread of its parent.
    gift : int or None
        What the parent writes into the child's first row before it begins.
    """

    steps: tuple[Any, ...] = ()
    ending: str = "commit"
    how: str = "joined"
    gift: int | None = None


WRITES = st.builds(Write, st.integers(0, SLOTS - 1), st.none() | st.integers(0, 99))
TREES = st.recursive(
    st.builds(Tree, st.lists(WRITES, max_size=3).map(tuple)),
    lambda inner: st.builds(
        Tree,
        st.lists(WRITES | inner, max_size=6).map(tuple),
        st.sampled_from(["commit", "commit", "commit", "commit", "abort", "raise"]),
        st.sampled_from(["joined", "joined", "left", "sequential"]),
        st.none() | st.integers(100, 199),
    ),
    max_leaves=25,
)


def row_of(path: str, slot: int) -> str:
    """Key of a transaction's own row."""
    return f"{path}:{slot}"


# -- the model -----------------------------------------------------------------------------


def foresee(tree: Tree, path: str, node: Node, model: Model, seen: Seen) -> bool:
    """Play a transaction in the model; return whether its parent gets an error."""
    left_failed = False
    for number, step in enumerate(tree.steps):
        if isinstance(step, Write):
            model.write(node, row_of(path, step.slot), step.number)
            seen[path].append(model.read(node, row_of(path, step.slot)))
            continue
        name = f"{path}.{number}"
        if step.gift is not None:
            model.write(node, row_of(name, 0), step.gift)
        failed = foresee(step, name, model.begin(node), model, seen)
        if step.how == "left":
            left_failed |= failed
        else:
            seen[path].append((failed, [model.read(node, row_of(name, s)) for s in range(SLOTS)]))
    commits = tree.ending == "commit" and not left_failed
    (model.commit if commits else model.abort)(node)
    # The abort of a block is over at its end; a spawned function hands it on like any error.
    told = tree.ending != "abort" or tree.how != "sequential"
    return not commits and told


# -- the database --------------------------------------------------------------------------


@dataclass
class Play:
    """Player of trees on a database."""

    table: Table
    seen: Seen = field(default_factory=lambda: defaultdict(list))

    def body(self, t: Transaction, tree: Tree, path: str) -> None:
        """The function, or the block, of one transaction."""
        for number, step in enumerate(tree.steps):
            if isinstance(step, Write):
                self.put(t, row_of(path, step.slot), step.number)
                self.seen[path].append(self.look(t, row_of(path, step.slot)))
                continue
            name = f"{path}.{number}"
            if step.gift is not None:
                self.put(t, row_of(name, 0), step.gift)
            if step.how == "sequential":
                failed = self.block(t.subtransaction(), step, name)
            else:
                child = t.spawn(self.body, step, name)
                if step.how == "left":
                    continue
                failed = self.is_failed(child)
            rows = [self.look(t, row_of(name, slot)) for slot in range(SLOTS)]
            self.seen[path].append((failed, rows))
        if tree.ending == "abort":
            t.abort()
        if tree.ending == "raise":
            raise OnPurposeError

    def block(self, t: Transaction, tree: Tree, path: str) -> bool:
        """Play a transaction as a block; return whether an error came out of it."""
        try:
            with t:
                self.body(t, tree, path)
        except (OnPurposeError, TransactionAborted):
            return True
        return False

    def is_failed(self, child: Child[None]) -> bool:
        """Return whether the result of a child is an error."""
        try:
            child.result()
        except (OnPurposeError, TransactionAborted):
            return True
        return False

    def put(self, t: Transaction, key: str, number: int | None) -> None:
        """Make a row what it is to be, whatever it was."""
        there = t.get(self.table, key, for_update=True) is not None
        if number is None:
            if there:
                t.delete(self.table, key)
        elif there:
            t.update(self.table, key, n=number)
        else:
            t.insert(self.table, {"key": key, "n": number})

    def look(self, t: Transaction, key: str) -> int | None:
        """Return the number in a row."""
        row = t.get(self.table, key)
        return None if row is None else row["n"]


def may_be_cut_short(tree: Tree) -> bool:
    """Return whether a child may have to abort while it runs.

    That is a child whose parent does not wait for it.
    """
    children = [step for step in tree.steps if isinstance(step, Tree)]
    is_left = any(child.how == "left" for child in children)
    return (is_left and tree.ending != "commit") or any(map(may_be_cut_short, children))


def check(db: adb.Database, table: Table, trees: list[Tree]) -> None:
    with db.transaction() as t:
        t.execute(delete(table))
    model = Model()
    for number, tree in enumerate(trees):
        top = Tree(tree.steps, tree.ending, "sequential")
        expected: Seen = defaultdict(list)
        failed = foresee(top, f"T{number}", model.begin(), model, expected)
        play = Play(table)
        assert play.block(db.transaction(), top, f"T{number}") == failed
        if may_be_cut_short(top):
            assert play.seen.keys() <= expected.keys()
            assert all(expected[path][: len(seen)] == seen for path, seen in play.seen.items())
        else:
            assert dict(play.seen) == dict(expected)
        with db.transaction() as t:
            assert {row.key: row.n for row in t.query(select(table))} == model.committed
    assert not db._forest.locks.snapshot().transactions


@pytest.fixture(scope="module")
def databases(postgres_url: str) -> Iterator[dict[str, tuple[adb.Database, Table]]]:
    """One database of each kind for all examples; each example starts by emptying the table."""
    with place(None) as memory, place(postgres_url) as postgres:
        opened = {}
        for name, where in (("memory", memory), ("postgres", postgres)):
            db = where.open(threads=4)
            table = Table(
                "cells",
                db.metadata,
                Column("key", String(500), primary_key=True),
                Column("n", Integer),
            )
            db.create_all()
            opened[name] = (db, table)
        yield opened


@given(st.lists(TREES, min_size=1, max_size=3))
@QUICK
def test_parallel_trees_on_memory_agree_with_the_model(
    databases: dict[str, tuple[adb.Database, Table]], trees: list[Tree]
) -> None:
    check(*databases["memory"], trees)


@given(st.lists(TREES, min_size=1, max_size=2))
@SLOW
def test_parallel_trees_on_postgres_agree_with_the_model(
    databases: dict[str, tuple[adb.Database, Table]], trees: list[Tree]
) -> None:
    check(*databases["postgres"], trees)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["memory", "postgres"])
@pytest.mark.parametrize(("width", "depth"), [(60, 1), (1, 20), (3, 4)])
def test_wide_and_deep_trees_agree_with_the_model(
    databases: dict[str, tuple[adb.Database, Table]], kind: str, width: int, depth: int
) -> None:
    tree = Tree((Write(0, 1),))
    for level in range(depth):
        endings = ("commit", "abort") if level % 3 == 1 else ("commit",)
        children = tuple(
            Tree(tree.steps, endings[number % len(endings)], "joined", gift=100 + number)
            for number in range(width)
        )
        tree = Tree((Write(0, level), *children, Write(1, level)))
    check(*databases[kind], [tree])
