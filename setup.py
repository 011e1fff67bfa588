"""Lets setuptools (and old pips) find setup.cfg, which declares everything but the repository's address.

For a release NSQ_URL gives that, such as https://github.com/OWNER/nsq. It goes into the links of the
metadata, into the line of README.md that clones, and before README's links, which are relative.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

#: A link or a picture of Markdown whose target is a file of the repository.
RELATIVE = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def with_absolute_links(text: str, address: str) -> str:
    def absolute(found: re.Match[str]) -> str:
        picture, text, target, place = found.groups(default="")
        raw = "?raw=true" if picture else ""
        return f"{picture}{text}({address.rstrip('/')}/{target}{raw}{place})"

    return RELATIVE.sub(absolute, text)


def metadata(readme: str, url: str, version: str) -> dict[str, Any]:
    files = f"{url}/blob/v{version}"
    cloned = re.sub(r"git clone REPOSITORY nsq.*", f"git clone {url} nsq && cd nsq", readme)
    links = {"Source": url, "Issues": f"{url}/issues", "Documentation": f"{files}/docs/index.md"}
    return {
        "long_description": with_absolute_links(cloned, files),
        "project_urls": links | {"Changelog": f"{files}/CHANGELOG.md"},
    }


if __name__ == "__main__":  # so that the tests can call the functions above without setuptools
    from setuptools import setup

    given = {}
    if url := os.environ.get("NSQ_URL", "").rstrip("/"):
        here = Path(__file__).parent
        found = re.search(r'__version__ = "(.+)"', (here / "nsq" / "__init__.py").read_text("utf-8"))
        assert found, "nsq/__init__.py has no __version__"
        given = metadata((here / "README.md").read_text("utf-8"), url, found[1])
    setup(**given)
