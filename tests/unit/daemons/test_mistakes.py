"""What the daemons say to flags that they refuse: mistakes.txt. None gets as far as a socket."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from nsq.daemons.nsqadmin import __main__ as nsqadmin
from nsq.daemons.nsqd import __main__ as nsqd
from nsq.daemons.nsqlookupd import __main__ as nsqlookupd
from tests.transcripts import Program, Session


def until_it_exits(main: Program) -> Program:
    def program(words: Sequence[str]) -> int:
        with pytest.raises(SystemExit) as exited:
            main(words)
        if isinstance(exited.value.code, int):
            return exited.value.code
        sys.stderr.write(f"{exited.value.code}\n")
        return 1

    return program


def test_mistakes_are_named(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    mains = {"nsqd": nsqd.main, "nsqlookupd": nsqlookupd.main, "nsqadmin": nsqadmin.main}
    programs = {name: until_it_exits(main) for name, main in mains.items()}
    places = {"LOOKUPD": "--lookupd-http-address=a:1"}
    Session(capfdbinary, programs, places, tmp_path).follow(Path(__file__).with_name("mistakes.txt"))
