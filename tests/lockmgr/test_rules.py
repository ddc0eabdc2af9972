"""Rules 1 to 5 (Saygin, Ulusoy, Chakravarthy, section 3.1), one scenario after the other."""

from __future__ import annotations

import pytest

from lockmgr import LockUsageError, Mode, VerifyingLockTable
from tests.lockmgr.script import check

A = ("a",)


def test_rule1_readers_share_and_a_writer_waits_for_all_of_them() -> None:
    check("""
        begin 1 2 3
        1 asks S a -> granted
        2 asks S a -> granted
        3 asks X a -> blocked by 1 (held), 2 (held)
        dump
          1
          2
          3 waits for 1 (held), 2 (held)
          a: held 1 S, 2 S; queue 3 X
        1 commits
        2 commits -> 3 granted X a
        3 commits
        dump
          empty
    """)


def test_rule1_intentions_share_and_a_scan_waits_for_the_writers() -> None:
    check("""
        begin 1 2 3 4
        1 asks IX a -> granted
        2 asks IX a -> granted
        3 asks IS a -> granted
        4 asks S a -> blocked by 1 (held), 2 (held)
        1 asks X a/7 -> granted
        2 asks X a/8 -> granted
        3 asks S a/7 -> blocked by 1 (held)
        dump
          1
          2
          3 waits for 1 (held)
          4 waits for 1 (held), 2 (held)
          a/7: held 1 X; queue 3 S
          a/8: held 2 X
          a: held 1 IX, 2 IX, 3 IS; queue 4 S
        1 commits -> 3 granted S a/7
        2 commits -> 4 granted S a
    """)


def test_rule1_retained_lock_is_free_inside_the_sphere_and_closed_outside() -> None:
    check("""
        begin 1 9
        begin 2 in 1
        2 asks X a -> granted
        2 commits
        dump
          1
          9
          a: retained 1 X
        9 asks S a -> blocked by 1 (retained)
        begin 3 in 1
        begin 4 in 3
        4 asks X a -> granted
        dump
          1
            3
              4
          9 waits for 4 (held), 1 (retained)
          a: held 4 X; retained 1 X; queue 9 S
    """)


def test_rule1_retainer_itself_must_hold_again_to_touch_the_object() -> None:
    table = check("""
        begin 1
        begin 2 in 1
        2 asks X a -> granted
        2 commits
    """)
    assert not table.holds(1, A, Mode.S)
    assert table.retained(1) == {A: Mode.X}
    table.request(1, A, Mode.S)
    assert table.holds(1, A, Mode.S)
    assert not table.holds(1, A, Mode.X)
    assert table.held(1) == {A: Mode.S}
    assert table.retained(1) == {A: Mode.X}


def test_rule1_covered_request_changes_nothing() -> None:
    check("""
        begin 1 2
        1 asks X a -> granted
        2 asks S a -> blocked by 1 (held)
        1 asks S a -> granted
        1 asks IX a -> granted
        dump
          1
          2 waits for 1 (held)
          a: held 1 X; queue 2 S
    """)


def test_rule1_upgrade_takes_the_supremum_of_held_and_asked() -> None:
    check("""
        begin 1
        1 asks S a -> granted
        1 asks IX a -> granted
        dump
          1
          a: held 1 SIX
        1 asks X a -> granted
        dump
          1
          a: held 1 X
    """)


def test_rule1_figure_7_control_spheres_of_the_retainer_and_of_the_holder() -> None:
    """T_i = 1 with children T_j = 2 and T_k = 3; T_l = 4 and T_m = 5 are children of T_j."""
    check("""
        begin 1 9
        begin 2 3 in 1
        begin 4 5 in 2
        begin 6 in 1
        6 asks X o -> granted
        6 commits

        9 asks S o -> blocked by 1 (retained)
        9 cancels

        2 asks S o -> granted
        4 asks S o -> granted
        3 asks S o -> granted
        4 commits
        3 commits
        2 asks X o -> granted

        5 asks S o -> denied: 5 -held-> 2 -commit-> 5
        9 asks S o -> blocked by 2 (held), 1 (retained)
        begin 7 in 1
        7 asks S o -> blocked by 2 (held)
        5 commits
        2 commits -> 7 granted S o
        dump
          1
            7
          9 waits for 1 (retained)
          o: held 7 S; retained 1 X; queue 9 S
    """)


def test_rule2_parent_retains_held_and_retained_locks_in_the_supremum() -> None:
    check("""
        begin 1
        begin 2 in 1
        2 asks S a -> granted
        2 asks X b -> granted
        begin 3 in 2
        3 asks IX c -> granted
        3 commits
        2 asks S c -> granted
        dump
          1
            2
          a: held 2 S
          b: held 2 X
          c: held 2 S; retained 2 IX
        2 commits
        dump
          1
          a: retained 1 S
          b: retained 1 X
          c: retained 1 SIX
    """)


def test_rule2_parent_that_holds_goes_on_holding() -> None:
    check("""
        begin 1 9
        begin 2 in 1
        1 asks IX a -> granted
        2 asks IS a -> granted
        2 commits
        dump
          1
          9
          a: held 1 IX; retained 1 IS
        9 asks S a -> blocked by 1 (held)
        9 cancels
        9 asks X a -> blocked by 1 (held)
    """)


def test_rule3_top_level_commit_releases_held_and_retained() -> None:
    check("""
        begin 1 8 9
        begin 2 in 1
        2 asks X a -> granted
        2 commits
        1 asks X b -> granted
        8 asks X a -> blocked by 1 (retained)
        9 asks S b -> blocked by 1 (held)
        1 commits -> 9 granted S b; 8 granted X a
        dump
          8
          9
          a: held 8 X
          b: held 9 S
    """)


def test_rule4_abort_releases_own_locks_and_superiors_keep_theirs() -> None:
    check("""
        begin 1 8 9
        begin 2 in 1
        2 asks X a -> granted
        2 commits
        begin 3 in 1
        3 asks X a -> granted
        3 asks X b -> granted
        begin 4 in 3
        4 asks X c -> granted
        4 commits
        8 asks S a -> blocked by 3 (held), 1 (retained)
        9 asks S c -> blocked by 3 (retained)
        3 aborts -> 9 granted S c
        dump
          1
          8 waits for 1 (retained)
          9
          a: retained 1 X; queue 8 S
          c: held 9 S
        1 aborts -> 8 granted S a
    """)


def test_rule4_abort_with_an_heir_keeps_the_locks_in_the_hierarchy() -> None:
    check("""
        begin 1 9
        begin 2 in 1
        begin 3 4 in 2
        3 asks X a -> granted
        3 asks S b -> granted
        9 asks S a -> blocked by 3 (held)
        4 asks X a -> blocked by 3 (held), 9 (soft)
        3 aborts for 1 -> 4 granted X a
        dump
          1
            2
              4
          9 waits for 4 (held), 1 (retained)
          a: held 4 X; retained 1 X; queue 9 S
          b: retained 1 S
        4 aborts for 1
        2 aborts for 1
        1 aborts -> 9 granted S a
        dump
          9
          a: held 9 S
    """)


def test_rule4_abort_with_an_heir_closes_a_cycle_and_denies_the_waiter() -> None:
    check("""
        begin 1 9
        begin 2 3 in 1
        9 asks X b -> granted
        2 asks X a -> granted
        9 asks X a -> blocked by 2 (held)
        3 asks X b -> blocked by 9 (held)
        2 aborts for 1 -> 9 denied: 9 -retained-> 1 -commit-> 3 -held-> 9
    """)


def test_rule4_abort_for_someone_who_is_no_superior_is_refused() -> None:
    table = VerifyingLockTable()
    table.begin(1)
    table.begin(2, 1)
    table.begin(9)
    for heir in (2, 9):
        with pytest.raises(LockUsageError, match="no superior of 2"):
            table.abort(2, heir)
    table.abort(2, 1)


def test_rule5_downgrade_to_none_lets_only_inferiors_in() -> None:
    check("""
        begin 1 9
        begin 2 in 1
        1 asks X a -> granted
        2 asks S a -> denied: 2 -held-> 1 -commit-> 2
        1 downgrades a to none
        2 asks S a -> granted
        9 asks S a -> blocked by 1 (retained)
        dump
          1
            2
          9 waits for 1 (retained)
          a: held 2 S; retained 1 X; queue 9 S
    """)


def test_rule5_downgrade_to_a_weaker_mode_holds_that_and_retains_the_old() -> None:
    check("""
        begin 1 9
        begin 2 in 1
        1 asks SIX a -> granted
        1 downgrades a to IS
        2 asks IX a -> granted
        1 asks S a -> blocked by 2 (held)
        9 asks IX a -> blocked by 1 (retained)
        dump
          1 waits for 2 (held)
            2
          9 waits for 1 (retained)
          a: held 1 IS, 2 IX; retained 1 SIX; queue 1 S upgrade, 9 IX
    """)


def test_rule5_second_downgrade_retains_the_supremum() -> None:
    check("""
        begin 1
        1 asks S a -> granted
        1 downgrades a to none
        1 asks IX a -> granted
        1 downgrades a to none
        dump
          1
          a: retained 1 SIX
    """)


def test_offer_everything_held_is_retained_and_children_may_use_it() -> None:
    check("""
        begin 1 9
        1 asks IX a -> granted
        1 asks X a/7 -> granted
        9 asks S a/7 -> blocked by 1 (held)
        1 offers
        dump
          1
          9 waits for 1 (retained)
          a/7: retained 1 X; queue 9 S
          a: retained 1 IX
        begin 2 in 1
        2 asks S a -> granted
        2 asks X a/7 -> granted
        1 asks X a/7 -> blocked by 2 (held)
        2 commits -> 1 granted X a/7
        dump
          1
          9 waits for 1 (held)
          a/7: held 1 X; retained 1 X; queue 9 S
          a: retained 1 SIX
    """)


def test_table_calls_the_protocol_forbids_raise_and_change_nothing() -> None:
    table = VerifyingLockTable()
    table.begin(1)
    table.begin(2, 1)
    table.begin(9)
    table.request(2, A, Mode.S)
    table.request(9, A, Mode.X)
    before = table.dump()
    with pytest.raises(LockUsageError, match="9 waits for a"):
        table.request(9, ("b",), Mode.S)
    with pytest.raises(LockUsageError, match="9 waits for a"):
        table.offer(9)
    with pytest.raises(LockUsageError, match="9 waits for a"):
        table.abort(9)
    with pytest.raises(LockUsageError, match="9 waits for a"):
        table.commit(9)
    with pytest.raises(LockUsageError, match=r"1 has live children.*\[2\]"):
        table.commit(1)
    with pytest.raises(LockUsageError, match="live children"):
        table.abort(1)
    with pytest.raises(LockUsageError, match="1 has begun already"):
        table.begin(1)
    with pytest.raises(LockUsageError, match="7 has not begun, or has ended"):
        table.begin(8, 7)
    with pytest.raises(LockUsageError, match="7 has not begun"):
        table.request(7, A, Mode.S)
    with pytest.raises(LockUsageError, match="7 has not begun"):
        table.cancel(7)
    with pytest.raises(LockUsageError, match="1 does not hold a"):
        table.downgrade(1, A, None)
    with pytest.raises(LockUsageError, match="2 does not hold b"):
        table.downgrade(2, ("b",), None)
    with pytest.raises(LockUsageError, match="2 holds S on a; S is not weaker"):
        table.downgrade(2, A, Mode.S)
    with pytest.raises(LockUsageError, match="IX is not weaker"):
        table.downgrade(2, A, Mode.IX)
    assert table.dump() == before


def test_table_after_every_transaction_ended_is_empty() -> None:
    table = check("""
        begin 1 9
        begin 2 3 in 1
        2 asks X a -> granted
        3 asks S a -> blocked by 2 (held)
        9 asks S b -> granted
        2 commits -> 3 granted S a
        3 aborts
        1 commits
        9 aborts
        dump
          empty
    """)
    assert 1 not in table
    assert not table._transactions
    assert not table._entries
