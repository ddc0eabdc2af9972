"""Places where read data can become code are known, and why nothing from outside gets there.

A new one fails the test. Read data (JSON, Arrow, `yaml.SafeLoader`) instead of pickles and code; if
it has to be, say below whose data it is, and in docs/security.md.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

import activedb as adb
from activedb.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("activedb", "coupling", "lockmgr", "spark_bridge", "migrations")

_NAMES = {"eval", "exec", "compile", "__import__"}
_DOTTED = {
    "pickle": {"load", "loads", "Unpickler"},
    "cloudpickle": {"load", "loads"},
    "marshal": {"load", "loads"},
    "shelve": {"open"},
    "yaml": {"load", "load_all", "full_load", "unsafe_load", "full_load_all", "unsafe_load_all"},
    "os": {"system", "popen", "startfile"},
    "importlib": {"import_module"},
    "util": {"spec_from_file_location"},
    "runpy": {"run_path", "run_module"},
    "ctypes": {"CDLL"},
}
_KEYWORDS = {"shell", "allow_pickle"}

_MAY_HAVE_SOME = re.compile(
    "|".join(
        sorted({*_NAMES, *_KEYWORDS, "read_pickle", *(n for ns in _DOTTED.values() for n in ns)})
    )
)
"""Pattern for the text of a module, which saves parsing most of them."""

_KERNELS = "of names and numbers made here, and functions of the program's own"
_SPARK = "what this program has pickled for its tasks, by way of Spark's own connections"

KNOWN = {
    "activedb/__init__.py __getattr__ importlib.import_module": "modules of activedb, named there",
    "activedb/cli/_events.py _parquet importlib.import_module": "pyarrow, by its name",
    "activedb/cli/_running.py _module_of util.spec_from_file_location": "the file it is given",
    "activedb/clock/_sources.py ntp_adjtime ctypes.CDLL": "the C library of this process",
    "activedb/monitor/_extras.py needed importlib.import_module": "libraries of extras, by name",
    "activedb/rules/_data.py rules_from_file yaml.load": "with a yaml.SafeLoader",
    "activedb/rules/_data.py FunctionNames._module importlib.import_module": (
        "modules that the caller has allowed by name"
    ),
    "activedb/scheduling/partitioned/_task.py loads pickle.loads": _SPARK,
    "activedb/function_sources.py _compiled compile": "the source of a loaded function",
    "activedb/columns/program/_kernels.py Kernel.__init__ compile": _KERNELS,
    "activedb/columns/program/_kernels.py Kernel.__init__ exec": _KERNELS,
    "activedb/columns/program/_writer.py PlainLoop.__init__ compile": _KERNELS,
    "activedb/columns/program/_writer.py PlainLoop.__init__ exec": _KERNELS,
    "activedb/store/server/_watcher.py _stop util.spec_from_file_location": "the module beside it",
    "activedb/testing/killed.py main runpy.run_path": "the program of a test, in a test",
    "spark_bridge/_matching_operator.py Matching._plan pickle.loads": _SPARK,
}


def _calls(path: Path, root: Path = REPOSITORY) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    if not _MAY_HAVE_SOME.search(text):
        return
    tree = ast.parse(text)

    def visit(node: ast.AST, scope: tuple[str, ...]) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = (*scope, node.name)
        if isinstance(node, ast.Call):
            found = _named(node)
            if found is not None:
                yield f"{path.relative_to(root).as_posix()} {'.'.join(scope)} {found}"
        for child in ast.iter_child_nodes(node):
            yield from visit(child, scope)

    yield from visit(tree, ())


def _named(call: ast.Call) -> str | None:
    for keyword in call.keywords:
        is_off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        if keyword.arg in _KEYWORDS and not is_off:
            return f"{keyword.arg}="
    match call.func:
        case ast.Name(name) if name in _NAMES:
            return name
        case ast.Attribute(ast.Name(of) | ast.Attribute(_, of), name):
            if name in _DOTTED.get(of, ()):
                return f"{of}.{name}"
            if name == "read_pickle":
                return f"{of}.{name}"
    return None


def test_what_can_become_code_is_known() -> None:
    found = {
        call
        for package in PACKAGES
        for path in sorted((REPOSITORY / package).rglob("*.py"))
        for call in _calls(path)
    }
    assert found - KNOWN.keys() == set(), "can become code, and is not known"
    assert KNOWN.keys() - found == set(), "known, and not there any more"


@pytest.mark.parametrize(
    "program",
    [
        "pickle.loads(data)",
        "eval(data)",
        "yaml.unsafe_load(data)",
        "subprocess.run(data, shell=True)",
        "numpy.load(data, allow_pickle=True)",
        "pandas.read_pickle(data)",
        "importlib.import_module(data)",
    ],
)
def test_new_place_is_found(tmp_path: Path, program: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(f"def f(data):\n    return {program}\n")
    (found,) = _calls(path, tmp_path)
    assert found.startswith("module.py f ")


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.system ['touch ran']",
        "!!python/name:os.system",
        "!!python/module:os",
        "!!python/object:activedb.Database {}",
    ],
)
def test_rules_in_yaml_make_no_objects(tmp_path: Path, tag: str) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(f"- {{name: r, on: {{event: E}}, do: {tag}}}\n")
    with adb.connect("memory://") as db, pytest.raises(DefinitionError, match="cannot be read"):
        db.rules.load_file(path)


@pytest.mark.parametrize("function", ["os:system", "builtins:eval", "subprocess:run", "os.system"])
def test_rules_in_yaml_call_only_what_is_allowed(tmp_path: Path, function: str) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(f"- {{name: r, on: {{event: E}}, do: '{function}'}}\n")
    with adb.connect("memory://") as db:
        with pytest.raises(DefinitionError, match=r"are not allowed here|module:function"):
            db.rules.load_file(path)
        assert list(db.rules) == []


def test_texts_of_rules_call_only_what_is_allowed() -> None:
    with adb.connect("memory://") as db:
        with pytest.raises(DefinitionError, match="functions of module 'os' are not allowed here"):
            db.rules.load_text("CREATE RULE r ON E CALL os:system;")
        assert list(db.rules) == []


def test_loader_of_rules_is_a_safe_one() -> None:
    from activedb.rules import _data

    assert issubclass(_data._Loader, yaml.SafeLoader)
    assert not any("python" in str(tag) for tag in _data._Loader.yaml_constructors)
