"""Parses command lines and TOML config files as Go does, into a frozen dataclass.

A program declares its options once, as fields made by ``flag``, ``duration`` or ``repeated``; ``parse`` turns
an argument list into an instance of that class. A flag overrides the config file, and the file overrides the
default. This module checks types; ``check``, which the class calls, checks ranges and choices.

Of the package this module imports only ``errors`` and ``options``. Only ``parse_or_exit``, for
``main`` functions, prints and exits. It reads one file: that of ``--config``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from nsq.errors import ConfigError, NsqError, UsageError
from nsq.options import METADATA, NUMBER, SECONDS, TEXT, WHOLE, YES_NO, Kind, Option, closest, declare, quote

OptionsT = TypeVar("OptionsT")


class FlagExit(NsqError):
    """Raised when the program should print ``text`` and exit with ``status``: help, version, a mistake.
    ``rest`` has the arguments after the flags.
    """

    def __init__(self, status: int, text: str, rest: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.rest = rest
        self.stream = "stderr" if status else "stdout"


@dataclass(frozen=True)
class Parsed(Generic[OptionsT]):
    """The result of ``parse``: ``rest`` has the arguments after the flags, ``warnings`` lines to log."""

    options: OptionsT
    rest: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


# Declaring options


@dataclass(frozen=True, kw_only=True)
class Flag(Option):
    """An option of a command line. Its dataclass field supplies missing details.

    With ``bare`` the flag needs no value, and without one has that text; like a boolean, it takes a value
    only after ``=``. ``deprecated`` names the replacement.
    """

    kind: Kind = TEXT
    name: str = ""  # default: the field's name, with dashes
    key: str = ""  # in the config file; default: the field's name
    field: str = ""
    bare: str | None = None
    repeated: bool = False
    separator: str | None = None
    deprecated: str | None = None
    initial: Any = None


_KINDS: Mapping[object, Kind] = {str: TEXT, int: WHOLE, float: NUMBER, bool: YES_NO}
_BY_ANNOTATION = Kind("", str, str)


def _custom(parser: Callable[[str], Any]) -> Kind:
    return Kind("", lambda value: value, parser)


# ``details`` are fields of Flag: name, key, deprecated, low, high, choices.


def flag(default: Any, usage: str, *, parse: Callable[[str], Any] | None = None, **details: Any) -> Any:
    """Declare a str, int, float or bool by the field's annotation, or the result of ``parse``.

    A callable ``default`` is called when options are made (a host name is not looked up at import). ``parse``
    raises ValueError to refuse.
    """
    kind = _BY_ANNOTATION if parse is None else _custom(parse)
    return declare(default, Flag(usage, kind=kind, **details))


def duration(default: Any, usage: str, **details: Any) -> Any:
    """Declare seconds as a float, written as a Go duration; in a file an integer means milliseconds."""
    return declare(default, Flag(usage, kind=SECONDS, **details))


def repeated(convert: Callable[[str], Any], usage: str, **details: Any) -> Any:
    """Declare a tuple that grows with every use of the flag; ``separator`` allows several values in one use.

    ``convert`` is str, int, float or a parser as ``flag`` takes it.
    """
    kind = _KINDS.get(convert) or _custom(convert)
    return declare((), Flag(usage, kind=kind, repeated=True, **details))


def _declared_flags(options_class: Any) -> tuple[Flag, ...]:
    return _read_flags(options_class)  # for mypy, which takes no type[...] as hashable


@functools.cache
def _read_flags(options_class: type[Any]) -> tuple[Flag, ...]:
    hints = typing.get_type_hints(options_class)
    flags = []
    for field in dataclasses.fields(options_class):
        declared: Flag | None = field.metadata.get(METADATA)
        if declared is None:
            continue
        factory = field.default_factory
        kind = declared.kind
        if kind is _BY_ANNOTATION:
            # ``int | None`` is an int on a command line.
            hint = next((each for each in typing.get_args(hints[field.name])), hints[field.name])
            if hint not in _KINDS:
                raise TypeError(f"{options_class.__name__}.{field.name}: a flag of type {hint} needs parse=")
            kind = _KINDS[hint]
        complete = dataclasses.replace(
            declared,
            field=field.name,
            name=declared.name or field.name.replace("_", "-"),
            key=declared.key or field.name,
            kind=kind,
            bare="true" if kind is YES_NO else declared.bare,
            initial=field.default if factory is dataclasses.MISSING else factory(),
        )
        flags.append(complete)
    return tuple(flags)


# Usage


def _usage(prog: str, flags: Iterable[Flag]) -> str:
    ordered = sorted(flags, key=lambda each: each.name)
    return f"Usage of {prog}:\n" + "".join(map(_usage_entry, ordered))


def _usage_entry(each: Flag) -> str:
    word = "value" if each.repeated else "" if each.bare is not None else each.kind.word
    head = f"  -{each.name} {word}".rstrip()
    text = each.help if each.deprecated is None else f"{each.help} [deprecated: {each.deprecated}]".lstrip()
    if each.initial:
        text += f" (default {each.kind.show(each.initial)})"
    # Go keeps the text of a one-letter flag without a value on the flag's own line.
    gap = "\t" if len(head) <= 4 else "\n    \t"
    return head + gap + text.replace("\n", "\n    \t") + "\n"


# The command line


def _read_arguments(
    named: Mapping[str, Flag], argv: Sequence[str]
) -> tuple[dict[str, Any], tuple[str, ...], str]:
    """Return values by flag name, the words after the flags, and the leftmost mistake, which may be _HELP."""
    values: dict[str, Any] = {}
    mistake = ""
    waiting = list(reversed(argv))
    while waiting and len(waiting[-1]) > 1 and waiting[-1].startswith("-"):
        argument = waiting.pop()
        if argument == "--":
            break
        body = argument[2:] if argument.startswith("--") else argument[1:]
        if body[0] in "-=":
            return values, (), mistake or f"bad flag syntax: {argument}"
        name, equals, text = body.partition("=")
        each = named.get(name)
        if each is None:
            if name in ("h", "help"):
                return values, (), mistake or _HELP
            meant = closest(name.replace("_", "-"), named, 0.75)
            hint = f" (did you mean --{meant}?)" if meant else ""
            return values, (), mistake or f"flag provided but not defined: -{name}{hint}"
        if not equals and each.bare is None:
            if not waiting:
                return values, (), mistake or f"flag needs an argument: -{name}"
            text = waiting.pop()
        try:
            value = _from_text(each, text if equals or each.bare is None else each.bare)
            values[name] = values.get(name, ()) + value if each.repeated else value
        except ValueError as error:
            said = f"invalid value {quote(text)} for flag -{name}"
            if each.bare is not None:
                said = (
                    f"invalid boolean value {quote(text)} for -{name}"
                    if equals
                    else f"invalid boolean flag {name}"
                )
            mistake = mistake or f"{said}: {error}"
            values.pop(name, None)  # the last use of a flag counts, also a bad one
    return values, tuple(reversed(waiting)), mistake


def _from_text(each: Flag, text: str) -> Any:
    if not each.repeated:
        return each.kind.parse(text)
    pieces = [text] if each.separator is None else text.split(each.separator)
    return tuple(each.kind.parse(piece) for piece in pieces)


# The config file


def _read_file(path: str, flags: Iterable[Flag]) -> tuple[dict[str, Any], list[str]]:
    """Return values by flag name, and warnings."""
    import tomllib

    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read config file {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"config file {path} is not valid TOML: {error}") from error
    by_key = {each.key: each for each in flags}
    # For hints: people may write a flag's name instead of its key.
    spellings = {each.name.replace("-", "_"): each.key for each in by_key.values()} | {
        key: key for key in by_key
    }
    values: dict[str, Any] = {}
    warnings = []
    for key, value in document.items():
        each = by_key.get(key)
        if each is None:
            meant = closest(key.replace("-", "_"), spellings, 0.75)
            hint = f" (did you mean {quote(spellings[meant])}?)" if meant else ""
            warnings.append(f"{path}: unknown key {quote(key)} is ignored{hint}")
            continue
        if each.deprecated is not None:
            warnings.append(f"{path}: {key} is deprecated: {each.deprecated}")
        try:
            values[each.name] = _from_file(each, value)
        except ValueError as error:
            raise ConfigError(f"config file {path}: {key} = {quote(value)}: {error}") from error
    return values, warnings


def _from_file(each: Flag, value: Any) -> Any:
    if not each.repeated:
        return each.kind.read_toml(value)
    if isinstance(value, str) and each.separator is not None:
        return _from_text(each, value)
    return tuple(each.kind.read_toml(item) for item in (value if isinstance(value, list) else [value]))


# Parsing both


_HELP = "help"
_VERSION = Flag("print version string", name="version", kind=YES_NO, bare="true")
_CONFIG = Flag("path to a TOML config file", name="config")


def parse(
    options_class: type[OptionsT],
    argv: Sequence[str],
    *,
    prog: str,
    version: str | None = None,
    config_flag: bool = True,
) -> Parsed[OptionsT]:
    """Parse ``argv`` (without the program's name); raise FlagExit when the program should exit instead.

    A ``version`` adds the flag that prints it. A UsageError from the class's ``__post_init__`` exits with 1.
    """
    declared = _declared_flags(options_class)
    named: dict[str, Flag] = {}
    own = ([_CONFIG] if config_flag else []) + ([] if version is None else [_VERSION])
    for each in (*declared, *own):
        if named.setdefault(each.name, each) is not each:
            raise TypeError(f"the flag --{each.name} is declared twice")
    values, rest, mistake = _read_arguments(named, argv)
    # The last --version decides, whatever else is wrong; a bad value after its "=" is an ordinary mistake.
    if version is not None and values.pop(_VERSION.name, False):
        raise FlagExit(0, f"{version}\n")
    if mistake == _HELP:
        raise FlagExit(0, _usage(prog, named.values()))
    if mistake:
        raise FlagExit(2, f"{mistake}\n{prog} --help lists the flags\n")
    try:
        given = tuple(values)
        path = values.pop(_CONFIG.name, "") if config_flag else ""
        from_file, warnings = _read_file(path, declared) if path else ({}, [])
        values = from_file | values
        options = options_class(**{each.field: values[each.name] for each in declared if each.name in values})
    except UsageError as error:
        raise FlagExit(1, f"{prog}: {error}\n", rest) from error
    used = [named[name] for name in given if named[name].deprecated is not None]
    warnings += [f"--{each.name} is deprecated: {each.deprecated}" for each in used]
    return Parsed(options, rest, tuple(warnings))


def parse_command(
    options_class: type[OptionsT], argv: Sequence[str], *, prog: str, synopsis: str
) -> tuple[OptionsT, tuple[str, ...]]:
    """Return the options and the arguments of a command; arguments may stand anywhere among its flags.

    ``synopsis`` is a line such as ``TOPIC [BODY...]``, then a description. The last argument may be missing
    if it is in brackets, and repeated if it ends in dots.
    """
    line, _, about = synopsis.partition("\n")
    try:
        options, words = _parse_mixed(options_class, list(argv), prog)
    except FlagExit as end:
        if not end.status:
            usage = f"Usage: {prog} {line}".rstrip()
            end.text = end.text.replace(f"Usage of {prog}:", f"{usage}\n\n{about}\n\nFlags:", 1)
        raise
    names = line.split()
    least = sum(not name.startswith("[") for name in names)
    if len(words) < least:
        raise FlagExit(2, f"{names[len(words)]} is missing\n{prog} --help says more\n")
    if len(words) > len(names) and not line.endswith("...]"):
        raise FlagExit(2, f"too many arguments: {' '.join(words[len(names) :])}\n{prog} --help says more\n")
    return options, words


def _parse_mixed(
    options_class: type[OptionsT], argv: list[str], prog: str
) -> tuple[OptionsT, tuple[str, ...]]:
    """Parse flags and arguments in any order. Go's grammar ends at the first argument that is no flag: take
    it out, and parse again.
    """
    words: list[str] = []
    while True:
        parsed = parse(options_class, argv, prog=prog, config_flag=False)
        at = len(argv) - len(parsed.rest)
        if not parsed.rest or argv[at - 1 : at] == ["--"]:
            return parsed.options, (*words, *parsed.rest)
        words.append(argv.pop(at))


def parse_or_exit(
    options_class: type[OptionsT],
    argv: Sequence[str] | None = None,
    *,
    prog: str,
    version: str | None = None,
) -> Parsed[OptionsT]:
    """Do ``parse`` for a ``main`` function: default to ``sys.argv``, print, and raise SystemExit."""
    try:
        return parse(options_class, sys.argv[1:] if argv is None else argv, prog=prog, version=version)
    except FlagExit as end:
        stream = sys.stdout if end.stream == "stdout" else sys.stderr
        stream.write(end.text)
        stream.flush()
        raise SystemExit(end.status) from None


def config_key(field: dataclasses.Field[Any]) -> str:
    """Return the name of an option's field in a config file and under /config."""
    declared: Flag = field.metadata[METADATA]
    return declared.key or field.name


def is_duration(field: dataclasses.Field[Any]) -> bool:
    declared: Flag = field.metadata[METADATA]
    return declared.kind is SECONDS


def check(options: object) -> None:
    """Raise ConfigError for a value outside its range or choices. For ``__post_init__``."""
    for each in _declared_flags(type(options)):
        if math.isfinite(each.low) or each.choices:
            value = getattr(options, each.field)
            for item in value if each.repeated else (value,):
                each.checked(f"--{each.name}", item)
