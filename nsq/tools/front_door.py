"""``nsq``, also ``python -m nsq``: the program for everyday work with NSQ in a shell.

    nsq pub orders '{"id": 1}'
    nsq tail orders
    nsq topics

Commands that Go's NSQ has as programs run these programs, with an address and a topic filled in.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import re
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from nsq.errors import NsqError, UsageError
from nsq.flags import Flag
from nsq.http.cluster import count_topics
from nsq.options import METADATA
from nsq.threads.stop_signals import held_stop, release_signals
from nsq.tools.cluster import Cluster, ClusterFlags, named_daemons, topic_and_channel
from nsq.tools.program import VERSION, exit_status, open_standard_streams
from nsq.wire.names import valid_channel, valid_topic


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
    "completion": Command(
        "front_door", "", "print the completion script of bash, zsh or fish", "main_completion"
    ),
}

#: The commands whose arguments are topics or channels, for completion.
_WITH_TOPICS = ["pub", "channels", "create", "delete", "empty", "pause", "unpause", "peek", "redrive"]
_WITH_TOPICS += [name for name, command in COMMANDS.items() if command.classic]

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
    bare = {"h", "help", "version"}
    bare |= {field.name.replace("_", "-") for field in _fields(command) if field.type == "bool"}
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
    over_http = any(field.name == "nsqd_http_address" for field in _fields(command))
    return topics + _address_flags(ClusterFlags(address=tuple(addresses)), over_http) + given


def _asks_for_help(arguments: Sequence[str]) -> bool:
    return any(each in ("-h", "--h", "-help", "--help") for each in arguments)


def _address_flags(options: ClusterFlags, over_http: bool) -> list[str]:
    named = named_daemons(options)
    if named.lookupds:
        return [f"--lookupd-http-address={address}" for address in named.lookupds]
    if over_http:
        return [f"--nsqd-http-address={address}" for address in named.nsqds]
    return [f"--nsqd-tcp-address={address}" for address in Cluster(options).tcp_addresses]


# Completion


def main_completion(argv: Sequence[str]) -> int:
    if len(argv) == 2 and argv[0] == "names":
        sys.stdout.write("".join(f"{name}\n" for name in _names(argv[1])))
        return 0
    helped = list(argv) in (["-h"], ["-help"], ["--help"])
    if helped or len(argv) != 1 or argv[0] not in _SHELLS:
        (sys.stdout if helped else sys.stderr).write(f"Usage: nsq completion {'|'.join(_SHELLS)}\n")
        return 0 if helped else 2
    sys.stdout.write(_SHELLS[argv[0]]())
    return 0


def _names(prefix: str) -> list[str]:
    """Return the topics, or of ``TOPIC/`` the channels, for the scripts. Only valid names: some shells would
    run what other names say.
    """
    topic, slash, _ = prefix.partition("/")
    options = ClusterFlags(http_client_connect_timeout=0.5, http_client_request_timeout=1.0)
    try:
        cluster = Cluster(options)
        found = count_topics(cluster.stats(topic).values()) if slash else cluster.topics()
    except NsqError:
        return []
    if not slash:
        return [each.name for each in found if valid_topic(each.name)]
    channels = {channel.name for each in found if each.name == topic for channel in each.channels}
    return [f"{topic}/{name}" for name in sorted(channels) if valid_channel(name) and valid_topic(topic)]


def flags_of(command: Command) -> dict[str, Flag]:
    """Return the flags by name, without deprecated ones; those of Go's programs with --address."""
    shared = dataclasses.fields(ClusterFlags) if command.classic else ()
    fields = [*_fields(command), *(each for each in shared if each.name == "address")]
    declared = {field.name.replace("_", "-"): field.metadata[METADATA] for field in fields}
    return {name: each for name, each in declared.items() if not each.deprecated}


def _fields(command: Command) -> list[dataclasses.Field[Any]]:
    if not command.options:
        return []
    options: Any = getattr(importlib.import_module(f"nsq.tools.{command.module}"), command.options)
    return sorted(dataclasses.fields(options), key=lambda field: field.name)


def _words_behind(command: Command) -> str:
    return " ".join([f"--{name}" for name in flags_of(command)] or _SHELLS)


def _bash() -> str:
    cases = "\n".join(
        f'        {name}) words="{_words_behind(command)}" ;;' for name, command in COMMANDS.items()
    )
    with_topics = "|".join(f'"{name} "*' for name in _WITH_TOPICS)
    asking = f'        {with_topics})\n            words+=" $(nsq completion names "$now" 2>/dev/null)" ;;'
    return f"""\
_nsq() {{
    local words="" now="${{COMP_WORDS[COMP_CWORD]}}"
    case "$COMP_CWORD:${{COMP_WORDS[1]}}" in
        1:*) words="{" ".join(COMMANDS)}" ;;
    *) case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD - 1]}} $now" in
        *" = "*|*" "[-=]*) ;;
{asking}
    esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$now"))
}}
complete -o default -F _nsq nsq
"""


def _zsh() -> str:
    with_topics = "|".join(_WITH_TOPICS)
    cases = "\n".join(
        f"        {name}) compadd -- {_words_behind(command)} ;;" for name, command in COMMANDS.items()
    )
    return f"""\
#compdef nsq
_nsq() {{
    if (( CURRENT == 2 )); then
        compadd -- {" ".join(COMMANDS)}
        return
    fi
    if compset -P '--*='; then
        _files
        return
    fi
    case $words[2] in
        {with_topics}) [[ $PREFIX == -* ]] || compadd -- $(nsq completion names "$PREFIX" 2>/dev/null) ;;
    esac
    case $words[2] in
{cases}
    esac
}}
compdef _nsq nsq
"""


def _fish() -> str:
    lines = []
    for name, command in COMMANDS.items():
        lines.append(f"complete -c nsq -n __fish_use_subcommand -f -a {name} -d {_quoted(command.about)}")
        seen = f"complete -c nsq -n '__fish_seen_subcommand_from {name}'"
        for flag, each in flags_of(command).items():
            lines.append(f"{seen} -l {flag} -d {_quoted(each.help)}")
    with_topics = " ".join(_WITH_TOPICS)
    asking = "(nsq completion names (commandline -ct) 2>/dev/null)"
    lines.append(f"complete -c nsq -n '__fish_seen_subcommand_from {with_topics}' -a '{asking}'")
    lines.append(f"complete -c nsq -n '__fish_seen_subcommand_from completion' -f -a '{' '.join(_SHELLS)}'")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
