"""The mutants of `tests/mutants.py` still apply: each changes one place of the source."""

from __future__ import annotations

import ast

import pytest

from tests.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_changes_one_place_and_is_still_python(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert source.count(mutant.before) == 1
    changed = source.replace(mutant.before, mutant.after)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    assert all((ROOT / "tests" / folder).is_dir() for folder in mutant.folders)
