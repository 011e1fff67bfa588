"""nsqadmin over our daemons: features that need a client or a slow nsqd, and the program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nsq.daemons.nsqadmin import live
from nsq.testing import DaemonFailed, Nsqadmin, Nsqd, Nsqlookupd
from tests.integration.authority import Authority
from tests.integration.consuming import create, until
from tests.interop.auth_server import running_auth_server


@pytest.fixture
def cluster() -> Iterator[tuple[Nsqadmin, Nsqd]]:
    with Nsqlookupd() as nsqlookupd, Nsqd(lookupd=[nsqlookupd]) as nsqd:
        create(nsqd, "orders.failed", "archive")
        create(nsqd, "orders", "billing")
        until("registered", lambda: "billing" in nsqlookupd.get("/channels?topic=orders").text)
        with Nsqadmin(lookupd=[nsqlookupd]) as admin:
            yield admin, nsqd


def ask(admin: Nsqadmin, method: str, target: str, body: bytes | None = None) -> Any:
    reply = admin.request(method, target, body)
    assert reply.status == 200, reply.text
    return reply.json()


def channel(nsqd: Nsqd, topic: str, name: str) -> Any:
    (told,) = nsqd.get(f"/stats?format=json&topic={topic}&channel={name}").json()["topics"]
    return told["channels"][0]


def test_dead_letters_are_sent_back_however_often_they_failed(cluster: tuple[Nsqadmin, Nsqd]) -> None:
    admin, nsqd = cluster
    for number in range(20):
        nsqd.post("/pub?topic=orders.failed", b"%d" % number)
    body = b'{"action": "redrive", "to": "orders"}'
    told = ask(admin, "POST", "/api/topics/orders.failed/archive", body)
    assert told == {"moved": 20, "message": ""}
    left = channel(nsqd, "orders.failed", "archive")
    assert (left["depth"], left["in_flight_count"], left["deferred_count"]) == (0, 0, 0)
    assert channel(nsqd, "orders", "billing")["depth"] == 20


def test_a_redrive_reports_messages_that_were_not_sent(cluster: tuple[Nsqadmin, Nsqd]) -> None:
    admin, nsqd = cluster
    nsqd.post("/pub?topic=orders.failed", b"stays")
    nsqd.post("/channel/pause?topic=orders.failed&channel=archive")
    body = b'{"action": "redrive", "to": "orders"}'
    told = ask(admin, "POST", "/api/topics/orders.failed/archive", body)
    assert told["moved"] == 0
    assert "1 messages stay on 127.0.0.1" in told["message"]
    assert "the channel is paused" in told["message"]


def test_a_topic_is_followed_and_its_channel_goes_away(cluster: tuple[Nsqadmin, Nsqd]) -> None:
    admin, nsqd = cluster
    tail = f"/api/tail/orders/{ask(admin, 'POST', '/api/tail/orders', b'{}')['id']}"
    stats = "/stats?format=json&topic=orders"
    until("subscribed", lambda: '"client_count":1' in nsqd.get(stats).text)
    nsqd.post("/pub?topic=orders", b"\xff<b>")
    (shown,) = until("a message", lambda: ask(admin, "GET", tail)["messages"])
    assert (shown["encoding"], shown["body"]) == ("base64", "/zxiPg==")
    assert ask(admin, "GET", f"{tail}?after=1")["messages"] == []
    ask(admin, "DELETE", tail)
    until("gone", lambda: "nsqadmin_" not in nsqd.get(stats).text)
    assert admin.get(tail).status == 404
    assert channel(nsqd, "orders", "billing")["depth"] == 1


def test_a_tail_that_no_page_polls_is_closed_even_if_its_start_failed(
    cluster: tuple[Nsqadmin, Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, nsqd = cluster
    monkeypatch.setattr(live, "_IDLE_SECONDS", 0.3)
    monkeypatch.setattr(live, "_MAX_TAILS", 1)

    def no_thread(_: live.Tail) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as context:
        context.setattr(live.Tail, "start", no_thread)
        assert admin.request("POST", "/api/tail/orders", b"{}").status == 500
    until("room for another", lambda: admin.request("POST", "/api/tail/orders", b"{}").status == 200)
    until("closed", lambda: "nsqadmin_" not in nsqd.get("/stats?format=json&topic=orders").text)


def test_a_topic_that_is_followed_is_deleted_for_good(cluster: tuple[Nsqadmin, Nsqd]) -> None:
    # The tail's consumer would connect again, and its SUB create the topic again.
    admin, nsqd = cluster
    tail = f"/api/tail/orders/{ask(admin, 'POST', '/api/tail/orders', b'{}')['id']}"
    until("subscribed", lambda: '"client_count":1' in nsqd.get("/stats?format=json&topic=orders").text)
    assert ask(admin, "DELETE", "/api/topics/orders") == {"message": ""}
    assert admin.get(tail).status == 404
    assert [topic["topic_name"] for topic in nsqd.get("/stats?format=json").json()["topics"]] == [
        "orders.failed"
    ]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nsqd, Authority]]:
    """Wants TLS and a secret from its TCP clients."""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    rights = [{"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}]
    with running_auth_server({"letmein": rights}) as address:
        options: dict[str, Any] = {"tls_required": "tcp-https", "auth_http_addresses": (address,)}
        with Nsqd(**authority.server_options, **options) as nsqd:
            create(nsqd, "orders.failed", "archive")
            create(nsqd, "orders", "billing")
            yield nsqd, authority


def trust(authority: Authority, *more: str) -> tuple[str, ...]:
    return ("tls_v1,true", f"tls_root_ca_file,{authority.certificate}", *more)


def test_live_tail_and_sending_back_use_tls_and_a_secret(guarded: tuple[Nsqd, Authority]) -> None:
    nsqd, authority = guarded
    with Nsqadmin(nsqd=[nsqd], client_opts=trust(authority, "auth_secret,letmein")) as admin:
        nsqd.post("/pub?topic=orders.failed", b"again")
        tail = f"/api/tail/orders/{ask(admin, 'POST', '/api/tail/orders', b'{}')['id']}"
        until("subscribed", lambda: '"client_count":1' in nsqd.get("/stats?format=json&topic=orders").text)
        body = b'{"action": "redrive", "to": "orders"}'
        told = ask(admin, "POST", "/api/topics/orders.failed/archive", body)
        assert told == {"moved": 1, "message": ""}
        followed = until("a message", lambda: ask(admin, "GET", tail)["messages"])
        assert [each["body"] for each in followed] == ["again"]
        assert ask(admin, "GET", tail)["problem"] == ""
        assert admin.get("/config/client_opts").status == 400  # it has the secret in it


@pytest.mark.parametrize(
    ("tls", "options", "says"),
    [
        (False, (), "requires AUTH"),
        (False, ("auth_secret,letmein",), "TLS required"),
        (True, ("auth_secret,nonsense",), "E_UNAUTHORIZED"),
    ],
)
def test_a_tail_reports_why_nsqd_refuses_it(
    guarded: tuple[Nsqd, Authority], tls: bool, options: tuple[str, ...], says: str
) -> None:
    nsqd, authority = guarded
    with Nsqadmin(nsqd=[nsqd], client_opts=trust(authority, *options) if tls else options) as admin:
        nsqd.post("/pub?topic=orders.failed", b"stays")
        tail = f"/api/tail/orders/{ask(admin, 'POST', '/api/tail/orders', b'{}')['id']}"
        assert says in until("a problem", lambda: ask(admin, "GET", tail)["problem"])
        body = b'{"action": "redrive", "to": "orders"}'
        told = ask(admin, "POST", "/api/topics/orders.failed/archive", body)
        assert told["moved"] == 0
        assert told["message"].startswith("WARNING: 1 messages were not sent: no connection: nsqd ")
        assert says in told["message"]
        nsqd.post("/channel/empty?topic=orders.failed&channel=archive")


def test_an_unknown_client_option_is_an_error_at_the_start() -> None:
    with pytest.raises(DaemonFailed, match=r"--client-opt: .*tls_v2"):
        Nsqadmin(nsqd=["127.0.0.1:1"], client_opts=("tls_v2,true",)).start()


def test_the_fixture_shows_the_nsqd_of_the_test(nsqd: Nsqd, nsqadmin: Nsqadmin) -> None:
    create(nsqd)
    assert nsqadmin.get("/api/topics").json()["topics"] == ["orders"]


def test_the_program_starts_says_where_it_listens_and_ends_on_sigterm() -> None:
    with Nsqadmin(nsqd=["127.0.0.1:1"], process=True) as admin:
        page = admin.get("/topics")
        assert (page.status, page.headers["Content-Type"]) == (200, "text/html")
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'" in policy
        assert "unsafe" not in policy
        assert admin.get("/api/topics").status == 502
        assert admin.terminate() == 0
        assert f"HTTP: listening on {admin.http_address}" in admin.log
