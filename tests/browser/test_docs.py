"""The pages that ``make docs`` builds, opened as files in Chromium, as a reader opens them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

import nsq

pytest.importorskip("sphinx", reason="sphinx is not installed (pip install 'nsq[docs]')")

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_MS = 60_000
TELEPHONE = {"width": 360, "height": 740}
#: What a page has: links, places to link to, broken pictures, what is cut off at the right edge, and short
#: names in a table's first column that are broken into lines. Tables and code may be wider, inside
#: of a box that scrolls.
CONTENT = """() => ({
    links: [...document.querySelectorAll("a[href]")].map(a => a.href),
    places: [...document.querySelectorAll("[id]")].map(e => e.id),
    broken: [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src),
    cut_off: [...document.querySelectorAll("article *")].filter(each => {
        if (each.getBoundingClientRect().right <= innerWidth) return false;
        for (let box = each.parentElement; box.tagName !== "ARTICLE"; box = box.parentElement)
            if (getComputedStyle(box).overflowX !== "visible") return false;
        return getComputedStyle(each).overflowX === "visible";
    }).map(each => each.outerHTML.slice(0, 120)),
    split: [...document.querySelectorAll("td:first-child code")]
        .filter(each => /^\\w{1,15}$/.test(each.innerText) && each.getClientRects().length > 1)
        .map(each => each.innerText),
})"""
#: Django 6 has what this one needs.
UNLIKE_OTHERS = {"nsq.contrib.django.NsqBackend"}
#: What only the package itself calls.
INTERNAL = {"abandon", "begin", "end", "forget", "move", "of", "suffer"}
#: What the asyncio client uses of the two clients.
INTERNAL |= {"hand_over", "prepare", "room", "try_to_send", "wake_at_end", "withdraw"}
PUBLIC = ["nsq", "nsq.testing", "nsq.transport", "nsq.spark", "nsq.contrib.django"]


@dataclass
class Site:
    """The built pages; ``complaints`` are the errors that the browser has logged."""

    directory: Path
    context: Any
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> Any:
        page = self.context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.complaints.append(f"{path}: {error}"))
        page.on("console", lambda message: self._heard(path, message))
        page.goto(f"file://{self.directory}/{path}")
        return page

    def _heard(self, path: str, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(f"{path}: {message.text}")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", directory]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return directory


@pytest.fixture
def site(browser: Any, built: Path) -> Iterator[Site]:
    context = browser.new_context(viewport=TELEPHONE, color_scheme="light")
    site = Site(built, context)
    yield site
    context.close()
    assert site.complaints == []


def test_every_page_fits_a_telephone_and_every_link_leads_somewhere(site: Site) -> None:
    seen = {}
    for path in sorted(site.directory.rglob("*.html")):
        name = path.relative_to(site.directory).as_posix()
        page = site.open(name)
        seen[path.as_uri()] = page.evaluate(CONTENT)
        page.close()
    assert len(seen) > 30
    assert {page: has["cut_off"] for page, has in seen.items() if has["cut_off"]} == {}
    assert {page: has["split"] for page, has in seen.items() if has["split"]} == {}
    assert {page: has["broken"] for page, has in seen.items() if has["broken"]} == {}
    dead = [
        f"{page} leads to {link}"
        for page, has in seen.items()
        for link in has["links"]
        if link.startswith("file:") and not leads_somewhere(link, seen)
    ]
    assert dead == []


def leads_somewhere(link: str, seen: dict[str, Any]) -> bool:
    target, place = urldefrag(link)
    target = target.partition("?")[0]
    if target not in seen:
        return Path(unquote(target.removeprefix("file://"))).is_file()
    return not place or unquote(place) in seen[target]["places"]


def test_the_search_finds_pages_that_are_opened_as_files(site: Site) -> None:
    page = site.open("index.html")
    page.set_viewport_size({"width": 1200, "height": 800})
    page.locator(".sidebar-search").fill("dead letters")
    page.locator(".sidebar-search").press("Enter")
    page.locator("#search-results li a", has_text="Consumer and Producer").first.click()
    page.locator("h1", has_text="Consumer and Producer").wait_for()


def test_a_reader_can_choose_dark_pages_and_copy_code(site: Site) -> None:
    page = site.open("client.html")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator(".theme-toggle:visible").first.click()
    page.wait_for_function("old => getComputedStyle(document.body).backgroundColor != old", arg=before)
    assert page.locator("div.highlight button.copybtn").count() > 5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_code_stand_out_from_the_page(site: Site, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = site.open("client.html")
    page.emulate_media(color_scheme=scheme)
    found = Axe().run(page, options={"runOnly": ["color-contrast"]})
    assert found.violations_count == 0, found.generate_report()


def test_the_reference_has_every_public_name(built: Path) -> None:
    from sphinx.util.inventory import InventoryFile

    with (built / "objects.inv").open("rb") as stream:
        inventory = InventoryFile.load(stream, "", lambda uri, name: name)
    documented = {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}
    lacking = [f"{module}.{name}" for module in PUBLIC for name in names_of(module, documented)]
    documented |= {f"nsq.Config.{option.name}" for option in nsq.Config.describe()}  # in a table
    lacking += [f"{module}.{name}" for module in PUBLIC for name in attributes_of(module, documented)]
    assert lacking == []
    described = {"nsq.Message.body", "nsq.Consumer.topic", "nsq.StopReport.cut_off", "nsq.Producer.publish"}
    assert described <= documented


def names_of(module: str, documented: set[str]) -> list[str]:
    """Return the public names of the module that are documented neither there nor where they are defined."""
    package = importlib.import_module(module)
    found = []
    for name in package.__all__:
        if name == "__version__" or f"{module}.{name}" in documented | UNLIKE_OTHERS:
            continue
        value = getattr(package, name)
        home = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', name)}"
        if home not in documented:
            found.append(name)
    return found


def attributes_of(module: str, documented: set[str]) -> Iterator[str]:
    """Yield attributes of the module's public classes that are documented at none of their own classes."""
    package = importlib.import_module(module)
    for name in package.__all__:
        if f"{module}.{name}" in UNLIKE_OTHERS:
            continue
        value = getattr(package, name)
        own = [each for each in getattr(value, "__mro__", ()) if each.__module__.startswith("nsq")]
        places = [f"{place}.{each.__name__}" for each in own for place in (module, each.__module__)]
        attributes = {key for each in own for key in vars(each) | vars(each).get("__annotations__", {})}
        for attribute in attributes - INTERNAL:
            if not attribute.startswith("_") and documented.isdisjoint(f"{p}.{attribute}" for p in places):
                yield f"{name}.{attribute}"
