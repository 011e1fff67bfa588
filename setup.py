"""Lets setuptools (and old pips) find setup.cfg, which declares everything. For a release it also makes the
links of README.md absolute: a package index has no files that relative ones could lead to. NSQ_README_LINKS
is the address of the release's files, such as https://github.com/OWNER/nsq/blob/v0.1.0.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

#: A link or a picture of Markdown whose target is a file of the repository.
RELATIVE = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def with_absolute_links(text: str, address: str) -> str:
    def absolute(found: re.Match[str]) -> str:
        picture, text, target, place = found.groups(default="")
        raw = "?raw=true" if picture else ""
        return f"{picture}{text}({address.rstrip('/')}/{target}{raw}{place})"

    return RELATIVE.sub(absolute, text)


if __name__ == "__main__":  # so that the tests can call the function above without setuptools
    from setuptools import setup

    given = {}
    if address := os.environ.get("NSQ_README_LINKS"):
        readme = Path(__file__).with_name("README.md").read_text("utf-8")
        given["long_description"] = with_absolute_links(readme, address)
    setup(**given)
