"""Who waits for whom at the server, and what others say of their own waits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, text

__all__ = ["Backend", "backends", "publish"]

_APPLICATION = "activedb"
_WAITS = f"{_APPLICATION} waits for "

# Of the processes of other roles an ordinary one sees the name and the locks, not the rest.
_BACKENDS = text(
    """
    SELECT a.pid, coalesce(a.application_name, ''), a.xact_start, a.state_change,
           CASE WHEN a.pid = ANY(waiting.pids) THEN pg_blocking_pids(a.pid) ELSE '{}' END
    FROM pg_stat_activity AS a,
         (SELECT array_agg(pid) AS pids FROM pg_locks WHERE NOT granted) AS waiting
    WHERE a.datname = current_database()
      AND (a.xact_start IS NOT NULL
           OR a.state IS NULL AND a.pid IN (SELECT pid FROM pg_locks WHERE granted))
    """
)
_PUBLISH = text("SELECT set_config('application_name', :said, true)")
_SAID_MAX = 63  # bytes that the server keeps
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Backend:
    """A process of the server that is in a transaction.

    Attributes
    ----------
    number : int
        Its process id.
    is_ours : bool
        Whether an activedb process, this or another, is its client.
    began : datetime
        When its transaction began; the earliest time there is if we may not see that.
    blockers : tuple of int
        The processes it waits for at the server.
    waits_for : tuple of int
        The processes for which its client waits on its own side, as far as it says so.
    """

    number: int
    is_ours: bool
    began: datetime
    blockers: tuple[int, ...]
    waits_for: tuple[int, ...]


def backends(connection: Connection) -> list[Backend]:
    """Processes of this database that are in a transaction; one round trip."""
    rows = connection.execute(_BACKENDS).all()
    began_of = {number: began or _LONG_AGO for number, _, began, _, _ in rows}
    found = []
    for number, name, _, changed, blockers in rows:
        said = name.removeprefix(_WAITS) if name.startswith(_WAITS) else ""
        others = [int(part) for part in said.split(",") if part.strip().isdecimal()]
        # Whoever began after this one last did anything is not whom it spoke of.
        waits_for = [o for o in others if not changed or began_of.get(o, _LONG_AGO) <= changed]
        is_ours = name.startswith(_APPLICATION)
        found.append(Backend(number, is_ours, began_of[number], tuple(blockers), tuple(waits_for)))
    return found


def publish(connection: Connection, waits_for: Iterable[int]) -> None:
    """Say, until the transaction on `connection` ends, for which processes its client waits.

    As many of them as fit.
    """
    said = _WAITS
    for number in sorted(waits_for):
        more = f"{number}" if said == _WAITS else f",{number}"
        if len(said) + len(more) > _SAID_MAX:
            break
        said += more
    connection.execute(_PUBLISH, {"said": said if said != _WAITS else _APPLICATION})
