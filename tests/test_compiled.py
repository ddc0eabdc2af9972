"""The wheel, pure and compiled; the compiled lockmgr passes its tests and those of its users."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from xml.etree import ElementTree
from zipfile import ZipFile

import pytest

from tests.patience import TEST_S

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("activedb", "coupling", "lockmgr", "spark_bridge")
EXTENSION = sysconfig.get_config_var("EXT_SUFFIX")
COMPILED = ("_core", "_deadlock", "_graph", "_manager", "_modes", "_replies", "_structures")
PLAIN = ("-p", "no:cacheprovider", "--import-mode=append", f"--rootdir={REPOSITORY}")
ABOVE = (  # what calls it back from within, waits in it, or keeps values beneath its locks
    "transactions/test_own_thread.py",
    "transactions/test_nesting.py",
    "transactions/test_threads.py",
    "firing/test_changed_in_place.py",
    "firing/test_liveness.py",
    "firing/test_tries.py",
)

RUN_TESTS = """
import sys, lockmgr, lockmgr._core, pytest
assert lockmgr._core.__file__.endswith(sys.argv[1]), lockmgr._core.__file__
sys.exit(pytest.main(sys.argv[2:]))
"""


def _run(
    *command: str, compile_it: str | None = None, cwd: Path | None = None, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python in an environment that says whether to compile, and where to import from first."""
    ours = (
        "ACTIVEDB_COMPILE",
        "ACTIVEDB_TEST_UNTIL",
        "ACTIVEDB_TEST_SCALE",
        "PYTHONPATH",
        "PYTEST_ADDOPTS",
    )
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    if compile_it is not None:
        environment["ACTIVEDB_COMPILE"] = compile_it
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), str(REPOSITORY)])
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TEST_S,
        check=False,
    )


def _pip(
    *arguments: str, into: Path, compile_it: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Build a wheel offline, with what is installed."""
    _need_modules("hatchling", "pip")
    return _run(
        *("-m", "pip", "--disable-pip-version-check", "wheel", "--no-index", "--no-deps"),
        *("--no-build-isolation", "--wheel-dir", str(into), *arguments),
        compile_it=compile_it,
    )


def _wheel(folder: Path, compile_it: str | None = None) -> Path:
    done = _pip(str(REPOSITORY), into=folder, compile_it=compile_it)
    assert done.returncode == 0, done.stdout
    (wheel,) = folder.iterdir()
    return wheel


def _run_compiled(wheel: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run tests with what is in a compiled wheel."""
    installed = folder / "installed"
    with ZipFile(wheel) as archive:
        archive.extractall(installed)
    return _run(
        *("-P", "-c", RUN_TESTS, EXTENSION, *PLAIN, "-q", "--tb=short", *arguments),
        cwd=folder,
        path=installed,
    )


def _need_modules(*modules: str) -> None:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"building a wheel needs {' and '.join(missing)}")


def _need_compiler() -> None:
    _need_modules("mypyc", "setuptools")
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        pytest.skip(f"compiling lockmgr needs the C compiler {compiler}")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("compiling lockmgr needs the header Python.h")


def _python_files() -> set[str]:
    return {
        path.relative_to(REPOSITORY).as_posix()
        for package in PACKAGES
        for path in REPOSITORY.joinpath(package).rglob("*.py")
    }


def _in_source_tree() -> list[Path]:
    return [
        path
        for folder in (REPOSITORY, REPOSITORY / "lockmgr")
        for path in folder.iterdir()
        if path.suffix in (".c", ".so", ".pyd")
    ]


@pytest.fixture(scope="module")
def compiled_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    _need_compiler()
    return _wheel(tmp_path_factory.mktemp("compiled"), "1")


@pytest.mark.long
@pytest.mark.parametrize("value", [None, "0"])
def test_wheel_by_default_is_pure_and_has_every_module(tmp_path: Path, value: str | None) -> None:
    wheel = _wheel(tmp_path, value)
    assert wheel.name.endswith("-py3-none-any.whl")
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert names >= _python_files()
    assert not [name for name in names if name.endswith((".so", ".pyd"))]


@pytest.mark.long
def test_wheel_compiled_has_extensions_beside_every_module(compiled_wheel: Path) -> None:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{python}-{python}" in compiled_wheel.name
    with ZipFile(compiled_wheel) as archive:
        names = set(archive.namelist())
    assert names >= _python_files()
    extensions = {name for name in names if name.endswith(EXTENSION)}
    assert {f"lockmgr/{module}{EXTENSION}" for module in COMPILED} <= extensions
    assert len([name for name in extensions if "/" not in name]) == 1
    assert not _in_source_tree()


@pytest.mark.long
def test_compiled_lockmgr_passes_every_test_of_lockmgr(
    compiled_wheel: Path, tmp_path: Path
) -> None:
    tests = str(REPOSITORY / "tests" / "lockmgr")
    pure = _run("-m", "pytest", *PLAIN, "--collect-only", "-q", tests, cwd=REPOSITORY)
    collected = re.search(r"^(\d+) tests collected", pure.stdout, re.M)
    assert collected is not None, pure.stdout

    report = tmp_path / "report.xml"
    done = _run_compiled(compiled_wheel, tmp_path, f"--junitxml={report}", tests)
    assert done.returncode == 0, done.stdout
    (suite,) = ElementTree.parse(report).getroot()
    skipped = [why.attrib["message"] for why in suite.iter("skipped")]
    impossible = [why for why in skipped if why.startswith("compiled modules")]
    # a module that is skipped counts as a test, but is not collected
    ran = int(suite.attrib["tests"]) - len(skipped)
    assert ran == int(collected[1]) - len(impossible)
    assert len(impossible) <= 1


@pytest.mark.long
def test_transactions_and_rules_do_with_the_compiled_lockmgr_what_they_do_without(
    compiled_wheel: Path, tmp_path: Path
) -> None:
    tests = [str(REPOSITORY / "tests" / each) for each in ABOVE]
    done = _run_compiled(compiled_wheel, tmp_path, "-k", "memory", *tests)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d\d+ passed", done.stdout, re.M), done.stdout


@pytest.mark.long
def test_wheel_asked_for_with_nonsense_is_refused(tmp_path: Path) -> None:
    done = _pip(str(REPOSITORY), into=tmp_path, compile_it="maybe")
    assert done.returncode != 0
    assert "ACTIVEDB_COMPILE is 'maybe'; it must be one of '1', 'true'," in done.stdout
    assert "Traceback" not in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_wheel_of_lockmgr_that_cannot_be_compiled_is_not_made(tmp_path: Path) -> None:
    _need_compiler()
    project = tmp_path / "project"
    project.mkdir()
    for name in ("README.md", "hatch_build.py", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, project)
    for name in (*PACKAGES, "migrations"):
        shutil.copytree(REPOSITORY / name, project / name)
    (project / "lockmgr" / "_wrong.py").write_text("number: int = 'text'\n")
    done = _pip(str(project), into=tmp_path / "wheels", compile_it="yes")
    assert done.returncode != 0
    assert "lockmgr could not be compiled:" in done.stdout
    assert "lockmgr/_wrong.py:1: error: Incompatible types in assignment" in done.stdout
    assert not list(tmp_path.glob("wheels/*"))


def test_editable_install_compiled_is_refused(tmp_path: Path) -> None:
    _need_modules("hatchling")
    build = "import sys, hatchling.build; hatchling.build.build_editable(sys.argv[1])"
    done = _run("-c", build, str(tmp_path), compile_it="1", cwd=REPOSITORY)
    assert done.returncode != 0
    assert "an editable install runs the Python files as they are" in done.stdout
    assert not list(tmp_path.iterdir())
