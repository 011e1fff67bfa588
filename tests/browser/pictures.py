"""Takes the pictures of docs/nsqadmin.md: ``python -m tests.browser.pictures docs/images``. It needs two
minutes, because the curves show a small shop at work.
"""

from __future__ import annotations

import json
import math
import random
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import nsq
from nsq.testing import Nsqadmin, Nsqd, Nsqlookupd
from tests.browser.conftest import PROGRAM

SECONDS = 100
#: Topic, channels, messages per second at a quiet time and in the waves on top of it, seconds of one wave.
SHOP = (
    ("orders", ("archive", "billing", "shipping"), 40, 30, 40),
    ("clicks", ("analytics",), 150, 120, 25),
    ("emails", ("sender",), 20, 15, 60),
    ("payments", ("ledger",), 12, 8, 35),
    ("sensors", ("alarms", "charts"), 90, 20, 15),
)
#: Messages per second that a channel's consumer can take; others take all.
SLOW = {("orders", "shipping"): 36, ("emails", "sender"): 21, ("clicks", "analytics"): 170}


def order(number: int) -> bytes:
    lines = [{"sku": f"A-{number % 7:02}", "count": 1 + number % 3}, {"sku": "B-11", "count": 2}]
    body = {"id": 7000 + number, "customer": "ann@example.com", "total": 19.9 + number % 9, "lines": lines}
    return json.dumps(body).encode()


class Shop:
    """Publishes and consumes while the pictures are taken."""

    def __init__(self, nsqds: list[Nsqd], lookupd: Nsqlookupd, stack: ExitStack) -> None:
        self._nsqds = nsqds
        self._over = threading.Event()
        for nsqd in nsqds:
            for topic, channels, *_ in (*SHOP, ("orders.failed", ("billing",))):
                nsqd.post(f"/topic/create?topic={topic}")
                for channel in channels:
                    nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
        for topic, channels, *_ in SHOP:
            for channel in channels:
                stack.enter_context(self._consumer(topic, channel))
        for number in range(6):
            nsqds[0].post("/pub?topic=orders.failed", order(number))
        publishing = threading.Thread(target=self._publish, name="shop")
        publishing.start()
        stack.callback(publishing.join)
        stack.callback(self._over.set)

    def _consumer(self, topic: str, channel: str) -> nsq.Consumer:
        pause = 1 / SLOW.get((topic, channel), 10_000)
        name = f"{channel}-{'ab'[len(topic) % 2]}"
        consumer = nsq.Consumer(
            topic,
            channel,
            nsqd=[nsqd.tcp_address for nsqd in self._nsqds],
            client_id=name,
            hostname=f"{name}.shop.internal",
            max_in_flight=20,
        )
        return consumer.add_handler(lambda _: time.sleep(pause))

    def _publish(self) -> None:
        began, number = time.monotonic(), 0
        while not self._over.wait(0.5):
            now = time.monotonic() - began
            for topic, _, quiet, wave, seconds in SHOP:
                rate = quiet + wave * math.sin(now / seconds * math.tau) + random.uniform(-3, 3)
                bodies = [order(number + each) for each in range(max(0, round(rate / 2)))]
                number += len(bodies)
                if bodies:
                    self._nsqds[number % 2].post(f"/mpub?topic={topic}", b"\n".join(bodies))


def main(folder: Path) -> None:
    from playwright.sync_api import sync_playwright

    with ExitStack() as stack:
        lookupd = stack.enter_context(Nsqlookupd(process=True))
        nsqds = [stack.enter_context(Nsqd(process=True, lookupd=[lookupd])) for _ in range(3)]
        admin = stack.enter_context(Nsqadmin(process=True, lookupd=[lookupd]))
        Shop(nsqds[:2], lookupd, stack)
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        stack.callback(browser.close)
        page = browser.new_page(viewport={"width": 1120, "height": 700}, color_scheme="light")
        page.goto(f"http://{admin.http_address}/")
        page.wait_for_timeout(SECONDS * 1000)
        take_all(page, folder, nsqds[2])


def take_all(page: Any, folder: Path, victim: Nsqd) -> None:
    """The page is never loaded anew: that would begin the curves again."""

    def take(name: str) -> None:
        page.wait_for_timeout(2500)
        page.screenshot(path=folder / f"nsqadmin-{name}.png")

    def follow(name: str) -> None:
        page.get_by_role("link", name=name, exact=True).first.click()

    def take_both(name: str) -> None:
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            take(f"{name}-{scheme}")
        page.emulate_media(color_scheme="light")

    take_both("overview")
    page.set_viewport_size({"width": 360, "height": 700})
    take_both("narrow")
    page.set_viewport_size({"width": 1120, "height": 700})
    follow("orders")
    take_both("topic")
    follow("shipping")
    page.get_by_role("button", name="Look at what is in flight").click()
    page.locator(".messages > li").first.wait_for()
    page.get_by_role("heading", name="Messages", exact=True).evaluate("heading => heading.scrollIntoView()")
    take("in-flight")
    page.get_by_role("button", name="Empty").evaluate("button => button.scrollIntoView({block: 'center'})")
    page.get_by_role("button", name="Empty").click()
    take("confirmation")
    page.keyboard.press("Escape")
    follow("Topics")
    follow("orders.failed")
    follow("billing")
    page.get_by_role("button", name="Look at messages").click()
    page.locator(".messages > li").first.wait_for()
    page.get_by_role("heading", name="Messages", exact=True).evaluate("heading => heading.scrollIntoView()")
    take("messages")
    victim.kill()
    follow("Nodes")
    page.get_by_text("gone: no nsqlookupd").first.wait_for()
    take("nodes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
