"""``nsq completion``: scripts with which bash, zsh and fish complete commands, flags, topics and channels."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from nsq.errors import NsqError
from nsq.flags import Flag
from nsq.http.cluster import count_topics
from nsq.options import METADATA
from nsq.tools.cluster import Cluster, ClusterFlags
from nsq.tools.front_door import COMMANDS, Command, fields_of
from nsq.wire.names import valid_channel, valid_topic

#: The commands whose arguments are topics or channels, for completion.
_WITH_TOPICS = ["pub", "channels", "create", "delete", "empty", "pause", "unpause", "peek", "redrive"]
_WITH_TOPICS += [name for name, command in COMMANDS.items() if command.classic]


def main(argv: Sequence[str]) -> int:
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
    fields = [*fields_of(command), *(each for each in shared if each.name == "address")]
    declared = {field.name.replace("_", "-"): field.metadata[METADATA] for field in fields}
    return {name: each for name, each in declared.items() if not each.deprecated}


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
