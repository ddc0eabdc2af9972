"""Command line: ``activedb run``, ``rules``, ``pending``, ``dead-letter`` and others."""

import sys

from activedb import __version__

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its status."""
    if sys.argv[1:] == ["--version"]:
        print(f"activedb {__version__}")
        return
    from activedb.cli._main import main as run  # the commands take most of a second to load

    run()
