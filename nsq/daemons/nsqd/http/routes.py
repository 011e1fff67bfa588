"""The table of nsqd's HTTP API."""

from __future__ import annotations

from collections.abc import Callable

from nsq.daemons.debug.endpoints import Debugging
from nsq.daemons.nsqd.http.administration import Administration
from nsq.daemons.nsqd.http.context import Context
from nsq.daemons.nsqd.http.inspection import Inspection
from nsq.daemons.nsqd.http.publishing import Publishing
from nsq.daemons.nsqd.storage.committer import Committer
from nsq.daemons.routes import Handler, Reply, Request, Route


def routes(context: Context) -> list[Route]:
    publishing = Publishing(context)
    administration = Administration(context)
    inspection = Inspection(context)
    actions: dict[str, Handler] = {
        "/topic/create": administration.create_topic,
        "/topic/delete": administration.delete_topic,
        "/topic/empty": administration.empty_topic,
        "/topic/pause": administration.pause_topic,
        "/topic/unpause": administration.unpause_topic,
        "/channel/create": administration.create_channel,
        "/channel/delete": administration.delete_channel,
        "/channel/empty": administration.empty_channel,
        "/channel/pause": administration.pause_channel,
        "/channel/unpause": administration.unpause_channel,
    }
    if context.storage.waits is not None:
        actions = {path: _lasting(action, context.storage.waits) for path, action in actions.items()}
    return [
        Route("GET", "/ping", inspection.ping, plain=True),
        Route("GET", "/info", inspection.info),
        Route("GET", "/stats", inspection.stats),
        Route("GET", "/config/:opt", inspection.get_setting),
        Route("PUT", "/config/:opt", inspection.put_setting),
        Route("POST", "/debug/freememory", inspection.free_memory),
        *Debugging().routes(),
        Route("POST", "/pub", publishing.pub, logged=False),
        Route("POST", "/mpub", publishing.mpub, logged=False),
        *(Route("POST", path, handler) for path, handler in actions.items()),
        # The names of NSQ's first releases, which its guide still uses; its actions answered GET too.
        Route("POST", "/put", publishing.pub, logged=False),
        Route("POST", "/mput", publishing.mpub, logged=False),
        *(
            Route(method, _older_name(path), handler)
            for path, handler in actions.items()
            for method in ("GET", "POST")
        ),
    ]


def _lasting(action: Handler, committer: Committer) -> Handler:
    """Answers when what it did is on disk to stay."""

    async def act(request: Request) -> Reply:
        made = action(request)
        reply = made if isinstance(made, Reply) else await made
        await committer.lasting()
        return reply

    return act


def _older_name(path: str) -> str:
    """/topic/create was /create_topic."""
    _, noun, verb = path.split("/")
    return f"/{verb}_{noun}"


def tls_gate(https_port: Callable[[], int]) -> Callable[[Request], Reply]:
    """For an nsqd that requires TLS: every plain request is told where to go instead."""

    def refuse(_: Request) -> Reply:
        return Reply.json({"message": "TLS_REQUIRED", "https_port": https_port()}, 403)

    return refuse
