"""The distributions, built once per run from a clean copy of the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.packaging.distributions import Distributions, build

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="package")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """The source distribution, and the wheel that is built from it."""
    folder: Path = tmp_path_factory.mktemp("distributions")
    return build(folder)
