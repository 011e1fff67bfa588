from __future__ import annotations

import pytest

from nsq.daemons.serve.bodies import CHUNK_BYTES, PROGRESS_BYTES, STALL_SECONDS, PendingBodies

LIMIT = 1000


class Scene:
    """Senders by name, and what happened to them in its order."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.now = 100.0
        self.events: list[str] = []
        self.bodies = PendingBodies(limit, lambda: self.now)
        self._senders: dict[str, FakeSender] = {}

    def count(self, name: str, size: int) -> None:
        self.bodies.count(self._senders.setdefault(name, FakeSender(name, self)), size)

    def happened(self) -> list[str]:
        events, self.events = self.events, []
        return events


class FakeSender:
    def __init__(self, name: str, scene: Scene) -> None:
        self._name = name
        self._scene = scene

    def wait_for_room(self) -> None:
        self._scene.events.append(f"{self._name} waits")

    def go_on(self) -> None:
        self._scene.events.append(f"{self._name} goes on")

    def cut_off(self) -> None:
        self._scene.events.append(f"{self._name} is cut off")
        self._scene.count(self._name, 0)


def test_refused_bytes_do_not_count() -> None:
    bodies = PendingBodies(LIMIT)
    assert bodies.take(LIMIT - 1)
    assert not bodies.take(2)
    assert bodies.take(1)
    bodies.give_back(LIMIT)
    assert bodies.total == 0


def test_the_first_sender_always_goes_on_and_the_others_follow_in_order() -> None:
    scene = Scene()
    for name in "abc":
        scene.count(name, 400)
    assert scene.happened() == ["c waits"]
    scene.count("b", 500)
    scene.count("a", LIMIT)
    assert scene.happened() == ["b waits"]
    scene.count("a", 0)
    assert scene.happened() == ["b goes on"]
    scene.count("b", 0)
    assert scene.happened() == ["c goes on"]
    scene.count("c", 0)
    assert scene.bodies.total == 0


def test_room_is_given_to_as_many_as_it_is_enough_for() -> None:
    scene = Scene(limit=4 * CHUNK_BYTES)
    scene.count("first", 4 * CHUNK_BYTES)
    for name in "abc":
        scene.count(name, 1)
    assert scene.happened() == ["a waits", "b waits", "c waits"]
    scene.count("first", 2 * CHUNK_BYTES - 3)
    assert scene.happened() == ["a goes on", "b goes on"]


def test_a_body_over_http_makes_tcp_wait_and_lets_it_go_on() -> None:
    scene = Scene(limit=CHUNK_BYTES)
    assert scene.bodies.take(CHUNK_BYTES)
    scene.count("first", 10)
    scene.count("second", 10)
    assert scene.happened() == ["second waits"]
    scene.count("first", 0)
    assert scene.happened() == ["second goes on"]
    scene.bodies.give_back(CHUNK_BYTES)
    assert scene.bodies.total == 10


@pytest.mark.parametrize(
    ("size", "cut_off"), [(LIMIT, True), (PROGRESS_BYTES - 1, True), (PROGRESS_BYTES, False)]
)
def test_a_stalled_body_is_cut_off_while_others_wait(size: int, cut_off: bool) -> None:
    scene = Scene()
    scene.count("idle", LIMIT)
    scene.now += STALL_SECONDS - 1
    scene.count("idle", size)
    scene.bodies.cut_off_the_idle()
    assert scene.happened() == [], "no sender waits"
    scene.count("waiting", 1)
    scene.happened()
    scene.now += 1
    scene.bodies.cut_off_the_idle()
    assert scene.happened() == (["idle is cut off", "waiting goes on"] if cut_off else [])


@pytest.mark.parametrize(("grown", "cut_off"), [(CHUNK_BYTES - 1, True), (CHUNK_BYTES, False)])
def test_a_large_body_must_grow_by_an_eighth(grown: int, cut_off: bool) -> None:
    scene = Scene()
    scene.count("slow", 8 * CHUNK_BYTES)
    scene.count("waiting", 1)
    scene.now += STALL_SECONDS - 1
    scene.count("slow", 8 * CHUNK_BYTES + grown)
    scene.now += 1
    scene.happened()
    scene.bodies.cut_off_the_idle()
    assert scene.happened() == (["slow is cut off", "waiting goes on"] if cut_off else [])


def test_a_body_that_waits_for_room_is_not_stalled() -> None:
    scene = Scene()
    scene.count("busy", LIMIT)
    scene.count("waiting", 10)
    scene.now += STALL_SECONDS
    scene.count("busy", LIMIT + PROGRESS_BYTES)
    scene.bodies.cut_off_the_idle()
    scene.count("busy", 0)
    assert scene.happened() == ["waiting waits", "waiting goes on"]
    scene.count("another", LIMIT)
    scene.bodies.cut_off_the_idle()
    assert scene.happened() == ["another waits"]
