"""Runs transcripts: text files with command lines, what each reads and prints, and its exit status.

    # The topics are added up over the nsqds.          a comment
    $ nsq pub orders                                   a command; words are quoted as in a shell
    < one                                              a line of its standard input
    ! published 1 messages to orders                   what it prints: stdout, then stderr after "! "
    [1]                                                its exit status, unless that is 0
    $ nsq crate -> 2 no command crate                  the short form: status, and part of what it prints
    $~ nsq topics --names                              a command to repeat until it prints this
    orders
    $ nsq_to_http --topic=orders --post=WEB1
    ^ NSQD1                                            SIGTERM, when the nsqd's channel has been drained

``...`` stands for anything, on a line of its own for any lines; words such as NSQD1 for the places of the
test. A command may begin with variables: ``NSQ_ADDRESS=NSQD1 nsq topics``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path

import pytest

from tests.integration.consuming import until

Program = Callable[[Sequence[str]], int]
#: Sends SIGTERM in its block, when the channel of the nsqd with this name has been drained.
Drained = Callable[[str], AbstractContextManager[None]]
_ABOUT = ("#", "$ ", "$~ ")


class Session:
    """Runs commands in this process: each is the function of a tool, called with its words."""

    def __init__(
        self,
        capture: pytest.CaptureFixture[bytes],
        programs: Mapping[str, Program],
        places: Mapping[str, str],
        directory: Path,
        drained: Drained | None = None,
    ) -> None:
        self._capture = capture
        self._programs = programs
        self._places = places
        self._input = directory / "stdin"
        self._drained = drained

    def follow(self, transcript: Path) -> None:
        """Run all commands; fail with the differences between what they print and the transcript."""
        text = transcript.read_text("utf-8")
        blocks = list(_blocks(text.splitlines()))
        assert "".join(f"{line}\n" for block in blocks for line in self._seen(block)) == text

    def _seen(self, block: list[str]) -> list[str]:
        """Run a block's command. Return the block; if the output does not match, with that output."""
        if not block[0].startswith("$"):
            return block
        command, short, wanted = block[0].partition(" ")[2].partition(" -> ")
        given = 1
        while given < len(block) and block[given][:1] in ("<", "^"):
            given += 1
        expected = [wanted] if short else block[given:]
        printed: list[str] = []

        def matches() -> bool:
            printed[:] = self._run(command, block[1:given], one_line=bool(short))
            return bool(
                re.fullmatch(self._pattern(expected, bool(short)), "".join(f"{o}\n" for o in printed))
            )

        if block[0].startswith("$~"):
            with suppress(AssertionError):
                until(command, matches)
                return block
        elif matches():
            return block
        return [f"{block[0].partition(' -> ')[0]} -> {printed[0]}"] if short else [*block[:given], *printed]

    def _pattern(self, expected: list[str], short: bool) -> str:
        text = "".join(f"{self._placed(line)}\n" for line in expected)
        if short:
            status, _, part = text.rstrip("\n").partition(" ")
            return rf"{status}\b.*{re.escape(part)}.*\n"
        pattern = re.sub(r"(?m)^(! )?\\\.\\\.\\\.\\\n", r"(?:\1.*\n)*", re.escape(text).replace("\\ ", " "))
        return pattern.replace(r"\.\.\.", ".*")

    def _placed(self, text: str) -> str:
        return re.sub(r"\b[A-Z]+\d?\b", lambda found: self._places.get(found[0], found[0]), text)

    def _run(self, command: str, given: list[str], one_line: bool) -> list[str]:
        words = shlex.split(self._placed(command))
        self._input.write_text("".join(f"{line[2:]}\n" for line in given if line[0] == "<"))
        with self._input.open() as stdin, pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
            patch.setattr("sys.stdin", stdin)
            while "=" in words[0]:
                patch.setenv(*words.pop(0).split("=", 1))
            for line in given:
                if line[0] == "^" and self._drained is not None:
                    stack.enter_context(self._drained(line[2:]))
            self._capture.readouterr()
            status = self._programs[words[0]](words[1:])
        out, error = (text.decode("utf-8", "backslashreplace") for text in self._capture.readouterr())
        if one_line:
            return [f"{status} {' '.join((out + error).splitlines())}"]
        lines = [*out.splitlines(), *(f"! {line}" for line in error.splitlines())]
        return [*lines, f"[{status}]"] if status else lines


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Yield each command with the lines that belong to it; comments and empty lines alone."""
    block: list[str] = []
    for line in lines:
        if block and (not line or not block[0].startswith("$") or line.startswith(_ABOUT)):
            yield block
            block = []
        block.append(line)
    if block:
        yield block
