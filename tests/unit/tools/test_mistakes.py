"""What tools say to a command line that they refuse, and their help: mistakes.txt. No socket is opened."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nsq.tools import front_door, nsq_stat, nsq_tail, nsq_to_file, nsq_to_http, nsq_to_nsq, to_nsq
from tests.transcripts import Session

TOOLS = (nsq_stat, nsq_tail, nsq_to_file, nsq_to_http, nsq_to_nsq, to_nsq)
PLACES = {
    "ORDERS": "--topic=orders",
    "NSQD": "--nsqd-tcp-address=127.0.0.1:1",
    "OTHER": "--destination-nsqd-tcp-address=127.0.0.1:1",
}


def test_mistakes_are_named(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))
    programs = {"nsq": front_door.main, **{tool.PROG: tool.main for tool in TOOLS}}
    Session(capfdbinary, programs, PLACES, tmp_path).follow(Path(__file__).with_name("mistakes.txt"))
