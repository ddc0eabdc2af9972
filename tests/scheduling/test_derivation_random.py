"""Random functions of the short form: they never access what was not derived from their source."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activedb.errors import AccessError
from activedb.scheduling import Ref, SharedTable, View
from activedb.scheduling._program import derived
from tests.scheduling.comparison import SCALE
from tests.scheduling.functions import function_text


class Spy:
    """Hands accesses on to a view, and remembers those that were not declared."""

    def __init__(self, view: View):
        self._view = view
        self.breaches: list[str] = []
        self.accesses = 0

    def _handed_on(self, method: str, *given: Any) -> Any:
        self.accesses += 1
        try:
            return getattr(self._view, method)(*given)
        except AccessError as error:
            if "declared" in str(error):
                self.breaches.append(str(error))
            raise

    def read(self, ref: Ref) -> Any:
        return self._handed_on("read", ref)

    def write(self, ref: Ref, value: Any) -> None:
        self._handed_on("write", ref, value)


def _value(ref: Ref) -> Any:
    if hasattr(ref.key, "low"):
        return {2: 5}
    return [3] if ref.window_us is not None else hash(str(ref.key)) % 9


@pytest.mark.long
@pytest.mark.parametrize("wild", [0.0, 0.1, 0.5])
def test_random_function_accesses_only_what_was_derived(wild: float, tmp_path: Path) -> None:
    counts = {"accesses": 0, "narrow": 0}

    @settings(max_examples=200 * SCALE)
    @given(st.integers(0, 2**32 - 1), st.integers(-3, 9), st.integers(0, 9))
    def run(seed: int, x: int, y: int) -> None:
        text = function_text(seed, wild)
        path = tmp_path / f"f{seed}.py"
        path.write_text(text)
        tables = [SharedTable(name, key=int, history=60) for name in "ABC"]
        names: dict[str, Any] = {"TABLES": tables, "__file__": str(path)}
        try:
            code = compile(text, str(path), "exec")
        except SyntaxError:
            return  # such as a name that is both a parameter and nonlocal
        exec(code, names)
        reads, writes = derived(names["function"], tuple(tables))
        e: dict[str, Any] = {"x": x, "y": y, "zero": 0, "odd": [4], "table": tables[1]}
        may_read, may_write = tuple(reads(e)), tuple(writes(e))
        counts["narrow"] += any(not ref.is_whole for ref in (*may_read, *may_write))
        spy = Spy(View(_value, may_read, may_write))
        with contextlib.suppress(Exception):
            names["function"](spy, e)
        counts["accesses"] += spy.accesses
        assert spy.breaches == [], text
        path.unlink()

    run()
    if wild < 0.5:
        assert counts["accesses"] > 20
        assert counts["narrow"] > 20
