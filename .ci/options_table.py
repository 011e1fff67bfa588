"""For MkDocs: where a page says ``<!-- options -->``, the table of what ``Config.describe()`` tells."""

from __future__ import annotations

from typing import Any

from nsq.config import Config

MARK = "<!-- options -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace(MARK, table())


def table() -> str:
    rows = [
        f"| `{option.name}` | `{option.default}` | {option.range} | {option.help} |"
        for option in Config.describe()
    ]
    return "\n".join(["| option | default | range | |", "|---|---|---|---|", *rows])
