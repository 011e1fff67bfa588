"""nsq top on a terminal of tmux, driven by keys."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from nsq.testing import Nsqd
from tests.integration.consuming import channel_of, create, numbered, publish, until
from tests.integration.running_tools import ROOT


def test_keys_sort_filter_pause_and_quit(nsqd: Nsqd, tmux: Callable[..., str], tmp_path: Path) -> None:
    create(nsqd)
    create(nsqd, "returns")
    publish(nsqd, numbered(7))
    until("there", lambda: channel_of(nsqd)["depth"] == 7)
    command = f"{sys.executable} -m nsq top --address={nsqd.http_address} --interval=100ms"
    ending = f"cd {ROOT} && unset COLUMNS LINES && {command}; echo ended $? > {tmp_path}/ended"
    tmux("new-session", "-d", "-x", "140", "-y", "30", ending)

    def screen() -> list[list[str]]:
        return [line.split() for line in tmux("capture-pane", "-p").splitlines()]

    def names() -> list[str]:
        return [
            line[0] for line in screen()[2:] if line and line[0].partition("/")[0] in ("orders", "returns")
        ]

    until("by depth", lambda: names() == ["orders/billing", "orders", "returns", "returns/billing"])
    assert screen()[2][:2] == ["orders/billing", "7"]
    tmux("send-keys", "r")
    until("reversed", lambda: names()[-1:] == ["orders/billing"])
    tmux("send-keys", "/", "ret", "Enter")
    until("filtered", lambda: set(names()) == {"returns", "returns/billing"})
    tmux("send-keys", "p", "y", "Enter")
    until("paused", lambda: channel_of(nsqd, "returns")["paused"])
    until("shown", lambda: any("paused" in line for line in screen()))
    tmux("resize-window", "-x", "40", "-y", "10")
    until("fitted", lambda: screen()[1] == ["TOPIC/CHANNEL", "DEPTH", "IN/S"])
    nsqd.stop(keep_data=True)
    until("shown", lambda: nsqd.http_address in tmux("capture-pane", "-p"))
    tmux("send-keys", "q")
    until("ended", lambda: (tmp_path / "ended").exists() and (tmp_path / "ended").read_text() == "ended 0\n")
