"""``nsq peek``: shows the waiting messages of a topic or a channel without consuming them.

Of a dead letter with a reason it shows the reason and the message that it was.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nsq.errors import ApiRefused, UsageError
from nsq.http.asking import ask_all
from nsq.http.cluster import count_topics
from nsq.http.nsqd import PeekedMessage
from nsq.tables import printable
from nsq.tools.cluster import Cluster, ClusterFlags, topic_and_channel, warn_of
from nsq.tools.nsq_tail import pretty
from nsq.tools.program import flag, run_command
from nsq.wire.envelope import dead_letter_in

#: What to do about a refusal, by its code.
_REMEDIES = {
    "NOT_FOUND": "this nsqd cannot show its messages: it is not one of ours, or it runs with --peek=off. "
    "`nsq tail` shows new messages, in a channel of its own",
    "PEEK_FROM_THIS_MACHINE_ONLY": "it shows messages only on its own machine: run this there, "
    "or start it with --peek=all",
}


@dataclass(frozen=True, kw_only=True)
class PeekOptions(ClusterFlags):
    n: int = flag(10, "largest number of messages to show of each nsqd", low=1, high=1000)
    deferred: bool = flag(False, "show the deferred messages of a channel that are due next")
    pretty: bool = flag(
        lambda: sys.stdout.isatty(),
        "format JSON in lines, and escape control characters (default: on a terminal)",
    )


def main(argv: Sequence[str]) -> int:
    synopsis = (
        "TOPIC[/CHANNEL]\nShows the first waiting messages of every nsqd that has the topic or channel. "
        "It does not\nconsume, count or reorder them."
    )
    return run_command(PeekOptions, argv, "nsq peek", synopsis, _peek)


def _peek(options: PeekOptions, words: tuple[str, ...]) -> int:
    topic, channel = topic_and_channel(words[0])
    if options.deferred and not channel:
        raise UsageError("--deferred shows messages of a channel: name it, as in TOPIC/CHANNEL")
    cluster = Cluster(options)
    stats = cluster.stats(topic)
    nsqds = {address: cluster.nsqds[address] for address, of_nsqd in stats.items() if of_nsqd["topics"]}
    answers = ask_all(
        nsqds, lambda address: nsqds[address].peek(topic, channel, n=options.n, deferred=options.deferred)
    )
    shown: list[dict[str, Any]] = []
    for address, messages in answers.found.items():
        for message in messages:
            if options.json:
                shown.append(_as_json(address, message))
            else:
                _show(address, message, options)
    for address, error in answers.errors.items():
        code = error.code if isinstance(error, ApiRefused) else ""
        if code != "CHANNEL_NOT_FOUND":
            cluster.problems.append(f"{address}: {_REMEDIES.get(code, error)}")
    if options.json:
        sys.stdout.write(json.dumps(shown, indent=2) + "\n")
    if not answers.found and not cluster.problems:
        cluster.problems.append(f"no nsqd has the {'channel' if nsqds else 'topic'} {words[0]!r}")
    if not channel and not any(answers.found.values()):
        waiting = {each.name: each.depth for topic in count_topics(stats.values()) for each in topic.channels}
        for name, depth in waiting.items():
            if depth:
                sys.stderr.write(f"{depth} messages wait in a channel: nsq peek {topic}/{printable(name)}\n")
    return warn_of(cluster.problems)


def _show(address: str, message: PeekedMessage, options: PeekOptions) -> None:
    size = f" of {message.size} bytes, of which the first {len(message.body)}" if message.truncated else ""
    due = "" if message.due_in is None else f" due={message.due_in:.3f}s"
    facts = f"{address} {message.id} attempts={message.attempts} age={message.age:.3f}s{due}{size}"
    head = f"{printable(facts)}\n"
    body, letter = message.body, dead_letter_in(message.body)
    if letter is not None:
        body, about = letter.body, letter.attributes
        why = [about[name] for name in ("reason", "error", "place") if name in about]
        head += printable(f"{about['source'][1:]} gave it up: {' · '.join(why)}") + "\n"
    if options.pretty:
        body = pretty(body)
    sys.stdout.buffer.write(head.encode() + body + b"\n")
    sys.stdout.buffer.flush()


def _as_json(address: str, message: PeekedMessage) -> dict[str, Any]:
    """A message as JSON; a body that is not UTF-8 is in Base64, under another key."""
    fields: dict[str, Any] = {"nsqd": address, **vars(message)}
    body, letter = message.body, dead_letter_in(message.body)
    if letter is not None:
        body = letter.body
        fields["dead_letter"] = letter.attributes
    try:
        fields["body"] = body.decode()
    except UnicodeDecodeError:
        del fields["body"]
        fields["body_base64"] = base64.b64encode(body).decode()
    return fields
