"""Fenced blocks of the documents."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, the text beside that, its content and where it begins."""

    language: str
    info: str
    text: str
    line: int

    @property
    def title(self) -> str | None:
        """The file that a reader would put it into."""
        found = re.search(r'title="([^"]+)"', self.info)
        return found[1] if found else None


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(each[1], each[2].strip(), each[3], text.count("\n", 0, each.start()) + 1)
        for each in _BLOCK.finditer(text)
    ]
