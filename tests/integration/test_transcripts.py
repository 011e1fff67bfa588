"""The command-line tools, as told in transcripts/*.txt: a file is a session with daemons of its own."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory
from nsq.tools import front_door, nsq_stat, nsq_tail, to_nsq
from tests.golden.recordings import others_are_judged
from tests.integration.consuming import drained, until
from tests.integration.running_tools import signalled_when
from tests.integration.web import Web
from tests.transcripts import Session

TOOLS = (nsq_stat, nsq_tail, to_nsq)
TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


def producers(lookupd: Nsqlookupd) -> list[object]:
    found: list[object] = lookupd.get("/nodes").json()["producers"]
    return found


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_tools_do_as_the_transcript_says(
    transcript: Path,
    nsqlookupd: Nsqlookupd,
    nsqlookupd_factory: Factory[Nsqlookupd],
    nsqd_factory: Factory[Nsqd],
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if others_are_judged() and "needs our nsqd" in transcript.read_text():
        pytest.skip("Go's nsqd has no peek")
    # Tools show nsqds by address, or in the order in which they have registered: let these be one.
    started = sorted((nsqd_factory() for _ in range(2)), key=lambda nsqd: nsqd.http_address)
    for number, nsqd in enumerate(started):
        body = json.dumps([nsqlookupd.tcp_address]).encode()
        assert nsqd.request("PUT", "/config/nsqlookupd_tcp_addresses", body).status == 200
        until("registered", lambda number=number: len(producers(nsqlookupd)) == number + 1)  # type: ignore[misc]
    nsqds = dict(zip(("NSQD1", "NSQD2"), started, strict=True))
    places = {
        "LOOKUPD": nsqlookupd.http_address,
        "LOOKUPDTCP": nsqlookupd.tcp_address,
        "EMPTY": nsqlookupd_factory().http_address,
        "GONE": "127.0.0.1:1",
    }
    places |= {name: nsqd.http_address for name, nsqd in nsqds.items()}
    quick = "--consumer-opt=default_requeue_delay,0 --consumer-opt=max_backoff_duration,0"
    places["HERE"] = f"--address={places['NSQD1']} {quick}"
    places |= {name.replace("NSQD", "TCP"): nsqd.tcp_address for name, nsqd in nsqds.items()}
    monkeypatch.setenv("NSQ_ADDRESS", nsqlookupd.http_address)

    def when_drained(nsqd: str) -> AbstractContextManager[None]:
        return signalled_when(drained(nsqds[nsqd]))

    with ExitStack() as stack:
        webs = {f"WEB{number}": stack.enter_context(Web()) for number in (1, 2)}
        places |= {name: web.address for name, web in webs.items()}
        programs = {"nsq": front_door.main, **{tool.PROG: tool.main for tool in TOOLS}}
        programs |= {name.lower(): web.show for name, web in webs.items()}
        Session(capfdbinary, programs, places, tmp_path, when_drained).follow(transcript)
