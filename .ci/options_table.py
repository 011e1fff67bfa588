"""For MkDocs: where a page says ``<!-- options -->``, the table of what ``Config.describe()`` tells; where it
says ``<!-- options: nsq.spark.source.options.SourceOptions -->``, that of a part of the Spark data source.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from nsq.config import Config

MARK = re.compile(r"<!-- options(?:: ([\w.]+))? -->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    return MARK.sub(lambda found: spark_table(found[1]) if found[1] else table(), markdown)


def table() -> str:
    rows = [
        f"| `{option.name}` | `{option.default}` | {option.range} | {option.help} |"
        for option in Config.describe()
    ]
    return "\n".join(["| option | default | range | |", "|---|---|---|---|", *rows])


def spark_table(place: str) -> str:
    module, _, name = place.rpartition(".")
    rows = [
        f"| `{option.name}` | {f'`{option.default}`' if option.default else ''} | {option.help} |"
        for option in getattr(import_module(module), name).describe()
    ]
    return "\n".join(["| option | default | |", "|---|---|---|", *rows])
