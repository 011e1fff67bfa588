"""Draws the pictures of these pages as SVG, for light and dark pages: ``python docs/pictures.py`` writes them
into ``docs/images``. The curves come from the code that decides about RDY and backoff.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from html import escape
from itertools import pairwise
from pathlib import Path

from nsq.consumer.rdy import Backoff, Outcome, RdyWindows, exponential

IMAGES = Path(__file__).resolve().parent / "images"
WIDTH = 540

STYLE = """
  text { font: 14px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #24292f }
  .strong { font-weight: 600 } .small { font-size: 13px; fill: #57606a } .code { font-family: monospace }
  .page { fill: #ffffff } .line { stroke: #57606a; stroke-width: 1.5; fill: none } .tip { fill: #57606a }
  .grid { stroke: #d0d7de } .dashed { stroke-dasharray: 5 4 } .plain { fill: #f6f8fa; stroke: #8c959f }
  .a { fill: #cfe8dc; stroke: #1a7f5a } .b { fill: #d8e6f8; stroke: #1f6fb5 }
  .c { fill: #f6e3c5; stroke: #9a6700 } .bad { fill: #cf222e } .good { fill: #1a7f5a }
  .curve { stroke: #1a7f5a; stroke-width: 2; fill: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #a9b1ba } .page { fill: #16181b }
    .line { stroke: #a9b1ba } .tip { fill: #a9b1ba } .grid { stroke: #3a4149 }
    .plain { fill: #22272e; stroke: #768390 } .a { fill: #123d2c; stroke: #3fb984 }
    .b { fill: #16304d; stroke: #58a6ff } .c { fill: #463512; stroke: #d29922 }
    .bad { fill: #ff7b72 } .good { fill: #3fb984 } .curve { stroke: #3fb984 }
  }
"""


class Picture:
    """Collects shapes; ``save`` writes them as a file."""

    def __init__(self, height: int, title: str) -> None:
        self.height, self.title = height, title
        self.shapes: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, kind: str, *lines: str) -> None:
        """Draw a box with centred lines of text, the first one bold."""
        self.shapes.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
        top = y + height / 2 + 5 - 9 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self.text(
                x + width / 2, top + 18 * number, line, "small" if number else "strong", anchor="middle"
            )

    def text(self, x: float, y: float, text: str, kind: str = "small", anchor: str = "start") -> None:
        self.shapes.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def arrow(self, *points: tuple[float, float], dashed: bool = False) -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        kind = "line dashed" if dashed else "line"
        self.shapes.append(f'<polyline class="{kind}" marker-end="url(#tip)" points="{path}"/>')

    def curve(self, kind: str, points: list[tuple[float, float]]) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        shape = "polyline" if kind in ("curve", "grid") else "polygon"
        self.shapes.append(f'<{shape} class="{kind}" points="{path}"/>')

    def dot(self, x: float, y: float, kind: str) -> None:
        self.shapes.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')

    def __str__(self) -> str:
        tip = (
            '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path class="tip" d="M0,0 L8,4 L0,8 z"/></marker>'
        )
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" '
                f'width="{WIDTH}" height="{self.height}" role="img">',
                f"<title>{escape(self.title)}</title>",
                f"<style>{STYLE}</style>",
                f"<defs>{tip}</defs>",
                f'<rect class="page" width="{WIDTH}" height="{self.height}" rx="8"/>',
                *self.shapes,
                "</svg>\n",
            ]
        )


def message() -> Picture:
    picture = Picture(244, "The journey of a message")
    picture.box(12, 70, 92, 54, "b", "producer", "publish")
    picture.box(140, 16, 252, 216, "plain")
    picture.text(152, 36, "nsqd", "strong")
    picture.box(152, 70, 80, 54, "a", "topic", "orders")
    picture.box(276, 50, 104, 54, "a", "channel", "billing")
    picture.box(276, 150, 104, 54, "a", "channel", "archive")
    picture.box(440, 20, 88, 50, "b", "consumer", "handler")
    picture.box(440, 84, 88, 50, "b", "consumer", "handler")
    picture.box(440, 152, 88, 50, "b", "consumer", "handler")
    picture.arrow((104, 88), (150, 88))
    picture.arrow((152, 110), (106, 110))
    picture.text(128, 128, "OK", anchor="middle")
    picture.arrow((232, 90), (274, 78))
    picture.arrow((232, 104), (254, 104), (254, 177), (274, 177))
    picture.arrow((380, 66), (438, 44))
    picture.arrow((380, 88), (438, 104))
    picture.arrow((380, 170), (438, 170))
    picture.arrow((440, 188), (382, 188))
    picture.text(410, 205, "FIN", anchor="middle")
    picture.arrow((440, 122), (382, 100), dashed=True)
    picture.text(414, 132, "REQ", anchor="middle")
    return picture


CHART = (60, 500, 30, 190)  # left, right, top, bottom


def place(second: float, last: float) -> float:
    left, right, _, _ = CHART
    return left + (right - left) * second / last


def rdy() -> Picture:
    """Simulate a consumer of three nsqds, one of which is idle for a while, and draw their windows."""
    last, limit = 90, 12
    windows = RdyWindows(limit, Backoff(exponential(1.0), 120.0), lambda keys: keys[0])
    names = ["nsqd 1", "nsqd 2", "nsqd 3"]
    joins = {0: names[0], 10: names[1], 60: names[2]}
    history: list[list[int]] = []
    for second in range(last + 1):
        if second in joins:
            windows.connected(joins[second], 2500, float(second))
        for name, nsqd in windows.nsqds.items():
            if name != names[1] or not 20 <= second < 45:
                nsqd.last_message_at = float(second)
        windows.tick(float(second), {})
        windows.decide(float(second), {})
        history.append([windows.nsqds[name].rdy if name in windows.nsqds else 0 for name in names])
    picture = Picture(262, "RDY of three nsqds over time")
    _, right, top, bottom = CHART
    scale = (bottom - top) / limit
    below = [0] * len(history)
    for place_of, kind in enumerate("abc"):
        above = [low + rdys[place_of] for low, rdys in zip(below, history, strict=True)]
        upper, lower = steps(above, last, bottom, scale), steps(below, last, bottom, scale)
        picture.curve(kind, upper + lower[::-1])
        below = above
    axis(picture, last, 10)
    for value in (0, limit):
        picture.text(52, bottom - value * scale + 5, str(value), anchor="end")
    picture.text(60, 20, "RDY: the windows of the nsqds share max_in_flight=12", "strong")
    picture.text(place(4, last), 168, "nsqd 1", "strong")
    picture.text(place(13, last), 72, "nsqd 2", "strong")
    picture.text(place(70, last), 52, "nsqd 3", "strong")
    picture.text(place(10, last), 228, "nsqd 2 connects", anchor="middle")
    picture.text(place(32, last), 244, "nsqd 2 is idle for 10 s: RDY 1", anchor="middle")
    picture.text(place(50, last), 228, "nsqd 2 has messages again", anchor="middle")
    picture.text(right, 244, "nsqd 3 connects", anchor="end")
    return picture


def steps(values: list[int], last: int, bottom: float, scale: float) -> list[tuple[float, float]]:
    points = []
    for second, value in enumerate(values):
        if second and value != values[second - 1]:
            points.append((place(second, last), bottom - values[second - 1] * scale))
        points.append((place(second, last), bottom - value * scale))
    return points


def axis(picture: Picture, last: int, every: int) -> None:
    left, right, _, bottom = CHART
    picture.curve("grid", [(left, bottom), (right, bottom)])
    for second in range(0, last + 1, every):
        picture.text(place(second, last), bottom + 17, f"{second}", anchor="middle")
    picture.text(right + 22, bottom + 17, "s")


def backoff() -> Picture:
    """Simulate a consumer whose service fails from second 4 to second 15, and draw how it backs off."""
    last, full = 40, 10
    state = Backoff(exponential(1.0), 120.0)
    windows = RdyWindows(full, state, keys_first)
    windows.connected("nsqd", 2500, 0.0)
    windows.decide(0.0, {})
    levels, outcomes = [], []
    busy = 0  # tenths of a second that the handler has worked; it takes half a second
    for tenth in range(last * 10 + 1):
        now = tenth / 10
        windows.tick(now, {})
        windows.decide(now, {})
        rdy = windows.nsqds["nsqd"].rdy
        busy = busy + 1 if rdy else 0
        if busy == 6:
            busy = 1
            failed = 4 <= now < 15
            outcomes.append((now, failed, rdy))
            windows.outcome(Outcome.FAILURE if failed else Outcome.SUCCESS, now)
            windows.decide(now, {})
            rdy = windows.nsqds["nsqd"].rdy
        levels.append((now, rdy))
    picture = Picture(262, "Backing off")
    heights = {0: 190.0, 1: 140.0, full: 80.0}
    for value, label in ((0, "0"), (1, "1"), (full, "all")):
        picture.curve("grid", [(60, heights[value]), (500, heights[value])])
        picture.text(52, heights[value] + 5, label, anchor="end")
    points: list[tuple[float, float]] = []
    for now, value in levels:
        if points and points[-1][1] != heights[value]:
            points.append((place(now, last), points[-1][1]))
        points.append((place(now, last), heights[value]))
    picture.curve("curve", points)
    for now, failed, value in outcomes:
        picture.dot(place(now, last), heights[value], "bad" if failed else "good")
    picture.text(60, 20, "RDY while a handler's service is down", "strong")
    picture.dot(66, 40, "bad")
    picture.text(76, 45, "a handler fails")
    picture.dot(196, 40, "good")
    picture.text(206, 45, "a handler succeeds")
    began = 0.0
    for (_, value), (now, after) in pairwise(levels):
        if value and not after:
            began = now
        if after and not value:
            middle = place((began + now) / 2, last)
            picture.text(middle, 182, f"{now - began:.0f} s", anchor="middle")
    axis(picture, last, 5)
    picture.text(
        280, 240, "The pauses double with each failure, and shrink with each success.", anchor="middle"
    )
    return picture


def keys_first(keys: list[Hashable]) -> Hashable:
    return keys[0]


def partitions() -> Picture:
    picture = Picture(300, "A topic in partitions")
    picture.box(12, 96, 112, 72, "b", "producer", "hash of key", "→ partition 2")
    for number, (x, y) in enumerate([(208, 52), (208, 92), (208, 174), (208, 214)]):
        if number % 2 == 0:
            picture.box(190, y - 36, 138, 114, "plain")
            picture.text(200, y - 14, f"nsqd {number // 2 + 1}", "strong")
        picture.box(x, y, 102, 30, "a" if number != 2 else "c", f"partition {number}")
    picture.arrow((124, 132), (158, 132), (158, 189), (206, 189))
    picture.box(416, 52, 112, 70, "b", "consumer", "partitions 0, 1")
    picture.box(416, 174, 112, 70, "b", "consumer", "partitions 2, 3")
    for y, target in ((67, 76), (107, 98), (189, 198), (229, 220)):
        picture.arrow((310, y), (414, target))
    picture.text(
        270, 272, "Messages with one key go to one partition, and keep their order there.", anchor="middle"
    )
    picture.text(270, 290, "Each partition has one connection to a consumer.", anchor="middle")
    return picture


def spark() -> Picture:
    picture = Picture(300, "Spark's receivers")
    picture.box(12, 30, 70, 44, "plain", "nsqd")
    picture.box(12, 100, 70, 44, "plain", "nsqd")
    picture.box(136, 30, 92, 44, "b", "receiver")
    picture.box(136, 100, 92, 44, "b", "receiver")
    picture.box(276, 20, 112, 134, "a")
    picture.text(332, 42, "log", "strong", anchor="middle")
    for number, y in enumerate((52, 84, 116)):
        picture.box(286, y, 92, 26, "plain", f"segment {number + 1}")
    picture.box(432, 30, 96, 44, "c", "Spark task")
    picture.box(432, 100, 96, 44, "c", "Spark task")
    picture.box(432, 190, 96, 44, "plain", "your sink")
    for y in (52, 122):
        picture.arrow((82, y - 6), (134, y - 6))
        picture.arrow((136, y + 8), (84, y + 8), dashed=True)
        picture.arrow((228, y), (274, y))
        picture.arrow((388, y), (430, y))
    picture.arrow((480, 144), (480, 188))
    picture.arrow((432, 212), (330, 212), (330, 156), dashed=True)
    picture.text(109, 160, "FIN", anchor="middle")
    picture.text(244, 160, "append", anchor="middle")
    picture.text(244, 176, "fsync", anchor="middle")
    picture.text(386, 204, "commit", anchor="middle")
    picture.text(270, 264, "A receiver finishes a message only after it is on disk.", anchor="middle")
    picture.text(270, 284, "A task that runs again reads the same segments.", anchor="middle")
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {
    "message": message,
    "rdy": rdy,
    "backoff": backoff,
    "partitions": partitions,
    "spark": spark,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (IMAGES / f"{name}.svg").write_text(str(draw()), "utf-8")
