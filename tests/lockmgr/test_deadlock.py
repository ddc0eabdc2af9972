"""Deadlocks (Saygin, Ulusoy, Chakravarthy, section 4.2.2), and waits that only look like one."""

from __future__ import annotations

from lockmgr import Denied, Edge, EdgeKind, Mode, VerifyingLockTable
from tests.lockmgr.script import check


def test_deadlock_figure_8_a_parent_waits_for_its_live_children_from_their_begin_on() -> None:
    """T = 1 spawns T_i = 2 and T_j = 3, T_i spawns T_k = 4 and T_l = 5, T_j spawns T_m = 6."""
    check("""
        begin 1
        begin 2 3 in 1
        begin 4 5 in 2
        begin 6 in 3
        1 asks X o -> granted
        2 asks X p -> granted
        4 asks X p -> denied: 4 -held-> 2 -commit-> 4
        6 asks X o -> denied: 6 -held-> 1 -commit-> 3 -commit-> 6
        6 asks X p -> blocked by 2 (held)
        dump
          1
            2
              4
              5
            3
              6 waits for 2 (held)
          o: held 1 X
          p: held 2 X; queue 6 X
    """)


def test_deadlock_figure_9_held_lock_becomes_retained_until_the_common_ancestor_has_it() -> None:
    """T_i = 2 waits for T_j = 4, a child of T_k = 3; 1 is the top-level transaction."""
    check("""
        begin 1
        begin 2 3 in 1
        begin 4 in 3
        4 asks X obj -> granted
        2 asks X obj -> blocked by 4 (held)
        dump
          1
            2 waits for 4 (held)
            3
              4
          obj: held 4 X; queue 2 X
        4 commits
        dump
          1
            2 waits for 3 (retained)
            3
          obj: retained 3 X; queue 2 X
        3 commits -> 2 granted X obj
        dump
          1
            2
          obj: held 2 X; retained 1 X
    """)


def test_deadlock_siblings_crossing_the_requester_is_the_victim() -> None:
    check("""
        begin 1
        begin 2 3 in 1
        2 asks X a -> granted
        3 asks X b -> granted
        2 asks X b -> blocked by 3 (held)
        3 asks X a -> denied: 3 -held-> 2 -held-> 3
        dump
          1
            2 waits for 3 (held)
            3
          a: held 2 X
          b: held 3 X; queue 2 X
        3 aborts -> 2 granted X b
    """)


def test_deadlock_parent_asking_for_its_childs_lock_only_waits() -> None:
    check("""
        begin 1
        begin 2 in 1
        2 asks X a -> granted
        1 asks X a -> blocked by 2 (held)
        2 asks X b -> granted
        2 commits -> 1 granted X a
    """)


def test_deadlock_child_asking_for_its_superiors_held_lock_is_denied() -> None:
    check("""
        begin 1
        begin 2 in 1
        begin 3 in 2
        1 asks S a -> granted
        3 asks S a -> granted
        3 asks X a -> denied: 3 -held-> 1 -commit-> 2 -commit-> 3
        1 offers
        3 asks X a -> granted
    """)


def test_deadlock_parent_and_child_waiting_for_each_other_the_second_is_denied() -> None:
    check("""
        begin 1 9
        begin 2 in 1
        9 asks X a -> granted
        1 asks X b -> granted
        2 asks X a -> blocked by 9 (held)
        9 asks X b -> denied: 9 -held-> 1 -commit-> 2 -held-> 9
    """)


def test_deadlock_uncle_waits_until_the_nephews_parent_has_ended() -> None:
    check("""
        begin 1
        begin 2 3 in 1
        begin 4 in 2
        4 asks X a -> granted
        3 asks X a -> blocked by 4 (held)
        4 commits
        dump
          1
            2
            3 waits for 2 (retained)
          a: retained 2 X; queue 3 X
        2 aborts -> 3 granted X a
    """)


def test_deadlock_nephew_and_uncle_crossing_is_found_through_the_commit_wait() -> None:
    """3 waits for what 2 retains, 2 for its child 5, so 5 must not wait for 3."""
    check("""
        begin 1
        begin 2 3 in 1
        begin 4 5 in 2
        4 asks X a -> granted
        4 commits
        3 asks X b -> granted
        3 asks X a -> blocked by 2 (retained)
        5 asks X b -> denied: 5 -held-> 3 -retained-> 2 -commit-> 5
    """)


def test_deadlock_at_inheritance_denies_the_waiter_whose_edge_changed() -> None:
    """While 4 holds a, 3 waits for 4 alone; when 2 inherits a, 3 waits for 2, 2 for 5, 5 for 3."""
    check("""
        begin 1
        begin 2 3 in 1
        begin 4 5 in 2
        4 asks X a -> granted
        3 asks X b -> granted
        3 asks X a -> blocked by 4 (held)
        5 asks X b -> blocked by 3 (held)
        4 commits -> 3 denied: 3 -retained-> 2 -commit-> 5 -held-> 3
        dump
          1
            2
              5 waits for 3 (held)
            3
          a: retained 2 X
          b: held 3 X; queue 5 X
        3 aborts -> 5 granted X b
    """)


def test_deadlock_at_inheritance_denial_lets_those_behind_the_victim_go() -> None:
    check("""
        begin 1 9
        begin 2 3 in 1
        begin 4 5 in 2
        4 asks S a -> granted
        3 asks X b -> granted
        3 asks X a -> blocked by 4 (held)
        9 asks S a -> blocked by 3 (soft)
        5 asks X b -> blocked by 3 (held)
        4 commits -> 3 denied: 3 -retained-> 2 -commit-> 5 -held-> 3; 9 granted S a
    """)


def test_deadlock_at_inheritance_denies_each_waiter_that_is_on_a_cycle_of_its_own() -> None:
    check("""
        begin 1
        begin 2 3 4 in 1
        begin 5 6 7 in 2
        5 asks S a -> granted
        3 asks X b -> granted
        4 asks X c -> granted
        3 asks IX a -> blocked by 5 (held)
        4 asks IX a -> blocked by 5 (held)
        6 asks X b -> blocked by 3 (held)
        7 asks X c -> blocked by 4 (held)
        5 commits -> 3 denied: 3 -retained-> 2 -commit-> 6 -held-> 3; \
4 denied: 4 -retained-> 2 -commit-> 7 -held-> 4
    """)


def test_deadlock_at_inheritance_prefers_to_turn_a_soft_edge_round() -> None:
    """9 waits for 2's sphere, 5 behind 9 out of politeness; 2 inherits, so 5 must pass 9."""
    check("""
        begin 1 9
        begin 2 in 1
        begin 4 5 in 2
        begin 8
        8 asks S a -> granted
        4 asks S a -> granted
        9 asks X a -> blocked by 8 (held), 4 (held)
        5 asks S a -> blocked by 9 (soft)
        4 commits -> 5 granted S a
        dump
          1
            2
              5
          8
          9 waits for 8 (held), 5 (held), 2 (retained)
          a: held 5 S, 8 S; retained 2 S; queue 9 X
    """)


def test_deadlock_at_inheritance_may_turn_a_soft_edge_of_another_resource() -> None:
    """2 inherits r, so 3 waits for 2, 2 for 5, 5 politely for 9, and 9 for 3: 5 must pass 9."""
    check("""
        begin 1 9
        begin 2 3 in 1
        begin 4 5 in 2
        3 asks S q -> granted
        9 asks X q -> blocked by 3 (held)
        5 asks S q -> blocked by 9 (soft)
        4 asks X r -> granted
        3 asks X r -> blocked by 4 (held)
        4 commits -> 5 granted S q
        dump
          1
            2
              5
            3 waits for 2 (retained)
          9 waits for 3 (held), 5 (held)
          q: held 3 S, 5 S; queue 9 X
          r: retained 2 X; queue 3 X
    """)


def test_deadlock_with_several_soft_edges_turns_whichever_can_be() -> None:
    """2 cannot pass 3, as it waits for 4 as well; but 5 can pass 6, and then 8 can pass 9."""
    check("""
        begin 1 2 3 4 5 6 7 8 9
        2 asks X z -> granted
        4 asks S r -> granted
        5 asks IS r -> granted
        7 asks X k -> granted
        8 asks X l -> granted
        1 asks S q -> granted
        1 asks S m -> granted
        3 asks X r -> blocked by 4 (held), 5 (held)
        2 asks IX r -> blocked by 4 (held), 3 (soft)
        6 asks X q -> blocked by 1 (held)
        5 asks S q -> blocked by 6 (soft)
        4 asks X k -> blocked by 7 (held)
        7 asks X l -> blocked by 8 (held)
        9 asks X m -> blocked by 1 (held)
        8 asks S m -> blocked by 9 (soft)
        1 asks X z -> blocked by 2 (held); 5 granted S q; 8 granted S m
    """)


def test_deadlock_between_hierarchies_is_found_through_commit_waits_of_both() -> None:
    check("""
        begin 1 2
        begin 3 4 in 1
        begin 5 6 in 2
        3 asks X a -> granted
        3 commits
        5 asks X b -> granted
        5 commits
        6 asks X a -> blocked by 1 (retained)
        4 asks X b -> denied: 4 -retained-> 2 -commit-> 6 -retained-> 1 -commit-> 4
        dump
          1
            4
          2
            6 waits for 1 (retained)
          a: retained 1 X; queue 6 X
          b: retained 2 X
        4 aborts
        1 commits -> 6 granted X a
    """)


def test_deadlock_through_an_active_parent_whose_child_waits_is_found() -> None:
    """Nobody but the children waits for a lock; the tops only wait for their commits."""
    check("""
        begin 1 2 3
        begin 4 in 1
        begin 5 in 2
        begin 6 in 3
        1 asks X a -> granted
        2 asks X b -> granted
        3 asks X c -> granted
        4 asks S b -> blocked by 2 (held)
        5 asks S c -> blocked by 3 (held)
        6 asks S a -> denied: 6 -held-> 1 -commit-> 4 -held-> 2 -commit-> 5 -held-> 3 -commit-> 6
    """)


def test_deadlock_two_upgrades_of_one_shared_lock_deny_the_second() -> None:
    check("""
        begin 1 2
        1 asks S a -> granted
        2 asks S a -> granted
        1 asks X a -> blocked by 2 (held)
        2 asks X a -> denied: 2 -held-> 1 -held-> 2
        2 aborts -> 1 granted X a
    """)


def test_deadlock_whose_soft_edges_cannot_be_turned_denies_and_keeps_the_order() -> None:
    """3 could pass 2, but would still wait for 4, 4 for 5, 5 for 1, and 1 for 3."""
    check("""
        begin 1 2 3 4 5 6
        1 asks IS a -> granted
        1 asks X d -> granted
        3 asks X b -> granted
        4 asks S a -> granted
        5 asks X c -> granted
        2 asks X a -> blocked by 1 (held), 4 (held)
        3 asks IX a -> blocked by 4 (held), 2 (soft)
        6 asks SIX a -> blocked by 4 (held), 2 (soft), 3 (soft)
        4 asks X c -> blocked by 5 (held)
        5 asks X d -> blocked by 1 (held)
        1 asks X b -> denied: 1 -held-> 3 -soft-> 2 -held-> 1
        dump
          1
          2 waits for 1 (held), 4 (held)
          3 waits for 4 (held), 2 (soft)
          4 waits for 5 (held)
          5 waits for 1 (held)
          6 waits for 4 (held), 2 (soft), 3 (soft)
          a: held 1 IS, 4 S; queue 2 X, 3 IX, 6 SIX
          b: held 3 X
          c: held 5 X; queue 4 X
          d: held 1 X; queue 5 X
    """)


def test_deadlock_denied_request_leaves_the_queue_as_it_was() -> None:
    check("""
        begin 1 2 3
        1 asks X a -> granted
        2 asks X b -> granted
        3 asks S b -> blocked by 2 (held)
        1 asks S b -> blocked by 2 (held)
        2 asks X a -> denied: 2 -held-> 1 -held-> 2
        dump
          1 waits for 2 (held)
          2
          3 waits for 2 (held)
          a: held 1 X
          b: held 2 X; queue 3 S, 1 S
    """)


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
        Edge(9, 1, EdgeKind.HELD, ("accounts", 7), Mode.S),
        Edge(1, 2, EdgeKind.COMMIT, None, None),
        Edge(2, 9, EdgeKind.HELD, ("accounts", "seven"), Mode.S),
    )
    assert reply.report.text() == (
        "transaction 9 is the victim of a deadlock; abort it and retry:\n"
        "  9 wants S on accounts/7, waits for 1, which holds it\n"
        "  1 waits for the commit of its child 2\n"
        "  2 wants S on accounts/'seven', waits for 9, which holds it"
    )
