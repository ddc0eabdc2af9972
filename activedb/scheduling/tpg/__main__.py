"""``python -m activedb.scheduling.tpg``: measure the decision model's thresholds on this machine.

The output is Python code for ``TPG(thresholds=...)``. No other work should run meanwhile.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields

from activedb.scheduling.tpg._calibration import calibrate
from activedb.scheduling.tpg._model import Thresholds


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the thresholds and print them."""
    parser = argparse.ArgumentParser(
        prog="python -m activedb.scheduling.tpg",
        description="Measure the thresholds of the TPG's decision model on this machine.",
    )
    parser.add_argument("--threads", type=int, default=2, help="of the scheduler (default 2)")
    parser.add_argument("--operations", type=int, default=4000, help="of the largest batches")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is run")
    chosen = parser.parse_args(arguments)
    if min(chosen.threads, chosen.operations, chosen.rounds) < 1:
        parser.error("--threads, --operations and --rounds are whole numbers from 1")
    print(as_python(calibrate(chosen.threads, chosen.operations, chosen.rounds)))


def as_python(thresholds: Thresholds) -> str:
    """Return the thresholds as Python code, to four digits."""
    lines = ["Thresholds("]
    for field in fields(thresholds):
        value = getattr(thresholds, field.name)
        if isinstance(value, str):
            shown = f'"{value}"'
        elif value == float("inf"):
            shown = 'float("inf")'
        else:
            shown = f"{float(f'{value:.4g}'):g}"
        lines.append(f"    {field.name}={shown},")
    return "\n".join([*lines, ")"])


if __name__ == "__main__":
    main()
