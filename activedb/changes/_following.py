"""Loop that follows a replication slot until told to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from activedb.changes._changes import FOLLOWED_MODES, Follower, FollowProgress
from activedb.changes._replication_marks import DATA_KINDS
from activedb.errors import ConfigurationError
from activedb.firing import SYSTEMIC, Launcher
from activedb.rules import Catalog
from activedb.store.sql import TableSpec

__all__ = ["follow", "tables_of_rules"]

_LOG = logging.getLogger(__name__)

_RECOVER_EVERY_S = 5.0
_PAUSE_S = 0.5  # after a lost connection
_OPEN_AGAIN_S_MAX = 30.0


def follow(
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
                    launcher.recover()
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


def tables_of_rules(catalog: Catalog, named: Callable[[str], TableSpec | None]) -> list[TableSpec]:
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
