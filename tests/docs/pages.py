"""What the pages show, block by block, and what their tests need: read from Markdown as it stands.

A fenced block is python, sh, or something to read (text, toml). `<!-- not run: REASON -->` on the line before one says
why it can't run.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FILES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "measurements").glob("*.md")),
]
FENCE = re.compile(r"\s*```(\w*)\s*$")
NOT_RUN = re.compile(r"<!-- not run: (.+) -->$")


@dataclass(frozen=True)
class Block:
    page: str  # its path in the repository
    line: int  # of its first fence
    language: str
    text: str
    not_run: str  # why; "" where it runs

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> list[list[str]]:
        """A list of words for each line of a shell block, without comments; a backslash continues a line."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def blocks_of(file: Path) -> list[Block]:
    page, lines = str(file.relative_to(ROOT)), file.read_text().splitlines()
    blocks, start, language = [], 0, ""
    for number, line in enumerate(lines, 1):
        fence = FENCE.match(line)
        if fence is None:
            continue
        if start:
            before = NOT_RUN.match(lines[start - 2]) if start > 1 else None
            text = "\n".join(lines[start : number - 1]) + "\n"
            blocks.append(Block(page, start, language, text, before.group(1) if before else ""))
            start = 0
        else:
            start, language = number, fence.group(1)
    assert start == 0, f"{page}:{start}: a block without an end"
    return blocks


BLOCKS = [block for file in FILES for block in blocks_of(file)]


def pages_with(language: str) -> list[str]:
    """Those that have such a block that runs."""
    return list(dict.fromkeys(block.page for block in BLOCKS if block.language == language and not block.not_run))


def of_page(page: str, language: str) -> list[Block]:
    return [block for block in BLOCKS if (block.page, block.language) == (page, language) and not block.not_run]
