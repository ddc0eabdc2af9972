"""``activedb match`` where time completes matches: its clock goes from one due time to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from activedb.cli._events import ColumnOptions, EventFile
from activedb.cli._matching import FileMatching
from activedb.events import Detector, Occurrence, detect
from activedb.language import parse_pattern
from tests.drawing import Worlds
from tests.effort import calls_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calling import Caller

TICKING = [
    "EVERY 1 s",
    "SEQ(A, EVERY 1 s) WITHIN 3 s",
    "SEQ(A, EVERY 1 s)",
    "PERIODIC(A, 1 s, B)",
    "PERIODIC*(A, 1 s, B)",
    "AFTER(2 s, A)",
    "SEQ(A, !B) WITHIN 2 s",
    "ALL(A, EVERY 2 s) WITHIN 4 s",
    "ANY(EVERY 2 s, EVERY 3 s)",
]


def matching(
    folder: Path, events: list[tuple[int, str]], *patterns: str, until: int
) -> FileMatching:
    path = folder / "events.csv"
    path.write_text("time,type\n" + "".join(f"{at},{name}\n" for at, name in events))
    queries = {pattern: parse_pattern(pattern) for pattern in patterns}
    return FileMatching(EventFile.of(path), queries, ColumnOptions(), until=str(until))


def found(run: FileMatching) -> list[tuple[str, Occurrence]]:
    return list(run.run(lambda text: None, lambda text: None))


@pytest.mark.parametrize("gap", ["between two rows", "up to --until"])
@pytest.mark.parametrize("pattern", ["EVERY 1 s", "PERIODIC(A, 1 s, B)", "SEQ(A, EVERY 1 s)"])
def test_match_with_a_limit_over_a_long_gap_takes_no_more_work_than_over_a_short_one(
    pattern: str, gap: str, call: Caller, tmp_path: Path
) -> None:
    def work(seconds: int) -> int:
        rows = "time,type\n1,A\n" + (f"{seconds},C\n" if gap == "between two rows" else "2,C\n")
        (tmp_path / "log.csv").write_text(rows)
        until = ["--until", str(seconds)] if gap == "up to --until" else []
        command = ("match", pattern, "--input", "log.csv", "--limit", "5", "--json", *until)

        def run() -> None:
            said = call(*command)
            assert said.status == 0, said.err
            assert [match["at"] for match in said.json["matches"]] == [2, 3, 4, 5, 6]

        return calls_of(run)

    work(100)  # imports
    assert work(3_000) < work(100) + 2_000


@pytest.mark.parametrize("pattern", [*TICKING, "SEQ(EVERY 1 s, B) WITHIN 3 s"])
def test_match_over_a_long_gap_keeps_no_more_steps_than_over_a_short_one(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = calls = 0
    advance = Detector.advance

    def watched(detector: Detector, us: int) -> list[Occurrence]:
        nonlocal most, calls
        made, calls = advance(detector, us), calls + 1
        if calls < 5 or calls % 500 == 0:
            most = max(most, sum(1 + len(step.journal) for step in detector._log))
        return made

    monkeypatch.setattr(Detector, "advance", watched)
    found(matching(tmp_path, [(1, "A"), (2, "C"), (2_000, "C")], pattern, until=4_000))
    assert most < 4_500


def test_match_over_random_events_makes_what_time_completes_as_detection_does(
    tmp_path: Path,
) -> None:
    worlds = Worlds(40, "match and time", together=10, ticks=40)
    for chance in worlds:
        patterns = chance.sample(TICKING, 3)
        events = sorted((chance.randrange(12), chance.choice("ABC")) for _ in range(6))
        until = chance.randrange(events[-1][0], 20)
        expected = []
        for pattern in patterns:
            occurrences = [Occurrence(name, at) for at, name in events]
            detected = detect(parse_pattern(pattern), occurrences, until=until)
            expected += [(pattern, o.us, _parts(o)) for o in detected]
        made = found(matching(tmp_path, events, *patterns, until=until))
        shown = [(name, o.us, _parts(o)) for name, o in made]
        assert sorted(shown) == sorted(expected), (patterns, events, until)
        assert [us for _, us, _ in shown] == sorted(us for _, us, _ in shown)
        worlds.met["ticks"] += len(shown)
        worlds.met["together"] += len({us for _, us, _ in shown}) < len(shown)


def _parts(o: Occurrence) -> str:
    return repr(sorted(o.parts.items()))
