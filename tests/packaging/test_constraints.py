"""Constraints pin all that `make` installs, or the oldest that pyproject.toml allows."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.packaging.distributions import PYPROJECT, REPOSITORY
from tools.required import required

if TYPE_CHECKING:
    from collections.abc import Iterator

NOT_INSTALLED_BY_MAKE = {"berkeleydb", "pyright"}


def pins(file: str = "constraints.txt") -> dict[str, str]:
    lines = (REPOSITORY / file).read_text("utf-8").splitlines()
    found = [Requirement(line) for line in lines if not line.startswith("#")]
    assert [each.name for each in found] == sorted({canonicalize_name(e.name) for e in found})
    versions = {}
    for each in found:
        (specifier,) = each.specifier
        assert specifier.operator == "=="
        versions[each.name] = specifier.version
    return versions


def declared() -> Iterator[Requirement]:
    project = PYPROJECT["project"]
    yield from map(Requirement, project["dependencies"])
    for extra, requirements in project["optional-dependencies"].items():
        if extra not in NOT_INSTALLED_BY_MAKE:
            yield from map(Requirement, requirements)


def test_each_declared_requirement_is_pinned_within_its_range() -> None:
    pinned = pins()
    for each in declared():
        if (name := canonicalize_name(each.name)) != "activedb":
            assert each.specifier.contains(pinned[name]), each


def test_lowest_versions_that_are_tested_are_the_lowest_allowed() -> None:
    pinned = pins("constraints-lowest.txt")
    for each in map(Requirement, PYPROJECT["project"]["dependencies"]):
        (lowest,) = (s.version for s in each.specifier if s.operator == ">=")
        for name in (each.name, *(f"{each.name}-{extra}" for extra in each.extras)):
            assert Version(pinned[canonicalize_name(name)]) == Version(lowest), name


def test_what_requirements_require_is_pinned() -> None:
    try:
        installed = required("activedb", ("spark", "dev"))
    except (importlib.metadata.PackageNotFoundError, ValueError) as error:
        pytest.skip(f"activedb[spark,dev] is not installed here: {error}")
    pinned = pins()
    assert {each.name for each in installed} - {"activedb", *pinned} == set()
