"""Wait-for relations at the server, and the waits that other processes publish."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, text

__all__ = ["Backend", "backends", "publish"]

_APPLICATION = "activedb"
_WAITS = f"{_APPLICATION} waits for "

# Of other roles' processes, an ordinary role sees only the name and the locks.
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
_SAID_MAX = 63  # bytes that the server stores
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Backend:
    """Server process that is in a transaction.

    Attributes
    ----------
    number : int
        Its process id.
    is_ours : bool
        True if its client is an activedb process, this or another one.
    began : datetime
        Start of its transaction; the earliest possible time if this role may not see it.
    blockers : tuple of int
        Processes it waits for at the server.
    waits_for : tuple of int
        Processes for which its client waits on the client side, as far as published.
    """

    number: int
    is_ours: bool
    began: datetime
    blockers: tuple[int, ...]
    waits_for: tuple[int, ...]


def backends(connection: Connection) -> list[Backend]:
    """Return the processes of this database that are in a transaction; one round trip."""
    rows = connection.execute(_BACKENDS).all()
    began_of = {number: began or _LONG_AGO for number, _, began, _, _ in rows}
    found = []
    for number, name, _, changed, blockers in rows:
        said = name.removeprefix(_WAITS) if name.startswith(_WAITS) else ""
        others = [int(part) for part in said.split(",") if part.strip().isdecimal()]
        # A process that began after this one's last activity cannot be the one it published.
        waits_for = [o for o in others if not changed or began_of.get(o, _LONG_AGO) <= changed]
        is_ours = name.startswith(_APPLICATION)
        found.append(Backend(number, is_ours, began_of[number], tuple(blockers), tuple(waits_for)))
    return found


def publish(connection: Connection, waits_for: Iterable[int]) -> None:
    """Publish, until the transaction on `connection` ends, the processes its client waits for.

    The list is truncated to what fits.
    """
    said = _WAITS
    for number in sorted(waits_for):
        more = f"{number}" if said == _WAITS else f",{number}"
        if len(said) + len(more) > _SAID_MAX:
            break
        said += more
    connection.execute(_PUBLISH, {"said": said if said != _WAITS else _APPLICATION})
