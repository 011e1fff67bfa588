"""``nsq``, also ``python -m nsq``: the program for everyday work with NSQ in a shell.

    nsq pub orders '{"id": 1}'
    nsq tail orders
    nsq topics

Commands that Go's NSQ has as programs run these programs, with an address and a topic filled in. A command's
module is imported when the command runs, so that ``nsq --help`` is fast.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nsq.errors import NsqError, UsageError
from nsq.threads.stop_signals import held_stop, release_signals
from nsq.tools.program import VERSION, exit_status, open_standard_streams

if TYPE_CHECKING:
    import dataclasses

    from nsq.tools.cluster import ClusterFlags


class Command(NamedTuple):
    """``options`` and ``main`` are names in a module of this package. ``classic`` ones are Go's programs."""

    module: str
    options: str
    about: str
    main: str = "main"
    classic: bool = False


def _classic(module: str, options: str, about: str) -> Command:
    return Command(module, options, f"{about} ({module})", classic=True)


COMMANDS = {
    "up": Command("up", "UpOptions", "run nsqd, nsqlookupd and nsqadmin on this machine"),
    "pub": Command("pub", "PubOptions", "publish messages from the command line or stdin"),
    "tail": _classic("nsq_tail", "TailOptions", "show messages as they come"),
    "stat": _classic("nsq_stat", "StatOptions", "watch a channel's rates and depth"),
    "top": Command("top", "TopOptions", "watch all topics and channels on a screen"),
    "topics": Command("cluster", "ListOptions", "list topics", "main_topics"),
    "channels": Command("cluster", "ListOptions", "list a topic's channels", "main_channels"),
    "create": Command("cluster", "ChangeOptions", "create a topic or channel", "main_create"),
    "delete": Command("cluster", "ConfirmedOptions", "delete a topic or channel", "main_delete"),
    "empty": Command("cluster", "ConfirmedOptions", "delete the waiting messages", "main_empty"),
    "pause": Command("cluster", "ChangeOptions", "stop delivering a topic or channel", "main_pause"),
    "unpause": Command("cluster", "ChangeOptions", "resume delivering a topic or channel", "main_unpause"),
    "peek": Command("peek", "PeekOptions", "show waiting messages without consuming them"),
    "redrive": Command("redrive", "RedriveOptions", "move dead letters back to their topic"),
    "doctor": Command("doctor", "DoctorOptions", "find out what is wrong with a cluster, and what to do"),
    "bench": Command("bench", "BenchOptions", "measure how fast a cluster takes and delivers messages"),
    "work": Command("work", "WorkOptions", "run the consumers of a module in several processes"),
    "to-file": _classic("nsq_to_file", "ToFileOptions", "archive topics into files"),
    "to-http": _classic("nsq_to_http", "ToHttpOptions", "send messages to an HTTP server"),
    "to-nsq": _classic("nsq_to_nsq", "NsqToNsqOptions", "publish messages to other nsqds"),
    "secret": Command("secret", "SecretOptions", "make a login for the daemons' HTTP APIs"),
    "completion": Command("completion", "", "print the completion script of bash, zsh or fish"),
}

_HELP = """\
Usage: nsq COMMAND [arguments and flags]

{commands}

For details: nsq COMMAND --help. Write a topic as TOPIC, a channel as TOPIC/CHANNEL.
nsq asks the nsqlookupds, or the nsqds, at --address=HOST:PORT or in $NSQ_ADDRESS (HTTP addresses, separated
by commas); without either an nsqlookupd at 127.0.0.1:4161, or else an nsqd at 127.0.0.1:4151.

  nsq up                                      run all daemons on this machine
  nsq pub orders '{{"id": 1}}'                  publish a message
  nsq tail orders                             watch the topic, in a channel of its own
  nsq stat orders/billing                     watch the rates of a channel
  nsq doctor                                  find out what is wrong
  eval "$(nsq completion bash)"               complete commands, flags, topics and channels
"""
_CLASSIC_HELP = """\
Usage: nsq {name} TOPIC[/CHANNEL] [--address=HOST:PORT] [flags of {module}]

TOPIC and CHANNEL stand for --topic and --channel, --address for the flag of an nsqlookupd or an nsqd.

"""
_ADDRESS = re.compile(r"--?(nsqd-tcp-address|nsqd-http-address|lookupd-http-address)(=|$)")
_ANY_ADDRESS = re.compile(r"--?address(=(?P<address>.*)|$)")


def main(argv: Sequence[str] | None = None) -> int:
    if argv is None:
        open_standard_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    return exit_status(lambda: _run(words))


def _run(words: list[str]) -> int:
    if words[:1] in (["--version"], ["-version"]):
        sys.stdout.write(f"nsq {VERSION}\n")
        return 0
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words or words[0] in ("-h", "--help", "-help"):
        sys.stdout.write(help_text())
        return 0
    name, *arguments = words
    command = COMMANDS.get(name)
    if command is None:
        import difflib

        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        sys.stderr.write(f"nsq has no command {name}{hint}\nnsq --help lists them\n")
        return 2
    module = importlib.import_module(f"nsq.tools.{command.module}")
    if number := held_stop():  # nothing has begun
        return 128 + number
    release_signals()
    try:
        if command.classic:
            arguments = filled_in(command, arguments)
            if _asks_for_help(arguments):
                sys.stdout.write(_CLASSIC_HELP.format(name=name, module=command.module))
    except NsqError as error:
        sys.stderr.write(f"nsq {name}: {error}\n")
        return 1
    status: int = getattr(module, command.main)(arguments)
    return status


def help_text() -> str:
    return _HELP.format(commands="\n".join(f"  {name:<12}{each.about}" for name, each in COMMANDS.items()))


def filled_in(command: Command, arguments: Sequence[str]) -> list[str]:
    """Return the flags of a Go-style program, given flags and TOPIC or TOPIC/CHANNEL in any order. --address,
    which it does not have, becomes its flag for nsqlookupds or for nsqds.
    """
    from nsq.tools.cluster import ClusterFlags, topic_and_channel

    bare = {"h", "help", "version"}
    bare |= {field.name.replace("_", "-") for field in fields_of(command) if field.type == "bool"}
    given: list[str] = []
    names: list[str] = []
    addresses: list[str] = []
    rest = deque(arguments)
    while rest:
        argument = rest.popleft()
        if argument == "--":
            names += rest
            break
        if not argument.startswith("-"):
            names.append(argument)
            continue
        if found := _ANY_ADDRESS.match(argument):
            if found["address"] is None and not rest:
                raise UsageError("--address needs a value: HOST:PORT")
            addresses.append(rest.popleft() if found["address"] is None else found["address"])
            continue
        given.append(argument)
        if rest and "=" not in argument and argument.lstrip("-") not in bare:
            given.append(rest.popleft())
    if _asks_for_help(given) or any(each.lstrip("-") == "version" for each in given):
        return given
    topics: list[str] = []
    for name in names:
        topic, channel = topic_and_channel(name)
        topics += [f"--topic={topic}", *([f"--channel={channel}"] if channel else [])]
    if any(map(_ADDRESS.match, given)):
        if addresses:
            raise UsageError("give --address or another address flag, not both")
        return topics + given
    over_http = any(field.name == "nsqd_http_address" for field in fields_of(command))
    return topics + _address_flags(ClusterFlags(address=tuple(addresses)), over_http) + given


def fields_of(command: Command) -> list[dataclasses.Field[Any]]:
    if not command.options:
        return []
    import dataclasses

    options: Any = getattr(importlib.import_module(f"nsq.tools.{command.module}"), command.options)
    return sorted(dataclasses.fields(options), key=lambda field: field.name)


def _asks_for_help(arguments: Sequence[str]) -> bool:
    return any(each in ("-h", "--h", "-help", "--help") for each in arguments)


def _address_flags(options: ClusterFlags, over_http: bool) -> list[str]:
    from nsq.tools.cluster import Cluster, named_daemons

    named = named_daemons(options)
    if named.lookupds:
        return [f"--lookupd-http-address={address}" for address in named.lookupds]
    if over_http:
        return [f"--nsqd-http-address={address}" for address in named.nsqds]
    return [f"--nsqd-tcp-address={address}" for address in Cluster(options).tcp_addresses]
