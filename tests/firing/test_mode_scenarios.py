"""The mode table, a file for each mode: every step replayed on the engine.

How to read the files: `tests.firing.mode_script`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coupling import Coupling
from tests.firing.mode_script import Scene, scenes_of

if TYPE_CHECKING:
    from tests.databases import Place

FOLDER = Path(__file__).parent / "modes"
SCENES = [
    pytest.param(steps, id=f"{file.stem}: {title}")
    for file in sorted(FOLDER.glob("*.txt"))
    for title, steps in scenes_of(file.read_text(encoding="utf-8")).items()
]


@pytest.mark.parametrize("steps", SCENES)
def test_scene_of_a_mode_replayed_goes_as_it_is_told(steps: list[str], where: Place) -> None:
    Scene(where).play(steps)


def test_every_mode_has_a_file_that_begins_with_its_row_in_words() -> None:
    files = {file.stem: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.txt")}
    assert files.keys() == {str(mode) for mode in Coupling}
    for text in files.values():
        comments, _, scenes = text.partition("\n\n")
        assert all(line.startswith("# ") for line in comments.splitlines())
        assert "\n# Serves the mode table" in comments
        assert scenes.startswith("== ")


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (["rule R deferred", "T begin", "T raises E", "recorded -> R"], "recorded -> R: nothing"),
        (["T begin", "T commit -> T committed", "order -> commit T"], "begin T, commit T"),
        (["T begin", "T writes", "T commit -> T committed", "left -> nothing"], r"\['T'\]"),
    ],
)
def test_scene_that_goes_otherwise_names_the_step(
    where: Place, steps: list[str], told: str
) -> None:
    scene = Scene(where)
    scene.play(steps[:-1])
    scene.patience_s = 0.2  # for what never becomes true
    with pytest.raises(AssertionError, match=told):
        scene.play(steps[-1:])
