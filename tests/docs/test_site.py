"""The site of docs/ is built as ``make docs`` builds it, and its links lead somewhere."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest

from tests.browser import chromium as chromium
from tests.docs.pages import ROOT
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# A page does not give its readers away: it fetches nothing from registries and other networks.
STRANGERS = re.compile(
    r"(googleapis|gstatic|jsdelivr|unpkg|cdnjs|cloudflare|bootstrapcdn|fontawesome|polyfill)\.|"
    r"\b(pypi\.org|pythonhosted\.org|npmjs\.|conda\.anaconda\.org|repo1?\.maven)",
    re.IGNORECASE,
)


@dataclass
class Page(HTMLParser):
    """The links, anchors and files of others in a page."""

    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors.update(
            value for name in ("id", "name") if (value := given.get(name)) is not None
        )
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        elif tag in ("script", "img", "iframe", "source") and given.get("src"):
            self.loaded.append(given["src"] or "")
        elif tag == "link" and given.get("href"):
            self.loaded.append(given["href"] or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    for module in ("material", "mkdocstrings"):
        if importlib.util.find_spec(module) is None:
            pytest.skip("MkDocs is not installed: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """Every page by its file."""
    found = {}
    for path in sorted(site.rglob("*.html")):
        found[path] = page = Page()
        page.feed(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.long
def test_site_links_and_anchors_exist(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # is shown at any address, so it names all from the top
            continue
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            anchor = unquote(parts.fragment)
            if not target.is_file() or not target.is_relative_to(site.resolve()):
                broken.append(f"{path.relative_to(site)}: {link}")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                broken.append(f"{path.relative_to(site)}: {link} (no such anchor)")
    assert not broken, "\n".join(broken)


@pytest.mark.long
def test_site_loads_nothing_from_others(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        text = path.read_text(encoding="utf-8")
        assert not STRANGERS.search(text), f"{path.relative_to(site)}: {STRANGERS.search(text)}"
        outside = [each for each in page.loaded if urlsplit(each).netloc]
        assert not outside, f"{path.relative_to(site)} loads {outside}"


@pytest.mark.parametrize("package", ["activedb", "lockmgr", "coupling", "spark_bridge"])
def test_site_has_every_public_name_once(pages: dict[Path, Page], package: str) -> None:
    found = {
        name: [path.name for path, page in pages.items() if f"{package}.{name}" in page.anchors]
        for name in importlib.import_module(package).__all__
    }
    wrong = {name: where for name, where in found.items() if len(where) != 1}
    assert not wrong, "each public name is to be named once in docs/reference/ or docs/errors/"


@pytest.mark.long
def test_site_shows_readmes_of_the_code(site: Path) -> None:
    for name in ("README", "activedb/README", "lockmgr/README", "activedb/events/README"):
        assert (site / "repository" / f"{name}.html").is_file() or (
            site / "repository" / Path(name).parent / "index.html"
        ).is_file(), name


@pytest.mark.long
def test_site_is_searched_without_a_server(site: Path, chromium: Browser) -> None:
    page = chromium.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "how-to" / "kafka.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("deadlock")
    first = page.wait_for_selector(".md-search-result__link", timeout=1_000 * PATIENCE_S)
    assert first is not None
    assert (first.get_attribute("href") or "").startswith((site / "errors" / "lockmgr").as_uri())
    assert {urlsplit(url).scheme for url in asked} == {"file"}
    page.close()
