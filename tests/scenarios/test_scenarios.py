"""The scenario files: every step is replayed, and what it causes compared to the letter.

How to read them, and how to write them anew: `tests.scenarios.script`.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.patience import PATIENCE_S
from tests.scenarios.ground import LOCKING, MODES, Ground
from tests.scenarios.script import modes_of, replay
from tests.scenarios.stage import Stage
from tests.scenarios.strand import Step, Strand

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent / "scenarios"
OVERRIDES = tuple(f".{mode}" for mode in MODES)
FILES = {
    f"{file.parent.name}/{file.stem}": file
    for file in sorted(FOLDER.glob("*/*.txt"))
    if not file.stem.endswith(OVERRIDES)
}
REWRITE = os.environ.get("ACTIVEDB_REWRITE_SCENARIOS") == "1"


def modes_for(name: str, steps: str) -> tuple[str, ...]:
    """The modes in which a scenario is played, the one of its file first."""
    default = MODES if name.startswith("anomalies/") else LOCKING
    return tuple(modes_of(steps) or default)


PLAYED = [
    pytest.param(mode, name, id=f"{name}-{mode}")
    for mode in MODES
    for name, file in FILES.items()
    if mode in modes_for(name, file.read_text(encoding="utf-8"))
]


@pytest.fixture(scope="module")
def grounds(request: pytest.FixtureRequest) -> Iterator[dict[str, Ground]]:
    """The grounds opened so far."""
    opened: dict[str, Ground] = {}
    yield opened
    for ground in opened.values():
        ground.close()


@pytest.mark.long
@pytest.mark.parametrize(("mode", "name"), PLAYED)
def test_scenario_replayed_reads_the_same(
    mode: str, name: str, grounds: dict[str, Ground], request: pytest.FixtureRequest
) -> None:
    if mode not in grounds:
        url = None if mode == "memory" else request.getfixturevalue("postgres_url")
        grounds[mode] = Ground(mode, url)
    steps = FILES[name].read_text(encoding="utf-8")
    own = FILES[name].with_suffix(f".{mode}.txt")
    expected = own.read_text(encoding="utf-8") if own.exists() else steps
    try:
        actual = replay(steps, grounds[mode])
    except BaseException:
        del grounds[mode]  # what hangs there hangs for ever
        raise
    assert "as no serial order" not in actual, actual
    if not REWRITE:
        assert actual == expected
    elif mode == modes_for(name, steps)[0]:
        FILES[name].write_text(actual, encoding="utf-8")
    elif actual == steps:
        own.unlink(missing_ok=True)
    else:
        own.write_text(actual, encoding="utf-8")


def test_scenario_files_begin_with_what_they_show_and_what_that_serves() -> None:
    assert FILES
    for name, file in FILES.items():
        comments, _, steps = file.read_text(encoding="utf-8").partition("\n\n")
        assert all(line.startswith("# ") for line in comments.splitlines()), name
        assert "\n# Serves " in comments, name
        assert steps, name


def test_replay_wrong_expectations_are_replaced_by_what_happened() -> None:
    steps = (
        "# Kept.\n\ngiven accounts 1 balance=10\n\nT1 begin -> deadlock\nT2 begin\n"
        "T1 get accounts 1 for update\n  -> absent\nT2 get accounts 1 -> balance=11\n"
        "T1 commit\nT2 commit\ncommitted -> as T2, T1\n  nothing\n"
    )
    right = (
        "# Kept.\n\ngiven accounts 1 balance=10\n\nT1 begin -> ok\nT2 begin -> ok\n"
        "T1 get accounts 1 for update -> balance=10\nT2 get accounts 1 -> waits for T1\n"
        "T1 commit -> ok; T2 resumes: balance=10\nT2 commit -> ok\n"
        "committed -> as T1, T2\n  accounts 1 balance=10\n"
    )
    ground = Ground("memory", None)
    assert replay(steps, ground) == right
    assert replay(right, ground) == right
    ground.close()


def test_commit_comes_before_what_others_see_of_it_however_late_its_thread_tells_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ground, end = Ground("memory", None), Strand._end
    steps = (
        "given accounts 1 balance=10\n"
        "T1 begin\nT1.1 spawn\nT1.2 spawn\nT1.1 update accounts 1 balance=11\nT1.1.1 spawn\n"
        "T1.2 get accounts 1\nT1.1 commit\nT1.1.1 commit\nT1.2 commit\nT1 commit\ncommitted\n"
    )
    seen = threading.Event()

    def tells(self: Strand, name: str, error: BaseException | None) -> None:
        if name == "T1.1":
            assert seen.wait(PATIENCE_S)
        end(self, name, error)

    def finished(self: Stage, strand: Strand, step: Step, outcome: str) -> None:
        finish(self, strand, step, outcome)
        if outcome == "balance=11":
            seen.set()

    finish = Stage.finished
    monkeypatch.setattr(Strand, "_end", tells)
    monkeypatch.setattr(Stage, "finished", finished)
    lines = replay(steps, ground)
    assert "T1.1.1 commit -> ok; T1.2 resumes: balance=11; T1.1 resumes: ok\n" in lines
    assert "committed -> as T1\n" in lines
    ground.close()


@pytest.mark.parametrize(
    ("steps", "message", "note"),
    [
        ("T1 begin\nT1 sleeps\n", "not a step", "line 2: T1 sleeps"),
        ("T1 begin\nT2 get accounts 1\n", "there is no T2", "line 2: T2 get accounts 1"),
        ("T1 begin\nT1 get accounts 1\ncommitted\n", "has not ended", "line 3: committed"),
    ],
)
def test_replay_senseless_step_names_its_line(steps: str, message: str, note: str) -> None:
    with pytest.raises(AssertionError, match=message) as caught:
        replay(steps, Ground("memory", None))
    assert note in caught.value.__notes__
