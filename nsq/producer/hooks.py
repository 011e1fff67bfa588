"""Several hooks around a publish as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nsq.errors import ConfigError, UsageError
from nsq.log import Logger

if TYPE_CHECKING:
    from nsq.producer.producer import PublishEnded, PublishHook

log = Logger("nsq.producer")


def composed(given: PublishHook | Sequence[PublishHook] | None) -> PublishHook | None:
    """Return the hooks as one; a single one as it is. The first is the outermost: it sees the caller's
    bodies, and its end is called last. Of headers with one name the innermost hook's wins.
    """
    if given is None:
        return None
    hooks: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    for hook in hooks:
        if not callable(hook):
            raise ConfigError(f"around_publish is {hook!r}, must be a function, or a list of functions")
    if len(hooks) < 2:
        only: PublishHook | None = hooks[0] if hooks else None
        return only

    def around(topic: str, bodies: list[bytes]) -> Any:
        ends, headers = _Ends(), dict[str, Any]()
        try:
            for hook in hooks:
                several, ended, *added = hook(topic, bodies)
                ends.begun.append(ended)
                check_count(hook, several, bodies)
                bodies = list(several)
                for more in added:
                    headers.update(more)
        except BaseException as error:
            ends(error)
            raise
        return (bodies, ends, headers) if headers else (bodies, ends)

    return around


def check_count(hook: PublishHook, several: Sequence[bytes], given: Sequence[bytes]) -> None:
    """Raise UsageError if a hook has returned more or fewer bodies than it got."""
    if len(several) != len(given):
        raise UsageError(f"around_publish {hook!r} returned {len(several)} bodies for {len(given)}")


class _Ends:
    """Calls the ends of all hooks that have begun, the last one first."""

    def __init__(self) -> None:
        self.begun: list[PublishEnded] = []
        self.nsqd_address = ""

    def __call__(self, error: BaseException | None) -> None:
        for ended in reversed(self.begun):
            try:
                if hasattr(ended, "nsqd_address"):
                    ended.nsqd_address = self.nsqd_address
                ended(error)
            except Exception:  # it must change neither the result nor the others
                log.exception("the end %r of around_publish failed", ended)
