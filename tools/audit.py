"""Search for known vulnerabilities in the requirements of activedb and of its extras for users.

``python -m tools.audit [NAME …]``: of all, or of some. pip-audit asks PyPI's advisory service about
the exact versions that are installed here. The exit status is 0 if no vulnerability is known, 1 if
one is, and 3 if the service could not be asked, which is no result.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path

from tools.required import FOR_USERS, required

__all__ = ["main"]

_UNREACHABLE = 3
_SHOWN_MAX = 300  # characters of pip-audit's output when it fails


def main(names: Collection[str], extras: Iterable[str] = FOR_USERS) -> int:
    """Ask, print the findings, and return the exit status."""
    found = [each for each in required("activedb", extras) if each.name != "activedb"]
    if unknown := sorted(set(names) - {each.name for each in found}):
        print(f"activedb does not require {', '.join(unknown)}", file=sys.stderr)
        return 2
    pinned = [
        f"{each.name}=={each.metadata.version}" for each in found if not names or each.name in names
    ]
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text("\n".join(pinned) + "\n")
        command = ("--requirement", str(requirements), "--no-deps", "--disable-pip")
        done = subprocess.run(  # noqa: S603 - pip-audit, with files of ours
            [
                *(sys.executable, "-m", "pip_audit", *command),
                *("--format", "json", "--progress-spinner", "off"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    try:
        dependencies = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = " ".join(done.stderr.split())[-_SHOWN_MAX:]
        print(f"the advisory service could not be asked: {reason}", file=sys.stderr)
        return _UNREACHABLE
    known = [(each, vuln) for each in dependencies for vuln in each.get("vulns", ())]
    skipped = [each for each in dependencies if "skip_reason" in each]
    for each, vuln in known:
        fixed = ", ".join(vuln["fix_versions"]) or "no version"
        print(f"{each['name']} {each['version']}: {vuln['id']}, fixed in {fixed}")
    for each in skipped:
        print(f"{each['name']}: not asked about: {each['skip_reason']}", file=sys.stderr)
    asked = len(dependencies) - len(skipped)
    print(f"{len(known)} known vulnerabilities; asked about {asked} of {len(pinned)} distributions")
    return 1 if known else _UNREACHABLE if skipped else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
