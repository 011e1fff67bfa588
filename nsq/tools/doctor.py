"""``nsq doctor``: examines every daemon of a cluster, and says what is wrong and what to do."""

from __future__ import annotations

import email.utils
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from nsq import ConnectionFailed, NsqError
from nsq.errors import ApiError
from nsq.findings import FAILURE, OK, WARNING, Finding, show
from nsq.http.cluster import merge_nodes
from nsq.http.message import HttpRequest, parse_url
from nsq.http.nsqd import NsqdStats
from nsq.http.nsqlookupd import RegisteredNode
from nsq.http.sending import send
from nsq.tools.cluster import ClusterFlags, named_daemons
from nsq.tools.program import ProducerFlags, config_of, run_command
from nsq.transport.addresses import join
from nsq.transport.dialing import default_transport
from nsq.wire.commands import MAGIC_V2, NOP, identify
from nsq.wire.frames import split_reply

#: Seconds; HTTP gives the time in whole seconds.
_CLOCK_TOLERANCE = 2.5


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(ClusterFlags, ProducerFlags):
    pass


def main(argv: Sequence[str]) -> int:
    synopsis = (
        "\nChecks every nsqlookupd and nsqd: reachable over HTTP and TCP (with TLS and AUTH as given by\n"
        "--producer-opt), registered everywhere, versions, clocks, topics and channels without consumers.\n"
        "The exit status is 1 when something is broken."
    )
    return run_command(DoctorOptions, argv, "nsq doctor", synopsis, _examine)


def _examine(options: DoctorOptions, _: tuple[str, ...]) -> int:
    if options.json:
        findings = list(examine(options))
        sys.stdout.write(json.dumps([each._asdict() for each in findings], indent=2) + "\n")
    else:
        findings = show(examine(options))
    return int(any(each.level == FAILURE for each in findings))


def examine(options: DoctorOptions) -> Iterator[Finding]:
    try:
        named = named_daemons(options)
    except ApiError as error:
        remedy = _http_remedy(error, "Is it running, and is this its HTTP port?")
        yield Finding(FAILURE, "nsqlookupd or nsqd", str(error), remedy)
        return
    nodes: dict[str, list[RegisteredNode]] = {}
    for address in named.lookupds:
        yield from _lookupd(options, address, nodes)
    addresses: dict[str, str] = {}  # TCP address by HTTP address
    for node in merge_nodes(nodes):
        if node.problem:
            remedy = "Give this nsqd a --broadcast-address and ports at which others reach it."
            yield Finding(WARNING, "nsqds", node.problem, remedy)
        else:
            addresses[node.name] = node.info.tcp_address
    yield from _registrations(nodes)
    versions: dict[str, list[str]] = {}
    for address in sorted({*addresses, *named.nsqds}):
        told = address not in named.nsqds
        yield from _nsqd(options, address, addresses.get(address, ""), versions, told)
    if len(versions) > 1:
        listed = "; ".join(f"{version}: {', '.join(which)}" for version, which in sorted(versions.items()))
        yield Finding(WARNING, "nsqds", f"versions differ: {listed}", "Upgrade all to the newest version.")
    if not addresses and not named.nsqds and nodes:
        yield Finding(
            FAILURE,
            "nsqds",
            "no nsqd is registered",
            "Start nsqd with --lookupd-tcp-address=HOST:4160, the TCP address of each nsqlookupd.",
        )


def _lookupd(
    options: DoctorOptions, address: str, nodes: dict[str, list[RegisteredNode]]
) -> Iterator[Finding]:
    where, api = f"nsqlookupd {address}", options.lookupd_api(address)
    try:
        version = api.info()
        nodes[address] = api.nodes()
    except NsqError as error:
        yield Finding(
            FAILURE,
            where,
            str(error),
            _http_remedy(error, "Is it running, and is this its HTTP port (4161)?"),
        )
        return
    yield Finding(OK, where, f"version {version}, knows {len(nodes[address])} nsqds")
    yield from _clock(options, where, address)


def _registrations(nodes: dict[str, list[RegisteredNode]]) -> Iterator[Finding]:
    everywhere = {node.http_address for registered in nodes.values() for node in registered}
    for address, registered in nodes.items():
        missing = everywhere - {node.http_address for node in registered}
        if missing:
            yield Finding(
                WARNING,
                f"nsqlookupd {address}",
                f"does not know {', '.join(sorted(missing))}, which others know",
                "Give these nsqds a --lookupd-tcp-address for this nsqlookupd too.",
            )


def _nsqd(
    options: DoctorOptions, address: str, tcp: str, versions: dict[str, list[str]], told: bool
) -> Iterator[Finding]:
    where, api = f"nsqd {address}", options.nsqd_api(address, told=told)
    stats = None
    try:
        info = api.info()
    except NsqError as error:
        remedy = "Can this host resolve and reach it? nsqd tells others its --broadcast-address."
        yield Finding(FAILURE, where, str(error), _http_remedy(error, remedy))
    else:
        versions.setdefault(info.version, []).append(address)
        tcp = tcp or join(parse_url(address).host, info.tcp_port)
        yield Finding(OK, where, f"version {info.version}")
        yield from _clock(options, where, address)
        try:
            stats = api.stats(include_clients=False)
        except NsqError as error:
            yield Finding(FAILURE, where, str(error))
    if tcp:
        yield _handshake(options, tcp)
    if stats is not None:
        yield from _contents(where, stats)


def _http_remedy(error: NsqError, otherwise: str) -> str:
    if "certificate" in str(error):
        return "Give the authority that signed it: --http-client-tls-root-ca-file=FILE"
    if "TCP port" in str(error):
        return "Give its HTTP address."
    return otherwise


def _handshake(options: DoctorOptions, address: str) -> Finding:
    """Check TCP, IDENTIFY, and TLS and AUTH as the flags say."""
    where = f"nsqd {address} (TCP)"
    producer, timeout = options.producer("nsq-doctor", address), options.request_timeout
    config = config_of("--producer-opt", options.producer_opt, {})
    try:
        producer.ping(address, timeout=timeout)
        if not config.tls and _insists_on_tls(address, timeout):
            raise ConnectionFailed("it requires TLS")
    except NsqError as error:
        remedy = "Producers and consumers use this port: open it, or set --broadcast-tcp-port."
        text = str(error)
        if "AUTH" in text:
            remedy = "Give the secret: --producer-opt=auth_secret,SECRET"
        elif "TLS" in text.upper() or "certificate" in text:
            remedy = "Give TLS options: --producer-opt=tls_v1 --producer-opt=tls_root_ca_file,FILE"
        return Finding(FAILURE, where, text, remedy)
    finally:
        producer.close()
    return Finding(OK, where, "answers")


def _insists_on_tls(address: str, timeout: float) -> bool:
    """Whether nsqd refuses commands without TLS. It answers IDENTIFY even then, so this sends a NOP first,
    which a healthy nsqd accepts silently.
    """
    stream = default_transport.connect(address, timeout=timeout)
    said = b""
    try:
        stream.write(MAGIC_V2 + NOP + identify(b"{}"), timeout)
        stream.read_timeout = timeout
        while (first := split_reply(said)) is None and (data := stream.read()):
            said += data
    except NsqError:
        return False
    finally:
        stream.close()
    return first is not None and b"TLS required" in first[0].data


def _contents(where: str, stats: NsqdStats) -> Iterator[Finding]:
    if stats["health"] != "OK":
        yield Finding(FAILURE, where, f"is unhealthy: {stats['health']}", "Look at its log and its disk.")
    for name, topics in _grouped(stats["topics"], "topic_name"):
        channels = [channel for topic in topics for channel in topic["channels"]]
        depth = sum(topic["depth"] for topic in topics)
        if any(topic["paused"] for topic in topics):
            yield Finding(WARNING, where, f"topic {name} is paused", f"nsq unpause {name}")
        stored = sum(topic.get("stored_bytes", 0) for topic in topics)
        waiting = f"{depth} messages" if depth else f"{stored} bytes" if stored else ""
        if waiting and not channels:
            yield Finding(
                WARNING,
                where,
                f"topic {name} has no channel, and {waiting} wait",
                f"Start a consumer of it, or: nsq create {name}/CHANNEL",
            )
        for channel, entries in _grouped(channels, "channel_name"):
            full_name = f"{name}/{channel}"
            waiting = sum(entry["depth"] for entry in entries if not entry.get("client_count", 0))
            if any(entry["paused"] for entry in entries):
                yield Finding(WARNING, where, f"channel {full_name} is paused", f"nsq unpause {full_name}")
            if waiting:
                yield Finding(
                    WARNING,
                    where,
                    f"channel {full_name} has no consumer, and {waiting} messages wait",
                    f"Start its consumer, or if you do not need the channel: nsq delete {full_name}",
                )


def _grouped(entries: Iterable[Any], name: str) -> Iterator[tuple[str, list[Any]]]:
    """Group entries by name: a partitioned nsqd has one of a topic, and of a channel, for each partition."""
    for key, group in groupby(sorted(entries, key=itemgetter(name)), itemgetter(name)):
        yield key, list(group)


def _clock(options: DoctorOptions, where: str, address: str) -> Iterator[Finding]:
    """Compare clocks by the Date of a reply; many proxies and older daemons send none."""
    before = time.time()
    try:
        url = parse_url(f"http://{address}/ping" if "://" not in address else f"{address.rstrip('/')}/ping")
        reply = send(HttpRequest(url), timeout=options.request_timeout, tls=options.tls)
        their_time = email.utils.parsedate_to_datetime(reply.headers.get("date", "")).timestamp()
    except (NsqError, ValueError, TypeError):
        return
    after = time.time()
    ahead = their_time - after if their_time > after else min(0.0, their_time + 1.0 - before)
    if abs(ahead) > _CLOCK_TOLERANCE:
        way = "ahead of" if ahead > 0 else "behind"
        yield Finding(
            WARNING,
            where,
            f"its clock is {abs(ahead):.0f} s {way} this host's",
            "Synchronize the clocks; otherwise ages and timestamps of messages are wrong.",
        )
