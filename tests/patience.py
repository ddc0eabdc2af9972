"""Limits on waiting in tests: a safety net, so that nothing hangs for ever.

No verdict depends on them: what takes so long will never come, even on a slow machine that does
other work. To fix a test that hangs, set a lower limit: ``ACTIVEDB_TEST_PATIENCE=0.05``.
"""

from __future__ import annotations

import os

PATIENCE_S = 600 * float(os.environ.get("ACTIVEDB_TEST_PATIENCE", "1"))
"""Limit for a state, a thread, a program, a server."""
TEST_S = 6 * PATIENCE_S * int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
"""Limit for a whole test, which waits more than once, and for test runs and installations."""
