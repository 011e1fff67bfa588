"""docs/nsqd.md names every flag and its default."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from nsq.daemons.nsqd.options import NsqdOptions
from nsq.flags import FlagExit, config_key, parse
from nsq.options import METADATA

PAGE = Path(__file__).resolve().parents[4] / "docs" / "nsqd.md"
#: Their defaults are this machine's.
MACHINES_OWN = {"broadcast-address", "node-id"}


def flags() -> dict[str, str]:
    """Every flag and the default that the usage gives, empty where it gives none."""
    with pytest.raises(FlagExit) as caught:
        parse(NsqdOptions, ["--help"], prog="nsqd", version="nsqd")
    entries = re.split(r"^  -", caught.value.text, flags=re.MULTILINE)[1:]
    defaults = {}
    for entry in entries:
        name = re.split(r"\s", entry, maxsplit=1)[0]
        found = re.search(r" \(default ([^()]*)\)$", entry.rstrip())
        defaults[name] = found[1].strip('"') if found else ""
    return defaults


def documented() -> dict[str, str]:
    rows = re.findall(r"^\| `--([a-z0-9-]+)`(?: \*)? \|([^|]*)\|", PAGE.read_text("utf-8"), re.MULTILINE)
    names = [name for name, _ in rows]
    assert len(names) == len(set(names)), "a flag has two rows"
    return {name: default.strip().strip("`") for name, default in rows}


def test_every_flag_has_a_row_and_every_row_a_flag() -> None:
    assert set(documented()) == set(flags())


@pytest.mark.parametrize("name", sorted(set(flags()) - MACHINES_OWN))
def test_defaults_are_as_documented(name: str) -> None:
    default = flags()[name]
    if default:
        assert documented()[name] == default


def test_keys_that_differ_from_their_flags_are_named() -> None:
    fields = dataclasses.fields(NsqdOptions)
    named = flags()
    differing = {config_key(field) for field in fields if config_key(field).replace("_", "-") not in named}
    text = PAGE.read_text("utf-8")
    assert {key for key in differing if f"`{key}`" not in text} == set()


def test_flags_that_may_be_repeated_are_marked() -> None:
    marked = set(re.findall(r"^\| `--([a-z0-9-]+)` \* \|", PAGE.read_text("utf-8"), re.MULTILINE))
    repeated = {
        field.metadata[METADATA].name
        for field in dataclasses.fields(NsqdOptions)
        if field.metadata[METADATA].repeated
    }
    assert marked == repeated


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", PAGE.read_text("utf-8"))
    assert targets
    assert [target for target in targets if not (PAGE.parent / target).exists()] == []
