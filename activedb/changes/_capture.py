"""Rules triggered by the changes that any program commits, and the slots that deliver them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from activedb.changes._changes import Follower, FollowProgress
from activedb.changes._following import follow, tables_of_rules
from activedb.errors import ConfigurationError, TransactionStateError
from activedb.firing import Launcher, Triggering
from activedb.functions import checked_function
from activedb.rules import Catalog
from activedb.store import Store, TableSpec
from activedb.transactions import Forest, current_transaction

__all__ = ["ChangeCapture"]


class ChangeCapture:
    """Changes by any program as events, read from a replication slot of the server.

    Parameters
    ----------
    tables : callable
        Returns the declared tables by name.
    """

    def __init__(
        self,
        *,
        store: Store,
        catalog: Catalog,
        forest: Forest,
        triggering: Triggering,
        launcher: Launcher,
        tables: Callable[[], Mapping[str, Any]],
    ):
        self._store = store
        self._catalog = catalog
        self._forest = forest
        self._triggering = triggering
        self._launcher = launcher
        self._tables = tables

    def follow(
        self,
        *tables: Any,
        slot: str = "activedb",
        stop: threading.Event | None = None,
        poll_s: float = 1.0,
        on_progress: Callable[[FollowProgress], None] | None = None,
        whole_rows: bool = False,
    ) -> FollowProgress:
        """Trigger rules by the changes that any program commits to tables, until told to stop.

        Each change by another program, or by an activedb process that does not have the rule,
        becomes one occurrence with the time of its commit. It fires each detached, sequential or
        causal rule exactly once, even across crashes. Changes for which an activedb process, this
        or another one, has already triggered a rule do not trigger that rule again. Immediate,
        deferred and exclusive rules do not run, because the transaction is over. Define the rules
        first.

        Parameters
        ----------
        *tables : Table or mapped class
            Tables to follow; by default all tables whose changes such rules listen to.
        slot : str, default "activedb"
            Name of the server's replication slot and publication. The first call creates both. From
            then on the server keeps its log until it is consumed; `unfollow` ends that.
        stop : threading.Event, optional
            Set it from another thread or a signal handler to end the call; firings that have
            started are finished.
        poll_s : float, default 1.0
            Seconds between two looks while there are no changes.
        on_progress : callable ``(progress)``, optional
            Called on this thread after each look, with a `FollowProgress`.
        whole_rows : bool, default False
            Run ``ALTER TABLE … REPLICA IDENTITY FULL``, so that updates and deletes have the
            complete old row. Otherwise old rows have only the primary key, and a rule on
            ``updated(table, "column")`` is refused.

        Returns
        -------
        FollowProgress
            Progress at the end.

        Raises
        ------
        ConfigurationError
            On ``memory://``; if the server's wal_level is not logical, the role lacks a privilege,
            the slot is lost, belongs to something else, or has a follower; or if a rule needs old
            values that the server does not send.
        LockTimeout
            If transactions stay open that were open when a table was first followed.
        TransactionStateError
            Inside a transaction.
        """
        if on_progress is not None:
            checked_function(on_progress, "on_progress=")
        if isinstance(poll_s, bool) or not isinstance(poll_s, int | float) or not 0 < poll_s < 1e6:
            raise ConfigurationError(f"poll_s takes a positive number of seconds, not {poll_s!r}")
        return follow(
            self.follower(*tables, slot=slot, whole_rows=whole_rows),
            self._launcher,
            stop or threading.Event(),
            poll_s=poll_s,
            on_progress=on_progress,
        )

    def follower(self, *tables: Any, slot: str = "activedb", whole_rows: bool = False) -> Follower:
        """Return a follower that is driven step by step.

        Use it as ``with db.changes.follower(table) as follower: follower.step()``. Each step takes
        the committed changes. Parameters and errors are those of `follow`.
        """
        t = current_transaction()
        if t is not None:
            raise TransactionStateError(f"{t.path} cannot follow changes; do it outside")
        known = self._store.slot(slot)
        spec = self._forest.tables.spec
        specs = [spec(table) for table in tables]
        if not specs:
            specs = tables_of_rules(self._catalog, self._spec_named)
        return Follower(
            known,
            specs,
            is_whole=whole_rows,
            forest=self._forest,
            triggering=self._triggering,
            launcher=self._launcher,
            trigger=lambda point: self._store.trigger(point),
        )

    def unfollow(self, slot: str = "activedb") -> bool:
        """Drop a slot that `follow` has created, with everything that belongs to it.

        Changes that have not been taken are lost.

        Parameters
        ----------
        slot : str, default "activedb"
            Name of the slot.

        Returns
        -------
        bool
            False if there was no such slot.

        Raises
        ------
        ConfigurationError
            If the slot has a follower, or belongs to something else.
        """
        return self._store.slot(slot).drop()

    def _spec_named(self, name: str) -> TableSpec | None:
        if name in self._tables():
            return self._forest.tables.spec(self._tables()[name])
        return self._forest.tables.named(name)
