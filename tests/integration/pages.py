"""README.md and the pages of docs/, and their blocks of code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: tests/spark runs their Python, because it needs a Spark session.
SPARK_PAGES = sorted((ROOT / "docs").glob("spark*.md"))
#: test_first_hour runs all their blocks, in order.
STORY = [ROOT / "README.md", ROOT / "docs" / "tutorial.md"]
#: Marks the next block as one that cannot be run, with the reason.
_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->")
_SHELL = {"sh", "shell", "bash", "console"}


@dataclass(frozen=True)
class Block:
    """``language`` is empty for an indented block; ``not_run`` is the reason not to run it."""

    page: Path
    line: int
    language: str
    code: str
    not_run: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Yield fenced blocks, and indented ones after an empty line."""
    lines = page.read_text("utf-8").splitlines()
    said, at = "", 0
    while at < len(lines):
        line = lines[at]
        fence = re.match(r"^```([\w{}-]*)", line)
        if fence:
            end = lines.index("```", at + 1)
            yield Block(page, at + 1, fence[1], "\n".join(lines[at + 1 : end]) + "\n", said)
            said, at = "", end + 1
        elif line.startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            code = "\n".join(each[4:] for each in lines[at:end]).rstrip() + "\n"
            yield Block(page, at + 1, "", code, said)
            said, at = "", end
        else:
            if line.strip():
                found = _NOT_RUN.fullmatch(line.strip())
                said = found[1] if found else ""
            at += 1


def python_blocks() -> list[Block]:
    pages = [page for page in PAGES if page not in (*SPARK_PAGES, *STORY)]
    return [block for page in pages for block in blocks(page) if block.language == "python"]


def shell_blocks() -> list[Block]:
    """Return the blocks to check; of the story those with lines that it does not run."""
    found = [block for page in PAGES for block in blocks(page) if block.language in {*_SHELL, ""}]
    return [block for block in found if block.page not in STORY or re.search("make |pip ", block.code)]


def commands(code: str) -> Iterator[list[str]]:
    """Yield each command of a block as a list of words; split pipes and lists."""
    for line in code.replace("\\\n", " ").splitlines():
        command: list[str] = []
        for word in shlex.split(line.removeprefix("$ "), comments=True):
            if word in ("|", "&&", "&", ";"):
                if command:
                    yield command
                command = []
            elif command or not re.match(r"[A-Z_]+=", word):  # variables before a command
                command.append(word)
        if command:
            yield command
