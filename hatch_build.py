"""Compiles lockmgr for the wheel when ``ACTIVEDB_COMPILE`` says so; otherwise changes nothing.

The compiler is mypyc. It works on a copy in a temporary folder, so nothing is left in the source
tree; the wheel has the extension modules beside the Python files, and Python prefers them.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_VARIABLE = "ACTIVEDB_COMPILE"
_MEANINGS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("", "0", "false", "no", "off"), False),
}

_PACKAGE = "lockmgr"
_INTERPRETED = {
    "__init__.py",  # imports, nothing else
    "_native.py",  # what it says depends on whether it is read by the compiler or run
    "_verify.py",  # for tests, and its error is one that a compiled class cannot inherit from
    "_waiter.py",  # sleeps; tests replace its classes
}


class CompileLockmgr(BuildHookInterface[BuilderConfig]):
    """Adds compiled modules of lockmgr to a wheel."""

    def dependencies(self) -> list[str]:
        """Return what is needed to build, besides hatchling."""
        return ["mypy[mypyc]>=2.4,<3", "setuptools>=65"] if self._is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and have the results included."""
        if not self._is_wanted():
            return
        if version == "editable":
            self.app.abort(
                f"{_VARIABLE} is set, but an editable install runs the Python files as they are; "
                "install without --editable, or unset the variable"
            )
        for module in ("mypyc", "setuptools"):
            if importlib.util.find_spec(module) is None:
                self.app.abort(
                    f"{_VARIABLE} is set, but {module} is not installed; build without "
                    f"--no-build-isolation, or install {' and '.join(self.dependencies())}"
                )
        # finalize removes it, but is not called when something fails: then it goes with this hook
        self._folder = TemporaryDirectory(prefix="activedb-")
        folder = Path(self._folder.name)
        for extension in self._compile(folder):
            build_data["force_include"][str(extension)] = str(extension.relative_to(folder))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if self._is_wanted():
            self._folder.cleanup()

    def _compile(self, folder: Path) -> list[Path]:
        """Compile a copy of the package in `folder`; return the extension modules."""
        without_caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(self.root, _PACKAGE), folder / _PACKAGE, ignore=without_caches)
        modules = sorted(
            str(path.relative_to(folder))
            for path in (folder / _PACKAGE).glob("*.py")
            if path.name not in _INTERPRETED
        )
        done = subprocess.run(  # noqa: S603 - no shell, and the program is this Python
            [sys.executable, "-m", "mypyc", "--config-file=", *modules],
            cwd=folder,
            env={**os.environ, "MYPYC_OPT_LEVEL": "3", "MYPYC_DEBUG_LEVEL": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            self.app.abort(f"{_PACKAGE} could not be compiled:\n{done.stdout}")
        # in the package a module each; beside it the library that has the code of all of them
        return sorted(
            path
            for place in (folder, folder / _PACKAGE)
            for path in place.iterdir()
            if path.suffix in (".so", ".pyd")
        )

    def _is_wanted(self) -> bool:
        value = os.environ.get(_VARIABLE, "")
        wanted = _MEANINGS.get(value.strip().lower())
        if wanted is None:
            known = ", ".join(repr(meaning) for meaning in _MEANINGS if meaning)
            self.app.abort(f"{_VARIABLE} is {value!r}; it must be one of {known}, or empty")
        return bool(wanted)
