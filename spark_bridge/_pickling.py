"""Pickles for Spark's executors, which lack the user's files."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from pyspark import cloudpickle

__all__ = ["dumps"]

_EVERYWHERE = {"activedb", "coupling", "lockmgr", "pyspark", "spark_bridge"}
_seen: set[str] = set()
"""Outermost packages that were checked already."""


def dumps(value: Any) -> bytes:
    """Pickle a value, with the functions and classes of modules that executors cannot import.

    Pickled by value are lambdas and definitions of the running program, of a file given to
    ``activedb run``, or of files beside these. Installed modules are pickled by name.

    Raises
    ------
    Exception
        Any exception that the value's parts raise because they cannot be pickled.
    """
    with io.BytesIO() as file:
        pickler: Any = _Pickler(file)
        pickler.dump(value)
        return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is FunctionType or issubclass(kind, type):
            _look_at(getattr(obj, "__module__", None))
        elif kind is ModuleType:
            _look_at(obj.__name__)
        return super().reducer_override(obj)


def _look_at(name: Any) -> None:
    """Register a module for pickling by value, if executors cannot import it."""
    outermost = name.partition(".")[0] if isinstance(name, str) else ""
    module = sys.modules.get(outermost)
    if module is None or outermost in _seen:
        return
    _seen.add(outermost)
    if not _is_installed(outermost, module):
        register: Any = cloudpickle.register_pickle_by_value
        register(module)


def _is_installed(name: str, module: ModuleType) -> bool:
    if name in _EVERYWHERE or name in sys.stdlib_module_names or name == "__main__":
        return True  # (definitions in __main__ are always pickled by value)
    spec = PathFinder.find_spec(name, _path_elsewhere())
    if spec is None:
        return False
    there, here = spec.origin, getattr(module, "__file__", None)
    return there is None or here is None or Path(there).samefile(here)


@cache
def _path_elsewhere() -> list[str]:
    """Return the import path of this Python when it is started elsewhere, as for executors.

    It has neither the folder of the program nor additions that the program made to its own path.
    """
    told = "import json, sys; print(json.dumps(sys.path))"
    started = [sys.executable, "-P", "-c", told]
    done = subprocess.run(started, cwd="/", capture_output=True, check=True)  # noqa: S603
    path: list[str] = json.loads(done.stdout)
    return path
