"""What the process exits with, and what it says when something went wrong.

========== ======================================================================
status     meaning
========== ======================================================================
0          done
1          the run failed; or what was asked for is not so: (demo) the outcome disagrees with the
           recount, (audit) violations, (doctor) problems, (migrate --check) migrations are due,
           (rules analyze --strict) findings, (dead-letter retry) some are left, (batches
           compensate) it was not done, (decisions resolve) it was decided before
2          wrong usage, configuration or definition
3          no database server answers
130        interrupted (a follower that Ctrl-C has ended, too); a worker or follower told twice
========== ======================================================================

They are stable: a status keeps its meaning. `docs/cli.md` has the same table.
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
    """The status for an error that ends a command."""
    if isinstance(error, ServerUnreachable):
        return 3
    if isinstance(error, ConfigurationError | DefinitionError):
        return 2
    return 1


def message_of(error: Exception) -> str:
    """One line that says what went wrong."""
    if isinstance(error, RuleSyntaxError):  # the text's own line, with a caret below it
        return str(error)
    text = " ".join(str(error).split())
    if isinstance(error, ActiveDBError) and not isinstance(error, StreamError):
        return text
    return f"{type(error).__name__}: {text} (--traceback shows where)"
