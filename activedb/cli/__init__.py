"""The command line: ``activedb run``, ``demo``, ``migrate``, ``audit``, ``rules``."""

from activedb.cli._main import main

__all__ = ["main"]
