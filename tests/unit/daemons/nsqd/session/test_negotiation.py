"""What IDENTIFY asks for and gets, beyond the recordings of Go's nsqd (tests/golden/tcp.json); heartbeats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.daemons.nsqd.core.channel import ANYWHERE, REGION_LOCAL, ZONE_LOCAL
from nsq.daemons.nsqd.options import TOPOLOGY_AWARE, NsqdOptions
from nsq.daemons.nsqd.session.negotiation import Agreement, Liveness, negotiate, reply_to
from nsq.daemons.nsqd.session.stream import Refused
from nsq.wire.identify import IdentifyRequest
from tests.fakes.clock import FakeClock

OPTIONS = NsqdOptions()
WITH_TLS = NsqdOptions(tls_cert="c", tls_key="k")


def agree(options: NsqdOptions = OPTIONS, **asked: Any) -> Agreement:
    return negotiate(IdentifyRequest(feature_negotiation=True, **asked), options)


def test_a_client_without_requests_gets_the_defaults() -> None:
    assert agree() == Agreement.initial(OPTIONS)
    assert negotiate(IdentifyRequest(), OPTIONS) == Agreement.initial(OPTIONS)


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        ({"heartbeat_interval": 1000}, {"heartbeat": 1.0}),
        ({"heartbeat_interval": 60000}, {"heartbeat": 60.0}),
        ({"output_buffer_size": 65536}, {"output_buffer_size": 65536}),
        ({"output_buffer_timeout": 25}, {"output_buffer_timeout": 0.025}),
        ({"output_buffer_timeout": 30000}, {"output_buffer_timeout": 30.0}),
        ({"output_buffer_timeout": -1}, {"output_buffer_timeout": 0.0}),
        ({"output_buffer_size": -1}, {"output_buffer_size": 1, "output_buffer_timeout": 0.0}),
        # Without a buffer there is nothing to wait for, whatever the timeout.
        (
            {"output_buffer_size": -1, "output_buffer_timeout": 100},
            {"output_buffer_size": 1, "output_buffer_timeout": 0.0},
        ),
        ({"snappy": True}, {"snappy": True}),
        ({"deflate": True}, {"deflate": True, "deflate_level": 6}),
        ({"deflate": True, "deflate_level": 3}, {"deflate": True, "deflate_level": 3}),
        ({"deflate": True, "deflate_level": 9}, {"deflate": True, "deflate_level": 6}),
        ({"deflate": True, "deflate_level": -1}, {"deflate": True, "deflate_level": 6}),
        ({"deflate_level": 3}, {"deflate": False, "deflate_level": 6}),
    ],
)
def test_more_requests_are_granted(asked: dict[str, Any], granted: dict[str, Any]) -> None:
    agreement = agree(**asked)
    assert {name: getattr(agreement, name) for name in granted} == granted


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ({"heartbeat_interval": -2}, "E_BAD_BODY IDENTIFY heartbeat interval (-2) is invalid"),
        ({"output_buffer_timeout": 24}, "E_BAD_BODY IDENTIFY output buffer timeout (24) is invalid"),
        (
            {"snappy": True, "deflate": True},
            "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression",
        ),
        # Several faults: the one that nsqd looks at first.
        (
            {"output_buffer_size": 1, "output_buffer_timeout": 1, "sample_rate": 100},
            "E_BAD_BODY IDENTIFY output buffer timeout (1) is invalid",
        ),
        (
            {"heartbeat_interval": 1, "output_buffer_timeout": 1},
            "E_BAD_BODY IDENTIFY heartbeat interval (1) is invalid",
        ),
        ({"sample_rate": 100, "msg_timeout": 1}, "E_BAD_BODY IDENTIFY sample rate (100) is invalid"),
        (
            {"msg_timeout": 1, "snappy": True, "deflate": True},
            "E_BAD_BODY IDENTIFY msg timeout (1) is invalid",
        ),
    ],
)
def test_more_requests_are_refused(asked: dict[str, Any], answer: str) -> None:
    with pytest.raises(Refused) as caught:
        agree(**asked)
    assert bytes(caught.value) == answer.encode()
    assert caught.value.fatal


def test_ranges_hold_without_feature_negotiation_and_layers_need_it() -> None:
    with pytest.raises(Refused):
        negotiate(IdentifyRequest(sample_rate=100), OPTIONS)
    agreement = negotiate(IdentifyRequest(snappy=True, deflate=True, tls_v1=True, sample_rate=7), WITH_TLS)
    assert agreement == Agreement(msg_timeout=60.0, sample_rate=7)


def test_features_that_options_switch_off_are_not_granted() -> None:
    options = NsqdOptions(snappy=False, deflate=False)
    assert agree(options, snappy=True, deflate=True) == Agreement.initial(options)
    assert agree(WITH_TLS, tls_v1=True).tls


def test_the_options_move_the_limits() -> None:
    options = NsqdOptions(
        max_heartbeat_interval=5.0, max_msg_timeout=70.0, max_output_buffer_size=100, max_deflate_level=2
    )
    assert agree(options, deflate=True).deflate_level == 2
    for asked in ({"heartbeat_interval": 5001}, {"msg_timeout": 70001}, {"output_buffer_size": 101}):
        with pytest.raises(Refused):
            agree(options, **asked)


def test_the_reply_to_identify_has_the_agreed_values() -> None:
    options = NsqdOptions(
        auth_http_addresses=("a:1",), topology_region="r", topology_zone="z", max_rdy_count=9, tls_cert="c",
        tls_key="k", max_deflate_level=4, max_msg_timeout=100.0,
    )  # fmt: skip
    reply = reply_to(agree(options, tls_v1=True, deflate=True, msg_timeout=1500, sample_rate=3), options)
    assert (reply.max_rdy_count, reply.max_msg_timeout, reply.msg_timeout) == (9, 100_000, 1500)
    assert (reply.tls_v1, reply.deflate, reply.deflate_level, reply.max_deflate_level) == (True, True, 4, 4)
    assert (reply.snappy, reply.sample_rate, reply.auth_required) == (False, 3, True)
    assert (reply.output_buffer_size, reply.output_buffer_timeout) == (16384, 250)
    assert (reply.topology_region, reply.topology_zone) == ("r", "z")
    assert not reply_to(agree(), OPTIONS).auth_required


@given(
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            ("heartbeat_interval", "output_buffer_size", "output_buffer_timeout", "sample_rate",
            "msg_timeout",  "deflate_level"),
            st.integers(-3, 100) | st.integers(-(10**30), 10**30) | st.sampled_from([1000, 5000, 70_000]),
        ),
    )
)  # fmt: skip
def test_negotiated_values_are_always_possible(asked: dict[str, Any]) -> None:
    try:
        terms = agree(deflate=True, **asked)
    except Refused:
        return
    assert terms.heartbeat == 0 or 1 <= terms.heartbeat <= 60
    assert 1 <= terms.msg_timeout <= 900
    assert 0 <= terms.sample_rate <= 99
    assert 1 <= terms.deflate_level <= 6


@pytest.mark.parametrize(
    ("ours", "theirs", "locality"),
    [
        (("z", "r"), ("z", "r"), ZONE_LOCAL),
        (("z", "r"), ("z", ""), ZONE_LOCAL),
        (("z", "r"), ("y", "r"), REGION_LOCAL),
        (("z", "r"), ("y", "q"), ANYWHERE),
        (("", "r"), ("", "r"), REGION_LOCAL),
        (("", ""), ("", ""), ANYWHERE),
    ],
)
def test_how_near_a_client_is(ours: tuple[str, str], theirs: tuple[str, str], locality: int) -> None:
    zone, region = ours
    aware = NsqdOptions(topology_zone=zone, topology_region=region, experiments=(TOPOLOGY_AWARE,))
    unaware = NsqdOptions(topology_zone=zone, topology_region=region)
    request = IdentifyRequest(topology_zone=theirs[0], topology_region=theirs[1])
    assert negotiate(request, aware).locality == locality
    assert negotiate(replace(request, feature_negotiation=True), aware).locality == locality
    assert negotiate(request, unaware).locality == ANYWHERE


# Heartbeats and silence.


class Watch:
    def __init__(self) -> None:
        self.clock = FakeClock(now=0.0)
        self.beats: list[float] = []
        self.silences: list[float] = []
        self.liveness = Liveness(
            self.clock,
            beat=lambda: self.beats.append(self.clock.now()),
            silent=lambda: self.silences.append(self.clock.now()),
        )


def test_a_client_that_sends_anything_gets_two_more_intervals() -> None:
    watch = Watch()
    watch.liveness.start(10.0)
    for _ in range(10):
        watch.clock.advance(19.0)
        watch.liveness.heard_at = watch.clock.now()
    assert watch.silences == []
    watch.clock.advance(20.0)
    assert watch.silences == [210.0]
    assert watch.beats == [10.0 * number for number in range(1, 22)]


def test_a_new_interval_replaces_the_old_one() -> None:
    watch = Watch()
    watch.liveness.start(30.0)
    watch.clock.advance(29.0)
    watch.liveness.start(1.0)
    watch.clock.advance(1.5)
    assert watch.beats == [30.0]
    assert watch.silences == []


def test_an_excused_silence_begins_anew() -> None:
    watch = Watch()
    watch.liveness.start(10.0)
    watch.clock.advance(20.0)
    watch.liveness.restart_silence()
    watch.clock.advance(19.0)
    assert watch.silences == [20.0]
    watch.clock.advance(1.0)
    assert watch.silences == [20.0, 40.0]
    assert watch.beats == [10.0, 20.0, 30.0, 40.0]
