"""The user's hooks around a publish: what it calls before, and what it tells them at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

from nsq.errors import NsqError, UsageError
from nsq.log import Logger
from nsq.producer.publishes import BYTES, Publish, PublishOptions

log = Logger("nsq.producer")

#: Called before a publish with its topic and its bodies. Returns the bodies to send, as many, and a function
#: that is called once with the publish's error, or with None when nsqd has stored it. An attribute
#: ``nsqd_address`` of that function, if it has one, is set before.
PublishEnded = Callable[[BaseException | None], object]
PublishHook = Callable[
    [str, list[bytes]],
    tuple[list[bytes], PublishEnded] | tuple[list[bytes], PublishEnded, Mapping[str, object]],
]


class Watched:
    """One call of a publish, as a block that tells the hooks how it ends. The first one of ``around_publish``
    is the outermost: it sees the caller's bodies, and its end is called last. Of headers with one name the
    innermost hook's wins, and the caller's before all.
    """

    publish: Publish | None = None  # set when it has been made

    def __init__(
        self,
        around: list[PublishHook],
        on_refused: Callable[[str, NsqError], object] | None,
        topic: str,
        bodies: Iterable[bytes],
        options: PublishOptions,
    ) -> None:
        self.bodies, self.options = bodies, options
        self._topic, self._on_refused = topic, on_refused
        self._ends: list[PublishEnded] = []
        if not around or isinstance(bodies, (*BYTES, str)) or not isinstance(bodies, Iterable):
            return
        self.bodies = given = list(bodies)
        if not all(isinstance(body, BYTES) for body in given):
            return  # the checks of a publish say what is wrong
        headers = dict[str, object]()
        try:
            for hook in around:
                several, ended, *added = hook(topic, given)
                self._ends.append(ended)
                if len(several) != len(given):
                    raise UsageError(
                        f"around_publish {hook!r} returned {len(several)} bodies for {len(given)}"
                    )
                given = list(several)
                for more in added:
                    headers.update(more)
        except BaseException as error:
            self.end(error)
            raise
        self.bodies = given
        if headers:
            self.options = {**options, "headers": {**headers, **(options.get("headers") or {})}}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(error)

    def end(self, error: BaseException | None) -> None:
        """Tell the hooks. Their own errors must change neither the result of the publish nor other hooks."""
        publish = self.publish
        address = "" if publish is None or publish.endpoint is None else publish.endpoint.address
        for ended in reversed(self._ends):
            if hasattr(ended, "nsqd_address"):
                ended.nsqd_address = address
            self._tell("the end of around_publish", ended, error)
        # A publish that has ended with an error was reported to ``on_failed``.
        refused = isinstance(error, NsqError) and (publish is None or not publish.done())
        if refused and self._on_refused is not None:
            self._tell("on_refused", self._on_refused, self._topic, error)

    def _tell(self, name: str, hook: Callable[..., object], *args: object) -> None:
        try:
            hook(*args)
        except Exception:
            log.exception("%s failed for a publish to %r", name, self._topic)
