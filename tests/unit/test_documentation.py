"""Links, flags, options, files, tests and folders that the pages name exist."""

from __future__ import annotations

import configparser
import dataclasses
import re
import runpy
import tomllib
from pathlib import Path

import pytest

from nsq.daemons.nsqadmin.options import NsqadminOptions
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqlookupd.options import NsqlookupdOptions
from nsq.flags import FlagExit, config_key, parse
from nsq.options import METADATA
from nsq.spark.commands import Receive

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
#: Their defaults are this machine's.
MACHINES_OWN = {"broadcast-address", "node-id"}


def text_of(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def flags(options: type) -> dict[str, str]:
    """Every flag and the default that the usage gives, empty where it gives none."""
    with pytest.raises(FlagExit) as caught:
        parse(options, ["--help"], prog="program", version="version")
    entries = re.split(r"^  -", caught.value.text, flags=re.MULTILINE)[1:]
    found = {}
    for entry in entries:
        default = re.search(r" \(default ([^()]*)\)$", entry.rstrip())
        found[re.split(r"\s", entry, maxsplit=1)[0]] = default[1].strip('"') if default else ""
    return found


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub and MyST give to the headings; code has no headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {
        re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()).strip("-")
        for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text("utf-8")):
        aim = page.parent / target if target else page
        assert aim.exists(), f"{page.name} leads to {target}"
        if anchor:
            assert anchor in anchors(aim), f"{page.name} leads to {target}#{anchor}"


def test_the_pictures_are_as_the_code_draws_them() -> None:
    pictures = runpy.run_path(str(DOCS / "pictures.py"))["PICTURES"]
    assert len(pictures) == 5
    for name, draw in pictures.items():
        assert (DOCS / "images" / f"{name}.svg").read_text("utf-8") == str(draw()), "run docs/pictures.py"


@pytest.mark.parametrize("page", ["reference.md", "spark.md"])
def test_the_tables_of_options_are_as_the_code_declares_them(page: str) -> None:
    with_tables = runpy.run_path(str(DOCS / "options.py"))["with_tables"]
    assert "<!-- options: " in text_of(page)
    assert text_of(page) == with_tables(text_of(page)), "run docs/options.py"


def test_every_page_is_in_one_group_of_the_navigation() -> None:
    toctree = r"^```\{toctree\}\n:caption: (\w+)\n:hidden:\n\n(.*?)\n```$"
    groups = re.findall(toctree, text_of("index.md"), re.MULTILINE | re.DOTALL)
    assert [name for name, _ in groups] == ["Start", "Guides", "Reference", "Operations"]
    listed = [f"{page}.md" for _, pages in groups for page in pages.split()]
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    decisions = {page for page in pages if page.startswith("decisions/")} - {"decisions/index.md"}
    assert sorted(listed) == sorted(pages - decisions - {"index.md"})


@pytest.mark.parametrize(
    ("page", "options"),
    [("nsqd.md", NsqdOptions), ("nsqlookupd.md", NsqlookupdOptions), ("nsqadmin.md", NsqadminOptions)],
)
def test_pages_have_all_flags_with_their_defaults(page: str, options: type) -> None:
    rows = re.findall(r"^\| `--([a-z0-9-]+)`(?: \*)? \|([^|]*)\|", text_of(page), re.MULTILINE)
    documented = {name: default.strip().strip("`") for name, default in rows}
    actual = flags(options)
    assert set(documented) == set(actual)
    assert len(rows) == len(actual)
    stated = {name for name, default in actual.items() if default} - MACHINES_OWN
    assert {name: documented[name] for name in stated} == {name: actual[name] for name in stated}


def test_the_page_of_nsqd_marks_repeated_flags_and_names_other_keys() -> None:
    fields = dataclasses.fields(NsqdOptions)
    marked = set(re.findall(r"^\| `--([a-z0-9-]+)` \* \|", text_of("nsqd.md"), re.MULTILINE))
    repeated = {field.metadata[METADATA].name for field in fields if field.metadata[METADATA].repeated}
    assert marked == repeated
    differing = {config_key(field) for field in fields} - {
        name.replace("-", "_") for name in flags(NsqdOptions)
    }
    assert {key for key in differing if f"`{key}`" not in text_of("nsqd.md")} == set()


def test_flags_in_examples_of_other_languages_exist() -> None:
    """Containers and the like; what is written for a shell is tested by itself."""
    programs = NsqdOptions, NsqlookupdOptions, Receive
    known = {flag for options in programs for flag in flags(options)} | {"no-cache-dir"}
    named = 0
    for page in PAGES:
        for code in re.findall(r"^```(?:dockerfile|yaml)\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
            used = set(re.findall(r"(?<![\w-])--([a-z][a-z0-9-]+)", code))
            assert used <= known, page.name
            named += len(used)
    assert named


def test_config_files_are_understood(tmp_path: Path) -> None:
    files = [
        code
        for page in PAGES
        for code in re.findall(r"^```toml\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    ]
    assert files
    for code in files:
        assert tomllib.loads(code)
        path = tmp_path / "nsqd.cfg"
        path.write_text(code.replace('"/data"', f'"{tmp_path}"'))
        assert parse(NsqdOptions, [f"--config={path}"], prog="nsqd", version="nsqd").warnings == ()


def test_the_tests_that_are_named_exist() -> None:
    named = re.findall(
        r"`(tests/[\w/]+\.py)((?:::\w+)*)`", "".join(page.read_text("utf-8") for page in PAGES)
    )
    assert len(named) > 20
    for path, names in named:
        source = (ROOT / path).read_text("utf-8")
        for name in names.split("::")[1:]:
            assert re.search(rf"^ *(?:def|class) {name}\b", source, re.MULTILINE), f"{path}{names}"


def test_the_files_and_folders_that_are_named_exist() -> None:
    for page in PAGES:
        for path in re.findall(
            r"`((?:nsq|tests|examples|benchmarks|docs)/[\w/.]*)`", page.read_text("utf-8")
        ):
            assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_every_folder_of_the_package_is_described() -> None:
    text = text_of("architecture.md")
    rooms = [path for path in (ROOT / "nsq").iterdir() if (path / "__init__.py").exists()]
    assert [room.name for room in rooms if f"`nsq/{room.name}/`" not in text] == []


def test_every_page_installs_by_name_and_readme_alone_builds() -> None:
    unreleased = "(not released yet)" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    for page in PAGES:
        text = page.read_text("utf-8")
        assert not re.search(r"pip install (-e|--editable|'?\.)", text), page.name
        assert ("pip wheel" in text) == (page.name == "README.md" and unreleased), page.name


def test_the_extras_that_are_named_exist() -> None:
    setup = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    for page in PAGES:
        for extras in re.findall(r"(?<!\w)nsq\[([a-z,]+)\]", page.read_text("utf-8")):
            assert set(extras.split(",")) <= set(setup["options.extras_require"]), page.name
