"""A state machine: changes of the catalog in nested transactions, beside dicts of versions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import activedb as adb
from activedb.errors import DefinitionError
from tests.databases import place
from tests.rules import actions
from tests.rules.listing import listed, stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Occurrence, Transaction

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
NAMES = st.sampled_from("abc")
PRIORITIES = st.none() | st.integers(-2, 2)
DEPTH_MAX = 5


class OnPurposeError(Exception):
    """Raised inside a transaction that is to end so."""


class Catalogs(RuleBasedStateMachine):
    """One line of nested transactions; `scopes` holds what each sees, the committed one first."""

    server_url: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self.closing = place(self.server_url)
        self.where = self.closing.__enter__()
        self.db = self.where.open()
        self.open: list[Transaction] = []
        self.scopes: list[dict[str, tuple[int, bool, int | None]]] = [{}]
        self.ran: list[str] = []

    def teardown(self) -> None:
        while self.open:
            self.end(commit=False)
        self.closing.__exit__(None, None, None)

    @property
    def seen(self) -> dict[str, tuple[int, bool, int | None]]:
        return self.scopes[-1]

    @initialize()
    def some_are_there(self) -> None:
        assert listed(self.db) == {}
        self.create("a", None, enabled=True)
        self.create("b", 1, enabled=True)

    # -- transactions ----------------------------------------------------------------------

    @precondition(lambda self: len(self.open) < DEPTH_MAX)
    @rule()
    def begin(self) -> None:
        t = self.open[-1].subtransaction() if self.open else self.db.transaction()
        self.open.append(t.__enter__())
        self.scopes.append(dict(self.seen))

    @precondition(lambda self: self.open)
    @rule(commit=st.booleans())
    def end(self, commit: bool) -> None:
        t, seen = self.open.pop(), self.scopes.pop()
        if commit:
            t.__exit__(None, None, None)
            self.scopes[-1] = seen
        else:
            error = OnPurposeError()
            t.__exit__(OnPurposeError, error, None)

    # -- changes ---------------------------------------------------------------------------

    def attempt(self, name: str, act: Callable[[], object]) -> bool:
        """Return whether a rule is there to be changed; without one, the change is refused."""
        if name in self.seen:
            act()
            return True
        with pytest.raises(DefinitionError, match="there is no rule named"):
            act()
        return False

    @rule(name=NAMES, priority=PRIORITIES, enabled=st.booleans())
    def create(self, name: str, priority: int | None, enabled: bool) -> None:
        def action(t: Transaction, o: Occurrence) -> None:
            self.ran.append(name)

        def act() -> None:
            self.db.rules.create(
                action, on=adb.event("A"), name=name, priority=priority, enabled=enabled
            )

        if name in self.seen:
            with pytest.raises(DefinitionError, match=f"there is a rule named '{name}' already"):
                act()
            return
        act()
        self.seen[name] = (1, enabled, priority)

    @rule(names=st.lists(NAMES, min_size=1, max_size=3, unique=True))
    def load(self, names: list[str]) -> None:
        data = {name: {"on": {"event": "B"}, "do": "a:note"} for name in names}
        if any(name in self.seen for name in names):
            with pytest.raises(DefinitionError, match="already"):
                self.db.rules.load(data, modules={"a": actions})
            return
        self.db.rules.load(data, modules={"a": actions})
        self.seen.update(dict.fromkeys(names, (1, True, None)))

    @rule(name=NAMES, priority=PRIORITIES)
    def change(self, name: str, priority: int | None) -> None:
        if self.attempt(name, lambda: self.db.rules.change(name, priority=priority)):
            version, enabled, before = self.seen[name]
            self.seen[name] = (version + (before != priority), enabled, priority)

    @rule(name=NAMES, enabled=st.booleans())
    def switch(self, name: str, enabled: bool) -> None:
        act = self.db.rules.enable if enabled else self.db.rules.disable
        if self.attempt(name, lambda: act(name)):
            version, before, priority = self.seen[name]
            self.seen[name] = (version + (before != enabled), enabled, priority)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if self.attempt(name, lambda: self.db.rules.delete(name)):
            del self.seen[name]

    @rule()
    def refresh(self) -> None:
        self.db.rules.refresh()

    # -- what is seen ----------------------------------------------------------------------

    @rule(ignored=st.sets(NAMES))
    def signal(self, ignored: set[str]) -> None:
        self.ran.clear()
        ignored &= self.seen.keys()
        if self.open:
            with self.db.rules.ignoring(*ignored):
                self.db.signal("A")
        else:
            ignored = set()
            self.db.signal("A")
        of_a = {r.name for r in self.db.rules if r.on == adb.event("A")}
        expected = [n for n in of_a if self.seen[n][1] and n not in ignored]
        assert sorted(self.ran) == sorted(expected)
        ranks = [self.seen[n][2] for n in self.ran]
        assert ranks == sorted(ranks, key=lambda p: (p is None, -(p or 0)))

    @invariant()
    def each_sees_its_own(self) -> None:
        assert listed(self.db) == self.seen
        committed = {r.name: (r.version, r.enabled, r.priority) for r in self.db._catalog.entries()}
        assert committed == self.scopes[0]

    @invariant()
    def rows_are_what_is_committed(self) -> None:
        if not self.open:
            assert stored(self.db) == self.scopes[0]
            assert not self.db._catalog.drafts


@pytest.mark.long
def test_catalog_of_nested_transactions_equals_dicts_of_versions_in_memory() -> None:
    run_state_machine_as_test(
        Catalogs, settings=settings(max_examples=120 * SCALE, stateful_step_count=40)
    )


@pytest.mark.long
def test_catalog_of_nested_transactions_equals_dicts_of_versions_on_postgres(
    postgres_url: str,
) -> None:
    class OnPostgres(Catalogs):
        server_url = postgres_url

    run_state_machine_as_test(
        OnPostgres, settings=settings(max_examples=6 * SCALE, stateful_step_count=40)
    )
