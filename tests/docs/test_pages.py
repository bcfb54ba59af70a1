"""Pages as text: blocks that say what they are, lines that wrap, links that lead somewhere."""

import re

import pytest

from tests.docs.pages import BLOCKS, FILES, NOT_RUN, ROOT

LANGUAGES = {"python", "sh", "text", "toml"}
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
WRITTEN = [*FILES, ROOT / "CHANGELOG.md", *DECISIONS]


def without_blocks(text: str) -> str:
    return re.sub(r"(?ms)^```.*?^```$", "", text)


def anchors(text: str) -> set[str]:
    titles = re.findall(r"(?m)^#+ (.+)$", without_blocks(text))
    plain = (re.sub(r"[^\w\s-]", "", title.lower()) for title in titles)
    return {re.sub(r"[-\s]+", "-", title).strip("-") for title in plain}


def test_every_block_says_what_it_is() -> None:
    assert {block.language for block in BLOCKS} <= LANGUAGES, [b.name for b in BLOCKS if b.language not in LANGUAGES]
    assert len(BLOCKS) > 40


def test_what_is_not_run_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """And is listed here: pytest -s shows the list. A reason without a block would hide a mistake."""
    reasons = [block for block in BLOCKS if block.not_run]
    with capsys.disabled():
        print("\nnot run:", *(f"{block.name}: {block.not_run}" for block in reasons), sep="\n  ")
    written = sum(bool(NOT_RUN.match(line)) for file in FILES for line in file.read_text().splitlines())
    assert len(reasons) == written
    assert all(block.language in ("python", "sh") for block in reasons)


def test_what_is_a_part_of_a_file_stands_there() -> None:
    parts = [(block, named[1]) for block in BLOCKS if (named := re.match(r"a part of (\S+)$", block.not_run))]
    assert parts
    for block, name in parts:
        (file,) = (ROOT / "src").rglob(name)
        rest = file.read_text()
        for line in filter(None, block.text.splitlines()):
            _, there, rest = rest.partition(line.removesuffix(" ...") + "\n")
            assert there, f"{block.name}: {name} does not have this line, or has it further up: {line}"


@pytest.mark.parametrize("file", WRITTEN, ids=lambda file: str(file.relative_to(ROOT)))
def test_code_stands_in_fences_and_lines_wrap(file: str) -> None:
    lines = without_blocks((ROOT / file).read_text()).splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        assert before or not line.startswith("    "), f"{file}: a block without a fence: {line}"
        assert len(line) <= 120 or line.startswith("|"), f"{file}: {len(line)} columns: {line}"


@pytest.mark.parametrize("file", WRITTEN, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_somewhere(file: str) -> None:
    path = ROOT / file
    for target, anchor in LINK.findall(without_blocks(path.read_text())):
        there = (path.parent / target).resolve() if target else path
        assert there.exists(), f"{file}: {target}"
        if anchor:
            assert anchor[1:] in anchors(there.read_text()), f"{file}: {target}{anchor}"
