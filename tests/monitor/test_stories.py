"""The story of a transaction says what it did, and in plain words why it aborted."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import (
    LockNotAvailable,
    LockTimeout,
    RuleFailed,
    TransactionAborted,
    TransactionCancelled,
    TransactionTimeout,
)
from activedb.monitor._records import TransactionRecord
from activedb.monitor._stories import node
from tests.databases import PATIENCE_S, in_thread, until

if TYPE_CHECKING:
    from tests.monitor.conftest import Watched


def only_ended(watched: Watched, **wanted: Any) -> dict[str, Any]:
    """The one ended transaction with these fields."""
    recent = watched.state()["recent"]
    found = [each for each in recent if all(each[n] == v for n, v in wanted.items())]
    assert len(found) == 1, recent
    return watched.story(found[0]["id"])


def test_story_of_a_commit_tells_locks_writes_children_and_the_end(watched: Watched) -> None:
    def work(t: adb.Transaction) -> None:
        t.update(watched.accounts, 1, balance=7)
        with t.subtransaction() as s:
            s.insert(watched.accounts, {"id": 9, "balance": 1})
            s.delete(watched.accounts, 2)

    watched.db.run(work)
    story = only_ended(watched, parent=None)
    assert story["state"] == "committed"
    assert (story["error"], story["why"], story["tries"]) == (None, None, 1)
    assert story["thread"] == threading.current_thread().name
    whats = [step["what"] for step in story["steps"]]
    assert whats == [
        "began", "lock", "wrote", "child", "child ended", "committing", "committed",
    ]  # fmt: skip
    lock = story["steps"][1]
    assert (lock["resource"], lock["mode"]) == ("accounts/1", "X")
    assert story["writes"] == [{"table": "accounts", "key": "1", "kind": "update"}]
    times = [step["at_s"] for step in story["steps"]]
    assert times == sorted(times)
    assert story["began_s"] <= times[0]
    assert times[-1] == story["ended_s"]
    (child,) = story["children"]
    told = watched.story(child["id"])
    assert told["parent"] == told["top"] == story["id"]
    assert told["path"] == f"{story['path']}/1"
    assert told["writes"] == [
        {"table": "accounts", "key": "9", "kind": "insert"},
        {"table": "accounts", "key": "2", "kind": "delete"},
    ]


def test_story_of_an_error_says_which_and_where_it_came_from(watched: Watched) -> None:
    def work(t: adb.Transaction) -> None:
        with t.subtransaction():
            raise ValueError("no such patient")

    with pytest.raises(ValueError, match="patient"):
        watched.db.run(work)
    child = next(each for each in watched.state()["recent"] if each["parent"])
    top = only_ended(watched, parent=None)
    assert watched.story(child["id"])["why"] == "Its code raised ValueError."
    assert top["why"] == (
        f"Its code raised ValueError. The error came from transaction {child['id']} below it."
    )
    assert top["error"] == "ValueError: no such patient"
    assert top["steps"][-2]["what"] == "failed"


def test_story_of_an_error_like_one_that_was_swallowed_is_its_own(watched: Watched) -> None:
    def work(t: adb.Transaction) -> None:
        try:
            with t.subtransaction():
                raise ValueError("same")
        except ValueError:
            pass
        raise ValueError("same")

    with pytest.raises(ValueError, match="same"):
        watched.db.run(work)
    assert only_ended(watched, parent=None)["why"] == "Its code raised ValueError."


def test_origin_of_an_error_is_looked_up_under_the_latch(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watched.monitor.watch
    get, locked = watch.lives.get, []

    def seen(number: int) -> TransactionRecord | None:
        locked.append(watch.latch.locked())
        return get(number)

    monkeypatch.setattr(watch.lives, "get", seen)

    with pytest.raises(KeyError), watched.db.transaction() as t, t.subtransaction():
        raise KeyError
    assert locked
    assert all(locked)


def test_wait_that_ends_while_it_is_shown_is_shown_once() -> None:
    waits = [None, (("accounts", (1,)), 5.0)]

    class Granted(TransactionRecord):
        @property
        def wait(self) -> Any:
            return waits.pop()

        @wait.setter
        def wait(self, wait: Any) -> None: ...

    assert node(Granted(1, None, "work", 0.0, "main"), [])["waits_since_s"] == 5.0


def test_story_of_an_abort_on_purpose_says_so_below_it_too(watched: Watched) -> None:
    with watched.db.transaction() as t, t.subtransaction() as open_child:
        t.abort("changed my mind")
        pytest.fail("abort has returned")
    top = only_ended(watched, parent=None)
    assert top["why"] == "Its own code aborted it."
    assert "changed my mind" in top["error"]
    child = watched.story(open_child.id)
    assert child["why"] == f"Transaction {top['id']}, whose fate it shares, was aborted."


def test_story_of_a_child_whose_abort_nobody_caught_says_that(watched: Watched) -> None:
    def work(t: adb.Transaction) -> None:
        t.spawn(lambda s: s.abort("bad")).result()

    with pytest.raises(TransactionAborted):
        watched.db.run(work)
    top = only_ended(watched, parent=None)
    (child,) = top["children"]
    assert (
        top["why"]
        == f"Transaction {child['id']} below it was aborted, and no caller caught the error."
    )


def test_story_of_a_cancellation_and_of_a_limit_of_time(watched: Watched) -> None:
    def cancelled(t: adb.Transaction) -> None:
        t.cancel("enough")
        t.get(watched.accounts, 1)

    with pytest.raises(TransactionCancelled):
        watched.db.run(cancelled)
    assert only_ended(watched)["why"] == "It was cancelled from outside."
    watched.since = watched.state()["last_seq"]

    def slow(t: adb.Transaction) -> None:
        until(lambda: t.is_rollback_only)
        t.get(watched.accounts, 1)

    with pytest.raises(TransactionTimeout):
        watched.db.with_timeout(0.001).run(slow)
    assert only_ended(watched)["why"] == "Its limit of time was over."
    watched.since = watched.state()["last_seq"]

    def cancelled_around(t: adb.Transaction) -> None:
        with t.subtransaction() as s:
            t.cancel()
            s.get(watched.accounts, 1)

    with pytest.raises(TransactionCancelled):
        watched.db.run(cancelled_around)
    top = only_ended(watched, parent=None)
    assert top["why"] == "It was cancelled from outside."
    child = only_ended(watched, parent=top["id"])
    assert child["why"] == f"Its superior {top['id']} had to abort, and takes it along."


def test_story_of_rules_says_which_failed_and_what_it_took_along(watched: Watched) -> None:
    @watched.db.rule(on=adb.updated(watched.accounts, "balance"))
    def guard(t: adb.Transaction, o: adb.Occurrence) -> None:
        if o.new["balance"] < 0:
            raise ValueError("overdrawn")

    watched.since = watched.state()["last_seq"]
    with pytest.raises(RuleFailed):
        watched.db.run(lambda t: t.update(watched.accounts, 1, balance=-1))
    rule = only_ended(watched, rule="guard")
    assert rule["why"] == "Rule guard raised ValueError."
    assert rule["coupling"] == "immediate"
    top = only_ended(watched, parent=None)
    assert top["why"].startswith(
        "Rule guard, which was triggered in it, failed with ValueError, which aborts the "
        "triggering transaction."
    )
    whats = [step["what"] for step in top["steps"]]
    assert whats.index("wrote") < whats.index("event") < whats.index("triggered")
    assert whats.index("triggered") < whats.index("child") < whats.index("child ended")


def test_story_of_a_rule_beside_one_that_failed_says_who_takes_it_along(watched: Watched) -> None:
    has_begun, ids = threading.Event(), {}

    @watched.db.rule(on=adb.event("go"), name="bad", priority=1)
    def bad(t: adb.Transaction, o: adb.Occurrence) -> None:
        ids["bad"] = t.id
        assert has_begun.wait(PATIENCE_S)
        raise ValueError

    @watched.db.rule(on=adb.event("go"), name="good", priority=1)
    def good(t: adb.Transaction, o: adb.Occurrence) -> None:
        ids["good"] = t.id
        has_begun.set()
        until(lambda: t.is_rollback_only)
        t.get(watched.accounts, 1)

    watched.since = watched.state()["last_seq"]
    with pytest.raises(RuleFailed):
        watched.db.signal("go")
    top = only_ended(watched, parent=None)
    assert watched.story(ids["bad"])["why"] == "Rule bad raised ValueError."
    assert watched.story(ids["good"])["why"] == (
        f"Its superior {top['id']} had to abort, and takes it along."
    )
    assert top["why"] == (
        "Rule bad, which was triggered in it, failed with ValueError, which aborts the "
        "triggering transaction."
    )


def test_story_of_a_detached_rule_names_who_triggered_it(watched: Watched) -> None:
    @watched.db.rule(on=adb.event("paid"), coupling="detached")
    def later(t: adb.Transaction, o: adb.Occurrence) -> None:
        t.update(watched.accounts, 1, balance=1)

    watched.since = watched.state()["last_seq"]
    watched.db.signal("paid", amount=5)
    watched.db.wait_idle()
    rule = only_ended(watched, rule="later")
    first = next(e for e in watched.state()["recent"] if e["rule"] is None)
    assert rule["causes"] == [first["id"]]
    assert (rule["parent"], rule["coupling"]) == (None, "detached")
    assert "spawned" in watched.steps(first["id"])
    assert "rule later: its action has run" in [s["text"] for s in rule["steps"]]


def test_story_of_a_wait_tells_for_whom_and_how_it_ended(watched: Watched) -> None:
    db, has_it, go_on = watched.db, threading.Event(), threading.Event()

    def first(t: adb.Transaction) -> None:
        t.update(watched.accounts, 1, balance=1)
        has_it.set()
        assert go_on.wait(PATIENCE_S)

    one = in_thread(db.run, first)
    assert has_it.wait(PATIENCE_S)
    other = in_thread(db.run, lambda t: t.update(watched.accounts, 1, balance=2))

    def shown() -> list[dict[str, Any]]:
        nodes: list[dict[str, Any]] = watched.state()["forest"]["shown"]
        return nodes

    # It is in the queue before its record says so.
    until(lambda: any(node["waits_for"] and node["waits_since_s"] for node in shown()))
    holder = next(node for node in shown() if not node["waits_for"])
    waiter = next(node for node in shown() if node["waits_for"])
    assert waiter["waits_for"] == [holder["id"]]
    assert holder["waits_since_s"] is None
    assert waiter["began_s"] <= waiter["waits_since_s"] <= time.time()
    assert watched.story(waiter["id"])["steps"][-1]["what"] == "waited"
    go_on.set()
    one.result(PATIENCE_S)
    other.result(PATIENCE_S)
    steps = watched.story(waiter["id"])["steps"]
    waited, granted = steps[1:3]
    assert (waited["what"], waited["other"], waited["mode"]) == ("waited", holder["id"], "X")
    assert waited["resource"] == "accounts/1"
    assert waited["text"] == (
        f"{waiter['id']} wants X on accounts/1 and waits for {holder['id']}, which holds it in X"
    )
    assert granted["what"] == "granted"


def test_story_of_locks_that_are_not_to_be_had(watched: Watched) -> None:
    db, has_it, go_on = watched.db, threading.Event(), threading.Event()

    def first(t: adb.Transaction) -> None:
        t.update(watched.accounts, 1, balance=1)
        has_it.set()
        assert go_on.wait(PATIENCE_S)

    one = in_thread(db.run, first)
    assert has_it.wait(PATIENCE_S)
    with pytest.raises(LockNotAvailable):
        db.run(lambda t: t.get(watched.accounts, 1, for_update=True, nowait=True))
    db.settings.__dict__["lock_timeout_ms"] = 1
    db.settings.__dict__["retries_max"] = 0
    with pytest.raises(LockTimeout):
        db.run(lambda t: t.update(watched.accounts, 1, balance=3))
    go_on.set()
    one.result(PATIENCE_S)
    whys = [watched.story(e["id"])["why"] for e in watched.state()["recent"]]
    assert whys == [
        "A lock was not free at once, and it had said not to wait (nowait).",
        "It waited for a lock for longer than lock_timeout_ms allows.",
        None,
    ]


def test_story_of_a_deadlock_is_tried_again_and_says_which(watched: Watched) -> None:
    barrier = threading.Barrier(2)
    tries: list[int] = []

    def cross(t: adb.Transaction, first: int, second: int) -> None:
        t.update(watched.accounts, first, balance=first)
        tries.append(first)
        if len(tries) <= 2:
            barrier.wait(PATIENCE_S)
        t.update(watched.accounts, second, balance=second)

    runs = [in_thread(watched.db.run, cross, *keys) for keys in ((1, 2), (2, 1))]
    for run in runs:
        run.result(PATIENCE_S)
    victim = only_ended(watched, state="aborted")
    assert victim["why"] == ("It was the victim of deadlock 1, so that the others could proceed.")
    assert victim["deadlock"] == 1
    assert [s["what"] for s in victim["steps"]][-4:] == ["waited", "deadlock", "failed", "aborted"]
    again = only_ended(watched, label=victim["label"], state="committed")
    assert again["tries"] == 2


def test_story_of_a_spawned_child_that_gives_way_tells_each_try(watched: Watched) -> None:
    barrier = threading.Barrier(2)
    tries: list[int] = []

    def cross(s: adb.Transaction, first: int, second: int) -> None:
        s.update(watched.accounts, first, balance=first)
        tries.append(first)
        if len(tries) <= 2:
            barrier.wait(PATIENCE_S)
        s.update(watched.accounts, second, balance=second)

    def work(t: adb.Transaction) -> None:
        for child in [t.spawn(cross, 1, 2), t.spawn(cross, 2, 1)]:
            child.result()

    watched.db.run(work)
    top = only_ended(watched, parent=None)
    assert len(tries) == len(top["children"]) >= 3
    children = [watched.story(child["id"]) for child in top["children"]]
    for label in ("1", "2"):
        same = [child for child in children if child["label"] == label]
        assert [child["tries"] for child in same] == list(range(1, len(same) + 1))
        assert [child["state"] for child in same] == ["aborted"] * (len(same) - 1) + ["committed"]
    began = [s for s in top["steps"] if s["what"] in ("child", "retried")]
    assert [s["other"] for s in began] == [child["id"] for child in children]
    assert [s["what"] == "retried" for s in began] == [child["tries"] > 1 for child in children]


def test_story_that_nobody_keeps_is_none(watched: Watched) -> None:
    assert watched.monitor.transaction(10**9) is None
    assert watched.monitor.deadlock(99) is None


def test_story_of_very_many_steps_leaves_out_the_middle(memory: Any) -> None:
    watched = memory()

    def work(t: adb.Transaction) -> None:
        for n in range(1_200):
            t.update(watched.accounts, 1, balance=n)

    watched.db.run(work)
    story = only_ended(watched, parent=None)
    assert len(story["steps"]) == 1_001
    assert story["steps_left_out"] == len(("began", "lock", "committing", "committed")) + 200
    assert [step["what"] for step in story["steps"]].count("left out") == 1
    assert story["steps"][-1]["what"] == "committed"
