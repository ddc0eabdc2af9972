"""Texts that are loaded: rules run as they say; all of a text or nothing."""

from __future__ import annotations

import types
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Column, Float, Integer, Numeric, Table, func, select

import activedb as adb
from activedb.cli._match import queries_of
from activedb.errors import (
    ActiveDBError,
    DefinitionError,
    RuleFailed,
    RuleSyntaxError,
    StoreError,
)
from tests.databases import PATIENCE_S, in_thread, lock_waits, place, until
from tests.language.tables import declare

UPDATE = "UPDATE workerStatus SET status = 'seen' WHERE workerID = NEW.who"


@pytest.fixture
def ward(db: adb.Database) -> adb.Database:
    """Workers 1 and 2, both safe, and an empty log."""
    declare(db.metadata)
    db.create_all()
    with db.transaction() as t:
        for number in (1, 2):
            t.insert(db.metadata.tables["workerStatus"], {"workerID": number, "status": "safe"})
    return db


def rows(db: adb.Database, table: str) -> list[tuple[Any, ...]]:
    with db.transaction() as t:
        return sorted(tuple(row) for row in t.query(select(db.metadata.tables[table])))


def names(db: adb.Database) -> list[str]:
    return sorted(entry.name for entry in db.rules)


# -- what a rule does --------------------------------------------------------------------------


def test_update_of_the_paper_writes_the_row_of_the_event(ward: adb.Database) -> None:
    ward.rules.load_text(f"CREATE RULE R ON seen BEGIN {UPDATE} END")
    ward.signal("seen", who=2)
    assert rows(ward, "workerStatus") == [(1, "safe"), (2, "seen")]


def test_update_computes_from_columns_events_and_subqueries(ward: adb.Database) -> None:
    ward.rules.load_text(
        """CREATE RULE R ON seen BEGIN
             UPDATE workerStatus
             SET status = CASE WHEN workerStatus.workerID = NEW.who
                               THEN status || ': ' || NEW.note
                               ELSE (SELECT max(w.status) FROM workerStatus w) || '?' END
             WHERE workerID <= (SELECT count(*) FROM WORKERSTATUS);
           END"""
    )
    ward.signal("seen", who=2, note="it's :x % \\ 'y'")
    assert rows(ward, "workerStatus") == [(1, "safe?"), (2, "safe: it's :x % \\ 'y'")]


@pytest.mark.parametrize("kind", [Integer(), Float(), Numeric(8, 2)])
@pytest.mark.parametrize(
    "action",
    [
        "UPDATE measured SET value = NULL",
        "UPDATE measured SET value = NULL WHERE id = 1",
        "INSERT INTO measured (id, value) VALUES (2, NULL)",
        "INSERT INTO measured (id, value) SELECT 2, NULL FROM measured WHERE id = 1",
    ],
)
def test_null_is_written_into_numbers(db: adb.Database, kind: Any, action: str) -> None:
    measured = Table(
        "measured", db.metadata, Column("id", Integer, primary_key=True), Column("value", kind)
    )
    db.create_all()
    with db.transaction() as t:
        t.insert(measured, {"id": 1, "value": 1})
    db.rules.load_text(f"CREATE RULE R ON lost BEGIN {action} END")
    db.signal("lost")
    assert rows(db, "measured")[-1][1] is None


def test_insert_and_delete_write_rows(ward: adb.Database) -> None:
    ward.rules.load_text(
        """CREATE RULE R1 ON seen BEGIN
             INSERT INTO log (id, worker, note, weight)
             VALUES (NEW.who, NEW.who + 1, 'a:b', 1.5), (NEW.who + 10, NULL, NEW.note, 2);
             INSERT INTO log (id, worker) SELECT workerID + 100, workerID FROM workerStatus
             WHERE status = 'safe' AND workerID = NEW.who;
           END;
           CREATE RULE R2 ON gone BEGIN DELETE FROM log WHERE worker IS NULL OR id = NEW.id END"""
    )
    ward.signal("seen", who=1, note=None)
    assert rows(ward, "log") == [
        (1, 2, "a:b", 1.5),
        (11, None, None, 2.0),
        (101, 1, None, None),
    ]
    ward.signal("gone", id=1)
    assert rows(ward, "log") == [(101, 1, None, None)]


def test_values_of_events_are_never_sql(ward: adb.Database) -> None:
    ward.rules.load_text(f"CREATE RULE R ON seen BEGIN {UPDATE} OR status = NEW.note END")
    ward.signal("seen", who=0, note="'; DELETE FROM workerStatus; --")
    assert rows(ward, "workerStatus") == [(1, "safe"), (2, "safe")]


def test_condition_reads_tables_and_attributes(ward: adb.Database) -> None:
    ward.rules.load_text(
        f"""CREATE RULE R ON seen
            REFERENCING NEW AS e
            WHEN e.level > 2 AND 'safe' = (SELECT status FROM workerStatus
                                           WHERE workerID = e.who)
                 AND EXISTS (SELECT 1 FROM workerStatus WHERE workerID = e.who)
                 AND who NOT IN (SELECT worker FROM log)
            BEGIN {UPDATE.replace("NEW", "e")} END"""
    )
    for who, level in ((1, 2), (2, 3), (3, 9)):
        ward.signal("seen", who=who, level=level)
    assert rows(ward, "workerStatus") == [(1, "safe"), (2, "seen")]


def test_rows_before_and_after_an_update_are_named(ward: adb.Database) -> None:
    ward.rules.load_text(
        """CREATE RULE R ON UPDATE(status) ON workerStatus
           REFERENCING NEW AS later OLD AS earlier
           WHEN earlier.status = 'safe'
           BEGIN
             INSERT INTO log (id, note) VALUES
               (later.workerID, earlier.status || ' to ' || later.status)
           END"""
    )
    with ward.transaction() as t:
        for status in ("warning", "violation"):
            t.update(ward.metadata.tables["workerStatus"], 1, status=status)
    assert rows(ward, "log") == [(1, None, "safe to warning", None)]


def test_signal_raises_an_event_that_other_rules_hear(ward: adb.Database) -> None:
    ward.rules.load_text(
        f"""CREATE RULE First ON seen SIGNAL again(who = NEW.who + 1);
            CREATE RULE Second ON again BEGIN {UPDATE} END"""
    )
    ward.signal("seen", who=1)
    assert rows(ward, "workerStatus") == [(1, "safe"), (2, "seen")]


def test_statement_rule_fires_once_for_a_set(ward: adb.Database) -> None:
    ward.rules.load_text(
        """CREATE RULE R ON UPDATE ON workerStatus FOR EACH STATEMENT COUPLING deferred
           BEGIN INSERT INTO log (id) SELECT count(*) FROM workerStatus WHERE status = 'x' END"""
    )
    with ward.transaction() as t:
        for number in (1, 2):
            t.update(ward.metadata.tables["workerStatus"], number, status="x")
    assert rows(ward, "log") == [(2, None, None, None)]


def test_call_runs_functions_of_allowed_modules_only(ward: adb.Database) -> None:
    module = types.ModuleType("ours")
    heard: list[Any] = []

    def hear(t: adb.Transaction, o: adb.Occurrence) -> None:
        heard.append(o.params["who"])

    hear.__module__ = "ours"
    module.hear = hear  # type: ignore[attr-defined]
    text = "CREATE RULE R ON seen BEGIN CALL ours:hear; CALL ours:hear END"
    with pytest.raises(RuleSyntaxError, match="not allowed"):
        ward.rules.load_text(text)
    ward.rules.load_text(text, modules=[module])
    ward.signal("seen", who=2)
    assert heard == [2, 2]


def test_failing_statement_fails_the_rule(ward: adb.Database) -> None:
    ward.rules.load_text(
        "CREATE RULE R ON seen BEGIN INSERT INTO log (id, worker) VALUES (1, 1), (NEW.who, 2) END"
    )
    with pytest.raises(RuleFailed):
        ward.signal("seen", who=1)
    assert rows(ward, "log") == []


# -- all of a text or nothing ------------------------------------------------------------------

TWO = f"CREATE RULE R1 ON seen BEGIN {UPDATE} END; CREATE RULE R2 ON again BEGIN {UPDATE} END"


def test_text_loaded_again_is_unchanged(ward: adb.Database) -> None:
    first = ward.rules.load_text(TWO)
    again = ward.rules.load_text(TWO.replace("; CREATE", " ; -- again\nCREATE"))
    assert [(e.name, e.version) for e in first] == [("R1", 1), ("R2", 1)]
    assert again == first


def test_another_rule_of_the_name_needs_or_replace(ward: adb.Database) -> None:
    ward.rules.load_text(TWO)
    other = "CREATE RULE R1 ON seen BEGIN DELETE FROM workerStatus WHERE workerID = NEW.who END"
    with pytest.raises(DefinitionError, match=r"line 1: .*OR REPLACE"):
        ward.rules.load_text(other)
    (entry,) = ward.rules.load_text(other.replace("CREATE", "CREATE OR REPLACE"))
    assert entry.version == 2
    ward.signal("seen", who=1)
    assert rows(ward, "workerStatus") == [(2, "safe")]
    analysis = ward.rules.analyze()
    (profile,) = (p for p in analysis.rules if p.name == "R1")
    assert [(c.kind, c.table) for c in profile.effects.changes] == [("delete", "workerStatus")]


def test_text_with_a_failing_statement_changes_nothing(ward: adb.Database) -> None:
    for text in (
        TWO + "; DROP RULE R3",
        TWO + "; ALTER RULE R1 SET PRIORITY 3; ALTER RULE R4 ENABLE",
        TWO + "; CREATE QUERY Q PATTERN SEQ(A, B); DROP QUERY P",
        TWO + "; CREATE RULE R3 ON INSERT ON nowhere SIGNAL s",
    ):
        with pytest.raises(DefinitionError):
            ward.rules.load_text(text)
        assert names(ward) == []
    with pytest.raises(RuleSyntaxError, match="no query 'Q'"):
        ward.rules.load_text("CREATE RULE R ON OUTPUT Q SIGNAL s")


def test_text_in_an_aborted_transaction_leaves_no_rules(ward: adb.Database) -> None:
    with pytest.raises(ZeroDivisionError), ward.transaction():
        ward.rules.load_text(TWO)
        assert names(ward) == ["R1", "R2"]
        raise ZeroDivisionError
    assert names(ward) == []
    ward.signal("seen", who=1)
    assert rows(ward, "workerStatus") == [(1, "safe"), (2, "safe")]


def test_alter_and_drop_change_rules(ward: adb.Database) -> None:
    ward.rules.load_text(TWO)
    altered = ward.rules.load_text(
        "ALTER RULE R1 SET PRIORITY -3; ALTER RULE R1 SET COUPLING deferred; "
        "ALTER RULE R1 SET ON ABORT rule; ALTER RULE R1 DISABLE"
    )
    (entry,) = altered
    assert (entry.priority, str(entry.coupling), str(entry.on_abort)) == (-3, "deferred", "rule")
    assert not entry.enabled
    (entry,) = ward.rules.load_text("alter rule R1 enable")
    assert entry.enabled
    ward.rules.load_text("DROP RULE R1; DROP RULE IF EXISTS R3")
    assert names(ward) == ["R2"]


QUERY = "CREATE QUERY Q PATTERN SEQ(A, B) WHERE [who] WITHIN 5 sec RETURN B.who;"


def test_query_is_known_to_later_texts_and_its_rules_follow_it(ward: adb.Database) -> None:
    ward.rules.load_text(QUERY)
    ward.rules.load_text(f"CREATE RULE R ON OUTPUT Q BEGIN {UPDATE} END")
    ward.signal("A", timestamp=1, who=1)
    ward.signal("C", timestamp=2, who=1)
    assert rows(ward, "workerStatus")[0] == (1, "safe")
    with pytest.raises(DefinitionError, match="OR REPLACE QUERY"):
        ward.rules.load_text(QUERY.replace("B", "C"))
    (entry,) = ward.rules.load_text(
        "CREATE OR REPLACE QUERY Q PATTERN SEQ(A, C) RETURN C.who; " + QUERY.replace(" Q ", " P ")
    )
    assert (entry.name, entry.version) == ("R", 2)
    ward.signal("A", timestamp=3, who=1)
    ward.signal("C", timestamp=4, who=1)
    assert rows(ward, "workerStatus")[0] == (1, "seen")
    with pytest.raises(DefinitionError, match="rule R is on the query Q"):
        ward.rules.load_text("DROP QUERY Q")
    ward.rules.load_text("DROP RULE R; DROP QUERY Q; DROP QUERY P")
    with pytest.raises(DefinitionError, match="no query"):
        ward.rules.load_text("DROP QUERY Q")


def test_query_replaced_in_an_aborted_transaction_can_be_replaced_again(ward: adb.Database) -> None:
    ward.rules.load_text(QUERY + f"CREATE RULE R ON OUTPUT Q BEGIN {UPDATE} END")
    replacing = "CREATE OR REPLACE QUERY Q PATTERN C RETURN C.who"
    with pytest.raises(ZeroDivisionError), ward.transaction():
        ward.rules.load_text(replacing)
        raise ZeroDivisionError
    ward.signal("C", who=1)
    assert rows(ward, "workerStatus")[0] == (1, "safe")
    (entry,) = ward.rules.load_text(replacing)
    assert entry.version == 2
    ward.signal("C", who=1)
    assert rows(ward, "workerStatus")[0] == (1, "seen")


def test_query_of_an_aborted_transaction_is_gone_as_its_rules_are(ward: adb.Database) -> None:
    on_output = f"CREATE RULE R ON OUTPUT Q BEGIN {UPDATE} END"
    with pytest.raises(ZeroDivisionError), ward.transaction() as t:
        with pytest.raises(ZeroDivisionError), t.subtransaction():
            ward.rules.load_text(QUERY.replace(" Q ", " P "))
            raise ZeroDivisionError
        ward.rules.load_text(QUERY)
        ward.rules.load_text(on_output)
        assert list(ward.rules.queries) == ["Q"]
        assert not in_thread(lambda: ward.rules.queries).result(PATIENCE_S)
        raise ZeroDivisionError
    assert not ward.rules.queries
    with pytest.raises(RuleSyntaxError, match="no query 'Q'"):
        ward.rules.load_text(on_output)


def test_texts_loaded_at_once_keep_each_others_queries(ward: adb.Database) -> None:
    ward.rules.load_text(f"CREATE RULE R ON seen BEGIN {UPDATE} END")
    with ward.transaction():
        ward.rules.disable("R")
        waits = lock_waits(ward)
        first = in_thread(ward.rules.load_text, QUERY + "ALTER RULE R SET PRIORITY 1")
        until(lambda: lock_waits(ward) > waits)
        second = in_thread(ward.rules.load_text, QUERY.replace(" Q ", " P "))
        until(lambda: second.done() or lock_waits(ward) > waits + 1)
    first.result(PATIENCE_S)
    second.result(PATIENCE_S)
    ward.rules.load_text("DROP QUERY Q; DROP QUERY P")


def test_query_within_a_pattern_is_an_event_of_it(ward: adb.Database) -> None:
    ward.rules.load_text(
        QUERY + "CREATE QUERY Q2 PATTERN SEQ(OUTPUT Q, C) WHERE Q.who = C.who RETURN C.who; "
        f"CREATE RULE R ON OUTPUT Q2 BEGIN {UPDATE} END"
    )
    for second, name in enumerate("ABC", 1):
        ward.signal(name, timestamp=second, who=2)
    assert rows(ward, "workerStatus")[1] == (2, "seen")
    with pytest.raises(DefinitionError, match=r"rule R is on the query Q"):
        ward.rules.load_text("DROP QUERY Q")


# -- what is known of them ---------------------------------------------------------------------


def test_analysis_knows_reads_writes_and_signals_from_the_text(ward: adb.Database) -> None:
    ward.rules.load_text(
        """CREATE RULE R1 ON seen
           WHEN EXISTS (SELECT 1 FROM workerStatus WHERE workerID = NEW.who)
           BEGIN INSERT INTO log (id, worker) SELECT max(id) + 1, NEW.who FROM log;
                 SIGNAL logged END;
           CREATE RULE R2 ON logged BEGIN DELETE FROM log WHERE id < 0 END;
           CREATE RULE R3 ON INSERT ON log BEGIN UPDATE log SET note = 'x' WHERE id = NEW.id END"""
    )
    analysis = ward.rules.analyze()
    profiles = {profile.name: profile for profile in analysis.rules}
    effects = profiles["R1"].effects
    assert {(r.table, r.column) for r in effects.reads} >= {
        ("workerStatus", "workerID"),
        ("log", "id"),
    }
    assert [(c.kind, c.table) for c in effects.changes] == [("insert", "log")]
    assert [s.name for s in effects.signals] == ["logged"]
    assert not effects.unresolved
    edges = {(e["source"], e["target"]) for e in analysis.as_dict()["edges"]}
    assert edges == {("R1", "R2"), ("R1", "R3")}


def test_rules_file_of_either_kind_is_loaded(ward: adb.Database, tmp_path: Any) -> None:
    path = tmp_path / "two.rules"
    path.write_text(TWO)
    assert [entry.name for entry in ward.rules.load_file(path)] == ["R1", "R2"]
    path.write_text("CREATE RULE\nR1 ONN seen")
    with pytest.raises(RuleSyntaxError, match=r"two\.rules: line 2, column 4: .*\n") as caught:
        ward.rules.load_file(path)
    assert caught.value.line == 2
    path.write_bytes(b"\xff")
    with pytest.raises(DefinitionError, match="cannot be read"):
        ward.rules.load_file(path)


@pytest.mark.parametrize("name", ["ward.rules", "ward.sql", "WARD.SQL"])
def test_file_that_match_reads_as_rule_language_is_loaded_as_such(
    name: str, ward: adb.Database, tmp_path: Any
) -> None:
    path = tmp_path / name
    path.write_text("CREATE RULE R1 ON EXIT SIGNAL left", encoding="utf-8")
    assert list(queries_of(str(path), [])) == ["R1"]
    assert [entry.name for entry in ward.rules.load_file(path)] == ["R1"]


def test_rule_loaded_after_a_restart_keeps_its_version(postgres_url: str) -> None:
    with place(postgres_url) as where:
        for version in (1, 1, 2):
            db = where.open()
            declare(db.metadata)
            db.create_all()
            text = TWO if version == 1 else TWO.replace("'seen'", "'other'")
            assert [entry.version for entry in db.rules.load_text(text)] == [version, version]
            db.close()


# -- locks -------------------------------------------------------------------------------------


def test_rules_on_rows_by_their_keys_lock_these_rows_only(ward: adb.Database) -> None:
    # Worker 1's row is held by the transaction outside; the rule for worker 2 need not wait.
    ward.rules.load_text(
        f"""CREATE RULE R ON seen COUPLING detached
            WHEN 'safe' = (SELECT status FROM workerStatus WHERE workerID = NEW.who)
                 AND EXISTS (SELECT 1 FROM workerStatus WHERE NEW.who = workerID)
            BEGIN {UPDATE}; DELETE FROM log WHERE id = NEW.who END"""
    )
    with ward.transaction() as t:
        t.update(ward.metadata.tables["workerStatus"], 1, status="held")
        in_thread(partial(ward.signal, "seen", who=2)).result(PATIENCE_S)
        in_thread(ward.wait_idle).result(PATIENCE_S)
    assert rows(ward, "workerStatus") == [(1, "held"), (2, "seen")]


@pytest.mark.parametrize("key", [3, None, "x", 1.0, True])
def test_key_that_is_not_there_or_of_another_type_is_as_in_sql(
    ward: adb.Database, key: Any
) -> None:
    ward.rules.load_text(
        f"""CREATE RULE R1 ON seen BEGIN {UPDATE}; DELETE FROM log WHERE id = NEW.who END;
            CREATE RULE R2 ON asked
            WHEN (SELECT status FROM workerStatus WHERE workerID = NEW.who) IS NULL
            BEGIN UPDATE workerStatus SET status = NULL WHERE workerID = 2 END"""
    )
    ward.signal("asked", who=3)
    assert rows(ward, "workerStatus") == [(1, "safe"), (2, None)]
    if type(key) in (int, type(None)) or ward.settings.url == "memory://":
        ward.signal("seen", who=key)
        is_one = key in (1.0, True) and key != 3
        assert rows(ward, "workerStatus")[0] == (1, "seen" if is_one else "safe")


# -- what the server refuses -------------------------------------------------------------------

_REFUSED = "UPDATE workerStatus SET status = nofunction(NEW.who)\n   WHERE workerID > 0"
_UNREADABLE = "(SELECT nofunction(status) FROM workerStatus)"


@pytest.mark.parametrize(
    ("rest", "statement"),
    [
        (f"BEGIN {_REFUSED} END", " ".join(_REFUSED.split())),
        (f"WHEN 'x' = {_UNREADABLE} SIGNAL found", _UNREADABLE),
    ],
    ids=["action", "condition"],
)
@pytest.mark.parametrize("coupling", ["immediate", "deferred", "sequential"])
def test_refused_statement_is_named_with_its_rule(
    ward: adb.Database, coupling: str, rest: str, statement: str
) -> None:
    ward.rules.load_text(f"CREATE RULE R ON seen COUPLING {coupling} {rest}")
    if coupling == "sequential":
        ward.signal("seen", who=2)
        in_thread(ward.wait_idle).result(PATIENCE_S)
        (letter,) = ward.dead_letters.list()
        told = letter.reason
    else:
        with pytest.raises(ActiveDBError) as refused:
            ward.signal("seen", who=2)
        assert isinstance(refused.value, StoreError | RuleFailed)
        told = str(refused.value)
    assert "rule R" in told
    assert statement in told
    assert rows(ward, "workerStatus") == [(1, "safe"), (2, "safe")]


def test_refused_statement_is_named_with_all_rules_around_it(ward: adb.Database) -> None:
    ward.rules.load_text(
        f"""CREATE RULE Outer ON asked SIGNAL seen(who = NEW.who);
            CREATE RULE Inner ON seen BEGIN {_REFUSED} END"""
    )
    with pytest.raises(ActiveDBError) as refused:
        ward.signal("asked", who=2)
    told = str(refused.value)
    assert "rule Outer" in told
    assert "rule Inner" in told


def test_refused_reading_of_a_query_is_named_with_the_rule_on_it(ward: adb.Database) -> None:
    ward.rules.load_text(
        f"""CREATE QUERY Q PATTERN SEQ(A, B) WHERE 'x' = {_UNREADABLE} WITHIN 1 day;
            CREATE RULE R ON OUTPUT Q SIGNAL found"""
    )
    ward.signal("A", timestamp=1)
    with pytest.raises(StoreError) as refused:
        ward.signal("B", timestamp=2)
    assert str(refused.value).endswith(f"; in {_UNREADABLE}; in rule R")


def test_error_that_repeats_a_refusal_is_laid_on_no_other_statement(ward: adb.Database) -> None:
    status = ward.metadata.tables["workerStatus"].c.status
    with pytest.raises(StoreError), ward.transaction() as t:
        with pytest.raises(StoreError, match="cannot run") as refusal:
            t.query(select(func.nofunction(status)))
        with pytest.raises(StoreError) as repeated:
            t.query(select(status))
        assert repeated.value.__cause__ is refusal.value
        assert repeated.value.during("in rule R") is repeated.value
        assert str(refusal.value.during("in rule R")).endswith("; in rule R")
        t.get(status.table, 1)


# -- streams that are not there ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("CREATE QUERY Q ON nostream PATTERN A", 19),
        ("CREATE QUERY Q PATTERN A ON nostream", 29),
        ("CREATE RULE R ON LATE nostream SIGNAL x", 23),
    ],
)
def test_stream_that_is_not_declared_is_refused_at_its_place(
    ward: adb.Database, text: str, column: int
) -> None:
    with pytest.raises(RuleSyntaxError, match="no stream 'nostream'; none is declared") as refused:
        ward.rules.load_text(text)
    error = refused.value
    assert (error.line, error.column) == (1, column)
    assert error.excerpt.split("\n") == [text, " " * (column - 1) + "^"]
    ward.stream("nostream", type="kind", timestamp="t", types={"A": ()})
    ward.rules.load_text(text)
