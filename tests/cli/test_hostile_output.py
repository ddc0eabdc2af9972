"""Names from files, databases and the command line are printed escaped, whatever command it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import make_url

import activedb as adb
from activedb.cli._main import app

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calling import Caller, Said

ODD = "x\x1b[31m\x07\x9b2J\x7f\u202e\rx"
"""Colours, a bell, a cleared screen, text from right to left, a line that is overwritten."""

FILES = {
    "columns.csv": f"{ODD},b\n1,2\n",
    "twice.csv": f"{ODD},{ODD}\n1,2\n".replace("\r", ""),
    "odd.csv": f'time,type,"{ODD}"\n1,A,"{ODD}"\n2,"{ODD}",1\n',
    "odd.jsonl": json.dumps({ODD: 1}, ensure_ascii=False) + "\n",
    "times.jsonl": json.dumps({"time": ODD, "type": "A"}) + "\n",
    "odd.rules": f"CREATE RULE r ON A {ODD}\n".replace("\r", ""),
    "text.rules": "CREATE RULE r ON A WHERE x = 'it never ends\x1b[31m",
    "odd.yaml": f'"{ODD}": [\n',
    "history.jsonl": json.dumps({ODD: ODD}) + "\n",
    "job.py": f"""\
import activedb as adb
db = adb.connect()
ODD = {ODD!r}
db.rule(on=adb.event(ODD), name=ODD)(lambda t, o: t.signal(ODD, x=1))
""",
    "broken.py": f"raise ValueError({ODD!r})\n",
    "wrong.py": f"import activedb as adb\nadb.connect('memory://', **{{{ODD!r}: 1}})\n",
}
CALLS = [
    ["match", "A", "--input", "columns.csv"],
    ["match", "A", "--input", "twice.csv"],
    ["match", "ANY(A, B)", "--input", "odd.csv"],
    ["match", "A", "--input", "odd.csv", "--type", ODD + "?"],
    ["match", "A", "--input", "odd.csv", "--fail-fast", "--timestamp", "type"],
    ["match", "A", "--input", "odd.jsonl"],
    ["match", "A", "--input", "times.jsonl"],
    ["match", "A", "--input", "odd.csv", "--query", ODD],
    ["match", "A", "--input", "odd.csv", "--encoding", ODD],
    ["match", "A", "--input", "odd.csv", "--until", ODD],
    ["match", "A", "--input", ODD],
    ["match", ODD, "--input", "odd.csv"],
    ["match", f'SEQ("{ODD}", B)', "--input", "odd.csv", "--context", ODD],
    ["match", "odd.rules", "--input", "odd.csv"],
    ["match", "text.rules", "--input", "odd.csv"],
    ["rules", "load", "odd.rules", "--url", "memory://"],
    ["rules", "load", "text.rules", "--url", "memory://"],
    ["rules", "load", "odd.yaml", "--url", "memory://"],
    ["rules", "load", ODD, "--url", "memory://"],
    ["rules", "ls", "job.py"],
    ["rules", "ls", "broken.py"],
    ["rules", "ls", "broken.py", "--traceback"],
    ["rules", "ls", "wrong.py"],
    ["rules", "show", "job.py", ODD],
    ["rules", "show", "job.py", ODD + "?"],
    ["rules", "analyze", "job.py"],
    ["rules", "explain", "job.py", ODD],
    ["rules", "explain", "job.py", f"insert {ODD}"],
    ["rules", "enable", ODD, "job.py", "--url", "memory://"],
    ["rules", "disable", ODD, "job.py", "--url", "memory://"],
    ["rules", "disable", ODD + "?", "job.py", "--url", "memory://"],
    ["run", ODD],
    ["run", "broken.py"],
    ["run", "job.py", "--stream", ODD, "--url", "memory://"],
    ["work", ODD],
    ["follow", ODD],
    ["pending", ODD],
    ["pending", "broken.py"],
    ["audit", ODD],
    ["audit", "history.jsonl"],
    ["status", "--url", ODD],
    ["doctor", "--url", ODD],
    ["migrate", "--sql", "--since", ODD],
    ["roles", "--schema", ODD],
    ["roles", "--owner", ODD],
    ["top", "--attach", ODD],
    ["dashboard", "--host", ODD],
    ["decisions", "show", ODD, "--url", "memory://"],
    ["dead-letter", "show", ODD, ODD, "--url", "memory://"],
    ["batches", "ls", "--url", "memory://", "--workflow", ODD],
    ["batches", "lineage", ODD, "--url", "memory://"],
    ["bench", ODD],
    ["demo", ODD],
    ["grafana", ODD],
    [ODD],
    ["status", f"--{ODD}"],
]


def assert_escaped(text: str) -> None:
    odd = sorted({c for c in text if not c.isprintable() and c not in "\n\t"})
    assert not odd, repr(text)


@pytest.fixture
def odd_call(call: Caller, tmp_path: Path) -> Caller:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content.encode())
    return call


@pytest.mark.parametrize("arguments", CALLS, ids=[" ".join(each[:3]) for each in CALLS])
def test_command_with_odd_names_prints_them_escaped(
    arguments: list[str], odd_call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTIVEDB_URL", "memory://")
    said = odd_call(*arguments)
    assert said.out + said.err
    assert_escaped(said.out + said.err)


def test_every_command_is_called_with_odd_names() -> None:
    groups = {group.name: group.typer_instance for group in app.registered_groups}
    called = {tuple(arguments[: 1 + (arguments[0] in groups)]) for arguments in CALLS}
    names = {
        (str(each.name or getattr(each.callback, "__name__", "")),)
        for each in app.registered_commands
    }
    assert names <= called
    assert {(group,) for group in groups} <= {words[:1] for words in called}


def test_status_and_switches_of_a_database_with_odd_names_print_them_escaped(
    call: Caller, database_url: str, tmp_path: Path
) -> None:
    url = make_url(database_url).render_as_string(hide_password=False)
    with adb.connect(url) as db:

        @db.rule(on=adb.event("e"), name=ODD, coupling="detached")
        def fails(t: adb.Transaction, o: adb.Occurrence) -> None:
            raise ValueError(ODD)

        db.signal("e")
        db.wait_idle()
    outcomes: list[Said] = []
    for words in (
        ["status"],
        ["rules", "disable", ODD],
        ["rules", "enable", ODD],
        ["dead-letter", "ls"],
        ["pending"],
    ):
        outcomes.append(call(*words, "--url", url))
    letters = call("dead-letter", "ls", "--url", url, "--json")
    (letter,) = letters.json["letters"]
    shown = call("dead-letter", "show", letter["source"], letter["identity"], "--url", url)
    outcomes += [letters, shown]
    for said in outcomes:
        assert said.status == 0, said.err
        assert_escaped(said.out + said.err)
