"""Behaviour without numba, and without numpy."""

from __future__ import annotations

import subprocess
import sys

from tests.patience import PATIENCE_S

NO_NUMBA = """
import sys
sys.modules["numba"] = None
from activedb.scheduling import Program, SharedTable
from activedb.columns.events import EventColumns
from activedb.columns.program import ColumnRun

table = SharedTable("t", initial=0, size=4, history=1)
program = Program("p", [table])
program.on("E")(lambda e, access: access.write(table[e["k"]], lambda v, x: v + x, e["x"]))
run = ColumnRun(program)
batch = EventColumns.of_arrays(["E"], [0, 0, 0], [1, 2, 3], {"k": [0, 9, 0], "x": [1.0, 1.0, 2.0]})
results = run.feed(batch, 10)
assert results.decision == "python"
assert run.not_compiled == "numba is not installed"
assert run.state.newest(table) == {0: 3.0}
assert [refusal.row for refusal in results.refused] == [1]
"""

NO_NUMPY = """
import sys
sys.modules["numpy"] = None
import activedb.scheduling
from activedb.errors import ConfigurationError
try:
    import activedb.columns.program
except ConfigurationError as error:
    assert "pip install '.[columnar]'" in str(error)
else:
    raise AssertionError("it was imported")
"""


def _run(text: str) -> None:
    subprocess.run([sys.executable, "-c", text], check=True, timeout=PATIENCE_S)


def test_without_numba_programs_run_in_python() -> None:
    _run(NO_NUMBA)


def test_without_numpy_the_room_says_what_to_install_and_others_do_without() -> None:
    _run(NO_NUMPY)
