"""Writes the tables of options into the pages, so that a clone has them too: ``python docs/options.py``.

A table stands behind a line such as ``<!-- options: nsq.config.Config -->``, which names a class with a
method ``describe``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from nsq.options import OptionHelp

PAGES = [Path(__file__).with_name(name) for name in ("reference.md", "spark.md")]
TABLE = re.compile(r"(<!-- options: ([\w.]+) -->\n)\n(?:\|.*\n)*\n?")


def with_tables(page: str) -> str:
    """Return the text of a page with its tables as they should be."""
    return TABLE.sub(lambda found: f"{found[1]}\n{table_of(found[2])}\n", page)


def table_of(path: str) -> str:
    module, _, name = path.rpartition(".")
    described: Iterable[OptionHelp] = getattr(import_module(module), name).describe()
    rows = [
        f"| `{option.name}` | {f'`{option.default}`' if option.default else ''} | {option.range} "
        f"| {option.help} |\n"
        for option in described
    ]
    return "".join(["| option | default | range | |\n", "|---|---|---|---|\n", *rows])


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_tables(path.read_text("utf-8")), "utf-8")
