"""Incident alerts at night: patterns over alerts, with a clock that this program drives itself.

Run it; no server is needed::

    python examples/incidents.py

Monitors raise ALERT, people answer with ACK and RESOLVED. Most of what must be noticed does *not*
happen, or happens too often:

* an alert that is not acknowledged within five minutes is escalated (a time-out),
* three alerts of one service within a minute are a storm, reported once (Kleene, with a skip),
* an alert goes to the person who has been free the longest (the chronicle context),
* at nine in the morning the night is reported (a clock event),
* a service that was resolved and has stayed quiet for half an hour is healthy (a negation at the
  end),
* a measurement that arrives too late is noted, so nothing is lost (a late event).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Column, DateTime, Table, Text, select

import activedb as adb

MINUTE = 60

clock = adb.SimulatedClock(datetime(2026, 1, 9, 22, 0, tzinfo=UTC))
db = adb.connect("memory://", clock=clock)

log = Table(
    "log",
    db.metadata,
    Column("at", DateTime(timezone=True), primary_key=True),
    Column("what", Text, primary_key=True),
)


def note(t: adb.Transaction, o: adb.Occurrence, what: str) -> None:
    """Write a line of the log, with the time of the event."""
    t.insert(log, {"at": datetime.fromtimestamp(o.us / 1_000_000, UTC), "what": what})


# -- events that do not happen -----------------------------------------------------------------

acknowledged = adb.seq(adb.event("ALERT"), adb.event("ACK")).same("incident").within(5 * MINUTE)


@db.rule(on=acknowledged.timed_out())
def escalate(t: adb.Transaction, o: adb.Occurrence) -> None:
    """Log an incident that was not acknowledged for five minutes: an ALERT without an ACK."""
    note(t, o, f"escalated: incident {o.parts['ALERT'].params['incident']}")


quiet = adb.seq(adb.event("RESOLVED"), ~adb.event("ALERT")).same("service").within(30 * MINUTE)


@db.rule(on=quiet)
def recover(t: adb.Transaction, o: adb.Occurrence) -> None:
    """Log a service that had no alert for half an hour after it was resolved."""
    note(t, o, f"healthy: {o.params['service']}")


# -- events that happen too often --------------------------------------------------------------

alerts = adb.many(adb.event("ALERT"), 3, 3)
storm = adb.seq(alerts).same("service").within(MINUTE).skipping("past_last")


@db.rule(on=storm)
def declare_storm(t: adb.Transaction, o: adb.Occurrence) -> None:
    """Log a storm of three alerts; the fourth alert starts a new count."""
    incidents = ", ".join(str(alert.params["incident"]) for alert in o.parts["ALERT"])
    note(t, o, f"storm: {o.params['service']}, incidents {incidents}")


# -- first come, first served ------------------------------------------------------------------

duty = adb.seq(adb.event("FREE"), adb.event("ALERT")).context("chronicle")


@db.rule(on=duty, priority=1)
def assign(t: adb.Transaction, o: adb.Occurrence) -> None:
    """Log an assignment: each FREE serves one ALERT, oldest first; busy people get none."""
    note(t, o, f"assigned: incident {o.params['incident']} to {o.params['person']}")


# -- clock events ------------------------------------------------------------------------------


@db.rule(on=adb.cron("0 9 * * *"))
def report(t: adb.Transaction, o: adb.Occurrence) -> None:
    """Log the number of escalations of the night."""
    escalations = list(t.query(select(log.c.at).where(log.c.what.like("escalated%"))))
    note(t, o, f"report: {len(escalations)} escalated")


# -- late events -------------------------------------------------------------------------------

probes = db.stream(
    "probes",
    source=adb.Files(format="json", schema="at DOUBLE, service STRING, ms DOUBLE"),
    type="'PROBE'",
    timestamp="at",
    params={"service": "service", "ms": "ms"},
    types={"PROBE": ("service", "ms")},
)
slow = adb.attr("ms") > 500


@db.rule(on=adb.event("PROBE", where=slow), on_abort="rule")
def complain(t: adb.Transaction, o: adb.Occurrence) -> None:
    """Log a slow measurement that arrived in time."""
    note(t, o, f"slow: {o.params['service']}, {o.params['ms']:.0f} ms")


@db.rule(on=adb.late(probes), on_abort="rule")
def regret(t: adb.Transaction, o: adb.Occurrence) -> None:
    """Log a measurement that arrived too late; the rule on PROBE does not run for it."""
    measured = datetime.fromtimestamp(o.params["timestamp"], UTC)
    note(t, o, f"late: {o.params['params']['service']} as of {measured:%H:%M}")


# -- the simulation ----------------------------------------------------------------------------


def after(minutes: float) -> None:
    """Advance the clock, and run the rules that are due by then."""
    clock.advance(minutes * MINUTE)
    db.wait_idle()


def probe(service: str, ms: float, *, minutes_ago: float = 0.0) -> adb.Occurrence:
    """Return a measurement."""
    at = clock.now() - timedelta(minutes=minutes_ago)
    return adb.Occurrence("PROBE", at.timestamp(), {"service": service, "ms": ms})


def night() -> None:
    """Simulate a night of alerts, advancing the clock step by step."""
    db.create_all()
    for person in ("Ada", "Grace"):
        db.signal("FREE", person=person)
        after(1)
    db.signal("ALERT", incident=1, service="shop")
    after(2)
    db.signal("ACK", incident=1)
    db.signal("RESOLVED", incident=1, service="shop")
    after(45)
    for incident in (2, 3, 4):  # twenty seconds apart, without an answer
        db.signal("ALERT", incident=incident, service="mail")
        after(1 / 3)
    after(10)
    db.signal("RESOLVED", incident=2, service="mail")
    after(10)
    db.signal("ALERT", incident=5, service="mail")  # mail is therefore not healthy yet
    after(1)
    db.signal("ACK", incident=5)
    now = clock.now()
    probes.feed([probe("shop", 80, minutes_ago=3), probe("mail", 900, minutes_ago=1)], now)
    probes.feed([probe("shop", 700, minutes_ago=5)], now)
    after(12 * 60)


def lines() -> list[tuple[str, str]]:
    """Return the log as pairs of time and text."""
    with db.transaction() as t:
        rows: Any = t.query(select(log.c.at, log.c.what).order_by(log.c.at, log.c.what))
        return [(f"{at:%d %H:%M:%S}", what) for at, what in rows]


if __name__ == "__main__":
    night()
    for at, what in lines():
        print(at, what)
    db.close()
