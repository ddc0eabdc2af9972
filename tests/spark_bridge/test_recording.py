"""Lines of a recording, their times, and when they are due: by a clock that the test drives."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from spark_bridge._recording import RecordedFiles, Replayer


def write(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def seconds(folder: Path, *given: float | str) -> RecordedFiles:
    """A recording of lines that are their times."""
    write(folder, "a", *map(str, given))
    return RecordedFiles(folder, "csv", time="at", unit="s", columns=("at",))


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_recording_files_are_one_in_the_order_of_their_names(tmp_path: Path) -> None:
    write(tmp_path, "b.csv", "at,user", "2,bob")
    write(tmp_path, "a.csv.gz", "user,at", "ann,1.5", "", 'eve,"1.75"')
    write(tmp_path, ".hidden.csv", "no", "no")
    recording = RecordedFiles(tmp_path, "csv", time="at", unit="s", header=True)
    assert list(recording.lines()) == [
        ("ann,1.5", 1_500_000),
        ('eve,"1.75"', 1_750_000),
        ("2,bob", 2_000_000),
    ]


@pytest.mark.parametrize(
    ("text", "unit", "us"),
    [
        ("1353585600", "s", 1_353_585_600_000_000),
        ("1353585600.123457", "s", 1_353_585_600_123_457),
        ("1353585600123", "ms", 1_353_585_600_123_000),
        (" 7 ", "us", 7),
        ("2012-11-22T12:00:00Z", None, 1_353_585_600_000_000),
        ("2012-11-22 12:00:00", None, 1_353_585_600_000_000),
        ("2012-11-22T13:00:00.000001+01:00", None, 1_353_585_600_000_001),
        ("noon", None, None),
        ("noon", "s", None),
        ("", "s", None),
        ("NaN", "s", None),
        ("1e400", "s", None),
        ("Infinity", "s", None),
        ("1e999999", "s", None),
        ("-1e999999999999999999", "s", None),
        ("sNaN", "s", None),
        ("1" * 5_000, "s", None),
    ],
)
def test_recording_times_are_numbers_or_iso_8601(
    text: str, unit: str | None, us: int | None, tmp_path: Path
) -> None:
    write(tmp_path, "a", f"x,{text}")
    recording = RecordedFiles(tmp_path, "csv", time="at", unit=unit, columns=("name", "at"))
    assert list(recording.lines()) == [(f"x,{text}", us)]


def test_recording_of_json_finds_the_field_and_bad_lines_have_no_time(tmp_path: Path) -> None:
    lines = ['{"at": 1.5}', '{"at": "2"}', '{"at": true}', "{}", "[1]", '{"at": ', '{"at": 3}']
    lines[1:1] = ["[" * 100_000, '{"at": "1e999999"}', f'{{"at": {"1" * 5_000}}}']
    write(tmp_path, "a.json", *lines)
    recording = RecordedFiles(tmp_path / "a.json", "json", time="at", unit="s")
    times = [1_500_000, None, None, None, 2_000_000, None, None, None, None, 3_000_000]
    assert list(recording.lines()) == list(zip(lines, times, strict=True))


def test_recording_without_the_column_says_what_it_has(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "when,user", "1,ann")
    recording = RecordedFiles(tmp_path, "csv", time="at", header=True)
    with pytest.raises(ValueError, match=r"a\.csv has no column 'at'; it has when, user"):
        list(recording.lines())


def test_recording_fingerprint_is_of_names_and_sizes_not_of_the_place(tmp_path: Path) -> None:
    prints = []
    for folder, text in (("x", "one"), ("y", "one"), ("z", "seven")):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, "a", text)
        prints.append(RecordedFiles(tmp_path / folder).fingerprint())
    assert prints[0] == prints[1] != prints[2]


def test_replayer_lines_are_due_as_recorded_times_speed_up(tmp_path: Path) -> None:
    clock = Clock()
    replayer = Replayer(seconds(tmp_path, 100, 160, 220, 221), 60.0, clock)
    assert replayer.due(0, None, 9) == (1, 100_000_000, False)  # the first at once
    clock.now_s += 0.999
    assert replayer.due(1, 100_000_000, 9) == (1, 100_000_000, False)
    clock.now_s += 0.001
    assert replayer.due(1, 100_000_000, 9) == (2, 160_000_000, False)
    clock.now_s += 5
    assert replayer.due(2, 160_000_000, 9) == (4, 221_000_000, True)
    assert replayer.lines(0, 4) == ["100", "160", "220", "221"]


def test_replayer_disorder_and_lines_without_a_time_come_with_those_before(tmp_path: Path) -> None:
    clock = Clock()
    recording = seconds(tmp_path, "noon", 100, 50, "noon", 110, 105)
    replayer = Replayer(recording, 1.0, clock)
    assert replayer.due(0, None, 9) == (4, 100_000_000, False)
    clock.now_s += 10
    assert replayer.due(4, 100_000_000, 9) == (6, 110_000_000, True)


def test_replayer_gives_no_more_than_asked_for(tmp_path: Path) -> None:
    replayer = Replayer(seconds(tmp_path, *range(10)), None)
    assert replayer.due(0, None, 4) == (4, 3_000_000, False)
    assert replayer.due(4, 3_000_000, 6) == (10, 9_000_000, True)
    assert Replayer(seconds(tmp_path), None).due(0, None, 4) == (0, None, True)


def test_replayer_goes_on_after_a_restart_with_the_time_it_had_reached(tmp_path: Path) -> None:
    clock = Clock()
    replayer = Replayer(seconds(tmp_path, 100, 110, 120, 130), 1.0, clock)
    assert replayer.due(2, 110_000_000, 9) == (2, 110_000_000, False)  # 120 is due in 10 seconds
    clock.now_s += 10
    assert replayer.due(2, 110_000_000, 9) == (3, 120_000_000, False)


def test_replayer_keeps_what_was_not_forgotten_and_can_go_back(tmp_path: Path) -> None:
    replayer = Replayer(seconds(tmp_path, *range(100)), None)
    assert replayer.due(0, None, 50)[0] == 50
    replayer.forget(40)
    assert replayer.lines(40, 42) == ["40", "41"]
    assert replayer.lines(3, 5) == ["3", "4"]  # reads the recording again
    assert replayer.lines(98, 102) == ["98", "99"]
