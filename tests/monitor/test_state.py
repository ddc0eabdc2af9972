"""Contents of a state: forest, locks, deadlocks, rules, streams, and what has just happened."""

from __future__ import annotations

import json
import re
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, select

import activedb as adb
from activedb.errors import TransactionStateError
from activedb.store.system import dead_letters
from activedb.transactions import TransactionNode
from lockmgr import InRange, LockManager, OneOf, Predicate
from tests.databases import PATIENCE_S, in_thread, until
from tests.ledger import at, declare, event
from tests.monitor.test_undecided import one_of_each
from tests.transactions.test_crossing import Ring

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.databases import Place
    from tests.monitor.conftest import Watched

FIELDS = {
    "process", "counters", "latency_s", "forest", "locks", "deadlocks", "aborted", "rules",
    "streams", "letters", "recent", "events", "last_seq", "skipped",
}  # fmt: skip


def test_state_can_be_written_as_json_and_has_every_field(watched: Watched) -> None:
    state = json.loads(json.dumps(watched.monitor.state()))
    assert set(state) == FIELDS
    assert state["counters"]["transactions_committed"] >= 1
    assert state["latency_s"]["transaction"]["count"] >= 1
    assert state["latency_s"]["commit"]["p99"] <= state["latency_s"]["transaction"]["p99"]
    process = state["process"]
    assert process["started_s"] <= process["now_s"]
    assert (process["writable"], process["values"]) == (False, True)


def test_state_forest_has_whole_hierarchies_with_parents_first(watched: Watched) -> None:
    with ExitStack() as stack:
        top = stack.enter_context(watched.db.transaction())
        child = stack.enter_context(top.subtransaction())
        grandchild = stack.enter_context(child.subtransaction())
        forest = watched.state()["forest"]
        assert forest["total"] == 3
        assert [node["id"] for node in forest["shown"]] == [top.id, child.id, grandchild.id]
        assert [node["parent"] for node in forest["shown"]] == [None, top.id, child.id]
        assert {node["top"] for node in forest["shown"]} == {top.id}
        assert [node["path"] for node in forest["shown"]] == [
            top.path, child.path, grandchild.path,
        ]  # fmt: skip
        assert {node["state"] for node in forest["shown"]} == {"active"}
    assert watched.state()["forest"]["total"] == 0


@pytest.mark.long
def test_state_forest_that_is_too_large_shows_the_oldest_hierarchies(memory: Any) -> None:
    watched = memory()
    watched.db._forest.locks = LockManager()  # one that does not verify itself
    with ExitStack() as stack:
        tops = []
        for _ in range(3):
            top = watched.db._forest.top_level()
            tops.append(top)
            for _ in range(200):
                TransactionNode(top.forest, top.hierarchy, top, label=top.next_label())
        stack.callback(lambda: [top._abort() for top in tops])
        forest = watched.state()["forest"]
        assert forest["total"] == 603
        assert [node["top"] for node in forest["shown"]] == [tops[0].id] * 201 + [tops[1].id] * 201
    assert watched.state()["forest"]["total"] == 0


def test_state_locks_tells_holders_and_who_waits(watched: Watched) -> None:
    go_on, has_it = threading.Event(), threading.Event()

    def first(t: adb.Transaction) -> None:
        t.update(watched.accounts, 2, balance=1)
        has_it.set()
        assert go_on.wait(PATIENCE_S)

    one = in_thread(watched.db.run, first)
    assert has_it.wait(PATIENCE_S)
    other = in_thread(watched.db.run, lambda t: t.get(watched.accounts, 2))
    until(lambda: watched.state()["locks"]["waits_total"])
    locks = watched.state()["locks"]
    held = [lock for lock in locks["shown"] if lock["resource"] == "accounts/2"]
    assert [(lock["mode"], lock["held"]) for lock in held] == [("X", True)]
    (request,) = locks["queue"]
    assert (request["resource"], request["mode"], request["upgrade"]) == ("accounts/2", "S", False)
    (edge,) = [edge for edge in locks["edges"] if edge["kind"] == "held"]
    assert edge == {
        "waiter": request["id"], "blocker": held[0]["id"], "kind": "held",
        "resource": "accounts/2",
    }  # fmt: skip
    assert locks["total"] >= len(locks["shown"]) >= 1
    go_on.set()
    one.result(PATIENCE_S)
    other.result(PATIENCE_S)


@pytest.mark.parametrize("values", [True, False])
def test_state_locks_tells_the_question_for_which_a_writer_waits(memory: Any, values: bool) -> None:
    watched: Watched = memory(monitor_values=values)
    accounts = watched.accounts
    go_on, has_asked = threading.Event(), threading.Event()

    def ask(t: adb.Transaction) -> None:
        t.query(select(accounts).where(accounts.c.balance > 87, accounts.c.id.between(1, 2)))
        t.query(select(accounts).where(accounts.c.balance.in_([7, 95])))
        has_asked.set()
        assert go_on.wait(PATIENCE_S)

    reader = in_thread(watched.db.run, ask)
    assert has_asked.wait(PATIENCE_S)
    writer = in_thread(watched.db.run, lambda t: t.update(accounts, 2, balance=95))
    until(lambda: watched.state()["locks"]["waits_total"])
    locks = watched.state()["locks"]
    go_on.set()
    for each in (reader, writer):
        each.result(PATIENCE_S)
    (request,) = [each for each in locks["queue"] if "{" in each["resource"]]
    shown = {lock["resource"] for lock in locks["shown"]}
    if values:
        asked = "accounts/{balance > 87 and 1 <= id <= 2}"
        assert {asked, "accounts/{balance in 7, 95}"} <= shown
        assert request["resource"] in shown
    else:
        hidden = "«int [0-9a-f]{6}»"
        asked = f"accounts/{{balance > {hidden} and {hidden} <= id <= {hidden}}}"
        assert any(re.fullmatch(asked, each) for each in shown), shown
        assert request["resource"] in shown


def test_state_rules_tells_what_they_have_come_to(watched: Watched) -> None:
    @watched.db.rule(
        on=adb.event("paid"), when=lambda t, o: o.params["amount"] > 1, on_abort="rule", priority=3
    )
    def check(t: adb.Transaction, o: adb.Occurrence) -> None:
        if o.params["amount"] > 100:
            raise ValueError("too much")

    for amount in (1, 2, 3, 101):
        watched.db.signal("paid", amount=amount)
    (rule,) = watched.state()["rules"]
    told = {name: rule[name] for name in ("matched", "fired", "conditions_false", "aborted")}
    assert told == {"matched": 4, "fired": 2, "conditions_false": 1, "aborted": 1}
    assert (rule["name"], rule["coupling"], rule["priority"]) == ("check", "immediate", 3)
    assert (rule["enabled"], rule["quarantined"], rule["partials"]) == (True, False, 0)
    assert 0 < rule["p50_s"] <= rule["p99_s"]
    assert rule["last_fired_s"] is not None
    watched.db.rules.disable("check")
    assert watched.state()["rules"][0]["enabled"] is False


def test_state_events_tells_kinds_and_matches(watched: Watched) -> None:
    @watched.db.rule(on=adb.seq(adb.event("a"), adb.event("b")))
    def both(t: adb.Transaction, o: adb.Occurrence) -> None:
        t.update(watched.accounts, 1, balance=1)

    @watched.db.rule(on=adb.updated(watched.accounts))
    def row(t: adb.Transaction, o: adb.Occurrence) -> None: ...

    watched.since = watched.state()["last_seq"]
    watched.db.signal("a", n=1)
    watched.db.signal("b", n=2)
    events = watched.state()["events"]
    told = [(event["kind"], event["name"]) for event in events]
    assert told == [
        ("signal", "a"), ("signal", "b"), ("composite", "both"), ("row", "accounts"),
    ]  # fmt: skip
    assert events[0]["params"] == {"n": "1"}
    assert events[3]["params"] == {"id": "1", "balance": "1"}
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)


def test_state_streams_tells_how_far_they_are(watched: Watched) -> None:
    stream = declare(watched.db)
    (before,) = watched.state()["streams"]
    assert before == {
        "name": stream.name, "events": 0, "late": 0, "dead": 0, "undecided": 0, "waiting": 0,
        "batches": 0, "punctuation_s": None, "behind_s": None,
    }  # fmt: skip

    @watched.db.rule(on=adb.event("A"))
    def seen(t: adb.Transaction, o: adb.Occurrence) -> None: ...

    stream.feed([event("A", n, n=n) for n in (1, 2, 3, 9)], at(5))
    # A state does not wait for the database, which knows the total.
    until(lambda: watched.state()["streams"][0]["events"])
    (after,) = watched.state()["streams"]
    told = {name: after[name] for name in ("events", "waiting", "batches", "punctuation_s")}
    assert told == {"events": 3, "waiting": 1, "batches": 1, "punctuation_s": at(5).timestamp()}
    assert after["behind_s"] > 0
    kinds = [e["kind"] for e in watched.state()["events"] if e["name"] == "A"]
    assert kinds == ["stream"] * 3


def test_state_since_gives_each_ended_transaction_once(watched: Watched) -> None:
    def put(t: adb.Transaction, balance: int) -> None:
        t.update(watched.accounts, 1, balance=balance)

    seen: list[int] = []
    since = watched.since
    for n in range(5):
        watched.db.run(put, n)
        if n % 2:
            state = watched.monitor.state(since)
            since = state["last_seq"]
            assert state["skipped"] == 0
            seen += [each["id"] for each in state["recent"]]
    seen += [each["id"] for each in watched.monitor.state(since)["recent"]]
    assert len(seen) == len(set(seen)) == 5
    assert seen == sorted(seen)


def test_state_keeps_what_aborted_though_many_commit(memory: Any) -> None:
    watched = memory(monitor_values=True)
    watched.db._forest.locks = LockManager()  # one that does not verify itself
    watched.monitor.watch.lives._committed_max = 50
    with watched.db.transaction() as t:
        t.abort("for a reason")
    for _ in range(600):
        watched.db.run(lambda t: t.get(watched.accounts, 1))
    state = watched.state()
    assert all(each["state"] == "committed" for each in state["recent"])
    (aborted,) = state["aborted"]
    assert aborted["why"] == "Its own code aborted it."
    assert "for a reason" in aborted["error"]
    assert watched.story(aborted["id"])["steps"][-1]["what"] == "aborted"
    assert watched.monitor.transaction(aborted["id"] + 1) is None


def test_state_asked_by_many_while_transactions_run_loses_nothing(memory: Any) -> None:
    watched = memory()
    is_over = threading.Event()

    def look() -> tuple[int, int]:
        since, told, missed = watched.since, 0, 0
        while True:
            was_over = is_over.is_set()
            state = watched.monitor.state(since)
            numbers = [e["seq"] for ring in ("recent", "events") for e in state[ring]]
            assert len(set(numbers)) == len(numbers)
            assert all(since < number <= state["last_seq"] for number in numbers)
            assert state["last_seq"] - since == len(numbers) + state["skipped"]
            since, told, missed = state["last_seq"], told + len(numbers), missed + state["skipped"]
            if was_over:
                return told, missed

    def work(t: adb.Transaction) -> None:
        with t.subtransaction() as s:
            s.get(watched.accounts, 1)

    looking = [in_thread(look) for _ in range(2)]
    working = [in_thread(lambda: [watched.db.run(work) for _ in range(100)]) for _ in range(3)]
    for each in working:
        each.result(PATIENCE_S)
    is_over.set()
    for told in looking:
        assert sum(told.result(PATIENCE_S)) == 2 * 3 * 100
    assert watched.state()["forest"]["total"] == 0


def test_state_hides_values_unless_asked_to_show_them(memory: Any) -> None:
    watched: Watched = memory()
    secret = 87_654_321

    @watched.db.rule(on=adb.inserted(watched.accounts), on_abort="rule")
    def tell(t: adb.Transaction, o: adb.Occurrence) -> None:
        raise ValueError(f"about {o.new['id']}")

    with watched.db.transaction() as t:
        t.insert(watched.accounts, {"id": secret, "balance": secret})
        watched.db.signal("named", who="Jane Roe", number=secret)
        until(lambda: any("/" in each["resource"] for each in watched.state()["locks"]["shown"]))
        live = watched.state()
    after = watched.state()
    stories = [watched.story(each["id"]) for each in after["recent"]]
    everything = json.dumps(
        [live, after, stories, watched.monitor.letters(), watched.monitor.pending()]
    )
    assert str(secret) not in everything
    assert "Jane" not in everything
    event = next(e for e in after["events"] if e["name"] == "named")
    assert event["params"] == {"who": "«str»", "number": "«int»"}
    (write,) = stories[-1]["writes"]
    assert write["key"].startswith("«int ")
    lock = next(lock for lock in live["locks"]["shown"] if "/" in lock["resource"])
    assert lock["resource"] == f"accounts/{write['key']}"  # the same row looks the same
    assert watched.monitor.letters()["letters"][0]["reason"] == "«…»"


def test_state_counts_the_letters_that_there_are(watched: Watched) -> None:
    one_of_each(watched.db)
    watched.db.rule(on=adb.event("GO"), coupling="detached", name="fails")(fail)
    watched.db.signal("GO")
    watched.db.wait_idle()
    until(lambda: watched.state()["letters"] == {"event": 2, "rule": 1})
    with watched.db.connection() as connection:
        connection.execute(delete(dead_letters).where(dead_letters.c.kind == "event"))
        connection.commit()
    until(lambda: watched.state()["letters"] == {"rule": 1})
    assert watched.state()["streams"][0]["dead"] == 2, "as in the ledger"


def test_letters_are_the_last_ones_in_the_order_of_writing(watched: Watched) -> None:
    for name in ("zeta", "alpha", "middle"):
        watched.db.rule(on=adb.event(name), coupling="detached", name=name)(fail)
    for name in (*["zeta"] * 60, "middle", "alpha"):
        watched.db.signal(name)
        watched.db.wait_idle()
    told = watched.monitor.letters()
    assert (told["counts"], told["total"]) == ({"rule": 62}, 62)
    sources = [letter["source"] for letter in told["letters"]]
    assert sources == [*["rule zeta"] * 48, "rule middle", "rule alpha"]


def fail(t: adb.Transaction, o: adb.Occurrence) -> None:
    raise ConnectionError("no answer")


def test_redaction_of_values_is_short_and_survives_odd_ones() -> None:
    from activedb.monitor._redaction import Redaction

    class Odd:
        __hash__ = None  # type: ignore[assignment]

        def __repr__(self) -> str:
            raise RuntimeError

    shown, hidden = Redaction(True), Redaction(False)
    assert shown.param(Odd()) == "«Odd»"
    assert hidden.key((Odd(), 1)).startswith("«Odd»,«int ")
    assert len(shown.param("x" * 10_000)) < 100
    assert len(shown.param(list(range(10_000)))) < 100
    assert len(shown.error(ValueError("y" * 10_000))) < 600
    assert hidden.error(ValueError("y")) == "ValueError"
    many = shown.params({f"p{n}": n for n in range(100)})
    assert (len(many), many[-1]) == (21, ("…", "80 more"))
    many_values = Predicate([OneOf("n", range(1_000)), InRange("at", high=2)])
    assert len(shown.resource(("accounts", many_values))) < 250
    assert hidden.key((1,)) != hidden.key((2,))
    assert hidden.key((1,)) == hidden.key((1,))
    assert hidden.key((1,)) != Redaction(False).key((1,))


def test_deadlock_is_replayed_in_the_order_in_which_it_arose(watched: Watched) -> None:
    at_row = [threading.Event() for _ in range(3)]
    waiting = [threading.Event() for _ in range(3)]
    ids: dict[int, int] = {}

    def cross(t: adb.Transaction, n: int) -> None:
        is_first_try = n not in ids
        ids.setdefault(n, t.id)
        t.update(watched.accounts, n + 1, balance=1)
        at_row[n].set()
        if is_first_try:
            assert all(event.wait(PATIENCE_S) for event in at_row)
            assert waiting[n].wait(PATIENCE_S)
        t.update(watched.accounts, (n + 1) % 3 + 1, balance=1)

    runs = [in_thread(watched.db.run, cross, n) for n in range(3)]
    for place, n in enumerate((1, 0, 2)):  # who waits first, second, and closes the cycle
        waiting[n].set()
        if place < 2:

            def is_waiting(wanted: int = place + 1) -> bool:
                return bool(watched.state()["locks"]["waits_total"] == wanted)

            until(is_waiting)
    for run in runs:
        run.result(PATIENCE_S)
    (short,) = watched.state()["deadlocks"]
    told = watched.monitor.deadlock(short["n"])
    assert told is not None
    assert (told["victim"], told["policy"]) == (ids[2], "requester")
    assert sorted(short["ids"]) == sorted(ids.values())
    assert sorted(short["resources"]) == ["accounts/1", "accounts/2", "accounts/3"]
    first, second, third, cycle, victim = told["steps"]
    order = [(ids[1], ids[2]), (ids[0], ids[1]), (ids[2], ids[0])]
    for step, number in ((first, 1), (second, 2), (third, 3), (cycle, 3)):
        assert [(e["waiter"], e["blocker"]) for e in step["edges"]] == order[:number]
    assert third["edges"][-1]["resource"] == "accounts/1"
    assert third["edges"][-1]["mode"] == "X"
    assert [(e["waiter"], e["blocker"]) for e in victim["edges"]] == order[:2]
    assert f"ransaction {ids[2]} (cross) is the victim (policy: requester)" in victim["text"]
    assert {node["id"] for node in told["nodes"]} == set(ids.values())


def test_deadlock_in_which_a_dependent_gives_way_names_it_and_not_the_requester(
    watched: Watched,
) -> None:
    """The action beside its condition waits for the end of that, which wants the action's row."""
    has_locked = threading.Event()
    tries: list[int] = []

    def when(t: adb.Transaction, o: adb.Occurrence) -> bool:
        assert has_locked.wait(PATIENCE_S)
        return t.get(watched.accounts, 1) is not None

    @watched.db.rule(on=adb.event("go"), when=when, condition_action="sequential")
    def act(t: adb.Transaction, o: adb.Occurrence) -> None:
        tries.append(t.id)
        t.update(watched.accounts, 1, balance=0)
        has_locked.set()

    watched.db.signal("go")
    assert len(tries) == 2
    (short,) = watched.state()["deadlocks"]
    assert short["victim"] == tries[0]
    told = watched.monitor.deadlock(short["n"])
    assert told is not None
    assert told["policy"] == "the dependent transaction is the victim"
    assert [step["edges"][-1]["kind"] for step in told["steps"][:-2]][-1] in ("held", "retained")
    assert "dependency" in {edge["kind"] for edge in told["steps"][-2]["edges"]}
    assert tries[0] in {node["id"] for node in told["nodes"]}
    story = watched.story(tries[0])
    assert "victim of deadlock 1" in story["why"]


def test_deadlock_through_the_server_is_told_with_strangers(
    postgres_url: str, tmp_path: Path
) -> None:
    from tests.databases import place

    with place(postgres_url) as where:
        one = where.open(monitor="on", folder=tmp_path / "one")
        other = where.open(monitor="on", folder=tmp_path / "other")
        tries = Ring([one, one, other]).run_all()
        assert sum(tries) == 4
        monitors = [db.admin.monitor for db in (one, other) if db.admin.monitor is not None]
        found = [(m, d) for m in monitors for d in m.state()["deadlocks"]]
        ((monitor, short),) = found
        told = monitor.deadlock(short["n"])
        assert told is not None
        edges = told["steps"][-2]["edges"]
        assert len(edges) == 3
        for edge, following in zip(edges, [*edges[1:], edges[0]], strict=True):
            assert edge["blocker"] == following["waiter"]
        assert {edge["kind"] for edge in edges} <= {"here", "at the server", "in its own program"}
        strangers = [node for node in told["nodes"] if node["id"] < 0]
        assert strangers
        assert all(node["label"].endswith("of the server") for node in strangers)
        assert told["victim"] > 0
        assert "not known" in told["steps"][-2]["text"]
        story = monitor.transaction(told["victim"])
        assert story is not None
        assert "deadlock 1" in story["why"]


def test_monitor_that_fails_does_not_fail_the_work(
    memory: Callable[..., Watched], caplog: Any
) -> None:
    watched = memory()
    watched.monitor.watch.rings.add = None  # type: ignore[assignment]
    watched.db.run(lambda t: t.update(watched.accounts, 1, balance=3))
    watched.db.signal("anything")
    assert watched.db.run(lambda t: t.get(watched.accounts, 1)) == {"id": 1, "balance": 3}
    assert "may again" in caplog.text


def test_database_without_a_monitor_has_none_and_nobody_listens(where: Place) -> None:
    db = where.open()
    assert db.admin.monitor is None
    assert db._forest.observer is None


def test_monitor_of_a_closed_database_tells_what_it_kept_and_asks_no_server(
    watched: Watched,
) -> None:
    declare(watched.db)
    watched.db.run(lambda t: t.update(watched.accounts, 1, balance=3))
    watched.db.close()
    state = watched.state()
    assert [each["state"] for each in state["recent"]] == ["committed"]
    assert watched.story(state["recent"][0]["id"])["writes"]
    for ask in (watched.monitor.letters, watched.monitor.pending, watched.monitor.batches):
        with pytest.raises(TransactionStateError, match="closed"):
            ask()
