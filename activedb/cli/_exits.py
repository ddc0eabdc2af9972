"""Exit statuses of the process, and its error messages.

========== ======================================================================
status     meaning
========== ======================================================================
0          done
1          the run or a check failed, or the request was not met: (demo) the outcome disagrees
           with the recount, (audit) violations, (doctor) problems, (migrate --check) migrations
           are due, (rules analyze --strict) findings, (dead-letter retry) some are left, (batches
           compensate) it was not done, (decisions resolve) it was decided before
2          wrong usage, configuration or definition
3          no database server answers
130        interrupted (also a follower ended by Ctrl-C); a second signal to a worker or follower
========== ======================================================================

The statuses are stable: each keeps its meaning. `docs/cli.md` has the same table.
"""

from __future__ import annotations

from activedb.errors import (
    ActiveDBError,
    ConfigurationError,
    DefinitionError,
    RuleSyntaxError,
    ServerUnreachable,
    StreamError,
)

__all__ = ["INTERRUPTED", "message_of", "status_of"]

INTERRUPTED = 130


def status_of(error: Exception) -> int:
    """Return the status for an error that ends a command."""
    if isinstance(error, ServerUnreachable):
        return 3
    if isinstance(error, ConfigurationError | DefinitionError):
        return 2
    return 1


def message_of(error: Exception) -> str:
    """Return one line about an error."""
    if isinstance(error, RuleSyntaxError):  # the text's own line, with a caret below it
        return str(error)
    text = " ".join(str(error).split())
    if isinstance(error, ActiveDBError) and not isinstance(error, StreamError):
        return text
    return f"{type(error).__name__}: {text} (--traceback shows where)"
