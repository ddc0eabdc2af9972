"""No SQL is put together from values: what is put into a statement is a name, quoted, or our own.

A new place fails the test. Bind the value as a parameter; if it is a name, quote it with the
dialect's ``identifier_preparer``; and if it must be put in, say below what it is, and review it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.security.sql_texts import puts

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("activedb", "coupling", "lockmgr", "spark_bridge", "migrations", "examples")

QUOTED = "what the dialect, quoted(), literal() or format('%I') has quoted, and our own words"
OURS = "text of our own, or numbers"
COMPILED = "the statement, put together in this class or compiled by SQLAlchemy"
USERS = "the user's own statement, whose values SQLAlchemy binds"
NO_SQL = "no SQL: what a pattern, rule or predicate looks like to people"

REVIEWED = {
    "activedb/database/_admin.py _metrics": {"accept": NO_SQL},
    "activedb/events/_expressions.py Primitive.__repr__": {
        "called(conditions[0])": NO_SQL,
        "text": NO_SQL,
    },
    "activedb/events/_expressions.py where_text": {"' AND '.join(texts)": NO_SQL},
    "activedb/events/_expressions.py Sequence.__repr__": {"self.selection.value": NO_SQL},
    "activedb/language/_text.py _change": {
        "statement.changed.upper().replace('_', ' ')": NO_SQL,
        "value": NO_SQL,
    },
    "activedb/language/_text.py text": {
        "_change(thing)": NO_SQL,
        "condition": NO_SQL,
        "name_text(thing.name)": NO_SQL,
        "thing.kind.upper()": NO_SQL,
    },
    "activedb/monitor/_redaction.py Redaction._part": {"self._part": NO_SQL},
    "activedb/store/flush/_bulk.py _execute": {
        "after": COMPILED,
        "before": COMPILED,
        "names": OURS,
        "values": OURS,
    },
    "activedb/store/flush/_bulk.py _unnest": {"same": QUOTED},
    "activedb/store/flush/_bulk.py copy_rows": {"names": QUOTED, "statement": COMPILED},
    "activedb/store/flush/_bulk.py update_rows": {"sets": QUOTED},
    "activedb/store/flush/_column_rows.py ColumnRows._copied": {
        "names": QUOTED,
        "query": COMPILED,
        "rows_of": QUOTED,
        "statement": COMPILED,
    },
    "activedb/store/flush/_column_rows.py ColumnRows._unnested": {
        "identity": OURS,
        "key": QUOTED,
        "table": QUOTED,
        "value": QUOTED,
    },
    "activedb/store/server/_connections.py _set_up": {
        "f'BEGIN; SELECT {set_all}; COMMIT; ' if names else ''": QUOTED,
        "read_all": QUOTED,
        "set_all": QUOTED,
    },
    "activedb/store/server/_migrations.py _to_schema": {"is_missing": QUOTED, "name": QUOTED},
    "activedb/store/server/_prepared.py _fetched": {"sql": COMPILED},
    "activedb/store/server/_prepared.py run": {"sql": COMPILED},
    "activedb/store/sql/_by_predicate.py": {"str(KEYS_PINNED_MAX + 1)": OURS},
    "activedb/store/sql/_by_predicate.py _compile_lock": {"element.mode": OURS},
    "activedb/store/sql/_key_locks.py": {
        "_OF_KEYS.format('pg_advisory_xact_lock')": OURS,
        "_OF_KEYS.format('pg_advisory_xact_lock_shared')": OURS,
    },
    "activedb/store/journals/_firings.py Journal.last_letters": {
        "'rowid DESC' if is_memory else 'age(xmin)'": OURS
    },
    "activedb/store/session/_memory.py MemoryStore.migrate": {"statement": COMPILED},
    "activedb/store/session/_memory.py MemoryStore.next_number": {
        "_last_number(column, step > 0)": COMPILED
    },
    "activedb/store/session/_processes.py Wakeups.__init__": {"_channel(schema)": QUOTED},
    "activedb/store/session/_processes.py Wakeups._driver": {"self._listen": COMPILED},
    "activedb/store/sql/_overlay.py edits_of": {"listed": COMPILED},
    "activedb/store/session/_session.py roll_back_to": {
        "next(_numbers)": OURS,
        "savepoint": OURS,
    },
    "activedb/store/sql/_overlay.py Shadow.__init__": {
        "self._listed('d', computed)": QUOTED,
        "self._listed('kept')": QUOTED,
        "self._real": QUOTED,
    },
    "activedb/store/sql/_overlay.py Shadow._among": {
        "', '.join(arrays)": OURS,
        "columns": QUOTED,
    },
    "activedb/store/sql/_overlay.py Shadow._sent": {
        "', '.join((f'({line})' for line in lines))": OURS,
    },
    "activedb/store/sql/_overlay.py Shadow._source": {
        "', '.join(marks)": OURS,
        "columns": QUOTED,
        "self._header()": QUOTED,
        "self._real": QUOTED,
        "self._same_key()": QUOTED,
        "sent": COMPILED,
    },
    "activedb/store/sql/_overlay.py Shadow.fill": {"columns": QUOTED, "keys": QUOTED, "name": OURS},
    "activedb/store/sql/_overlay.py Shadow.seen": {
        "absent": COMPILED,
        "before": COMPILED,
        "name": OURS,
        "self._kept": COMPILED,
        "self._same_key()": QUOTED,
        "self._written": COMPILED,
        "source": OURS,
        "written": COMPILED,
    },
    "activedb/store/replication/_slot_tables.py Publication._mark": {
        "prefix": QUOTED,
        "self._function": QUOTED,
        "table": QUOTED,
        "trigger": OURS,
        "when": OURS,
    },
    "activedb/store/replication/_slot_tables.py Publication._make_partitions_whole": {
        "partition": QUOTED
    },
    "activedb/store/replication/_slot_tables.py Publication._run": {
        "statement.replace('%', '%%')": COMPILED
    },
    "activedb/store/replication/_slot_tables.py Publication._tidy": {
        "table": QUOTED,
        "trigger": OURS,
    },
    "activedb/store/replication/_slot_tables.py Publication.create": {"options": OURS},
    "activedb/store/replication/_slot_tables.py Publication.set": {
        "', '.join(sorted(wanted.values()))": QUOTED,
        "wanted[row.oid]": QUOTED,
    },
    "activedb/store/journals/_staging.py": {"staged_rows.name": OURS},
    "activedb/store/journals/_staging.py advance": {"sinks.name": OURS},
    "activedb/store/journals/_staging.py _insertion": {
        "', '.join((f'r.{name}' for name in names))": QUOTED,
        "', '.join(names)": QUOTED,
        "table": QUOTED,
    },
    "activedb/store/journals/_staging.py insert_staged": {
        "_insertion(quote, sink.name, columns)": COMPILED
    },
    "lockmgr/_predicates.py Predicate.text": {"show": NO_SQL},
    "activedb/store/sql/_statements.py SqlPiece.bound": {
        "f'({self.sql})' if brackets else self.sql": USERS
    },
}


def _modules() -> Iterator[tuple[Path, str]]:
    for package in PACKAGES:
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            yield path, path.relative_to(REPOSITORY).as_posix()


def test_what_is_put_into_sql_is_reviewed_and_nothing_else_is() -> None:
    found = {str(put) for path, name in _modules() for put in puts(path, name)}
    reviewed = {
        f"{place}: {expression}" for place, known in REVIEWED.items() for expression in known
    }
    assert found - reviewed == set(), "put into SQL, and not reviewed"
    assert reviewed - found == set(), "reviewed, and not there any more"


@pytest.mark.parametrize(
    "program",
    [
        'connection.execute(text(f"SELECT * FROM t WHERE id = {key}"))',
        'connection.exec_driver_sql("DELETE FROM t WHERE id = " + key)',
        'connection.exec_driver_sql("DELETE FROM t WHERE id = %s" % key)',
        'cursor.execute("UPDATE t SET a = {}".format(key))',
        "cursor.execute(statement)",
        'sql = f"SELECT {key}"',
        'select(literal_column(f"{key}"))',
        "self._driver.execute(made_elsewhere())",
    ],
)
def test_a_value_put_into_sql_is_found(tmp_path: Path, program: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(f"def f(connection, cursor, key, statement):\n    {program}\n")
    (found,) = puts(path, "module.py")
    assert found.place == "module.py f"


@pytest.mark.parametrize(
    "program",
    [
        'connection.execute(text("SELECT * FROM t WHERE id = :id"), {"id": key})',
        "connection.execute(select(t).where(t.c.id == key))",
        'connection.exec_driver_sql(f"LOCK TABLE {quote(key)}")',
        'raise ValueError(f"write CREATE OR REPLACE {key}")',
    ],
)
def test_what_is_bound_or_quoted_is_not(tmp_path: Path, program: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(f"def f(connection, key, t):\n    {program}\n")
    assert puts(path, "module.py") == set()
