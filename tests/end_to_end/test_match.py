"""``activedb match`` as a user calls it.

What only the command itself can show (pipes, signals, terminals) runs in a process of its own, all
else through `activedb.cli.main` in this one.
"""

from __future__ import annotations

import gzip
import json
import os
import pty
import random
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from activedb.cli import main
from activedb.events import detect
from activedb.language import parse_pattern
from tests.end_to_end.commands import ACTIVEDB, activedb
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# The hygiene log of Wang, Rundensteiner, Ellison 2011, in a few rows.
LOG = """\
time,type,worker,room
2,EXIT,7,A
10,ENTER,7,B
15,EXIT,7,B
20,SANITIZE,7,B
21,ENTER,7,C
30,EXIT,8,A
"""
PATTERN = "SEQ(EXIT, !SANITIZE, ENTER) SAME worker WITHIN 45s"
RULES = """\
-- who entered a room without having sanitized
CREATE QUERY Dirty PATTERN SEQ(EXIT, !SANITIZE, ENTER) SAME worker WITHIN 45 sec
  RETURN ENTER.worker, ENTER.room AS entered;
CREATE QUERY Clean PATTERN SEQ(SANITIZE, ENTER) SAME worker WITHIN 45 sec;
CREATE RULE warn ON OUTPUT Dirty BEGIN UPDATE rooms SET dirty = TRUE; END;
"""


@dataclass(frozen=True)
class Done:
    """Outcome of a call."""

    status: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """The JSON object that it printed."""
        assert self.status == 0, self.err
        parsed: dict[str, Any] = json.loads(self.out)
        return parsed


Call = "Callable[..., Done]"


@pytest.fixture
def match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """Return a function that calls ``activedb match`` in an empty folder with ``log.csv``."""
    (tmp_path / "log.csv").write_text(LOG, encoding="utf-8")
    (tmp_path / "ward.rules").write_text(RULES, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["activedb", "match", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        status = ended.value.code
        assert isinstance(status, int)
        return Done(status, out, err)

    return call


def times(done: Done, query: str | None = None) -> list[Any]:
    """Return when the matches occur."""
    return [m["at"] for m in done.result["matches"] if query in (None, m["query"])]


# -- what is matched ---------------------------------------------------------------------------


def test_pattern_over_a_csv_file_is_shown_as_a_table(match: Callable[..., Done]) -> None:
    done = match(PATTERN, "--input", "log.csv")
    assert (done.status, "\x1b" in done.out) == (0, False)
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0] == ["time", "query", "parts", "parameters"]
    assert lines[1] == ["10", "pattern", "EXIT", "2;", "ENTER", "10", "worker=7,", "room=B"]
    assert ["rows", "read", "6"] in lines
    assert any(line[:4] == ["matches", "of", "pattern", "1"] for line in lines)
    for note in ("time: column time", "type: column type", "times are seconds since 1970"):
        assert note in done.err.splitlines()


def test_result_is_one_json_object(match: Callable[..., Done]) -> None:
    done = match("ward.rules", "--input", "log.csv", "--json")
    (dirty,) = [m for m in done.result["matches"] if m["query"] == "Dirty"]
    assert dirty == {
        "query": "Dirty",
        "at": 10,
        "parts": {
            "EXIT": {"type": "EXIT", "at": 2, "id": None, "params": {"worker": 7, "room": "A"}},
            "ENTER": {"type": "ENTER", "at": 10, "id": None, "params": {"worker": 7, "room": "B"}},
        },
        "params": {"worker": 7, "entered": "B"},
    }
    figures = done.result
    assert (figures["rows"], figures["refused"], figures["unseen_types"]) == (6, [], [])
    assert figures["events"] == {"EXIT": 3, "ENTER": 2, "SANITIZE": 1}
    assert {name: each["matches"] for name, each in figures["queries"].items()} == {
        "Dirty": 1,
        "Clean": 1,
    }
    assert (figures["first_event"], figures["last_event"]) == (2, 30)


def test_json_without_matches_is_an_object_too(match: Callable[..., Done]) -> None:
    done = match("SEQ(ENTER, SANITIZE) WITHIN 1s", "--input", "log.csv", "--json")
    assert done.result["matches"] == []


def test_one_query_of_a_file_is_run_by_name(match: Callable[..., Done]) -> None:
    done = match("ward.rules", "--input", "log.csv", "--json", "--query", "Clean")
    assert list(done.result["queries"]) == ["Clean"]
    assert times(done) == [21]


def test_patterns_of_rules_are_run_where_there_are_no_queries(match: Callable[..., Done]) -> None:
    rules = "CREATE RULE enters ON ENTER CALL wards:note"
    assert times(match(rules, "--input", "log.csv", "--json"), "enters") == [10, 21]


def test_context_selection_and_skip_are_those_of_the_options(match: Callable[..., Done]) -> None:
    def found(*options: str) -> list[tuple[Any, ...]]:
        done = match("SEQ(EXIT, ENTER) WITHIN 45s", "--input", "log.csv", "--json", *options)
        return [(m["parts"]["EXIT"]["at"], m["at"]) for m in done.result["matches"]]

    assert found() == [(2, 10), (2, 21), (15, 21)]
    assert found("--context", "chronicle") == [(2, 10), (15, 21)]
    assert found("--selection", "next") == [(2, 10), (15, 21)]
    assert found("--skip", "to_next") == [(2, 10), (15, 21)]
    assert found("--skip", "to_last ENTER") == found("--skip", "to_last:ENTER")


def test_time_ends_with_the_last_event_unless_it_goes_on(match: Callable[..., Done]) -> None:
    silence = "SEQ(EXIT, !ENTER) SAME worker WITHIN 10s"
    assert times(match(silence, "--input", "log.csv", "--json")) == []
    assert times(match(silence, "--input", "log.csv", "--json", "--until", "39")) == []
    assert times(match(silence, "--input", "log.csv", "--json", "--until", "40")) == [40]
    ticks = match("EVERY 10s", "--input", "log.csv", "--json")
    assert times(ticks) == [10, 20, 30]  # from the first event on


def test_limit_ends_the_run_and_says_so(match: Callable[..., Done]) -> None:
    done = match("ANY(EXIT, ENTER)", "--input", "log.csv", "--limit", 3, "--json")
    assert (times(done), done.result["cut"]) == ([2, 10, 15], True)
    assert "stopped at the limit" in match("EXIT", "--input", "log.csv", "--limit", 1).out
    # Two queries that one event completes: the second one's match is beyond the limit.
    both = match("ward.rules", "--input", "log.csv", "--json", "--limit", 1)
    assert sum(each["matches"] for each in both.result["queries"].values()) == 1


def test_matches_go_to_a_file_as_json_lines(match: Callable[..., Done], tmp_path: Path) -> None:
    done = match("ward.rules", "--input", "log.csv", "--output", "found.jsonl")
    lines = (tmp_path / "found.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["query"] for line in lines] == ["Dirty", "Clean"]
    assert "EXIT 2" not in done.out
    assert "matches of Dirty" in done.out
    figures = match("ward.rules", "--input", "log.csv", "--output", "found.jsonl", "--json").result
    assert "matches" not in figures
    assert figures["queries"]["Dirty"]["matches"] == 1


def test_lines_on_standard_output_leave_the_figures_to_the_other(
    match: Callable[..., Done],
) -> None:
    done = match(PATTERN, "--input", "log.csv", "--output", "-")
    assert [json.loads(line)["at"] for line in done.out.splitlines()] == [10]
    assert "rows read" in done.err


def test_output_is_never_a_file_that_is_read(match: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to("log.csv")
    (tmp_path / "hard.csv").hardlink_to(tmp_path / "log.csv")
    for output in ("log.csv", "./log.csv", "link.csv", "hard.csv"):
        done = match(PATTERN, "--input", "log.csv", "--output", output)
        assert (done.status, "give another" in done.err) == (2, True), output
    refused = match("ward.rules", "--input", "log.csv", "--output", "ward.rules")
    assert (refused.status, "the file of the patterns" in refused.err) == (2, True)
    assert (tmp_path / "log.csv").read_text(encoding="utf-8") == LOG
    assert (tmp_path / "ward.rules").read_text(encoding="utf-8") == RULES


def test_older_output_is_kept_until_there_is_a_newer_one(
    match: Callable[..., Done], tmp_path: Path
) -> None:
    found = tmp_path / "found.jsonl"
    found.write_text("older\n" * 100, encoding="utf-8")
    for wrong in (("--timestamp", "tine"), ("--until", "soon"), ("--format", "parquet")):
        assert match(PATTERN, "--input", "log.csv", "--output", found, *wrong).status == 2
        assert found.read_text(encoding="utf-8").startswith("older")
    assert match(PATTERN, "--input", "log.csv", "--output", found).status == 0
    assert len(found.read_text(encoding="utf-8").splitlines()) == 1
    assert (
        match("SEQ(ENTER, SANITIZE) WITHIN 1s", "--input", "log.csv", "--output", found).status == 0
    )
    assert found.read_text(encoding="utf-8") == ""
    assert match(PATTERN, "--input", "log.csv", "--output", "/dev/null").status == 0


# -- files -------------------------------------------------------------------------------------


def test_same_events_in_every_format_and_order_have_the_same_matches(
    match: Callable[..., Done], tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    draw = random.Random(6)
    rows = [
        {"type": draw.choice("ABN"), "timestamp": us, "key": draw.randrange(2), "id": f"e{us}"}
        for us in range(60)
    ]
    pattern = "SEQ(A, !N, B) SAME key WITHIN 6s"
    expected = sorted(
        (o.parts["A"].id, o.parts["B"].id) for o in detect(parse_pattern(pattern), rows)
    )
    assert len(expected) > 5
    shuffled = draw.sample(rows, len(rows))
    header = ",".join(rows[0])

    def csv(listed: list[dict[str, Any]]) -> str:
        return "\n".join([header, *(",".join(map(str, row.values())) for row in listed), ""])

    def lines(listed: list[dict[str, Any]]) -> str:
        return "".join(f"{json.dumps(row)}\n" for row in listed)

    (tmp_path / "a.csv").write_text(csv(rows), encoding="utf-8")
    (tmp_path / "b.csv").write_text("\ufeff" + csv(shuffled), encoding="utf-8")
    (tmp_path / "c.tsv").write_text(csv(rows).replace(",", "\t"), encoding="utf-8")
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(csv(shuffled).encode()))
    (tmp_path / "e.jsonl").write_text(lines(shuffled), encoding="utf-8")
    (tmp_path / "f.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    (tmp_path / "g").write_text(lines(rows), encoding="utf-8")
    parquet.write_table(pyarrow.Table.from_pylist(shuffled), tmp_path / "h.parquet")
    (tmp_path / "i").write_bytes((tmp_path / "h.parquet").read_bytes())
    for name, is_sorted in zip(
        ["a.csv", "b.csv", "c.tsv", "d.csv.gz", "e.jsonl", "f.json", "g", "h.parquet", "i"],
        [False, True, False, True, True, False, False, True, True],
        strict=True,
    ):
        result = match(pattern, "--input", name, "--json").result
        found = [(m["parts"]["A"]["id"], m["parts"]["B"]["id"]) for m in result["matches"]]
        assert sorted(found) == expected, name
        assert result["sorted"] is is_sorted, name


def test_parquet_timestamps_are_times(match: Callable[..., Done], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    times_ns = pyarrow.array([1_000_000_000, 2_000_000_500], pyarrow.timestamp("ns"))
    table = pyarrow.table({"type": ["A", "A"], "ts": times_ns, "x": [1.5, float("nan")]})
    parquet.write_table(table, tmp_path / "a.parquet")
    done = match("A", "--input", "a.parquet", "--json", "--zone", "Europe/Berlin")
    assert times(done) == ["1970-01-01T00:00:01+01:00", "1970-01-01T00:00:02+01:00"]
    assert [m["params"]["x"] for m in done.result["matches"]] == [1.5, "nan"]


@pytest.mark.parametrize(
    ("written", "options", "expected"),
    [
        ("1970-01-01T00:00:05Z", [], "1970-01-01T00:00:05+00:00"),
        ("1970-01-01 00:00:05.25", [], "1970-01-01T00:00:05.250000+00:00"),
        ("1970-01-01T01:00:05+01:00", [], "1970-01-01T00:00:05+00:00"),
        ("5", [], 5),
        ("5.5", [], 5.5),
        ("5500", ["--unit", "ms"], "1970-01-01T00:00:05.500000+00:00"),
        ("1380000000", [], "2013-09-24T05:20:00+00:00"),
        ("1380000000123", [], "2013-09-24T05:20:00.123000+00:00"),
        ("1380000000123456", [], "2013-09-24T05:20:00.123456+00:00"),
        ("1380000000123456789", [], "2013-09-24T05:20:00.123456+00:00"),
        ("200802010900", ["--time-format", "%Y%m%d%H%M"], "2008-02-01T09:00:00+00:00"),
        (
            "200802010900",
            ["--time-format", "%Y%m%d%H%M", "--zone", "America/New_York"],
            "2008-02-01T09:00:00-05:00",
        ),
    ],
)
def test_time_is_read_as_it_is_written(
    match: Callable[..., Done], tmp_path: Path, written: str, options: list[str], expected: Any
) -> None:
    (tmp_path / "t.csv").write_text(f"type,time\nA,{written}\n", encoding="utf-8")
    assert times(match("A", "--input", "t.csv", "--json", *options)) == [expected]


def test_values_of_csv_are_numbers_and_truth_values_where_they_look_so(
    match: Callable[..., Done], tmp_path: Path
) -> None:
    (tmp_path / "v.csv").write_text(
        "type,time,a,b,c,d,e,f,g,h,i\n"
        f"A,1,12,-1.5e3,true,007,NA,,12345678901234567890,1e999,-{'9' * 400}.5\n",
        encoding="utf-8",
    )
    (found,) = match("A", "--input", "v.csv", "--json", "--null", "NA").result["matches"]
    assert found["params"] == {
        "a": 12,
        "b": -1500.0,
        "c": True,
        "d": "007",
        "e": None,
        "f": None,
        "g": "12345678901234567890",
        "h": "1e999",
        "i": f"-{'9' * 400}.5",
    }
    texts = match("A", "--input", "v.csv", "--json", "--text", "a", "--text", "c")
    assert (
        texts.result["matches"][0]["params"] | {"a": "12", "c": "true", "e": "NA"}
        == (texts.result["matches"][0]["params"])
    )


@pytest.mark.parametrize("form", ["{}\n", "[{}]"])
def test_number_of_json_that_no_float_can_hold_stays_text(
    match: Callable[..., Done], tmp_path: Path, form: str
) -> None:
    row = '{"type": "A", "time": 1, "a": 1e999, "b": {"c": [-1e400, 1.5]}}'
    (tmp_path / "v.json").write_text(form.format(row), encoding="utf-8")
    (found,) = match("A", "--input", "v.json", "--json").result["matches"]
    assert found["params"] == {"a": "1e999", "b": {"c": ["-1e400", 1.5]}}


def test_columns_are_named_where_they_cannot_be_guessed(
    match: Callable[..., Done], tmp_path: Path
) -> None:
    (tmp_path / "bare.csv").write_text("X;7;1;x1\nX;9;2;x2\n", encoding="utf-8")
    done = match(
        *("SEQ(X AS a, X AS b) WHERE b.v > a.v WITHIN 5s", "--input", "bare.csv", "--json"),
        *("--delimiter", ";", "--columns", "what, when, v, key"),
        *("--type", "what", "--timestamp", "when", "--id", "key"),
    )
    (found,) = done.result["matches"]
    assert [found["parts"][name]["id"] for name in "ab"] == ["x1", "x2"]
    assert "column" not in done.err  # nothing was guessed
    constant = match(
        *("ANY(BAR, FOO)", "--input", "bare.csv", "--json", "--delimiter", ";"),
        *("--columns", "what,when,v,key", "--type", "'BAR'", "--timestamp", "when"),
    )
    assert constant.result["events"] == {"BAR": 2}
    assert constant.result["unseen_types"] == ["FOO"]
    assert "no event of type FOO; it has: BAR" in constant.err


def test_type_of_all_rows_is_the_only_one_a_pattern_names(
    match: Callable[..., Done], tmp_path: Path
) -> None:
    (tmp_path / "bars.csv").write_text("minute_time,close\n1,5\n2,6\n", encoding="utf-8")
    done = match("SEQ(BAR AS a, BAR AS b) WITHIN 5s", "--input", "bars.csv", "--json")
    assert times(done) == [2]
    assert "type: all rows are BAR, as no column has the type" in done.err
    assert "time: column minute_time" in done.err


# -- bad input ---------------------------------------------------------------------------------


def test_rows_that_are_no_events_are_counted_with_reason_and_first_row(
    match: Callable[..., Done], tmp_path: Path
) -> None:
    (tmp_path / "bad.csv").write_bytes(
        b"time,type,worker\n1,EXIT,7\n2,ENTER\nsoon,ENTER,7\nlate,ENTER,7\n,ENTER,7\n3,,7\n"
        b'4,OTHER,\xff\n5,"ENTER,7\n'
    )
    done = match("SEQ(EXIT, ENTER) SAME worker WITHIN 45s", "--input", "bad.csv", "--json")
    refused = {each["reason"]: each for each in done.result["refused"]}
    assert {reason: (each["rows"], each["first_row"]) for reason, each in refused.items()} == {
        "it has too few or too many fields": (1, 3),
        "column time is not a time: seconds since 1970": (2, 4),
        "it has no time in column time": (1, 6),
        "it has no type in column type": (1, 7),
        "it is not utf-8": (1, 8),
        "it is not valid CSV": (1, 9),
    }
    assert done.result["rows"] == 8
    people = match(PATTERN, "--input", "bad.csv")
    assert people.status == 0
    assert "column time is not a time: seconds since 1970; first row 4: 'soon'" in people.out


def test_lines_that_are_no_json_objects_are_counted(
    match: Callable[..., Done], tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text(
        '{"type": "A", "time": 1}\n{"type": "A", \n[1]\n\n{"type": 5, "time": 2}\n'
        '{"type": "A", "time": true}\n{"type": "A"}\n',
        encoding="utf-8",
    )
    result = match("A", "--input", "bad.jsonl", "--json").result
    assert [(each["reason"], each["first_row"]) for each in result["refused"]] == [
        ("it is not valid JSON", 2),
        ("it is not a JSON object", 3),
        ("it has no type in column type", 5),
        ("column time is not a time: seconds since 1970", 6),
        ("it has no time in column time", 7),
    ]
    assert result["queries"]["pattern"]["matches"] == 1


def test_event_that_a_query_cannot_judge_is_counted(
    match: Callable[..., Done], tmp_path: Path
) -> None:
    (tmp_path / "v.csv").write_text("type,time,x\nA,1,5\nA,2,high\nA,3,6\n", encoding="utf-8")
    result = match("A WHERE x > 1", "--input", "v.csv", "--json").result
    assert result["queries"]["pattern"]["matches"] == 2
    (refused,) = result["refused"]
    assert (refused["reason"], refused["first_row"]) == ("query pattern cannot evaluate it", 3)
    assert "'high'" in refused["detail"]


def test_first_refused_row_ends_the_run_if_told_so(match: Callable[..., Done]) -> None:
    assert match(PATTERN, "--input", "log.csv", "--fail-fast").status == 0
    rows = "type,time\nA,1\nA,soon\nA,3\n"
    with open("bad.csv", "w", encoding="utf-8") as file:
        file.write(rows)
    done = match("A", "--input", "bad.csv", "--fail-fast")
    assert done.status == 1
    assert "row 3 is refused: column time is not a time" in done.err


@pytest.mark.long
@pytest.mark.parametrize(
    ("log", "told"),
    [
        (
            "type,time\nEXIT,\n,3\nENTER,\n",
            "every row of bad.csv was refused: ",
        ),
        (
            "type,time\nEXIT,1\nENTER,2\n",
            "every row of bad.csv was refused: query pattern cannot evaluate it; first row 2",
        ),
        (
            "type,time\nEXIT,1\nOTHER,2\n",
            "every event that the queries wait for of bad.csv was refused: query pattern cannot",
        ),
    ],
    ids=["no events", "cannot be judged", "beside others"],
)
def test_input_of_which_all_is_refused_exits_with_one(tmp_path: Path, log: str, told: str) -> None:
    (tmp_path / "bad.csv").write_text(log, encoding="utf-8")
    command = ("match", PATTERN, "--input", "bad.csv", "--type", "type", "--timestamp", "time")
    for option in ((), ("--json",), ("--output", "-")):
        done = activedb(*command, *option, folder=tmp_path)
        assert done.returncode == 1, done.stderr
        assert told in done.stderr.rstrip("\n").split("\n")[-1]
        if option == ("--json",):
            assert json.loads(done.stdout)["matches"] == []


def test_input_of_which_something_is_taken_exits_with_zero(match: Callable[..., Done]) -> None:
    with open("bad.csv", "w", encoding="utf-8") as file:
        file.write("type,time,worker\nEXIT,1,\nENTER,2,7\n,3,7\n")
    assert match(PATTERN, "--input", "bad.csv").status == 0
    with open("bad.csv", "w", encoding="utf-8") as file:
        file.write("type,time,worker\nOTHER,1,7\n,2,7\n")
    done = match(PATTERN, "--input", "bad.csv")
    assert done.status == 0, done.err
    assert "the input has no event of type ENTER, EXIT" in done.err


def test_array_may_follow_blank_lines(match: Callable[..., Done], tmp_path: Path) -> None:
    array = '[{"time":0,"type":"A"},\n{"time":1,"type":"B"}]\n'
    (tmp_path / "array.json").write_text(f"\n \n{array}", encoding="utf-8")
    assert times(match("SEQ(A, B)", "--input", "array.json", "--json")) == [1]


def test_long_pattern_is_no_name_of_a_file(match: Callable[..., Done]) -> None:
    # Fewer than 256 characters, but more bytes than a name of a file may have.
    done = match(f"SEQ(EXIT, {'Ü' * 130})", "--input", "log.csv")
    assert done.status == 0, done.err


def test_disorder_is_sorted_or_refused(match: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "late.csv").write_text("type,time\nB,2\nA,1\nB,3\n", encoding="utf-8")
    done = match("SEQ(A, B)", "--input", "late.csv")
    assert "sorted by time" in done.out
    assert times(match("SEQ(A, B)", "--input", "late.csv", "--json")) == [2, 3]
    insisting = match("SEQ(A, B)", "--input", "late.csv", "--json", "--ordered").result
    assert insisting["matches"] == []
    (refused,) = insisting["refused"]
    assert (refused["reason"], refused["first_row"]) == ("it is earlier than the row before it", 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([PATTERN, "--input", "nowhere.csv"], "nowhere.csv cannot be read"),
        ([PATTERN, "--input", "."], "is a folder"),
        ([PATTERN], "Missing parameter: input"),
        ([PATTERN, "--input", "log.csv", "--timestamp", "tine"], "'time'"),
        ([PATTERN, "--input", "log.csv", "--type", "typ"], "'type'"),
        ([PATTERN, "--input", "log.csv", "--id", "worke"], "'worker'"),
        ([PATTERN, "--input", "log.csv", "--text", "rom"], "'room'"),
        ([PATTERN, "--input", "log.csv", "--unit", "h"], "s, ms, us, ns"),
        ([PATTERN, "--input", "log.csv", "--unit", "s", "--time-format", "%Y"], "give one"),
        ([PATTERN, "--input", "log.csv", "--zone", "Mars"], "time zone 'Mars'"),
        ([PATTERN, "--input", "log.csv", "--format", "xml"], "csv or json or parquet"),
        ([PATTERN, "--input", "log.csv", "--format", "parquet"], "not a Parquet file"),
        ([PATTERN, "--input", "log.csv", "--encoding", "none"], "encoding 'none'"),
        ([PATTERN, "--input", "log.csv", "--delimiter", "ab"], "one character"),
        ([PATTERN, "--input", "log.csv", "--columns", "a,a"], "one name"),
        ([PATTERN, "--input", "log.csv", "--until", "soon"], "--until 'soon' is not a time"),
        ([PATTERN, "--input", "log.csv", "--limit", "0"], "greater than or equal to 1"),
        ([PATTERN, "--input", "log.csv", "--output", "no/where.jsonl"], "cannot write"),
        ([PATTERN, "--input", "log.csv", "--output", "-", "--json"], "give one"),
        ([PATTERN, "--input", "log.csv", "--context", "latest"], "'recent'"),
        ([PATTERN, "--input", "log.csv", "--selection", "all"], "'strict'"),
        ([PATTERN, "--input", "log.csv", "--skip", "to_first"], "needs the name of a part"),
        (["ANY(A, B)", "--input", "log.csv", "--skip", "to_next"], "of a sequence"),
        (["ward.rules", "--input", "log.csv", "--query", "Dirt"], "'Dirty'"),
        (["none.rules", "--input", "log.csv"], "cannot read none.rules"),
        (["INSERT accounts", "--input", "log.csv"], "does not tell"),
        (["LATE ward", "--input", "log.csv"], "does not tell"),
        (["SEQ(A, !B)", "--input", "log.csv"], "within"),
        (["DROP QUERY Q", "--input", "log.csv"], "neither queries nor rules"),
        (["EXIT WHERE 1 = (SELECT x FROM y)", "--input", "log.csv"], "reads tables"),
        ([PATTERN, "--input", "-"], "standard input has no name"),
        ([PATTERN, "--input", "untyped.csv"], "--type"),
        ([PATTERN, "--input", "timeless.csv"], "--timestamp"),
        ([PATTERN, "--input", "doubled.csv"], "two columns are called 'a'"),
    ],
    ids=lambda value: " ".join(value[1:] or value) if isinstance(value, list) else "",
)
def test_wrong_call_exits_with_two_and_says_what_is_wrong(
    match: Callable[..., Done], tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "untyped.csv").write_text("time,a\n1,2\n", encoding="utf-8")
    (tmp_path / "timeless.csv").write_text("type,a\nA,2\n", encoding="utf-8")
    (tmp_path / "doubled.csv").write_text("type,time,a,a\nA,1,2,3\n", encoding="utf-8")
    done = match(*arguments)
    assert done.status == 2, done.err
    assert said in done.err
    assert "Traceback" not in done.err


def test_syntax_error_is_shown_in_its_line_with_a_caret(
    match: Callable[..., Done], tmp_path: Path
) -> None:
    (tmp_path / "bad.rules").write_text(
        "CREATE QUERY Q\nPATTERN SEQ(A, B) WITIN 5s", encoding="utf-8"
    )
    done = match("bad.rules", "--input", "log.csv")
    assert done.status == 2
    first, line, caret = done.err.splitlines()
    assert first.startswith("error: bad.rules, line 2, column 19: ")
    assert "did you mean 'WITHIN'?" in first
    assert line[caret.index("^") :] == "WITIN 5s"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.csv", b"", "has no rows"),
        ("header.csv", b"type,time\n", "has no rows"),
        ("no.jsonl", b"<xml>\n", "no row of no.jsonl can be read"),
        ("cut.csv.gz", gzip.compress(LOG.encode() * 99)[:150], "cannot be read to its end"),
    ],
)
def test_file_that_cannot_be_read_exits_with_one(
    match: Callable[..., Done], tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    done = match(PATTERN, "--input", name)
    assert (done.status, said in done.err) == (1, True), done.err


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8", "utf-7"])
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "json"])
@pytest.mark.parametrize("cut", [0, 1, 3, 37])
def test_file_cut_anywhere_ends_with_its_name_or_costs_a_row(
    match: Callable[..., Done], tmp_path: Path, encoding: str, suffix: str, cut: int
) -> None:
    rows = [{"time": n, "type": "A", "x": "ä€😀"} for n in range(3)]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    texts = {
        "csv": "time,type,x\n" + "".join(f"{row['time']},A,{row['x']}\n" for row in rows),
        "jsonl": "\n".join(lines),
        "json": f"[{','.join(lines)}]",
    }
    content = texts[suffix].encode(encoding)
    name = f"cut.{suffix}"
    (tmp_path / name).write_bytes(content[: len(content) - cut])
    done = match("A", "--input", name, "--encoding", encoding)
    assert "Error" not in done.err
    assert done.status == 0 or name in done.err or "JSON array" in done.err, done.err
    assert cut or done.status == 0, done.err


def test_file_in_another_encoding_than_told_is_named(
    match: Callable[..., Done], tmp_path: Path
) -> None:
    (tmp_path / "odd.csv").write_bytes(b"time,type\n1,A\n")
    done = match("A", "--input", "odd.csv", "--encoding", "utf-16")
    assert (done.status, "odd.csv cannot be read to its end as utf-16" in done.err) == (1, True), (
        done.err
    )
    (tmp_path / "odd.jsonl").write_bytes(b'{"time": 1, "type": "A"}\n{"time": 2, "type": "\x80"}\n')
    refused = match("A", "--input", "odd.jsonl", "--encoding", "shift_jis", "--json").result[
        "refused"
    ]
    assert [(each["reason"], each["first_row"]) for each in refused] == [("it is not shift_jis", 2)]


@pytest.mark.parametrize(
    "encoding",
    ["undefined", "idna", "punycode", "rot13", "hex", "unknown", "a/b", "\u0131"],
)
def test_encoding_that_reads_no_text_is_refused_as_an_option(
    match: Callable[..., Done], encoding: str
) -> None:
    done = match("A", "--input", "log.csv", "--encoding", encoding)
    assert (done.status, "there is no encoding" in done.err) == (2, True), done.err


def test_names_of_the_input_cannot_play_with_the_terminal(
    match: Callable[..., Done], tmp_path: Path
) -> None:
    (tmp_path / "odd.csv").write_text("type,time,x\nA,1,\x1b[31m\n\x1b[2J,2,0\n", encoding="utf-8")
    done = match("ANY(A, B)", "--input", "odd.csv")
    assert done.status == 0
    assert "\x1b" not in done.out + done.err


# -- in a process of its own -------------------------------------------------------------------


@pytest.mark.long
def test_process_reads_standard_input_and_exits_with_zero(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ACTIVEDB_")}
    done = subprocess.run(
        [ACTIVEDB, "match", PATTERN, "--input", "-", "--format", "csv", "--json"],
        input=gzip.compress(LOG.encode()),
        capture_output=True,
        cwd=tmp_path,
        env=environment,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [m["at"] for m in json.loads(done.stdout)["matches"]] == [10]
    assert not list(tmp_path.iterdir())  # no database, nothing left behind


@pytest.mark.long
def test_output_is_never_the_file_behind_standard_input(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(LOG, encoding="utf-8")
    with (tmp_path / "log.csv").open(encoding="utf-8") as log:
        done = subprocess.run(
            [ACTIVEDB, "match", PATTERN, "--input", "-", "--format", "csv", "--output", "log.csv"],
            stdin=log,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    assert (tmp_path / "log.csv").read_text(encoding="utf-8") == LOG


@pytest.mark.long
def test_pipe_with_a_name_is_read_once(match: Callable[..., Done], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["/bin/sh", "-c", "cat log.csv > pipe"], cwd=tmp_path) as writer:
        done = match(PATTERN, "--input", "pipe", "--format", "csv", "--json")
        assert writer.wait(timeout=PATIENCE_S) == 0
    assert times(done) == [10]


@pytest.mark.long
def test_help_names_every_option(tmp_path: Path) -> None:
    done = activedb("match", "--help", folder=tmp_path, variables={"COLUMNS": "200"})
    assert done.returncode == 0
    for option in ("--until", "--ordered", "--fail-fast", "--time-format", "--context"):
        assert option in done.stdout


@pytest.mark.long
def test_interrupted_run_has_told_what_it_found_and_exits_with_130(tmp_path: Path) -> None:
    with subprocess.Popen(
        [ACTIVEDB, "match", "A", "--input", "-", "--format", "csv", "--ordered", "--output", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        text=True,
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("type,time\nA,1\nA,2\n")
            process.stdin.flush()
            # It is told as soon as a later event, or the end, shows that no other is at its time.
            assert json.loads(process.stdout.readline())["at"] == 1
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said


@pytest.mark.long
@pytest.mark.parametrize("options", [["--json"], ["--output", "-"], []], ids=" ".join)
def test_reader_that_goes_away_ends_the_run_quietly(tmp_path: Path, options: list[str]) -> None:
    rows = "".join(f"A,{second}\n" for second in range(20_000))
    (tmp_path / "many.csv").write_text(f"type,time\n{rows}", encoding="utf-8")
    with subprocess.Popen(
        [ACTIVEDB, "match", "A", "--input", "many.csv", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            said = process.stderr.read().decode()
            process.wait(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "Traceback" not in said
    assert "BrokenPipe" not in said


@pytest.mark.long
@pytest.mark.parametrize("no_color", [False, True], ids=["colour", "NO_COLOR"])
def test_terminal_has_colours_unless_told_not_to(tmp_path: Path, *, no_color: bool) -> None:
    (tmp_path / "log.csv").write_text(LOG, encoding="utf-8")
    ours, theirs = pty.openpty()
    environment = dict(os.environ) | {"TERM": "xterm-256color", "COLUMNS": "120"}
    environment.pop("NO_COLOR", None)
    if no_color:
        environment["NO_COLOR"] = "1"
    process = subprocess.Popen(
        [ACTIVEDB, "match", PATTERN, "--input", "log.csv"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        env=environment,
    )
    os.close(theirs)
    shown = b""
    try:
        # On Linux, reading a terminal that no process holds open ends with an error.
        with suppress(OSError):
            while block := os.read(ours, 4096):
                shown += block
        assert process.wait(timeout=PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"EXIT 2; ENTER 10" in shown
    assert b"\x1b[1m" in shown  # heads are bold, which is no colour
    assert b"\x1b[3" not in shown
