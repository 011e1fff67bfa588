"""The spark-submit line that does on a cluster what was asked for here. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

_OURS = ("--master", "--conf", "--print-submit")


def submit_line(argv: Sequence[str], entry: str, master: str, conf: Mapping[str, str]) -> str:
    """``entry`` is the file of ``nsq.spark.__main__``. The package has to be installed on all workers."""
    words = ["spark-submit", "--master", master]
    for name, value in conf.items():
        words += ["--conf", f"{name}={value}"]
    return shlex.join([*words, entry, *without_ours(argv)])


def without_ours(argv: Sequence[str]) -> list[str]:
    """What is left when spark-submit has taken master and conf."""
    kept = []
    words = iter(argv)
    for word in words:
        name, _, value = word.partition("=")
        if name not in _OURS:
            kept.append(word)
        elif not value and name != "--print-submit":
            next(words, None)
    return kept
