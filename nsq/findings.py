"""What a doctor finds, and how it is shown: ``nsq doctor`` and ``nsq-spark doctor``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

from nsq.tables import printable

OK, WARNING, FAILURE, SKIPPED = "ok", "warning", "failure", "skipped"


class Finding(NamedTuple):
    """The result of a check. ``remedy`` says what to do, and is empty if nothing needs to be done."""

    level: str
    where: str
    found: str
    remedy: str = ""


def show(findings: Iterable[Finding]) -> list[Finding]:
    """Write each finding as soon as its check ends; return all."""
    shown = []
    for each in findings:
        remedy = f"\n         {printable(each.remedy)}" if each.remedy else ""
        sys.stdout.write(f"{each.level:8} {printable(f'{each.where}: {each.found}')}{remedy}\n")
        sys.stdout.flush()
        shown.append(each)
    return shown
