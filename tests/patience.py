"""How long tests wait for what has to come: a safety net, so that nothing hangs for ever.

No verdict hangs on it: what takes so long will never come, also on a slow machine that does other
work. Who mends a test that hangs gives less: ``ACTIVEDB_TEST_PATIENCE=0.05``.
"""

from __future__ import annotations

import os

PATIENCE_S = 600 * float(os.environ.get("ACTIVEDB_TEST_PATIENCE", "1"))
"""For a state, a thread, a program, a server."""
TEST_S = 6 * PATIENCE_S * int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
"""For a whole test, which waits more than once, and for what runs tests or installs packages."""
