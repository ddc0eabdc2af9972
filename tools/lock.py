"""Generator of constraints.txt: the versions that `make` installs.

``python -m tools.lock``: pip resolves activedb with the extras that `make` installs to the newest
versions that pyproject.toml allows, and installs nothing. Each version must suit every Python that
activedb supports, so run it with the oldest.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.utils import canonicalize_name

__all__ = ["CONSTRAINTS", "resolve"]

CONSTRAINTS = Path("constraints.txt")

_EXTRAS = "spark,dev"
_HEADER = "# Versions that `make` installs; `make lock` writes this file.\n"


def resolve(requirement: str, *options: str) -> dict[str, str]:
    """Return the version that pip would install of each distribution, by canonical name.

    Raises
    ------
    subprocess.CalledProcessError
        If the requirement cannot be resolved; pip says why on standard error.
    """
    command = ("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-")
    done = subprocess.run(  # noqa: S603 - pip, with arguments of ours
        [sys.executable, "-m", "pip", *command, "--no-input", *options, requirement],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = (each["metadata"] for each in json.loads(done.stdout)["install"])
    return {canonicalize_name(each["name"]): each["version"] for each in found}


def _oldest_python() -> tuple[int, ...]:
    requires: str = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"][
        "requires-python"
    ]
    return tuple(map(int, re.findall(r"\d+", requires)))


if __name__ == "__main__":
    if sys.version_info[:2] != (oldest := _oldest_python()):
        sys.exit(f"run this with Python {'.'.join(map(str, oldest))}, the oldest supported")
    versions = resolve(f".[{_EXTRAS}]")
    versions.pop("activedb")
    lines = (f"{name}=={version}\n" for name, version in sorted(versions.items()))
    CONSTRAINTS.write_text(_HEADER + "".join(lines))
    print(f"{CONSTRAINTS}: {len(versions)} versions")
