"""Rules triggered by the changes that any program commits, and the slots that deliver them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from activedb.changes._changes import DATA_KINDS, FOLLOWED_MODES, Follower, FollowProgress
from activedb.errors import ConfigurationError, TransactionStateError
from activedb.firing import SYSTEMIC, Launcher, Triggering
from activedb.functions import checked_function
from activedb.rules import Catalog
from activedb.store import Store
from activedb.store.sql import TableSpec
from activedb.transactions import Forest, current_transaction

__all__ = ["ChangeCapture"]

_LOG = logging.getLogger(__name__)

_RECOVER_EVERY_S = 5.0
_PAUSE_S = 0.5  # after a lost connection
_OPEN_AGAIN_S_MAX = 30.0


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
        return _follow(
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
            specs = _tables_of_rules(self._catalog, self._spec_named)
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


# -- loop that follows a replication slot until told to stop ---------------------------------------


def _follow(
    follower: Follower,
    launcher: Launcher,
    stop: threading.Event,
    *,
    poll_s: float,
    on_progress: Callable[[FollowProgress], None] | None,
) -> FollowProgress:
    """Take steps until `stop` is set, then finish the started firings.

    Reopens a lost connection. Also starts firings that an earlier process has recorded and not
    finished.
    """
    tell = on_progress or (lambda progress: None)
    next_recovery_s = 0.0
    with follower:
        for rule in follower.not_run():
            _LOG.info(
                "rule %s is %s, so it is not run for changes by others", rule.name, rule.coupling
            )
        while not stop.is_set():
            is_more = False
            try:
                if time.monotonic() >= next_recovery_s:
                    launcher.find_left()
                    next_recovery_s = time.monotonic() + _RECOVER_EVERY_S
                is_more = follower.step()
            except SYSTEMIC:
                _LOG.warning("slot %s cannot be read for now", follower.slot, exc_info=True)
                _open_again(follower, stop)
            tell(follower.progress)
            if not is_more:
                stop.wait(poll_s)
    launcher.join_running()
    return follower.progress


def _open_again(follower: Follower, stop: threading.Event) -> None:
    until_s = time.monotonic() + _OPEN_AGAIN_S_MAX
    follower.close()
    while not stop.wait(_PAUSE_S):
        try:
            follower.open()
        except SYSTEMIC:
            continue
        except ConfigurationError:
            # The server may not have noticed yet that the old connection, with the lock, is lost.
            if time.monotonic() > until_s:
                raise
        else:
            return


def _tables_of_rules(catalog: Catalog, named: Callable[[str], TableSpec | None]) -> list[TableSpec]:
    """Return the tables whose changes trigger rules with a followed coupling mode.

    Raises
    ------
    ConfigurationError
        If there are none, or the name of one is unknown.
    """
    names = {
        name
        for rule in catalog
        if rule.coupling in FOLLOWED_MODES
        for kind, name in rule.on.keys
        if kind in DATA_KINDS
    }
    if not names:
        raise ConfigurationError(
            "there is nothing to follow: no detached, sequential or causal rule is on inserted, "
            "updated or deleted rows; define the rules first, or name the tables"
        )
    found = []
    for name in sorted(names):
        spec = named(name)
        if spec is None:
            raise ConfigurationError(
                f"table {name}, which rules are on, is not known here yet: name the tables to "
                f"follow, db.changes.follow(table, …)"
            )
        found.append(spec)
    return found
