"""MkDocs hook: replaces ``<!-- options -->`` by the table of ``Config.describe()``, and
``<!-- options: nsq.spark.source.options.SourceOptions -->`` by that of a part of the Spark data source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from nsq.config import Config
from nsq.options import OptionHelp

MARK = re.compile(r"<!-- options(?:: ([\w.]+))? -->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    return MARK.sub(lambda found: table(declared(found[1])), markdown)


def declared(place: str | None) -> Iterable[OptionHelp]:
    if place is None:
        return Config.describe()
    module, _, name = place.rpartition(".")
    told: list[OptionHelp] = getattr(import_module(module), name).describe()
    return told


def table(options: Iterable[OptionHelp]) -> str:
    rows = [
        f"| `{option.name}` | {f'`{option.default}`' if option.default else ''} | {option.range} "
        f"| {option.help} |"
        for option in options
    ]
    return "\n".join(["| option | default | range | |", "|---|---|---|---|", *rows])
