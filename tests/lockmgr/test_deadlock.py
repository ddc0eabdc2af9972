"""Contents of a deadlock report; `scenarios` shows when there is one, and for which transaction."""

from __future__ import annotations

from lockmgr import Denied, Edge, EdgeKind, Grant, Mode, VerifyingLockTable


def test_report_edges_are_typed_in_cycle_order_and_begin_with_the_victim() -> None:
    table = VerifyingLockTable()
    table.begin(1)
    table.begin(2, 1)
    table.begin(9)
    table.request(1, ("accounts", 7), Mode.X)
    table.request(9, ("accounts", "seven"), Mode.X)
    table.request(2, ("accounts", "seven"), Mode.S)
    reply = table.request(9, ("accounts", 7), Mode.S)
    assert isinstance(reply, Denied)
    assert reply.report.victim == 9
    assert reply.report.cycle == (
        Edge(9, 1, EdgeKind.HELD, ("accounts", 7), Mode.S, Mode.X),
        Edge(1, 2, EdgeKind.COMMIT),
        Edge(2, 9, EdgeKind.HELD, ("accounts", "seven"), Mode.S, Mode.X),
    )
    assert reply.report.text() == (
        "transaction 9 is the victim of a deadlock (policy: requester); abort it and retry:\n"
        "  9 wants S on accounts/7, waits for 1, which holds it in X\n"
        "  1 waits for the commit of its child 2\n"
        "  2 wants S on accounts/'seven', waits for 9, which holds it in X"
    )


def test_overtake_that_would_close_a_cycle_through_a_child_grants_nothing() -> None:
    table = VerifyingLockTable()
    for top in (1, 5, 9):
        table.begin(top)
    table.begin(2, 1)
    table.request(5, ("a",), Mode.S)
    table.request(9, ("b",), Mode.X)
    table.request(9, ("a",), Mode.X)
    table.request(1, ("a",), Mode.S)
    table.request(2, ("b",), Mode.X)
    before = table.snapshot()
    assert table.overtake(1) == ()
    assert table.snapshot() == before
    table.cancel(2)
    assert table.overtake(1) == (Grant(1, ("a",), Mode.S),)
