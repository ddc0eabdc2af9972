"""Contents of the sdist and of the wheel, and the metadata of the wheel."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import sys
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.distributions import PACKAGES, PYPROJECT, REPOSITORY, VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.packaging.distributions import Distributions

EXTRAS: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]
FOR_DEVELOPERS = {"bench", "berkeleydb", "dev", "docs"}
"""Extras that no package of the wheel imports."""

OF_EXTRAS = (
    "activedb/columns/detect/",
    "activedb/columns/events/",
    "activedb/columns/program/",
    "activedb/dashboard/",
    "activedb/monitor/",
    "activedb/streams/columns/",
    "spark_bridge/",
)
"""Folders that are imported only where an extra is installed."""


def _files(tree: Path, folder: str, below: str) -> set[str]:
    root = tree / folder
    return {
        f"{below}/{path.relative_to(root).as_posix()}" for path in root.rglob("*") if path.is_file()
    }


# -- files -------------------------------------------------------------------------------------


@pytest.mark.long
def test_wheel_has_every_file_of_the_packages_and_the_migrations_and_nothing_else(
    distributions: Distributions,
) -> None:
    expected = {
        name for package in PACKAGES for name in _files(distributions.tree, package, package)
    }
    expected |= _files(distributions.tree, "migrations", "activedb/store/migrations")
    found = {name for name in distributions.in_wheel() if ".dist-info/" not in name}
    assert found == expected
    assert "activedb/py.typed" in found
    assert "activedb/language/grammar.lark" in found
    assert {name.partition("/")[0] for name in found} == set(PACKAGES)


@pytest.mark.long
def test_wheel_has_every_migration(distributions: Distributions) -> None:
    versions = {path.name for path in (REPOSITORY / "migrations" / "versions").glob("0*.py")}
    in_wheel = {
        name.rpartition("/")[2]
        for name in distributions.in_wheel()
        if name.startswith("activedb/store/migrations/versions/0")
    }
    assert versions == in_wheel
    assert len(versions) >= 12


@pytest.mark.long
def test_sdist_has_what_a_build_needs_and_neither_tests_nor_benchmarks(
    distributions: Distributions,
) -> None:
    found = distributions.in_sdist()
    expected = {"pyproject.toml", "hatch_build.py", "README.md", "CHANGELOG.md", "LICENSE"}
    for folder in (*PACKAGES, "migrations", "docs", "examples"):
        expected |= _files(distributions.tree, folder, folder)
    assert expected - found == set()
    assert {name.partition("/")[0] for name in found} & {"tests", "benchmarks", ".ci"} == set()


@pytest.mark.long
def test_distributions_have_the_licence(distributions: Distributions) -> None:
    text = (REPOSITORY / "LICENSE").read_text("utf-8")
    assert "Apache License" in text
    assert distributions.of_wheel("licenses/LICENSE") == text
    metadata = distributions.metadata()
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]


# -- metadata ----------------------------------------------------------------------------------


@pytest.mark.long
def test_metadata_names_version_python_commands_and_entry_points(
    distributions: Distributions,
) -> None:
    metadata = distributions.metadata()
    assert (metadata["Name"], metadata["Version"]) == ("activedb", VERSION)
    assert metadata["Requires-Python"] == ">=3.11"
    entries = distributions.of_wheel("entry_points.txt")
    assert "[console_scripts]\nactivedb = activedb.cli:main" in entries
    assert "[activedb.feeds]\nspark = spark_bridge:SparkFeed" in entries


@pytest.mark.long
def test_extras_are_those_of_the_project_and_their_requirements_can_be_met(
    distributions: Distributions,
) -> None:
    metadata = distributions.metadata()
    assert set(metadata.get_all("Provides-Extra") or ()) == set(EXTRAS)
    required = [Requirement(text) for text in metadata.get_all("Requires-Dist") or ()]
    for requirement in required:
        if canonicalize_name(requirement.name) == "activedb":
            assert requirement.extras <= set(EXTRAS), requirement
            continue
        assert requirement.specifier, f"{requirement} has no bounds"
        assert requirement.url is None, requirement
        try:
            installed = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of an extra that is not here
        assert requirement.specifier.contains(installed), f"{requirement}, and here is {installed}"


@pytest.mark.long
@pytest.mark.parametrize("package", PACKAGES)
def test_every_library_that_is_imported_is_required(package: str) -> None:
    """An environment with no more than the required libraries can run the package."""
    known = _distributions_by_import()
    own = {*PACKAGES, *sys.stdlib_module_names}
    required = {
        canonicalize_name(Requirement(d).name) for d in PYPROJECT["project"]["dependencies"]
    }
    extras = {
        canonicalize_name(Requirement(d).name)
        for extra, listed in EXTRAS.items()
        if extra not in FOR_DEVELOPERS
        for d in listed
    }
    missing = set()
    for path in sorted((REPOSITORY / package).rglob("*.py")):
        for name, is_at_once in _imports(path):
            if name in own:
                continue
            distributions = {canonicalize_name(found) for found in known.get(name, [name])}
            allowed = required | ({"pytest"} if package == "pytest_activedb" else set())
            if not is_at_once or _is_of_an_extra(path):
                allowed |= extras
            if not distributions & allowed:
                missing.add(f"{path.relative_to(REPOSITORY)} imports {name}")
    assert missing == set()


@functools.cache
def _distributions_by_import() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def _is_of_an_extra(path: Path) -> bool:
    """Return whether a module needs an extra, as `test_fresh_environment` ensures."""
    return path.relative_to(REPOSITORY).as_posix().startswith(OF_EXTRAS)


def _imports(path: Path) -> set[tuple[str, bool]]:
    """Outermost names that a module imports, and whether it does so as it is imported itself."""
    found: set[tuple[str, bool]] = set()

    def visit(node: ast.AST, at_once: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Try):
            at_once = False
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for statement in node.orelse:
                visit(statement, at_once)
            return
        if isinstance(node, ast.Import):
            found.update((alias.name.partition(".")[0], at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(((node.module or "").partition(".")[0], at_once))
        for child in ast.iter_child_nodes(node):
            visit(child, at_once)

    visit(ast.parse(path.read_text("utf-8")), at_once=True)
    return found
