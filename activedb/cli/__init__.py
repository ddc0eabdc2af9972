"""The command line: ``activedb run``, ``rules``, ``pending``, ``dead-letter`` and others."""

from activedb.cli._main import main

__all__ = ["main"]
