"""/ping, /info, /stats and /config."""

from __future__ import annotations

import dataclasses
import gc
import json
import socket
import time
from typing import Any

from nsq.daemons import COMPATIBLE_VERSION
from nsq.daemons.nsqd import stats
from nsq.daemons.nsqd.http.context import Context
from nsq.daemons.nsqd.http.stats_text import Snapshot, render
from nsq.daemons.nsqd.storage.storage import HEALTHY
from nsq.daemons.routes import OK, HttpError, Reply, Request, read_body
from nsq.errors import ConfigError
from nsq.flags import config_key, is_duration

_MAX_SETTING = 1024 * 1024


class Inspection:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = {config_key(field): field for field in dataclasses.fields(context.options)}

    def ping(self, request: Request) -> Reply:
        return OK if self._health == HEALTHY else Reply.text(self._health, 500)

    def info(self, request: Request) -> Reply:
        options = self._context.options
        tcp_port, http_port = self._context.ports()
        return Reply.json(
            {
                "version": COMPATIBLE_VERSION,
                "broadcast_address": options.broadcast_address,
                "hostname": socket.gethostname(),
                "http_port": http_port,
                "tcp_port": tcp_port,
                "start_time": self._context.start_time,
                "max_heartbeat_interval": _nanoseconds(options.max_heartbeat_interval),
                "max_output_buffer_size": options.max_output_buffer_size,
                "max_output_buffer_timeout": _nanoseconds(options.max_output_buffer_timeout),
                "max_deflate_level": options.max_deflate_level,
                "topology_zone": options.topology_zone,
                "topology_region": options.topology_region,
            }
        )

    def stats(self, request: Request) -> Reply:
        args, context = request.args, self._context
        wanted = stats.Filter(
            topic=args.get("topic", ""),
            channel=args.get("channel", ""),
            include_clients=_boolean(args.get("include_clients", "")),
        )
        snapshot = Snapshot(
            version=COMPATIBLE_VERSION,
            health=self._health,
            start_time=context.start_time,
            topics=stats.topics(context.broker, wanted),
            memory=context.memory.figures() if _boolean(args.get("include_mem", "")) else None,
            producers=stats.producers(context.sessions(), wanted) if wanted.include_clients else None,
        )
        if args.get("format") != "json":
            return Reply.text(render(snapshot, time.time()))
        shown = dataclasses.asdict(snapshot)
        if snapshot.memory is None:
            del shown["memory"]
        return Reply.json(shown)

    @property
    def _health(self) -> str:
        health = self._context.storage.health
        return health if health == HEALTHY else f"NOK - {health}"

    def get_setting(self, request: Request) -> Reply:
        return self._shown(request.params["opt"])

    async def put_setting(self, request: Request) -> Reply:
        # A body of the full size counts as too large, and so does none, as nsqd has it.
        body = await read_body(request, _MAX_SETTING, "INVALID_VALUE")
        if not 0 < len(body) <= _MAX_SETTING:
            raise HttpError(413, "INVALID_VALUE")
        name = request.params["opt"]
        try:
            if name == "nsqlookupd_tcp_addresses":
                self._context.registration.set_addresses(_texts(body))
            elif name == "log_level":
                self._context.log.level = body.decode("utf-8", "replace")
            else:
                raise HttpError(400, "INVALID_OPTION")
        except (ValueError, RecursionError):
            raise HttpError(400, "INVALID_VALUE") from None
        return self._shown(name)

    def _shown(self, name: str) -> Reply:
        value = self._setting(name)
        return Reply.text(value) if isinstance(value, str) else Reply.json(value)

    def _setting(self, name: str) -> Any:
        field = self._settings.get(name)
        if field is None:
            raise HttpError(400, "INVALID_OPTION")
        if name == "nsqlookupd_tcp_addresses":
            return self._context.registration.addresses
        if name == "log_level":
            return self._context.log.level
        value = getattr(self._context.options, field.name)
        return _nanoseconds(value) if is_duration(field) else value

    def free_memory(self, request: Request) -> Reply:
        """Collect garbage now. Go's nsqd does so too and then answers 500, which helps nobody."""
        gc.collect()
        return OK


def _texts(body: bytes) -> list[str]:
    values = json.loads(body)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigError(f"{values!r} is not a list of addresses")
    return values


def _boolean(text: str) -> bool:
    if text in ("", "true", "1"):
        return True
    if text in ("false", "0"):
        return False
    raise HttpError(400, "INVALID_REQUEST")


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1_000_000_000)
