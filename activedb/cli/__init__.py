"""The command line: ``activedb run``, ``activedb demo``, ``activedb migrate``."""

from activedb.cli._main import main

__all__ = ["main"]
