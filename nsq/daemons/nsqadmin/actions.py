"""Actions of an administrator: changes to topics, channels and nsqds, in the order of Go's nsqadmin.

An action goes to the nsqlookupds first, so that consumers that look a topic up do not create it again; then
to every nsqd that has it. A failure does not stop the rest, and is named in the reply. Every action is
posted to the notification endpoint.

In a partitioned NSQ an action on a channel goes to each partition's leader, and only the leading nsqlookupd
deletes topics. It cannot pause or empty topics, and refuses to create one by its name alone.
"""

from __future__ import annotations

import time
from contextlib import suppress

from nsq.daemons.nsqadmin.cluster import Cluster, UpstreamError, post
from nsq.daemons.nsqadmin.guard import json_body, reply_with, text_in
from nsq.daemons.nsqadmin.live import Live
from nsq.daemons.nsqadmin.notifications import Notifications
from nsq.daemons.serve.routes import HttpError, Reply, Request
from nsq.errors import ApiRefused
from nsq.http.cluster import Node
from nsq.wire.names import valid_channel, valid_topic


class Actions:
    def __init__(self, cluster: Cluster, live: Live, notifications: Notifications) -> None:
        self._cluster = cluster
        self._live = live
        self._notifications = notifications

    async def create(self, request: Request) -> Reply:
        body = await json_body(request)
        topic, channel = text_in(body, "topic"), text_in(body, "channel")
        if not valid_topic(topic):
            raise HttpError(400, "INVALID_TOPIC")
        if channel and not valid_channel(channel):
            raise HttpError(400, "INVALID_CHANNEL")
        failures = await self._create(topic, channel)
        self._notify("create_topic", request, topic)
        if channel:
            self._notify("create_channel", request, topic, channel)
        return reply_with({}, failures)

    async def _create(self, topic: str, channel: str) -> list[str]:
        """Create on the nsqlookupds, and a channel on the topic's nsqds; without nsqlookupds on all nsqds."""
        cluster = self._cluster
        both = {"topic": topic, "channel": channel}
        if channel:
            with suppress(UpstreamError):
                known = await cluster.nodes()
                holders = [node for node in known.value if node.partitioned and topic in node.topics]
                if holders:
                    return known.failures + await cluster.post_nodes(holders, "/channel/create", both)
        if cluster.lookupds:
            failures = await cluster.post_lookupds("/topic/create", {"topic": topic})
            if not channel:
                return failures
            failures += await cluster.post_lookupds("/channel/create", both)
            nodes = await cluster.producers(topic)
        else:
            nodes = await cluster.nodes()
            failures = await cluster.post_nodes(nodes.value, "/topic/create", {"topic": topic})
        failures += nodes.failures
        if channel:
            failures += await cluster.post_nodes(nodes.value, "/channel/create", both)
        return failures

    async def act(self, request: Request) -> Reply:
        """Pause, unpause or empty a topic or channel, or redrive a channel."""
        topic, channel = request.params["topic"], request.params.get("channel", "")
        kind = "channel" if channel else "topic"
        body = await json_body(request)
        action = text_in(body, "action")
        if action == "redrive" and channel:
            moved, failures = await self._live.redrive(topic, channel, text_in(body, "to"))
            self._notify("redrive_channel", request, topic, channel)
            return reply_with({"moved": moved}, failures)
        if action not in ("pause", "unpause", "empty"):
            raise HttpError(400, "INVALID_ACTION")
        try:
            nodes = await self._cluster.holders(topic)
            if not channel and any(node.partitioned for node in nodes.value):
                raise HttpError(400, f"A_PARTITIONED_NSQ_CANNOT_{action.upper()}_TOPICS_BUT_CHANNELS")
            path, args = f"/{kind}/{action}", _names(topic, channel)
            failures = nodes.failures + await self._cluster.post_nodes(nodes.value, path, args)
        finally:  # as Go's nsqadmin, even if the action failed
            self._notify(f"{action}_{kind}", request, topic, channel)
        return reply_with({}, failures)

    async def delete(self, request: Request) -> Reply:
        """Delete a topic with its channels, or one channel."""
        topic, channel = request.params["topic"], request.params.get("channel", "")
        kind = "channel" if channel else "topic"
        path, args = f"/{kind}/delete", _names(topic, channel)
        if not channel:
            await self._live.close_tails(topic)
        nodes = await self._cluster.holders(topic)  # before the nsqlookupds forget them
        failures = nodes.failures
        if not any(node.partitioned for node in nodes.value):
            failures += await self._cluster.post_lookupds(path, args)
            failures += await self._cluster.post_nodes(nodes.value, path, args)
        elif channel:
            failures += await self._cluster.post_nodes(nodes.value, path, args)
        else:
            refused = await self._cluster.post_lookupds(path, {**args, "partition": "**"})
            if len(refused) == len(self._cluster.lookupds):  # else only those refused that do not lead
                failures += refused
        self._notify(f"delete_{kind}", request, topic, channel)
        return reply_with({}, failures)

    async def tombstone(self, request: Request) -> Reply:
        """Hide one nsqd from the topic's consumers, and delete the topic there."""
        try:
            topic = text_in(await json_body(request), "topic")
        except HttpError as error:
            if error.status != 400:
                raise
            raise HttpError(400, "INVALID_BODY") from None
        if not valid_topic(topic):
            raise HttpError(400, "INVALID_TOPIC")
        name = request.params["node"]
        await self._live.close_tails(topic)
        failures = await self._cluster.post_lookupds("/topic/tombstone", {"topic": topic, "node": name})
        nodes = await self._cluster.nodes()
        here = [node for node in nodes.value if node.name == name]
        failures += nodes.failures
        if not here:
            raise UpstreamError(f"{name} is not a known nsqd: the topic was not deleted")

        async def delete(node: Node) -> None:
            try:
                await self._cluster.ask(post(node.url, "/topic/delete", {"topic": topic}))
            except ApiRefused as error:
                failures.append(str(error))

        if not here[0].partitioned:  # such an nsqd deletes no topic: it is only hidden from producers
            await self._cluster.gather("nsqd", here, delete)  # one that does not answer is an error, as in Go
        self._notify("tombstone_topic_producer", request, topic, node=name)
        return reply_with({}, failures)

    def _notify(self, action: str, request: Request, topic: str, channel: str = "", node: str = "") -> None:
        self._notifications.notify(action, request, time.time(), topic=topic, channel=channel, node=node)


def _names(topic: str, channel: str) -> dict[str, str]:
    return {"topic": topic} | ({"channel": channel} if channel else {})
