"""A program that is traced, triggers a rule for others to run, and is killed.

``python -m tests.monitor.trace_program URL`` prints trace and span of what triggered the rule.
"""

from __future__ import annotations

import os
import signal
import sys

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_current_span

import activedb as adb
from activedb.monitor import trace


def main(url: str) -> None:
    db = adb.connect(url, firings="queue")
    db.rule(on=adb.event("E"), coupling="detached", name="rule")(lambda t, o: None)
    trace(db, TracerProvider())
    with db.transaction():
        found = get_current_span().get_span_context()
        db.signal("E")
    print(found.trace_id, found.span_id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
