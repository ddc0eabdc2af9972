"""Schedules of clock events: a moment, a period, or a cron expression."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from activedb.clock import in_microseconds, moment_of
from activedb.errors import PatternError
from activedb.events._names import seconds_text

__all__ = ["At", "Cron", "Every", "Schedule"]


class Schedule(ABC):
    """Moments at which a clock event occurs. Immutable, compared by value."""

    __slots__ = ()

    @property
    @abstractmethod
    def text(self) -> str:
        """The schedule as written in the rule language."""

    @abstractmethod
    def next_us(self, after_us: int) -> int | None:
        """Return the first moment after `after_us`, in microseconds since the epoch, or None."""


@dataclass(frozen=True, slots=True)
class At(Schedule):
    """A single moment.

    Attributes
    ----------
    us : int
        Microseconds since the epoch.
    """

    us: int

    @property
    def text(self) -> str:
        return f"AT '{moment_of(self.us).isoformat()}'"

    def next_us(self, after_us: int) -> int | None:
        return self.us if self.us > after_us else None


@dataclass(frozen=True, slots=True)
class Every(Schedule):
    """Moments at equal distances, counted from the epoch.

    Attributes
    ----------
    period_us, offset_us : int
        The moments are at offset + n · period for every integer n.
    """

    period_us: int
    offset_us: int = 0

    @property
    def text(self) -> str:
        text = f"EVERY {seconds_text(self.period_us)}s"
        return text if not self.offset_us else f"{text} OFFSET {seconds_text(self.offset_us)}s"

    def next_us(self, after_us: int) -> int | None:
        return ((after_us - self.offset_us) // self.period_us + 1) * self.period_us + self.offset_us


@dataclass(frozen=True, slots=True)
class Cron(Schedule):
    """Moments given by a cron expression in a time zone.

    Attributes
    ----------
    expression : str
        Five fields as in crontab(5), or six with seconds first.
    zone : str
        The IANA name of the time zone; daylight saving is handled as by Debian's cron.
    """

    expression: str
    zone: str = "UTC"

    @classmethod
    def of(cls, expression: str, zone: str = "UTC") -> Cron:
        """Return the schedule after validating its arguments.

        Raises
        ------
        PatternError
            If the expression or the time zone is invalid.
        """
        try:
            now = datetime.now(ZoneInfo(zone))
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise PatternError(
                f"there is no time zone {zone!r}: write a name like 'UTC'"
            ) from error
        try:
            CronSim(expression, now)
        except (CronSimError, TypeError, ValueError, AttributeError) as error:
            raise PatternError(
                f"{expression!r} is not a cron expression ({error}): write minute, hour, day, "
                "month and weekday, such as '*/5 * * * *'"
            ) from error
        return cls(" ".join(expression.split()), zone)

    @property
    def text(self) -> str:
        zone = "" if self.zone == "UTC" else f" ZONE '{self.zone}'"
        return f"CRON '{self.expression}'{zone}"

    def next_us(self, after_us: int) -> int | None:
        # cronsim has a resolution of seconds and starts after the moment it is given.
        start = moment_of(after_us).astimezone(ZoneInfo(self.zone)).replace(microsecond=0)
        # In an hour that the clocks repeat, its first moments may be those of the first time.
        moments = map(in_microseconds, CronSim(self.expression, start))
        return next((us for us in moments if us > after_us), None)
