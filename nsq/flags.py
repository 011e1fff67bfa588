"""Command lines and TOML config files in Go's manner, driven by one frozen dataclass.

A program declares its options once, as fields made by ``flag``, ``duration`` or ``repeated``; ``parse`` turns
an argument list into an instance of that class. A flag beats the config file, the file beats the default.
Types are checked here, and by ``check``, which the class calls, ranges and choices.

This module imports nothing of the package but ``errors``, ``literals`` and ``options``. It prints nothing and
exits nowhere (only ``parse_or_exit`` does, for ``main`` functions), and reads one file: that of ``--config``.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from nsq.errors import ConfigError, NsqError
from nsq.literals import (
    A_DURATION,
    MILLISECOND_NS,
    SECOND_NS,
    check_int64,
    format_duration,
    is_true,
    parse_boolean,
    parse_duration,
    parse_integer,
    parse_number,
    quote,
)
from nsq.options import NUMBER, SECONDS, TEXT, WHOLE, Option

OptionsT = TypeVar("OptionsT")


class FlagExit(NsqError):
    """The program should print ``text`` to ``stream`` and exit with ``status``: help, version, a mistake."""

    def __init__(self, status: int, text: str, stream: Literal["stdout", "stderr"] = "stderr") -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.stream = stream


@dataclass(frozen=True)
class Parsed(Generic[OptionsT]):
    """``rest`` is what followed the flags; ``warnings`` are lines worth logging once a logger exists."""

    options: OptionsT
    rest: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def _parse_duration_flag(text: str) -> float:
    try:
        return parse_duration(text)
    except ConfigError:
        raise ConfigError(f"parse error (want {A_DURATION})") from None


# Values as TOML has them; ``type(x) is int`` because a bool is an int to isinstance


def _text_from_file(value: object, wanted: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"want {wanted}")
    return value


def _integer_from_file(value: object) -> int:
    return check_int64(value) if type(value) is int else parse_integer(_text_from_file(value, "an integer"))


def _number_from_file(value: object) -> float:
    if type(value) is int:
        return float(check_int64(value))
    return value if isinstance(value, float) else parse_number(_text_from_file(value, "a number"))


def _boolean_from_file(value: object) -> bool:
    return value if isinstance(value, bool) else parse_boolean(_text_from_file(value, "true or false"))


def _duration_from_file(value: object) -> float:
    """A bare integer, quoted or not, is milliseconds: existing nsqd.cfg files are written so."""
    if type(value) is int:
        return check_int64(value * MILLISECOND_NS) / SECOND_NS
    text = _text_from_file(value, f"{A_DURATION}, or whole milliseconds")
    if re.fullmatch("[0-9]+", text):
        return check_int64(int(text) * MILLISECOND_NS) / SECOND_NS
    return _parse_duration_flag(text)


# Kinds of value


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _number_text(value: float) -> str:
    return str(value).removesuffix(".0")


@dataclass(frozen=True)
class _Kind:
    """How one type of value is named in the usage, read from text and TOML, and shown as a default."""

    word: str
    from_text: Callable[[str], Any]
    from_file: Callable[[Any], Any]
    show: Callable[[Any], str] = _plain


_STRING = _Kind("string", str, lambda value: _text_from_file(value, "a string"), quote)
_INTEGER_KIND = _Kind("int", parse_integer, _integer_from_file)
_FLOAT = _Kind("float", parse_number, _number_from_file, _number_text)
_BOOLEAN = _Kind("", parse_boolean, _boolean_from_file)
_DURATION = _Kind("duration", _parse_duration_flag, _duration_from_file, format_duration)
_KINDS: Mapping[object, _Kind] = {str: _STRING, int: _INTEGER_KIND, float: _FLOAT, bool: _BOOLEAN}


def _custom(parser: Callable[[str], Any]) -> _Kind:
    def from_file(value: object) -> Any:
        if not isinstance(value, (str, bool, int, float)):
            raise ConfigError("want a string")
        return parser(_plain(value))

    return _Kind("value", parser, from_file)


# Declaring options

_METADATA = "nsq.flags"


@dataclass(frozen=True)
class _Flag:
    """One flag. What ``flag`` and its siblings leave open (names, kind, default) the dataclass fills in."""

    usage: str
    name: str = ""
    key: str = ""
    field: str = ""
    kind: _Kind | None = None
    bare: str | None = None
    repeated: bool = False
    separator: str | None = None
    deprecated: str | None = None
    default: Any = None
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()

    @property
    def resolved(self) -> _Kind:
        assert self.kind is not None
        return self.kind


def _declare(default: Any, declared: _Flag) -> Any:
    metadata = {_METADATA: declared}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def flag(
    default: Any,
    usage: str,
    *,
    name: str = "",
    key: str = "",
    parse: Callable[[str], Any] | None = None,
    bare: str | None = None,
    deprecated: str | None = None,
    low: float = -math.inf,
    high: float = math.inf,
    choices: tuple[str, ...] = (),
) -> Any:
    """A str, int, float or bool by the field's annotation, or whatever ``parse`` makes of the text.

    A callable ``default`` is called when options are made (a host name is not looked up at import). ``parse``
    raises ValueError to refuse. With ``bare`` the flag may stand without a value and then has that text; like
    a boolean, it takes one only after ``=``. ``deprecated`` says what to use instead.
    """
    kind = None if parse is None else _custom(parse)
    declared = _Flag(
        usage, name, key, kind=kind, bare=bare, deprecated=deprecated, low=low, high=high, choices=choices
    )
    return _declare(default, declared)


def duration(
    default: Any,
    usage: str,
    *,
    name: str = "",
    key: str = "",
    deprecated: str | None = None,
    low: float = -math.inf,
    high: float = math.inf,
) -> Any:
    """Seconds as a float, written as a Go duration; in a file an integer means milliseconds."""
    declared = _Flag(usage, name, key, kind=_DURATION, deprecated=deprecated, low=low, high=high)
    return _declare(default, declared)


def repeated(
    convert: Callable[[str], Any],
    usage: str,
    *,
    default: tuple[Any, ...] = (),
    name: str = "",
    key: str = "",
    separator: str | None = None,
    deprecated: str | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A tuple that grows with every use of the flag; with ``separator`` one use may carry several values.

    ``convert`` is str, int, float or a parser as ``flag`` takes it.
    """
    kind = _KINDS.get(convert) or _custom(convert)
    declared = _Flag(
        usage,
        name,
        key,
        kind=kind,
        repeated=True,
        separator=separator,
        deprecated=deprecated,
        choices=choices,
    )
    return _declare(default, declared)


def _declared_flags(options_class: type[Any]) -> list[_Flag]:
    hints = typing.get_type_hints(options_class)
    flags = []
    for field in dataclasses.fields(options_class):
        declared: _Flag | None = field.metadata.get(_METADATA)
        if declared is None:
            continue
        factory = field.default_factory
        kind = declared.kind or _kind_of(hints[field.name], f"{options_class.__name__}.{field.name}")
        complete = dataclasses.replace(
            declared,
            field=field.name,
            name=declared.name or field.name.replace("_", "-"),
            key=declared.key or field.name,
            kind=kind,
            bare="true" if kind is _BOOLEAN else declared.bare,
            default=field.default if factory is dataclasses.MISSING else factory(),
        )
        flags.append(complete)
    return flags


def _kind_of(hint: Any, where: str) -> _Kind:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [argument for argument in typing.get_args(hint) if argument is not type(None)]
        hint = inner[0] if len(inner) == 1 else hint
    if hint not in _KINDS:
        raise TypeError(f"{where}: a flag of type {hint} needs parse=")
    return _KINDS[hint]


def _index(flags: Iterable[_Flag]) -> dict[str, _Flag]:
    named: dict[str, _Flag] = {}
    for each in flags:
        if each.name in named:
            raise TypeError(f"the flag --{each.name} is declared twice")
        named[each.name] = each
    return named


# Usage


def _usage(prog: str, flags: Iterable[_Flag]) -> str:
    ordered = sorted(flags, key=lambda each: each.name)
    return f"Usage of {prog}:\n" + "".join(_usage_entry(each) for each in ordered)


def _usage_entry(each: _Flag) -> str:
    word = "value" if each.repeated else "" if each.bare is not None else each.resolved.word
    head = f"  -{each.name}" + (f" {word}" if word else "")
    text = each.usage if each.deprecated is None else f"{each.usage} [deprecated: {each.deprecated}]".lstrip()
    if each.repeated and each.default:
        text += f" (default {','.join(map(str, each.default))})"
    elif each.default:
        text += f" (default {each.resolved.show(each.default)})"
    indented = text.replace("\n", "\n    \t")
    # Go keeps the text of a one-letter flag without a value on the flag's own line.
    gap = "\t" if len(head) <= 4 else "\n    \t"
    return f"{head}{gap}{indented}\n"


# The command line


@dataclass(frozen=True)
class _Scan:
    """The argument list cut into flags and the rest; the scan ends early at a help flag or at ``problem``."""

    given: Sequence[tuple[_Flag, str | None]]
    rest: tuple[str, ...] = ()
    problem: str | None = None
    asks_help: bool = False


def _scan(named: Mapping[str, _Flag], argv: Sequence[str]) -> _Scan:
    given: list[tuple[_Flag, str | None]] = []
    waiting = list(reversed(argv))
    while waiting and len(waiting[-1]) > 1 and waiting[-1].startswith("-"):
        argument = waiting.pop()
        if argument == "--":
            break
        body = argument[2:] if argument.startswith("--") else argument[1:]
        if body[0] in "-=":
            return _Scan(given, problem=f"bad flag syntax: {argument}")
        name, equals, text = body.partition("=")
        found = named.get(name)
        if found is None:
            if name in ("h", "help"):
                return _Scan(given, asks_help=True)
            return _Scan(given, problem=f"flag provided but not defined: -{name}{_like(name, named)}")
        if equals or found.bare is not None:
            given.append((found, text if equals else None))
        elif waiting:
            given.append((found, waiting.pop()))
        else:
            return _Scan(given, problem=f"flag needs an argument: -{name}")
    return _Scan(given, tuple(reversed(waiting)))


def _like(name: str, named: Mapping[str, _Flag]) -> str:
    close = difflib.get_close_matches(name.lower().replace("_", "-"), named, n=1, cutoff=0.75)
    return f" (did you mean --{close[0]}?)" if close else ""


def _read_given(given: Iterable[tuple[_Flag, str | None]]) -> dict[str, Any]:
    """Values by flag name; ConfigError says in a line which is wrong."""
    values: dict[str, Any] = {}
    for each, text in given:
        try:
            value = _from_text(each, each.bare or "" if text is None else text)
        except ValueError as error:
            raise ConfigError(_invalid(each, text, error)) from error
        values[each.name] = values.get(each.name, ()) + value if each.repeated else value
    return values


def _from_text(each: _Flag, text: str) -> Any:
    if not each.repeated:
        return each.resolved.from_text(text)
    pieces = [text] if each.separator is None else text.split(each.separator)
    return tuple(each.resolved.from_text(piece) for piece in pieces)


def _invalid(each: _Flag, text: str | None, error: ValueError) -> str:
    if each.bare is None:
        return f"invalid value {quote(text)} for flag -{each.name}: {error}"
    if text is None:
        return f"invalid boolean flag {each.name}: {error}"
    return f"invalid boolean value {quote(text)} for -{each.name}: {error}"


# The config file


def _load(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read config file {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"config file {path} is not valid TOML: {error}") from error


def _read_document(
    document: Mapping[str, Any], flags: Iterable[_Flag], path: str
) -> tuple[dict[str, Any], list[str]]:
    """Values by flag name, and warnings."""
    by_key = {each.key: each for each in flags}
    values: dict[str, Any] = {}
    warnings = []
    for key, value in document.items():
        each = by_key.get(key)
        if each is None:
            warnings.append(f"{path}: unknown key {quote(key)} is ignored{_nearest(key, by_key)}")
            continue
        if each.deprecated is not None:
            warnings.append(f"{path}: {key} is deprecated: {each.deprecated}")
        try:
            values[each.name] = _from_file(each, value)
        except ValueError as error:
            raise ConfigError(f"config file {path}: {key} = {quote(value)}: {error}") from error
    return values, warnings


def _from_file(each: _Flag, value: Any) -> Any:
    if not each.repeated:
        return each.resolved.from_file(value)
    if isinstance(value, str) and each.separator is not None:
        return _from_text(each, value)
    return tuple(each.resolved.from_file(item) for item in (value if isinstance(value, list) else [value]))


def _nearest(key: str, by_key: Mapping[str, _Flag]) -> str:
    """People write a flag's name where its key is wanted, so both are compared."""
    spellings = {each.name.replace("-", "_"): each.key for each in by_key.values()}
    spellings |= {known: known for known in by_key}
    close = difflib.get_close_matches(key.lower().replace("-", "_"), spellings, n=1, cutoff=0.75)
    return f" (did you mean {quote(spellings[close[0]])}?)" if close else ""


# The whole


_VERSION = _Flag("print version string", "version", kind=_BOOLEAN, bare="true")
_CONFIG = _Flag("path to a TOML config file", "config", kind=_STRING)


def parse(
    options_class: type[OptionsT],
    argv: Sequence[str],
    *,
    prog: str,
    version: str | None = None,
    config_flag: bool = True,
) -> Parsed[OptionsT]:
    """The options of ``argv`` (without the program's name); FlagExit when the program should end instead.

    A ``version`` adds the flag that prints it. A ConfigError from the class's ``__post_init__`` exits with 1.
    """
    declared = _declared_flags(options_class)
    extra = ([_CONFIG] if config_flag else []) + ([] if version is None else [_VERSION])
    named = _index(declared + extra)
    scan = _scan(named, argv)
    if version is not None and _asks_version(scan):
        raise FlagExit(0, version + "\n", "stdout")
    given = _given_or_exit(scan, prog, named)
    try:
        path = given.pop(_CONFIG.name, "") if config_flag else ""
        values, warnings = _read_document(_load(path), declared, path) if path else ({}, [])
        values |= given
        options = options_class(**{each.field: values[each.name] for each in declared if each.name in values})
    except ConfigError as error:
        raise FlagExit(1, f"{prog}: {error}\n") from error
    used = {each.name: each for each, _ in scan.given if each.deprecated is not None}
    warnings += [f"--{name} is deprecated: {each.deprecated}" for name, each in used.items()]
    return Parsed(options, scan.rest, tuple(warnings))


def _asks_version(scan: _Scan) -> bool:
    """Whether the last --version is a yes; nonsense after its ``=`` is left to be reported like any other."""
    answers = ["true" if text is None else text for each, text in scan.given if each is _VERSION]
    return bool(answers) and is_true(answers[-1])


def _given_or_exit(scan: _Scan, prog: str, named: Mapping[str, _Flag]) -> dict[str, Any]:
    # Values first: they stand left of whatever ended the scan, and the leftmost mistake is the one to report.
    try:
        given = _read_given(scan.given)
    except ConfigError as error:
        raise _mistake(str(error), prog) from error
    if scan.asks_help:
        raise FlagExit(0, _usage(prog, named.values()), "stdout")
    if scan.problem is not None:
        raise _mistake(scan.problem, prog)
    return given


def _mistake(line: str, prog: str) -> FlagExit:
    return FlagExit(2, f"{line}\n{prog} --help lists the flags\n")


def parse_or_exit(
    options_class: type[OptionsT],
    argv: Sequence[str] | None = None,
    *,
    prog: str,
    version: str | None = None,
    config_flag: bool = True,
) -> Parsed[OptionsT]:
    """``parse`` for a ``main`` function: reads ``sys.argv`` without ``argv``, prints, raises SystemExit."""
    try:
        arguments = sys.argv[1:] if argv is None else argv
        return parse(options_class, arguments, prog=prog, version=version, config_flag=config_flag)
    except FlagExit as end:
        stream = sys.stdout if end.stream == "stdout" else sys.stderr
        stream.write(end.text)
        stream.flush()
        raise SystemExit(end.status) from None


def config_key(field: dataclasses.Field[Any]) -> str:
    """The name that an option's field has in a config file, and under /config."""
    declared: _Flag = field.metadata[_METADATA]
    return declared.key or field.name


def is_duration(field: dataclasses.Field[Any]) -> bool:
    declared: _Flag = field.metadata[_METADATA]
    return declared.kind is _DURATION


def check(options: object) -> None:
    """For a ``__post_init__``: refuse a value outside its range, or none of its choices, naming the flag."""
    for each in _declared_flags(type(options)):
        if math.isinf(each.low) and not each.choices:
            continue
        kind = {_DURATION: SECONDS, _INTEGER_KIND: WHOLE, _FLOAT: NUMBER}.get(each.resolved, TEXT)
        option = Option(each.usage, kind, each.low, each.high, choices=each.choices)
        value = getattr(options, each.field)
        for item in value if each.repeated else (value,):
            option.checked(f"--{each.name}", item)
