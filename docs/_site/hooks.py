"""Hooks of MkDocs: pages of the repository that lie outside of ``docs/``.

Documents link to each other as files of the repository do, so that they can be read there. On the
site a README beside the code becomes a page below ``repository/``, another file that is linked to
is copied there, and links are rewritten. A document of ``docs/`` that the navigation does not name
is put at the end of its section "Guides".
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = "repository"
BEGIN = ("CHANGELOG.md", "README.md")  # pages that the navigation names

_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^ *(```|~~~)")
_BELONGS = re.compile(r" {1,3}[^ ]")
_ADDRESS = re.compile(r"[a-z]+:|#|/")


def on_config(config: MkDocsConfig) -> None:
    """Put documents that the navigation forgets into "Guides"."""
    named = set(_named(config.nav))
    guides = next(each["Guides"] for each in config.nav if "Guides" in each)
    guides += [p.name for p in sorted((ROOT / "docs").glob("*.md")) if p.name not in named]


def _named(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from _named(each)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what documents link to outside of ``docs/``, and what that links to, and so on."""
    todo = [ROOT / name for name in BEGIN]
    for file in files.documentation_pages():
        todo += _outside(Path(str(file.abs_src_path)))
    added: set[Path] = set()
    while todo:
        path = todo.pop()
        if path in added:
            continue
        added.add(path)
        name = f"{OUTSIDE}/{path.relative_to(ROOT).as_posix()}"
        files.append(File.generated(config, name, abs_src_path=str(path)))
        if path.suffix == ".md":
            todo += _outside(path)
    return files


def _outside(path: Path) -> Iterator[Path]:
    for line in _text(path.read_text(encoding="utf-8")):
        for match in _LINK.finditer(line):
            target = _target(path, match[2])
            if target is not None and not target.is_relative_to(ROOT / "docs"):
                yield target


def _target(path: Path, link: str) -> Path | None:
    """The file of the repository that a link in `path` means, if it is one."""
    if _ADDRESS.match(link):
        return None
    target = (path.parent / link.partition("#")[0]).resolve()
    if target.is_dir():
        target /= "README.md"
    return target if target.is_relative_to(ROOT) and target.is_file() else None


def _text(markdown: str) -> Iterator[str]:
    """The lines that are no code."""
    fenced = False
    for line in markdown.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield line


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links between ``docs/`` and the rest of the repository, and what is GitHub's way."""
    path = Path(str(page.file.abs_src_path))
    here = posixpath.dirname(page.file.src_uri)

    def rewritten(match: re.Match[str]) -> str:
        target = _target(path, match[2])
        if target is None:
            return match[0]
        in_docs = target.is_relative_to(ROOT / "docs")
        at = target.relative_to(ROOT / "docs" if in_docs else ROOT).as_posix()
        link = posixpath.relpath(at if in_docs else f"{OUTSIDE}/{at}", here or ".")
        _, sign, anchor = match[2].partition("#")
        return f"[{match[1]}]({link}{sign}{anchor})"

    lines: list[str] = []
    fenced = belongs = False
    for line in markdown.splitlines():
        # What belongs to an item of a list is indented by four for Markdown, by less for GitHub.
        belongs = bool(_BELONGS.match(line)) and (belongs or not lines or not lines[-1].strip())
        if belongs and not fenced:
            line = f"    {line.lstrip()}"
        if _FENCE.match(line):
            fenced = not fenced
            line = line.replace("```python fragment", "```python")
        elif not fenced:
            line = _LINK.sub(rewritten, line)
            if line.startswith("|"):  # in a table GitHub needs \| within code, and Markdown not
                line = re.sub(r"`[^`]*`", lambda code: code[0].replace(r"\|", "|"), line)
        lines.append(line)
    return "\n".join(lines)
