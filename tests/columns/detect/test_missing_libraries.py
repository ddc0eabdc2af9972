"""Columns without the libraries that they need."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
import pytest
from activedb.columns.detect import ColumnarDetector
from activedb.errors import ConfigurationError
from activedb.events import event, seq
pattern = seq(event("A"), event("B"))
with pytest.raises(ConfigurationError, match="pip install '"):
    ColumnarDetector(pattern)
"""

WITHOUT_PYARROW = """
import sys
sys.modules["pyarrow"] = None
import pytest
from activedb.errors import ConfigurationError
with pytest.raises(ConfigurationError, match="columns of events need pyarrow"):
    import activedb.columns.detect
"""

WITHOUT_COLUMNS = """
import sys
import activedb
assert "numba" not in sys.modules
assert "activedb.columns.detect" not in sys.modules
"""


@pytest.mark.parametrize("program", [WITHOUT_NUMBA, WITHOUT_PYARROW, WITHOUT_COLUMNS])
def test_columns_name_a_missing_library_and_the_rest_works_without_it(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
