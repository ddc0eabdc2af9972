"""Values of users are in no answer of a monitor that is to hide them, whatever fails."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, String, Table

import activedb as adb
from activedb.errors import ActiveDBError, ProgramFailed
from activedb.monitor import attach
from coupling import Coupling
from tests.databases import until
from tests.ledger import at, declare
from tests.monitor.test_server import leave_open
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.monitor.conftest import Watched

MARK = "4111secret"


def fail(*_: Any) -> None:
    raise ValueError(f"card {MARK} is refused")


def test_monitor_hides_values_in_every_kind_of_failure(memory: Any, tmp_path: Path) -> None:
    watched: Watched = memory(quarantine_after=1)
    for part in FAILURES:
        part(watched)
    watched.db.wait_idle()
    assert said(tmp_path) == []


def said(folder: Path) -> list[str]:
    """Ask the monitor for all that it tells; return the places that tell the mark."""
    with attach(folder=folder) as process:
        state = process.state()
        batches = process.batches()
        answers: dict[str, Any] = {
            "state": state,
            "letters": process.letters(),
            "pending": process.pending(),
            "decisions": process.decisions(),
            "batches": batches,
        }
        answers |= {f"batches {x}": process.batches(x) for x in batches["workflows"]}
        for batch in batches["batches"]:
            answers[batch["id"]] = process.batches(batches["workflow"], batch["id"])
        for dead in state["deadlocks"]:
            answers[f"deadlock {dead['n']}"] = process.deadlock(dead["n"])
        for each in (*state["recent"], *state["aborted"]):
            answers[f"transaction {each['id']}"] = process.transaction(each["id"])
        kinds = {letter["kind"] for letter in answers["letters"]["letters"]}
        assert kinds == {"event", "rule"}, answers["letters"]
        assert batches["batches"][0]["failed"]
        assert answers["decisions"]["total"], "a decision is open"
        assert state["deadlocks"]
        assert any(rule["quarantined"] for rule in state["rules"])
    return [place for place, told in answers.items() if MARK in json.dumps(told)]


def failing_rules(watched: Watched) -> None:
    """Let rules of all couplings fail, one of them until it is in quarantine."""
    for coupling in Coupling:
        name = f"fails {coupling.name.lower()}"
        watched.db.rule(on=adb.event(name), coupling=str(coupling), name=name)(fail)
        with suppress(ActiveDBError), watched.db.transaction():
            watched.db.signal(name, card=MARK)
        watched.db.wait_idle()


def failing_condition(watched: Watched) -> None:
    watched.db.rule(on=adb.event("asks"), when=fail, on_abort="rule", name="asks")(
        lambda t, o: None
    )
    watched.db.signal("asks", card=MARK)


def failing_timer(watched: Watched) -> None:
    watched.db.rule(on=adb.every(0.05), name="timed", coupling="detached")(fail)
    until(lambda: watched.db.rules["timed"].quarantine is not None)
    watched.db.rules.disable("timed")


def failing_program(watched: Watched) -> None:
    usage = watched.db.workflow("usage", sources="calls")
    usage.program(name="rate", reads="calls")(fail)
    with pytest.raises(ProgramFailed):
        watched.db.workflows.open("usage").feed("calls", [{"card": MARK}])


def failing_stream(watched: Watched) -> None:
    """Make letters of events: one that a rule refuses, invalid ones, one far in the future."""
    stream = declare(watched.db)
    watched.db.rule(on=adb.event("C"), name="of stream")(fail)
    events = [adb.occurrence("C", timestamp=at(2), card=MARK)]
    events += [adb.occurrence("A", timestamp=at(10**6), card=MARK)]
    stream.feed(events, at(10))
    stream.feed([adb.occurrence("A", timestamp=at(1), card=MARK)], at(11))


def open_decision(watched: Watched) -> None:
    leave_open(watched, MARK)


def keys_in_conflict(watched: Watched) -> None:
    """Wait for a row with a key that is a value; deadlock over two of them."""
    cards = Table(
        "cards",
        watched.db.metadata,
        Column("number", String(20), primary_key=True),
        Column("sum", Integer),
    )
    watched.db.create_all()
    keys = [f"{MARK}{n}" for n in range(2)]
    with watched.db.transaction() as t:
        for key in keys:
            t.insert(cards, {"number": key, "sum": 0})
    met = threading.Barrier(2)

    def cross(first: str, second: str) -> None:
        tries = 0

        def body(t: adb.Transaction) -> None:
            nonlocal tries
            tries += 1
            t.update(cards, first, sum=1)
            if tries == 1:
                met.wait(PATIENCE_S)
            t.update(cards, second, sum=2)

        watched.db.run(body)

    threads = [threading.Thread(target=cross, args=pair) for pair in (keys, list(reversed(keys)))]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE_S)
    with suppress(ActiveDBError), watched.db.transaction() as t:
        t.insert(cards, {"number": keys[0], "sum": 0})


FAILURES: tuple[Callable[[Watched], None], ...] = (
    failing_rules,
    failing_condition,
    failing_timer,
    failing_program,
    failing_stream,
    open_decision,
    keys_in_conflict,
)
