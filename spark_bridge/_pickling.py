"""Pickles for Spark's executors, which have not the user's files."""

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
"""The outermost packages that were looked at."""


def dumps(value: Any) -> bytes:
    """Pickle a value, with the functions and classes of modules that executors cannot import.

    Those are taken along: lambdas, what is defined in the program that runs, in a file given to
    ``activedb run``, or beside these. What is installed goes by its name.

    Raises
    ------
    Exception
        What the value's parts raise if they cannot be pickled.
    """
    with io.BytesIO() as file:
        pickler: Any = _Pickler(file)  # type: ignore[no-untyped-call]
        pickler.dump(value)
        return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is FunctionType or issubclass(kind, type):
            _look_at(getattr(obj, "__module__", None))
        elif kind is ModuleType:
            _look_at(obj.__name__)
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


def _look_at(name: Any) -> None:
    """See to it that what is in a module is taken along, if executors cannot import it."""
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
        return True  # (what is in __main__ is always taken along)
    spec = PathFinder.find_spec(name, _path_elsewhere())
    if spec is None:
        return False
    there, here = spec.origin, getattr(module, "__file__", None)
    return there is None or here is None or Path(there).samefile(here)


@cache
def _path_elsewhere() -> list[str]:
    """Where this Python finds modules when it is started elsewhere, as for executors.

    The folder of the program is not among them, nor what the program has put into its own path.
    """
    told = "import json, sys; print(json.dumps(sys.path))"
    started = [sys.executable, "-P", "-c", told]
    done = subprocess.run(started, cwd="/", capture_output=True, check=True)  # noqa: S603
    path: list[str] = json.loads(done.stdout)
    return path
