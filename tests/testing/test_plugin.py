"""The plugin in real sub-runs of pytest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.testing.conftest import SubRun

pytest_plugins = ["pytester"]

SHOP = """
    import pytest
    import activedb as adb
    import activedb.testing
    from sqlalchemy import Column, Integer, Table, Text

    def define(db):
        orders = Table(
            "orders", db.metadata, Column("id", Integer, primary_key=True), Column("state", Text)
        )

        @db.rule(on=adb.updated(orders, "state"), when=lambda t, o: o.new["state"] == "shipped")
        def tell(t, o):
            if o.new["id"] == 9:
                raise KeyError("mail")

        @db.rule(on=adb.inserted(orders), coupling="sequential")
        def count(t, o):
            pass

        @db.rule(on=adb.seq(adb.event("OPEN"), adb.event("SHUT")))
        def visit(t, o):
            pass

        @db.rule(on=adb.event("RING"), coupling="deferred")
        def ring(t, o):
            pass

        db.create_all()
        return orders

    def order(number):
        with adb.connect() as db:
            orders = define(db)
            db.run(lambda t: t.insert(orders, {"id": number, "state": "new"}))
"""

FIRING = (
    SHOP
    + """
    @pytest.fixture(params=["memory", "postgres"])
    def db(request):
        return request.getfixturevalue(f"activedb_{request.param}")

    def test_fires(db, assert_fired):
        orders = define(db)
        db.run(lambda t: t.insert(orders, {"id": 7, "state": "new"}))
        db.run(lambda t: t.update(orders, 7, state="shipped"))
        (firing,) = assert_fired("tell", times=1, params={"id": 7})
        assert firing.occurrence.new["state"] == "shipped"
        assert_fired("count")
        assert_fired("visit", 0)
        assert_fired.forget()
        assert_fired("tell", times=0)

    def test_explains(db, assert_fired):
        orders = define(db)
        for number in (7, 9):
            db.run(lambda t: t.insert(orders, {"id": number, "state": "new"}))
        db.run(lambda t: t.update(orders, 7, state="lost"))
        with pytest.raises(adb.errors.RuleFailed):
            db.run(lambda t: t.update(orders, 9, state="shipped"))
        assert_fired("tell", times=1)

    def test_empty_each_time(db):
        orders = define(db)
        assert db.admin.row_counts() == {"orders": 0}

    @pytest.mark.activedb(threads=2, recording="full")
    def test_settings(db):
        assert (db.settings.threads, db.settings.recording) == (2, "full")
"""
)


@pytest.mark.long
def test_firings_are_asserted_and_explained_in_memory_and_on_postgres(sub_run: SubRun) -> None:
    done = sub_run(FIRING, "-v")
    done.assert_outcomes(passed=6, failed=2)
    text = done.stdout.str()
    assert text.count("rule 'tell' has not fired, and should have once") >= 2
    assert "update orders(id=7, state='lost'): its condition was false" in text
    assert "update orders(id=9, state='shipped'): it failed: KeyError: 'mail'" in text
    assert "other rules that fired: count 2 times" in text
    assert "_witness.py" not in text, "the failure is shown where the test asserts"


REASONS = (
    SHOP
    + """
    def fails_with(*lines):
        return pytest.raises(AssertionError, match="(?s)" + ".*".join(lines))

    def test_reasons(activedb_memory, assert_fired):
        db = activedb_memory
        define(db)
        with fails_with("there is no rule 'tall'", "did you mean 'tell'"):
            assert_fired("tall")
        db.signal("OPENED")
        with fails_with("not triggered; it listens to", "raised: OPENED once", "mean 'OPENED'"):
            assert_fired("visit")
        db.signal("OPEN")
        with fails_with("of these were raised: OPEN once", "keeps 1 occurrence"):
            assert_fired("visit")
        db.rules.disable("ring")
        with fails_with("it is disabled"):
            assert_fired("ring")
        db.rules.enable("ring")
        with db.transaction():
            db.signal("RING")
            with fails_with("triggered once, and has run 0 times", "is still open"):
                assert_fired("ring")
        assert_fired("ring", 1)
        with fails_with("has fired once, and should have not", "RING"):
            assert_fired("ring", 0)
        with pytest.raises(ZeroDivisionError), db.transaction():
            db.signal("RING")
            1 / 0
        with fails_with("has fired once, and should have 2 times", "has aborted"):
            assert_fired("ring", 2)

    def test_undone(activedb_memory, assert_fired):
        db = activedb_memory
        orders = define(db)
        db.run(lambda t: t.insert(orders, {"id": 7, "state": "new"}))
        with pytest.raises(ZeroDivisionError), db.transaction() as t:
            t.update(orders, 7, state="shipped")
            1 / 0
        with fails_with("its action has run, and was undone"):
            assert_fired("tell")

    def test_quarantine_and_letters(activedb_memory, assert_fired):
        db = activedb_memory

        @db.rule(on=adb.event("FALL"), coupling="detached")
        def fall(t, o):
            raise ValueError("too heavy")

        db.signal("FALL")
        with fails_with("it failed: ValueError: too heavy", "1 dead letter"):
            assert_fired(fall)
        db.rules.quarantine("fall", "since today")
        with fails_with("in quarantine", "since today"):
            assert_fired(fall)

    def test_stream_waits(activedb_memory, assert_fired):
        db = activedb_memory
        db.stream("s", type="kind", timestamp="at", params={"n": "n"}, types={"FALL": ("n",)})

        @db.rule(on=adb.event("FALL"))
        def fall(t, o):
            pass

        events = [adb.occurrence("FALL", timestamp=t, n=t) for t in (1, 5)]
        db.streams["s"].feed(events, punctuation=2)
        assert_fired(fall, 1, {"n": 1})
        assert_fired.forget()
        with fails_with("none of these was raised", "1 event of streams"):
            assert_fired(fall)

    def test_clock(activedb_memory, activedb_clock, assert_fired):
        db = activedb_memory

        @db.rule(on=adb.every(60), coupling="detached")
        def tick(t, o):
            pass

        assert_fired(tick, 0)
        activedb_clock.advance(61)
        assert_fired(tick, 1)
        assert activedb_clock.now().isoformat() == "2026-01-01T00:01:01+00:00"

    def test_several(activedb_memory, assert_fired):
        define(activedb_memory)
        with adb.connect("memory://") as other:
            define(other)
            assert_fired.watch(other)
            other.signal("RING")
            with pytest.raises(pytest.UsageError, match="db="):
                assert_fired("ring")
            assert_fired("ring", 1, db=other)
            assert_fired("ring", 0, db=activedb_memory)
"""
)


@pytest.mark.long
def test_reasons_say_why_a_rule_has_not_fired(sub_run: SubRun) -> None:
    sub_run(REASONS).assert_outcomes(passed=6)


CRASHES = (
    SHOP
    + """
    def test_errors(activedb_postgres, crash_here, assert_fired):
        db = activedb_postgres
        orders = define(db)

        def insert(number):
            db.run(lambda t: t.insert(orders, {"id": number, "state": "new"}))

        with crash_here("before commit"):
            insert(1)
            pytest.fail("the block ends there")
        with crash_here("after rule tell"):
            insert(2)
            db.run(lambda t: t.update(orders, 2, state="shipped"))
        assert_fired("tell", 0)
        with crash_here("after commit", nth=2):
            insert(3)
            insert(4)
        db.wait_idle()
        assert db.admin.row_counts() == {"orders": 3 - 1 + 1}
        with pytest.raises(AssertionError, match=r"'after rule ring' was not reached 1 time"):
            with crash_here("after rule ring"):
                insert(5)
        with pytest.raises(adb.errors.ConfigurationError, match="did you mean 'before commit'"):
            crash_here("before comit").__enter__()
        with pytest.raises(ZeroDivisionError), crash_here("after rule ring"):
            1 / 0
        with pytest.raises(AssertionError, match="of the test"), crash_here("before commit"):
            try:
                insert(6)
            except adb.testing.Crashed:
                raise AssertionError("of the test")

    def test_deaths(activedb_postgres, crash_here):
        db = activedb_postgres
        define(db)
        killed = crash_here.killed(order, 7, at="before commit")
        assert killed.reached["before commit"] == 1
        assert db.admin.row_counts() == {"orders": 0}
        crash_here.killed(order, 7, at="after rule count")
        assert db.admin.row_counts() == {"orders": 1}
        assert db.recover() == 1

    def test_no_death(activedb_url, crash_here, tmp_path):
        script = tmp_path / "says.py"
        script.write_text("print('done', __name__)")
        with pytest.raises(AssertionError, match="(?s)status 0: .*no point.*done __main__"):
            crash_here.killed(script, at="before commit")
        import os

        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        script.write_text(f"import subprocess; subprocess.Popen(['cat', {str(pipe)!r}])")
        with pytest.raises(AssertionError, match="status 0: "):  # whatever it leaves behind
            crash_here.killed(script, at="before commit")
        open(pipe, "w").close()  # now that one ends, too
        with pytest.raises(adb.errors.ConfigurationError, match="top level of a module"):
            crash_here.killed(lambda: None, at="before commit")
"""
)


@pytest.mark.long
def test_errors_and_deaths_happen_at_the_named_points(sub_run: SubRun) -> None:
    sub_run(CRASHES).assert_outcomes(passed=3)


SHARED = """
    import activedb as adb
    import pytest

    @pytest.fixture(scope="module")
    def shared():
        with adb.connect("memory://") as db:
            yield db

    @pytest.mark.parametrize("n", range(2))
    def test_shared(shared, assert_fired, n):
        before = len(shared._triggering.listeners.each)
        assert_fired.watch(shared)
        assert len(shared._triggering.listeners.each) == before + 1 == 2
"""


@pytest.mark.long
def test_database_that_outlives_a_test_is_watched_for_that_test_alone(sub_run: SubRun) -> None:
    sub_run(SHARED).assert_outcomes(passed=2)


UNUSED = """
    import sys

    def test_nothing():
        assert not {"activedb", "sqlalchemy", "psycopg"} & set(sys.modules)
"""


@pytest.mark.long
def test_who_does_not_use_it_does_not_load_activedb(sub_run: SubRun) -> None:
    sub_run(UNUSED).assert_outcomes(passed=1)


WORKERS = """
    import os

    def test_worker(activedb_server, activedb_url):
        assert os.environ["PYTEST_XDIST_WORKER"] == "gw0"

    def test_again(activedb_server, activedb_url):
        pass
"""


@pytest.mark.long
def test_each_worker_has_a_server_of_its_own(sub_run: SubRun, kept: Path) -> None:
    done = sub_run(WORKERS, "-p", "xdist", "-n", "1")
    done.assert_outcomes(passed=2)
    assert (kept / "d" / "activedb" / "gw0" / "postgres" / "data").is_dir()
    assert not list(kept.glob("**/postmaster.pid")), "it has been stopped"


@pytest.mark.long
def test_own_server_is_used_and_left_empty(
    sub_run: SubRun, database_url: str, pytester: pytest.Pytester
) -> None:
    source = """
        def test_schema(activedb_postgres):
            with activedb_postgres.connection() as connection:
                name = connection.exec_driver_sql("SELECT current_schema()").scalar()
            assert name.startswith("activedb_scratch_")
    """
    own = pytester.path / "own"
    done = sub_run(source, "--activedb-url", database_url, "-o", f"cache_dir={own}")
    done.assert_outcomes(passed=1)
    assert not list(own.glob("d/activedb/*/**"))
    assert _scratch_schemas(database_url) == []


def _scratch_schemas(url: str) -> list[Any]:
    from sqlalchemy import create_engine, text

    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            statement = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'activedb_scratch%'"
            return list(connection.execute(text(statement)).scalars())
    finally:
        engine.dispose()


@pytest.mark.long
def test_schemas_of_killed_sessions_are_dropped_by_the_next_one(
    database_url: str, tmp_path: Any
) -> None:
    from sqlalchemy import create_engine, text

    from activedb.testing import ScratchServer, scratch_url

    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA activedb_scratch_left"))
    engine.dispose()
    with ScratchServer(database_url, tmp_path) as server, scratch_url(server.url):
        with ScratchServer(database_url, tmp_path):
            (left,) = _scratch_schemas(database_url)  # that of the first one is in use
        assert left != "activedb_scratch_left"
    assert _scratch_schemas(database_url) == []
