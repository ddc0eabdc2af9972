"""Container file: it copies what a build needs, and the image runs as an ordinary user.

Building the image needs a container engine and the registry, so that is not done here.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.packaging.distributions import PACKAGES, PYPROJECT

REPOSITORY = Path(__file__).resolve().parents[2]


def instructions() -> list[tuple[str, str]]:
    """Each instruction with its words, over continued lines."""
    text = (REPOSITORY / "Containerfile").read_text("utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    joined = re.sub(r"\\\n\s*", "", lines)
    return [
        (words[0], words[1])
        for line in joined.splitlines()
        if line.strip()
        for words in [line.split(maxsplit=1)]
    ]


def test_container_copies_what_a_build_needs_and_that_alone() -> None:
    copied = {
        name
        for instruction, words in instructions()
        if instruction == "COPY" and not words.startswith("--from")
        for name in words.split()[:-1]
    }
    project = {"pyproject.toml", "hatch_build.py", "README.md", "CHANGELOG.md", "LICENSE"}
    assert copied == {*PACKAGES, "migrations", *project}
    ignored = (REPOSITORY / ".containerignore").read_text("utf-8").splitlines()
    assert "*" in ignored
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    assert all((REPOSITORY / name).exists() for name in copied)


def test_container_installs_extras_that_there_are() -> None:
    (installs,) = [words for instruction, words in instructions() if "pip install" in words]
    (extras,) = re.findall(r"\.\[([a-z,]+)\]", installs)
    assert set(extras.split(",")) <= PYPROJECT["project"]["optional-dependencies"].keys()


def test_container_runs_as_an_account_of_its_own_and_holds_no_secret() -> None:
    found = instructions()
    last_stage = found[max(i for i, (name, _) in enumerate(found) if name == "FROM") :]
    users = [words for name, words in last_stage if name == "USER"]
    assert users == ["10001"]
    order = [name for name, _ in last_stage]
    assert order.index("USER") < order.index("ENTRYPOINT")
    assert not [
        words for _, words in found if re.search(r"password|token|secret|_URL=", words, re.I)
    ]
    assert not [words for name, words in found if name == "FROM" and ":" not in words]
    assert not [words for name, words in found if name == "ADD"]
