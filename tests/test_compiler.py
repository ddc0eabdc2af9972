"""Compiled code is kept until any source file is newer."""

from __future__ import annotations

import os
from pathlib import Path

from activedb.compiler import forget_old_code


def test_forget_old_code_removes_what_was_compiled_before_any_file_was_changed(
    tmp_path: Path,
) -> None:
    kept = tmp_path / "__pycache__"
    kept.mkdir()
    for name, changed_s in (("a.py", 100), ("b.py", 300)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (changed_s, changed_s))
    for name, compiled_s in (("a.f.nbi", 200), ("b.f.nbi", 400), ("a.cpython.pyc", 200)):
        (kept / name).touch()
        os.utime(kept / name, (compiled_s, compiled_s))
    forget_old_code(tmp_path)
    assert sorted(file.name for file in kept.iterdir()) == ["a.cpython.pyc", "b.f.nbi"]
    forget_old_code(tmp_path / "missing")
