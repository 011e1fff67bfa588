"""Tests of nsqadmin's page as an operator uses it: in Chromium, over our daemons."""

from __future__ import annotations

import json
import re
import socket
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from nsq.testing import Nsqadmin, Nsqd, Nsqlookupd, V2Client
from nsq.wire import commands
from nsq.wire.envelope import DEAD_LETTER, wrap
from tests.browser.conftest import REBOUND
from tests.fakes import big_cluster
from tests.fakes.big_cluster import NODES, TOPICS, CannedNsqd
from tests.fakes.recorded_cluster import recorded_cluster
from tests.integration.consuming import until

HOSTILE_NAME = "<img src=x onerror=document.title='owned'>"
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"
PATIENCE_MS = 60_000


@dataclass
class Cluster:
    nsqlookupd: Nsqlookupd
    nsqd: Nsqd
    admin: Nsqadmin

    def publish(self, topic: str, body: bytes) -> None:
        assert self.nsqd.post(f"/pub?topic={topic}", body).status == 200

    def channel(self, topic: str, channel: str) -> dict[str, Any]:
        (reported,) = self.nsqd.get(f"/stats?format=json&topic={topic}&channel={channel}").json()["topics"]
        found: dict[str, Any] = reported["channels"][0]
        return found


@pytest.fixture(scope="module")
def cluster(browser: Any) -> Iterator[Cluster]:
    with Nsqlookupd() as lookupd, Nsqd(lookupd=[lookupd]) as nsqd, Nsqadmin(lookupd=[lookupd]) as admin:
        for topic in ("orders", "clicks", "orders.failed", "payments"):
            nsqd.post(f"/topic/create?topic={topic}")
            nsqd.post(f"/channel/create?topic={topic}&channel=billing")
        yield Cluster(lookupd, nsqd, admin)


class Visit:
    """One page, at an address of nsqadmin; it fails the test for whatever the browser complains of."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self._address = address
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._heard)

    def _heard(self, message: Any) -> None:
        # A refused request is logged too; those the tests look at themselves.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def open(self, path: str) -> Any:
        self.page.goto(f"http://{self._address}{path}")
        return self.page

    def see(self, text: str | re.Pattern[str], within: str = "main") -> None:
        self.page.locator(within).get_by_text(text).first.wait_for()


@contextmanager
def visiting(browser: Any, address: str, **options: Any) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1200, "height": 760}, **options)
    try:
        made = Visit(context.new_page(), address)
        yield made
    finally:
        context.close()
    assert made.complaints == []


@pytest.fixture
def visit(browser: Any, cluster: Cluster) -> Iterator[Visit]:
    with visiting(browser, cluster.admin.http_address, color_scheme="light") as made:
        yield made


def test_search_finds_topics_channels_and_nsqds_from_every_view(visit: Visit, cluster: Cluster) -> None:
    cluster.nsqd.post("/channel/create?topic=clicks&channel=warehouse")
    page = visit.open("/topics/payments")
    visit.see("In the topic itself")
    field = page.get_by_label("Search", exact=True)
    page.keyboard.press("/")
    page.keyboard.type("warehou")
    page.get_by_role("link", name="clicks / warehouse").wait_for()
    assert page.get_by_role("heading", name="payments", level=1).count() == 0
    assert page.locator("tbody tr").count() == 1
    field.fill(cluster.nsqd.http_address)
    page.get_by_role("row").filter(has_text="nsqd").get_by_role("link").wait_for()
    field.fill("no such thing")
    visit.see("No topic, channel or nsqd of the cluster has this name.")
    field.fill("")
    page.get_by_role("heading", name="payments", level=1).wait_for()
    field.fill("ware cli")
    page.get_by_role("link", name="clicks / warehouse").wait_for()
    field.press("Enter")
    page.get_by_role("heading", name="warehouse", level=1).wait_for()
    assert field.input_value() == ""
    assert page.url.endswith("/topics/clicks/warehouse")
    page.go_back()
    page.get_by_role("heading", name="payments", level=1).wait_for()


def test_curves_begin_before_a_page_is_opened(
    browser: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsq.daemons.nsqadmin.overview._WATCHED_EVERY", 0.2)
    with Nsqadmin(lookupd=[cluster.nsqlookupd]) as admin:

        def points() -> int:
            history = admin.get("/api/overview?opening=true").json()["history"]
            return len(history["figures"].get("topic payments", []))

        until("three points without a page", lambda: points() >= 3)
        with visiting(browser, admin.http_address) as visit:
            page = visit.open("/topics/payments")
            page.locator("svg.spark polyline[points*=' ']").first.wait_for(state="attached")
            assert page.evaluate("past.get('topic payments').length") >= 3


def test_waiting_messages_are_shown_as_what_they_are_and_stay(visit: Visit, cluster: Cluster) -> None:
    cluster.publish(
        "orders",
        b'{"id": 12345678901234567890, "total": 1.10, "note": "%s", "lines": [{"sku": "A1"}]}'
        % HOSTILE.encode(),
    )
    cluster.publish("orders", b"\xff\x00binary")
    page = visit.open("/topics/orders/billing")
    page.get_by_role("button", name="Look at messages").click()
    visit.see("The first 2 messages that wait")
    visit.see('"note"')
    for exact in ("12345678901234567890", "1.10"):
        page.locator(".literal").get_by_text(exact, exact=True).wait_for()
    visit.see(re.compile("ff 00 62 69"))
    page.get_by_label("Search in the messages").fill("sku")
    page.locator("mark", has_text="sku").first.wait_for()
    assert page.locator(".messages > li").count() == 1
    assert page.locator("main script, main img").count() == 0
    assert page.title() == "billing of orders · nsqadmin"
    assert cluster.channel("orders", "billing")["depth"] == 2


def test_a_topics_messages_are_found_in_its_channels(visit: Visit, cluster: Cluster) -> None:
    cluster.nsqd.post("/topic/create?topic=shipments")
    for channel in ("billing", "audit"):
        cluster.nsqd.post(f"/channel/create?topic=shipments&channel={channel}")
    cluster.publish("shipments", b"parcel 7")
    page = visit.open("/topics/shipments")
    page.get_by_role("button", name="Look at messages").click()
    visit.see("The topic's own queue is empty. 1 message waits in its channels.")
    visit.see("parcel 7")
    visit.see(re.compile("in audit, billing|in billing, audit"))
    assert page.locator(".messages > li").count() == 1


def test_a_consumer_is_shown_with_what_it_holds_and_its_name_is_text(visit: Visit, cluster: Cluster) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with V2Client(cluster.nsqd.tcp_address) as consumer:
        consumer.identify(client_id=HOSTILE, hostname=HOSTILE, user_agent=HOSTILE)
        consumer.send(commands.sub("orders.failed", "billing") + commands.rdy(5))
        consumer.expect_ok()
        cluster.publish("orders.failed", b"x")
        consumer.expect_message()
        cluster.publish("orders.failed&defer=300000", b"later")
        page = visit.open("/topics/orders.failed/billing")
        row = page.get_by_role("row").filter(has_text=HOSTILE)
        row.get_by_role("cell", name="1", exact=True).first.wait_for()
        page.get_by_role("button", name="Look at what is in flight").click()
        visit.see("1 message in flight, the longest first.")
        visit.see(f"with {HOSTILE}, 127.0.0.1:")
        visit.see("within 10\u00a0min")
        page.set_viewport_size({"width": 360, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        assert Axe().run(page).response["violations"] == []
        assert page.locator("main script, main img").count() == 0
        assert page.title() == "billing of orders.failed · nsqadmin"


def test_a_channel_is_paused_and_unpaused(visit: Visit, cluster: Cluster) -> None:
    page = visit.open("/topics/clicks/billing")
    page.get_by_role("button", name="Pause", exact=True).click()
    dialog = page.get_by_role("dialog", name="Pause channel billing of topic clicks?")
    dialog.get_by_text("none is lost").wait_for()
    dialog.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Unpause").wait_for()
    assert cluster.channel("clicks", "billing")["paused"]
    page.get_by_role("button", name="Unpause").click()
    page.get_by_role("button", name="Pause", exact=True).wait_for()
    assert not cluster.channel("clicks", "billing")["paused"]


def test_emptying_a_channel_first_shows_how_many_messages_are_lost(visit: Visit, cluster: Cluster) -> None:
    for _ in range(4):
        cluster.publish("clicks", b"x")
    page = visit.open("/topics/clicks/billing")
    visit.see("no consumers: 4 messages wait")
    for key in ("Escape", "Enter"):  # the button that has the focus is Cancel
        page.get_by_role("button", name="Empty").click()
        page.get_by_role("dialog").get_by_text("4 messages waiting now in the channel billing").wait_for()
        page.keyboard.press(key)
        page.get_by_role("dialog").wait_for(state="hidden")
        assert cluster.channel("clicks", "billing")["depth"] == 4
    page.get_by_role("button", name="Empty").click()
    page.get_by_role("button", name="Empty: lose 4 messages").click()
    visit.see("no consumers")
    page.get_by_text("4 messages wait").wait_for(state="detached")
    assert cluster.channel("clicks", "billing")["depth"] == 0


def test_dead_letters_are_sent_back_to_their_topic(visit: Visit, cluster: Cluster) -> None:
    for topic in ("letters", "letters.failed"):
        cluster.nsqd.post(f"/topic/create?topic={topic}")
        cluster.nsqd.post(f"/channel/create?topic={topic}&channel=billing")
    letter = {
        "id": "1",
        "source": "/letters/billing",
        "type": DEAD_LETTER,
        "reason": "it failed",
        "error": HOSTILE,
    }
    cluster.publish("letters.failed", wrap(b"x", letter))
    page = visit.open("/topics/letters.failed/billing")
    visit.see("no consumers: 1 message waits")
    page.get_by_role("button", name="Look at messages").click()
    visit.see(f"letters/billing gave it up: it failed · {HOSTILE}", within="section.peek")
    page.locator("section.peek pre").get_by_text("x", exact=True).wait_for()
    page.get_by_role("button", name="Send back …").click()
    dialog = page.get_by_role("dialog", name="Send back what waits in billing?")
    assert dialog.get_by_label("Topic to send them to").input_value() == "letters"
    dialog.get_by_role("button", name="Send back").click()
    visit.see("1 message sent to letters", within="#banner")
    assert cluster.channel("letters", "billing")["depth"] == 1


def test_a_topic_is_followed_live(visit: Visit, cluster: Cluster) -> None:
    page = visit.open("/topics/payments")
    tail = page.locator("section.tail")
    tail.get_by_role("button", name="Start").click()
    tail.get_by_text("Waiting for messages").wait_for()
    page.get_by_role("link", name=re.compile("^nsqadmin_.*#ephemeral$")).wait_for()
    cluster.publish("payments", HOSTILE.encode())
    tail.get_by_text(HOSTILE).wait_for()
    tail.get_by_role("button", name="Stop").click()
    tail.get_by_text("Stopped").wait_for()
    page.get_by_role("link", name=re.compile("^nsqadmin_")).wait_for(state="detached")
    assert "nsqadmin_" not in page.evaluate("[...past.keys()].join()")


def test_a_topic_named_by_a_dot_is_never_taken_for_another(visit: Visit, cluster: Cluster) -> None:
    cluster.nsqd.post("/topic/create?topic=.")
    cluster.nsqd.post("/channel/create?topic=.&channel=orders")
    page = visit.open("/")
    page.get_by_role("rowheader", name=".", exact=True).wait_for()
    assert page.get_by_role("link", name=".", exact=True).count() == 0
    refused = "ask('DELETE', apiOf('.', 'orders')).catch((error) => error.message)"
    assert "cannot be part of an address" in page.evaluate(refused)
    assert "orders" in cluster.nsqlookupd.get("/topics").json()["topics"]
    cluster.nsqd.post("/topic/delete?topic=.")


@pytest.mark.parametrize("allowed", [False, True])
def test_a_page_of_a_rebound_name_changes_and_reads_nothing(
    browser: Any, cluster: Cluster, allowed: bool
) -> None:
    """The browser takes it for nsqadmin's own: it says same-origin, and so does Origin."""
    context = browser.new_context()
    options = {"allow_hosts": (REBOUND,)} if allowed else {}
    with Nsqadmin(lookupd=[cluster.nsqlookupd], **options) as admin:
        page = context.new_page()
        page.goto(f"http://{REBOUND}:{admin.http_address.rpartition(':')[2]}/")
        for method, target in (("POST", "/api/topics/clicks"), ("GET", "/api/peek/clicks")):
            body = '{"action": "unpause"}' if method == "POST" else None
            reported = page.evaluate(
                "([method, target, body]) => fetch(target, {method, body, headers: "
                "{'X-Forwarded-Host': 'localhost'}}).then((reply) => reply.status)",
                [method, target, body],
            )
            assert reported == (200 if allowed else 403)
        context.close()


def test_an_error_while_drawing_does_not_end_the_polls(visit: Visit) -> None:
    page = visit.open("/")
    visit.see("payments")
    page.evaluate("void (redraw = () => { throw new Error('broken'); })")
    asked = page.evaluate("seen.asked")
    until("two more polls", lambda: page.evaluate("seen.asked") > asked + 3000)
    page.goto("about:blank")  # first: the next poll would complain again
    assert all("broken" in each for each in visit.complaints)
    visit.complaints.clear()


def test_views_are_walked_by_keyboard(visit: Visit) -> None:
    page = visit.open("/")
    visit.see("payments")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.get_by_role("button", name="Topic", exact=True).focus()
    for direction in ("ascending", "descending"):
        page.keyboard.press("Enter")
        page.locator(f"th[aria-sort={direction}]").wait_for()
    page.get_by_role("link", name="payments", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="payments", level=1).wait_for()
    assert page.evaluate("document.activeElement.tagName") == "H1"
    page.get_by_role("button", name="Delete").press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "Cancel"
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")


def test_text_from_an_nsqd_is_never_read_as_html(browser: Any) -> None:
    with ExitStack() as stack:
        nsqd = stack.enter_context(CannedNsqd(1))
        reported = big_cluster.stats(1)
        reported |= {"health": HOSTILE, "topics": reported["topics"][:1]}
        reported["topics"][0] |= {"topic_name": HOSTILE_NAME}
        reported["topics"][0]["channels"][0] |= {"channel_name": HOSTILE_NAME}
        nsqd.say(json.dumps(reported).encode())
        info = json.loads(nsqd.answers["/info"]) | {"hostname": HOSTILE, "version": HOSTILE}
        nsqd.answers["/info"] = json.dumps(info).encode()
        admin = stack.enter_context(Nsqadmin(nsqd=[nsqd.address]))
        visit = stack.enter_context(visiting(browser, admin.http_address))
        name = urllib.parse.quote(HOSTILE_NAME, safe="")
        named = ("/", f"/topics/{name}", f"/topics/{name}/{name}", f"/nodes/{nsqd.address}")
        for path, seen in (*((path, HOSTILE_NAME) for path in named), ("/nodes", HOSTILE)):
            page = visit.open(path)
            visit.see(seen)
            visit.see(HOSTILE, within="#banner")
            assert page.locator("main script, main img, #banner script, #banner img").count() == 0
            assert page.title() != "owned"


def test_a_slow_nsqd_holds_up_no_figure_and_is_marked(browser: Any) -> None:
    with ExitStack() as stack:
        nsqd = stack.enter_context(Nsqd())
        nsqd.post("/topic/create?topic=orders")
        nsqd.post("/channel/create?topic=orders&channel=billing")
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        patient = {"http_client_request_timeout": 600.0, "http_client_connect_timeout": 600.0}
        admin = stack.enter_context(Nsqadmin(nsqd=[nsqd, address], **patient))
        visit = stack.enter_context(visiting(browser, admin.http_address))
        page = visit.open("/topics/orders")
        for waiting in (1, 2):
            nsqd.post("/pub?topic=orders", b"x")
            visit.see(re.compile(f"no consumers: {waiting} message"))
        visit.see(f"nsqd {address}: slow: it does not answer in time", within="#banner")
        # One of its nsqds has not answered yet: the page must not say that there is none.
        assert not page.get_by_text("No nsqd has this topic now.").is_visible()


#: Counts the rows that are written into at a stroke.
WATCH = """
window.strokes = [];
new MutationObserver((records) => {
  const rows = new Set();
  for (const { target } of records) {
    const row = target.parentElement && target.parentElement.closest("tbody tr");
    if (row) rows.add(row);
  }
  strokes.push(rows.size);
}).observe(document.getElementById("main"), { childList: true, subtree: true, characterData: true });
"""


def test_a_large_cluster_is_shown_at_once_and_only_visible_rows_are_updated(
    browser: Any,
) -> None:
    """The test counts the work, because the time depends on the machine."""
    with ExitStack() as stack:
        nsqds = [stack.enter_context(CannedNsqd(number)) for number in range(NODES)]
        answers = [json.dumps(big_cluster.stats(look)).encode() for look in range(2)]
        for nsqd in nsqds:
            nsqd.say(answers[0])
        addresses = [nsqd.address for nsqd in nsqds]
        admin = stack.enter_context(Nsqadmin(nsqd=addresses, process=True))
        visit = stack.enter_context(visiting(browser, admin.http_address))
        page = visit.open("/")
        rows = page.locator("tbody tr")
        last = rows.nth(TOPICS - 1)
        last.get_by_text("50,100").wait_for()  # in 5 channels on 10 nsqds, below what can be seen
        assert rows.count() == TOPICS
        page.evaluate(WATCH)
        polled = page.evaluate("seen.at")
        while page.evaluate("seen.at") < polled + 3:
            page.wait_for_timeout(200)
        assert sum(page.evaluate("strokes")) <= 40, "the curves that are seen, and nothing else, have changed"
        for nsqd in nsqds:
            nsqd.say(answers[1])
        rows.first.get_by_text("52,100").wait_for()
        assert max(page.evaluate("strokes")) <= 40, "the rows that are seen"
        last.scroll_into_view_if_needed()
        last.get_by_text("52,100").wait_for()
        page.get_by_label("Search", exact=True).fill("topic_499")
        page.get_by_role("row").filter(has_text="topic_498").wait_for(state="detached")
        assert rows.count() == 1


def test_of_a_partitioned_topic_the_page_shows_the_bytes_that_its_leaders_store(browser: Any) -> None:
    with (
        recorded_cluster() as recorded,
        Nsqadmin(lookupd=[recorded.address("lookup1")]) as admin,
        visiting(browser, admin.http_address) as visit,
    ):
        page = visit.open("/topics")
        visit.see("27 (1.3 KB stored)")
        page.get_by_role("link", name="rec_plain", exact=True).click()
        visit.see("1.3 KB stored")
        visit.see("partition 0, 3")
        page.get_by_role("button", name="Delete", exact=True).wait_for()
        for name in ("Pause", "Empty"):
            assert not page.get_by_role("button", name=name, exact=True).is_visible()
        visit.open(f"/nodes/{recorded.address('nsqd1')}")
        visit.see("1.3 KB stored")


def test_an_nsqd_that_died_is_marked(visit: Visit, cluster: Cluster) -> None:
    with Nsqd(lookupd=[cluster.nsqlookupd], process=True) as other:
        page = visit.open("/nodes")
        row = page.get_by_role("row").filter(has_text=other.http_address)
        row.get_by_text("fine").last.wait_for()
        other.kill()
        row.get_by_text("gone: no nsqlookupd lists it any more").wait_for()
        visit.see(re.compile(f"nsqd {other.http_address} gone"), within="#banner")


def test_the_page_works_below_a_base_path_for_a_user_without_rights_and_with_graphite(
    browser: Any, cluster: Cluster
) -> None:
    options = {"base_path": "/nsq", "admin_users": ("ann",), "graphite_url": "graphite.invalid/g/"}
    with Nsqadmin(nsqd=[cluster.nsqd], **options) as admin, visiting(browser, admin.http_address) as visit:
        page = visit.open("/nsq")
        page.get_by_role("link", name="clicks", exact=True).click()
        page.get_by_role("link", name="billing", exact=True).click()
        visit.see("Only admins may read messages.")
        assert page.url == f"http://{admin.http_address}/nsq/topics/clicks/billing"
        assert page.get_by_role("button", name=re.compile("Pause|Empty|Delete|Send back")).count() == 0
        page.get_by_role("img", name="depth over two hours").wait_for(state="attached")
        chart = page.get_by_role("img", name="depth over two hours").get_attribute("src")
        assert chart.startswith(
            "http://graphite.invalid/g/render?target=sumSeries%28stats.gauges.nsq.*.topic."
        )
        page.get_by_role("link", name="Lookup").click()
        visit.see("Every topic has an nsqd.")
        visit.open("/nsq/topics/unheard_of")
        visit.see("there is no such topic")


VIEWS = ("/", "/topics/orders", "/topics/orders/billing", "/nodes", "/counter", "/lookup")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_accessible_and_fits_a_phone(browser: Any, cluster: Cluster, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    def check(page: Any, path: str) -> None:
        found = Axe().run(page).response["violations"]
        assert [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found] == [], path
        page.set_viewport_size({"width": 360, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") == 360, path
        page.set_viewport_size({"width": 1200, "height": 760})

    with visiting(browser, cluster.admin.http_address, color_scheme=scheme) as visit:
        for path in (*VIEWS, f"/nodes/{cluster.nsqd.http_address}"):
            page = visit.open(path)
            page.locator("tbody tr, .counter:not(:empty)").first.wait_for(state="attached")
            check(page, path)
        page.get_by_label("Search", exact=True).fill("orders")
        page.get_by_role("heading", name="Search in the whole cluster").wait_for()
        check(page, "search")
