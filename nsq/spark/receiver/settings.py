"""A receiver's settings as they travel to its process: over stdin, as a command line is no place for secrets.

Pure. Must not import pyspark or pyarrow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from nsq.config import Config
from nsq.errors import ConfigError
from nsq.spark.source.options import SourceOptions

_PLAIN = (str, int, float, bool, type(None))


def packed(options: SourceOptions) -> dict[str, Any]:
    """As JSON can hold them; what has its default is left out."""
    own = _given(options)
    own.pop("config", None)
    return {"options": own, "config": _given(options.config)}


def unpacked(settings: Mapping[str, Any]) -> SourceOptions:
    """Raises ConfigError for what cannot be."""
    match settings:
        case {"options": dict(own), "config": dict(of_config)}:
            given: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in own.items()
            }
            try:
                return SourceOptions(config=Config(**of_config), **given)
            except TypeError as error:  # a field too many, or one that is missing
                raise ConfigError(f"settings that do not fit this version: {error}") from None
    raise ConfigError("settings without options and config")


def consumer_config(options: SourceOptions) -> Config:
    """What the receiver's consumer is told.

    Without a topic for dead letters no message is ever given up: to the log a message of many attempts is as
    good as any other, and giving it up would lose it.
    """
    attempts = options.config.max_attempts if options.dead_letter_topic else 0
    return dataclasses.replace(
        options.config, max_in_flight=options.max_in_flight, max_attempts=attempts, max_backoff_duration=0.0
    )


def _given(settings: Config | SourceOptions) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if value == default or field.name == "config":
            continue
        if isinstance(value, tuple):
            value = list(value)
        elif not isinstance(value, _PLAIN):
            raise ConfigError(
                f"{field.name} is a {type(value).__name__}, which cannot be handed to another process: give "
                "it as text, such as tlsCaFile instead of an ssl.SSLContext"
            )
        values[field.name] = value
    return values
