"""The lint for plain English finds idioms and wrong openings, and lets names pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools.words import PLACES, complaints, main

if TYPE_CHECKING:
    from pathlib import Path

PRONOUNS = ("nobody", "somebody", "anybody")
CALLED = {
    "in quotes": 'name = "{}"',
    "in single quotes": "name = '{}'",
    "as code": "# the user `{}` is absent",
}


def found(source: str) -> list[tuple[int, str]]:
    return list(complaints(source))


@pytest.mark.parametrize("word", [*PRONOUNS, "What", "it", "`Which`", "Runs"])
def test_docstring_that_opens_with_no_verb_or_noun_is_found(word: str) -> None:
    complaint = f'docstring opens with "{word.strip("`").lower()}"'
    source = f'def f():\n    """{word} waits."""\n'
    assert (2, complaint) in [(line, text.partition(":")[0]) for line, text in found(source)]


def test_docstring_that_opens_with_a_verb_or_a_noun_passes() -> None:
    assert found('"""Locks of rows."""\ndef f():\n    """Return a lock."""\n') == []


@pytest.mark.parametrize("word", [*PRONOUNS, *map(str.capitalize, PRONOUNS)])
@pytest.mark.parametrize("text", ["# so {} waits", 'raise E("so {} waits")', 'x = f"{{n}} {}"'])
def test_idiom_in_a_text_is_found(text: str, word: str) -> None:
    ((line, complaint),) = found(f"\n{text.format(word)}\n")
    assert line == 2
    assert complaint.startswith(f'"{word}": say ')


@pytest.mark.parametrize("word", PRONOUNS)
@pytest.mark.parametrize("called", CALLED)
def test_name_that_is_spelled_like_an_idiom_passes(called: str, word: str) -> None:
    assert found(CALLED[called].format(word)) == []


def test_user_in_a_url_passes() -> None:
    assert found(f'url = "postgresql://{PRONOUNS[0]}@127.0.0.1/rows"') == []


@pytest.mark.parametrize("word", PRONOUNS[1:])
def test_variable_in_a_message_passes(word: str) -> None:
    assert found(f'raise E(f"user {{{word.upper()}}} has a file")') == []


@pytest.mark.parametrize("word", PRONOUNS[1:])
def test_quoted_sentence_with_an_idiom_at_one_end_is_found(word: str) -> None:
    assert len(found(f'raise E("{word} waits")')) == 1
    assert len(found(f'raise E("wait for {word}")')) == 1


def test_files_of_all_places_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in PLACES:
        file = tmp_path / place if place.endswith(".md") else tmp_path / place / "inner" / "file.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"\n# {PRONOUNS[0]} waits\n", encoding="utf-8")
    assert main([]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[:2] for line in printed] == [
        [place if place.endswith(".md") else f"{place}/inner/file.py", "2"] for place in PLACES
    ]
    for file in tmp_path.rglob("*.*"):
        file.write_text("", encoding="utf-8")
    assert main(list(PLACES)) == 0
