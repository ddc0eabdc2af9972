"""The queue: first in, first out, and the few who may pass."""

from __future__ import annotations

from tests.lockmgr.script import check


def test_queue_compatible_newcomer_waits_behind_an_earlier_conflicting_request() -> None:
    check("""
        begin 1 2 3 4
        1 asks S a -> granted
        2 asks X a -> blocked by 1 (held)
        3 asks S a -> blocked by 2 (soft)
        4 asks S a -> blocked by 2 (soft)
        dump
          1
          2 waits for 1 (held)
          3 waits for 2 (soft)
          4 waits for 2 (soft)
          a: held 1 S; queue 2 X, 3 S, 4 S
        1 commits -> 2 granted X a
        2 commits -> 3 granted S a; 4 granted S a
    """)


def test_queue_newcomer_that_conflicts_with_no_waiter_passes() -> None:
    check("""
        begin 1 2 3
        1 asks IX a -> granted
        2 asks S a -> blocked by 1 (held)
        3 asks IS a -> granted
    """)


def test_queue_writer_among_a_stream_of_readers_is_not_starved() -> None:
    check("""
        begin 1 2 3 4 5
        1 asks S a -> granted
        2 asks S a -> granted
        3 asks X a -> blocked by 1 (held), 2 (held)
        4 asks S a -> blocked by 3 (soft)
        1 commits
        5 asks S a -> blocked by 3 (soft)
        2 commits -> 3 granted X a
    """)


def test_queue_withdrawn_request_lets_those_behind_it_go() -> None:
    check("""
        begin 1 2 3
        1 asks S a -> granted
        2 asks X a -> blocked by 1 (held)
        3 asks S a -> blocked by 2 (soft)
        2 cancels -> 3 granted S a
        2 cancels
        dump
          1
          2
          3
          a: held 1 S, 3 S
    """)


def test_queue_upgrade_waits_ahead_of_everybody_but_earlier_upgrades() -> None:
    check("""
        begin 1 2 3 4
        1 asks IX a -> granted
        2 asks IS a -> granted
        3 asks IS a -> granted
        4 asks X a -> blocked by 1 (held), 2 (held), 3 (held)
        2 asks S a -> blocked by 1 (held)
        3 asks S a -> blocked by 1 (held)
        dump
          1
          2 waits for 1 (held)
          3 waits for 1 (held)
          4 waits for 1 (held), 2 (held), 3 (held)
          a: held 1 IX, 2 IS, 3 IS; queue 2 S upgrade, 3 S upgrade, 4 X
        1 commits -> 2 granted S a; 3 granted S a
    """)


def test_queue_upgrade_that_rule_1_grants_passes_a_waiting_request() -> None:
    check("""
        begin 1 2 3
        1 asks IX a -> granted
        2 asks IS a -> granted
        3 asks S a -> blocked by 1 (held)
        2 asks IX a -> granted
        dump
          1
          2
          3 waits for 1 (held), 2 (held)
          a: held 1 IX, 2 IX; queue 3 S
    """)


def test_queue_inferior_of_the_retainer_waited_for_passes() -> None:
    check("""
        begin 1 9
        begin 2 in 1
        2 asks S a -> granted
        2 commits
        9 asks X a -> blocked by 1 (retained)
        begin 3 in 1
        3 asks S a -> granted
        begin 4 in 1
        4 asks X a -> blocked by 3 (held)
        dump
          1
            3
            4 waits for 3 (held)
          9 waits for 3 (held), 1 (retained), 4 (soft)
          a: held 3 S; retained 1 S; queue 4 X, 9 X
        3 commits -> 4 granted X a
    """)


def test_queue_inferior_of_a_retainer_nobody_waits_for_keeps_its_turn() -> None:
    check("""
        begin 1 8 9
        begin 2 in 1
        2 asks IS a -> granted
        2 commits
        8 asks IX a -> granted
        9 asks S a -> blocked by 8 (held)
        begin 3 in 1
        3 asks IX a -> blocked by 9 (soft)
        8 commits -> 9 granted S a
        9 commits -> 3 granted IX a
    """)


def test_queue_retainer_that_holds_again_passes_those_who_wait_for_it() -> None:
    check("""
        begin 1 9
        1 asks X a -> granted
        1 offers
        9 asks X a -> blocked by 1 (retained)
        1 asks S a -> granted
    """)


def test_queue_newcomer_whose_wait_would_deadlock_passes_if_rule_1_grants_it() -> None:
    """1 waits for 3 elsewhere, so 3 must not wait behind 2, who waits for 1."""
    check("""
        begin 1 2 3
        1 asks S a -> granted
        3 asks X b -> granted
        1 asks X b -> blocked by 3 (held)
        2 asks X a -> blocked by 1 (held)
        3 asks S a -> granted
        dump
          1 waits for 3 (held)
          2 waits for 1 (held), 3 (held)
          3
          a: held 1 S, 3 S; queue 2 X
          b: held 3 X; queue 1 X
    """)


def test_queue_newcomer_passes_only_those_it_must() -> None:
    """4 may wait behind 2 but not behind 3, who waits for 4's own lock."""
    check("""
        begin 1 2 3 4
        1 asks IX a -> granted
        4 asks X b -> granted
        1 asks IX c -> granted
        2 asks S a -> blocked by 1 (held)
        begin 5 in 3
        5 asks S b -> blocked by 4 (held)
        3 asks S a -> blocked by 1 (held)
        4 asks IX a -> blocked by 2 (soft)
        dump
          1
          2 waits for 1 (held)
          3 waits for 1 (held), 4 (soft)
            5 waits for 4 (held)
          4 waits for 2 (soft)
          a: held 1 IX; queue 2 S, 4 IX, 3 S
          b: held 4 X; queue 5 S
          c: held 1 IX
    """)


def test_queue_soft_waiter_passes_when_a_later_request_would_close_a_cycle() -> None:
    """3 waits for 1 only out of politeness towards 2; when 1 comes to wait for 3, that ends."""
    check("""
        begin 1 2 3
        1 asks S a -> granted
        2 asks X a -> blocked by 1 (held)
        3 asks S b -> granted
        3 asks S a -> blocked by 2 (soft)
        1 asks X b -> blocked by 3 (held); 3 granted S a
        dump
          1 waits for 3 (held)
          2 waits for 1 (held), 3 (held)
          3
          a: held 1 S, 3 S; queue 2 X
          b: held 3 S; queue 1 X
    """)


def test_queue_child_goes_ahead_of_its_waiting_parent() -> None:
    check("""
        begin 1 9
        begin 2 in 1
        9 asks X a -> granted
        1 asks X a -> blocked by 9 (held)
        2 asks X a -> blocked by 9 (held)
        dump
          1 waits for 9 (held), 2 (soft)
            2 waits for 9 (held)
          9
          a: held 9 X; queue 2 X, 1 X
        9 commits -> 2 granted X a
        2 commits -> 1 granted X a
    """)


def test_queue_child_goes_ahead_of_the_upgrade_of_its_parent() -> None:
    check("""
        begin 1 9
        begin 2 in 1
        9 asks S a -> granted
        1 asks IS a -> granted
        2 asks IX a -> blocked by 9 (held)
        1 asks X a -> blocked by 9 (held), 2 (soft)
        9 commits -> 2 granted IX a
        2 commits -> 1 granted X a
    """)


def test_queue_upgrade_does_not_pass_a_waiter_that_one_of_its_inferiors_waits_for() -> None:
    """Were 1 to pass 3, 3 would wait for 1, and 1 for its child 2, which waits for 3."""
    check("""
        begin 1 3 4
        begin 2 in 1
        1 asks IS a -> granted
        4 asks IX a -> granted
        3 asks X b -> granted
        3 asks S a -> blocked by 4 (held)
        2 asks X b -> blocked by 3 (held)
        1 asks IX a -> blocked by 3 (soft)
        dump
          1 waits for 3 (soft)
            2 waits for 3 (held)
          3 waits for 4 (held)
          4
          a: held 1 IS, 4 IX; queue 3 S, 1 IX upgrade
          b: held 3 X; queue 2 X
        4 commits -> 3 granted S a
        3 commits -> 2 granted X b; 1 granted IX a
    """)
