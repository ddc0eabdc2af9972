"""The monitor shows exactly the tree of transactions that ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import activedb as adb


class Undone(Exception):
    """Raised on purpose."""


Tree = tuple[bool, list[Any]]
"""Flag whether a transaction commits, and its children."""

TREES: st.SearchStrategy[Tree] = st.recursive(
    st.tuples(st.booleans(), st.just([])),
    lambda trees: st.tuples(st.booleans(), st.lists(trees, max_size=3)),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[adb.Database]:
    folder = tmp_path_factory.mktemp("monitor")
    with closing(adb.connect("memory://", monitor="on", folder=folder)) as opened:
        yield opened


def run(db: adb.Database, tree: Tree, expected: list[tuple[Any, ...]], parent: Any = None) -> None:
    """Run a tree; note of each transaction, as it ends, what the monitor should tell."""
    commits, children = tree
    with suppress(Undone), db.transaction() if parent is None else parent.subtransaction() as t:
        # What an abort above undoes has committed itself.
        expected.append((t.id, None if parent is None else parent.id, t.path, commits))
        place = len(expected) - 1
        for child in children:
            run(db, child, expected, t)
        expected.append(expected.pop(place))
        if not commits:
            raise Undone


@settings(max_examples=25)
@given(tree=TREES)
def test_monitor_tells_the_tree_that_ran(db: adb.Database, tree: Tree) -> None:
    monitor = db.admin.monitor
    assert monitor is not None
    since = monitor.state()["last_seq"]
    expected: list[tuple[Any, ...]] = []
    run(db, tree, expected)
    state = monitor.state(since)
    assert state["forest"]["total"] == 0
    assert state["skipped"] == 0
    recent = state["recent"]
    assert [each["id"] for each in recent] == [id for id, *_ in expected]  # children first
    top = expected[-1][0]
    for short, (id, parent, path, commits) in zip(recent, expected, strict=True):
        story = monitor.transaction(id)
        assert story is not None
        assert (story["parent"], story["top"], story["path"]) == (parent, top, path)
        assert story["state"] == short["state"] == ("committed" if commits else "aborted")
        assert story["why"] == (None if commits else "Its code raised Undone.")
        steps = [step["what"] for step in story["steps"]]
        assert steps[0] == "began"
        assert steps[-1] == story["state"]
        children = [each[0] for each in expected if each[1] == id]
        assert sorted(children) == [child["id"] for child in story["children"]]
        for what in ("child", "child ended"):
            others = [step["other"] for step in story["steps"] if step["what"] == what]
            assert others == sorted(children)
