"""Who waits for whom at the server, and what others say of their own waits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

__all__ = ["Backend", "backends", "publish"]

_APPLICATION = "activedb"
_WAITS = f"{_APPLICATION} waits for "

_BACKENDS = text(
    """
    SELECT pid, application_name, xact_start,
           CASE WHEN wait_event_type = 'Lock' THEN pg_blocking_pids(pid) ELSE '{}' END AS blockers
    FROM pg_stat_activity
    WHERE datname = current_database() AND xact_start IS NOT NULL
    """
)
_PUBLISH = text("SELECT set_config('application_name', :said, true)")


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
        When its transaction began.
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
    found = []
    for number, name, began, blockers in connection.execute(_BACKENDS):
        said = name.removeprefix(_WAITS) if name.startswith(_WAITS) else ""
        waits_for = tuple(int(part) for part in said.split(",") if part.strip().isdecimal())
        is_ours = name.startswith(_APPLICATION)
        found.append(Backend(number, is_ours, began, tuple(blockers), waits_for))
    return found


def publish(connection: Connection, waits_for: Iterable[int]) -> None:
    """Say, until the transaction on `connection` ends, for which processes its client waits."""
    names = ",".join(str(number) for number in sorted(waits_for))
    said = f"{_WAITS}{names}" if names else _APPLICATION
    connection.execute(_PUBLISH, {"said": said[:63]})
