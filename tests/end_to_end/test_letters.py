"""``activedb pending`` and ``activedb dead-letter`` as a user calls them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, Table

import activedb as adb
from tests.databases import PATIENCE_S
from tests.end_to_end.commands import activedb

Call = Callable[..., subprocess.CompletedProcess[str]]

JOB = """
import os
import activedb as adb
from sqlalchemy import Column, Integer, Table, Text

db = adb.connect()
bells = Table("bells", db.metadata, Column("id", Integer, primary_key=True), Column("by", Text))
print("loaded")

def ring(t, o):
    if os.environ.get("BROKEN") in ("all", o.params["by"]):
        raise ValueError("the bell is broken")
    t.insert(bells, {"by": o.params["by"]})

db.rule(on=adb.event("RING"), coupling="sequential", name="ring")(ring)
if "SILENT" not in os.environ:
    db.rule(on=adb.event("RING"), coupling="sequential", name="echo")(ring)
db.stream("rings", type="kind", timestamp="at", params={"by": "by"}, types={"FALL": ("by",)})

@db.rule(on=adb.event("FALL"))
def fall(t, o):
    raise ValueError("it fell")
"""

SIGNALS = """
import runpy, activedb as adb
db = runpy.run_path("job.py")["db"]
with db:
    db.create_all()
    with db.transaction():
        for by in ("ann", "bob"):
            db.signal("RING", by=by)
    db.wait_idle()
    (stream,) = db.streams
    stream.feed([adb.occurrence("FALL", timestamp=1, by="cid")])
"""


@pytest.fixture
def call(tmp_path: Path, database_url: str) -> Call:
    """``activedb`` with these arguments, in a folder with job.py, over an empty database."""
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "signals.py").write_text(SIGNALS)

    def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return activedb(
            *arguments,
            folder=tmp_path,
            url=database_url,
            variables={"COLUMNS": "200", **variables},
        )

    return call


@pytest.fixture
def letters(call: Call, tmp_path: Path, database_url: str) -> Call:
    """The same with five letters: two for each of two rules that failed, one of an event."""

    done = subprocess.run(
        [sys.executable, "signals.py"],
        cwd=tmp_path,
        env={**os.environ, "ACTIVEDB_URL": database_url, "BROKEN": "all"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return call


def rung(url: str) -> int:
    """Return how many bells were rung."""
    with adb.connect(url) as db:
        Table("bells", db.metadata, Column("id", Integer, primary_key=True))
        return db.admin.row_counts()["bells"]


@pytest.mark.long
def test_letters_listed_shown_and_retried_until_none_of_a_rule_is_left(
    letters: Call, database_url: str
) -> None:
    listed = letters("dead-letter", "ls")
    assert listed.returncode == 0, listed.stderr
    assert "5 dead letters" in listed.stdout
    assert "the bell is broken" in listed.stdout
    as_json = json.loads(letters("dead-letter", "ls", "--source", "rule ring", "--json").stdout)
    assert [x["kind"] for x in as_json["letters"]] == ["rule", "rule"]
    (event,) = json.loads(letters("dead-letter", "ls", "--kind", "event", "--json").stdout)[
        "letters"
    ]
    assert event["source"] == "rings"

    identity = as_json["letters"][0]["identity"]
    piped = letters("dead-letter", "ls", COLUMNS="80")
    assert identity in piped.stdout, "it is what show and retry take"
    shown = letters("dead-letter", "show", "rule ring", identity, "--json")
    assert json.loads(shown.stdout) == as_json["letters"][0]
    table = letters("dead-letter", "show", "rule ring", identity)
    assert table.returncode == 0, table.stderr
    assert "payload" in table.stdout
    assert "'by': 'ann'" in table.stdout

    one = letters("dead-letter", "retry", "job.py", "rule ring", identity, "--json")
    assert one.returncode == 0, one.stderr
    assert json.loads(one.stdout)["counts"]["done"] == 1
    assert "loaded" in one.stderr

    again = letters("dead-letter", "retry", "job.py", "--json", BROKEN="bob", SILENT="yes")
    assert again.returncode == 1, again.stderr
    assert json.loads(again.stdout)["counts"] == {
        "done": 0,
        "elsewhere": 0,
        "failed": 1,
        "undefined": 2,
        "unreadable": 0,
        "event": 1,
    }
    assert rung(database_url) == 1

    rest = letters("dead-letter", "retry", "job.py")
    assert rest.returncode == 0, rest.stderr
    assert "4 dead letters: 3 done, 0 run by another process, 0 failed again" in rest.stdout
    assert "cannot be run again" in rest.stdout
    assert "retrying dead letters" in rest.stderr
    assert rung(database_url) == 4
    only_event = letters("dead-letter", "retry", "job.py", "rings")
    assert only_event.returncode == 1
    assert "1 not a rule" in only_event.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["retry", "nowhere.py"], "there is no file nowhere.py"),
        (["retry", "job.py", "rule rang"], "there is no dead letter of 'rule rang'"),
        (["retry", "job.py", "rule ring", "x"], "there is no dead letter 'x' of 'rule ring'"),
        (["show", "rule ring", "x"], "there is no dead letter 'x' of 'rule ring'"),
        (["ls", "--kind", "rules"], "event or rule, not 'rules'"),
        (["retry"], "Missing parameter: file"),
    ],
    ids=["file", "source", "identity", "letter", "kind", "nothing"],
)
def test_bad_input_exits_with_2_and_says_what_to_do(
    call: Call, arguments: list[str], says: str
) -> None:
    done = call("dead-letter", *arguments)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert done.stdout.replace("loaded\n", "") == ""


@pytest.mark.long
def test_file_with_two_databases_is_refused(call: Call, tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(
        "import activedb as adb\na = adb.connect('memory://')\nb = adb.connect('memory://')\n"
    )
    for command in (["pending", "two.py"], ["dead-letter", "retry", "two.py"]):
        done = call(*command)
        assert done.returncode == 2, done.stderr
        assert "opens 2 databases" in done.stderr


@pytest.mark.long
def test_retry_without_letters_exits_with_0(call: Call) -> None:
    done = call("dead-letter", "retry", "job.py", "--url", "memory://")
    assert done.returncode == 0, done.stderr
    assert "no dead letters" in done.stdout


@pytest.mark.long
def test_pending_shows_the_firings_that_are_not_done(call: Call, database_url: str) -> None:
    goes_on = threading.Event()
    with adb.connect(database_url) as db:

        @db.rule(on=adb.event("KNOCK"), coupling="detached")
        def answer(t: adb.Transaction, o: adb.Occurrence) -> None:
            assert goes_on.wait(PATIENCE_S)

        try:
            db.signal("KNOCK", timestamp=2, door="b" * 100)
            db.signal("KNOCK", timestamp=1, door="a")
            shown = call("pending", "--url", database_url)
            as_json = call("pending", "job.py", "--json")
        finally:
            goes_on.set()
    assert shown.returncode == 0, shown.stderr
    assert "2 pending firings" in shown.stdout
    assert shown.stdout.index("KNOCK door='a'") < shown.stdout.index("KNOCK door='bbb")
    assert "b" * 60 not in shown.stdout
    assert as_json.returncode == 0, as_json.stderr
    pending = json.loads(as_json.stdout)["pending"]
    assert [x["rule"] for x in pending] == ["answer", "answer"]
    assert pending[0]["occurrence"]["params"] == {"door": "a"}
    assert pending[0]["firing"].startswith(pending[0]["run"])
    assert json.loads(call("pending", "--json").stdout) == {"pending": []}
