from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks import picture

from .outcomes import outcome

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*outcomes: object) -> ElementTree.Element:
    return ElementTree.fromstring(picture.draw(outcomes))  # type: ignore[arg-type]


def texts(svg: ElementTree.Element, kind: str) -> list[str | None]:
    return [text.text for text in svg.iter(f"{SVG}text") if text.get("class") == kind]


def widths(svg: ElementTree.Element) -> list[float]:
    return [float(bar.get("width", "")) for bar in svg.iter(f"{SVG}rect")]


def test_bars_are_in_proportion_to_the_medians() -> None:
    svg = drawn(outcome({"nsq": [300.0, 400.0, 900.0], "other": [100.0]}, pictured="Consume"))

    long, short = widths(svg)
    assert long == pytest.approx(4 * short, rel=0.01)
    assert texts(svg, "label") == ["nsq", "other"]
    assert texts(svg, "number") == ["400 msg/s", "100 msg/s"]
    assert texts(svg, "title") == ["Consume"]


def test_each_group_has_a_scale_of_its_own() -> None:
    svg = drawn(
        outcome({"nsq": [1_000_000.0]}, pictured="Fast"),
        outcome({"nsq": [10.0], "other": [10.0]}, pictured="Slow"),
    )

    assert len(set(widths(svg))) == 1


def test_ours_looks_different() -> None:
    svg = drawn(outcome({"nsq": [1.0], "gnsq": [1.0]}, pictured="Consume"))

    assert [bar.get("class") for bar in svg.iter(f"{SVG}rect")] == ["ours", "other"]


def test_nothing_lies_outside() -> None:
    svg = drawn(*(outcome({"nsq": [3.0], "other": [1.0]}, pictured=f"{number}") for number in range(6)))

    width, height = float(svg.get("width", "")), float(svg.get("height", ""))
    for bar in svg.iter(f"{SVG}rect"):
        assert float(bar.get("x", "")) + float(bar.get("width", "")) < width
        assert float(bar.get("y", "")) + float(bar.get("height", "")) < height
    assert all(float(text.get("y", "")) < height for text in svg.iter(f"{SVG}text"))


def test_numbers_keep_three_digits() -> None:
    svg = drawn(outcome({"nsq": [527_226.4], "other": [39_247.0], "slow": [887.6]}, pictured="Consume"))

    assert texts(svg, "number") == ["527,000 msg/s", "39,200 msg/s", "888 msg/s"]


def test_what_was_not_measured_is_not_drawn() -> None:
    assert widths(drawn(outcome({"nsq": [1.0], "gone": []}, pictured="Consume"))) != []


def test_titles_are_escaped_and_a_dark_page_is_thought_of() -> None:
    shown = picture.draw([outcome({"nsq": [1.0]}, pictured="A < B & C")])

    assert "A &lt; B &amp; C" in shown
    assert "prefers-color-scheme: dark" in shown
