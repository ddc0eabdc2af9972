"""The command line, called in this process: what it exits with and what it says."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from activedb.cli import main


@dataclass(frozen=True)
class Said:
    """Outcome of a command.

    Attributes
    ----------
    status : int
    out, err : str
        Standard output and standard error.
    """

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Caller:
    """Caller of ``activedb`` with arguments, over no settings but the given ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Said:
        self._monkeypatch.setattr(sys, "argv", ["activedb", *arguments])
        # As the program is started, however these tests are: else it is "python -m pytest".
        self._monkeypatch.setattr(sys.modules["__main__"], "__package__", None)
        self._capsys.readouterr()
        settings = dict(os.environ)
        with pytest.raises(SystemExit) as ended:
            main()
        assert os.environ == settings  # it would be told to what runs next here
        out, err = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Said(ended.value.code, out, err)
