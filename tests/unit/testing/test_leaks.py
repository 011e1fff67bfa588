"""``nsq.testing.leaks`` finds real leaks, each cleaned up by its test; and the fixture in
tests/conftest.py.
"""

from __future__ import annotations

import inspect
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsq.testing import leaks
from tests.fakes.clock import Clock

Child = subprocess.Popen[bytes]
CONFTEST = Path(__file__).resolve().parents[2] / "conftest.py"
WAITS_FOR_THE_END_OF_STDIN = [
    sys.executable,
    "-S",
    "-c",
    "import sys; print('up', flush=True); sys.stdin.read()",
]

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="read from Linux's /proc")


@pytest.fixture
def before() -> leaks.Snapshot:
    return leaks.snapshot()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        WAITS_FOR_THE_END_OF_STDIN, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        # Popen returns in the middle of the exec, when the process has no command line yet.
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.stdout.close()
        yield process


def new_since(before: leaks.Snapshot) -> list[str]:
    return leaks.describe(leaks.difference(before, leaks.snapshot()))


@pytest.mark.parametrize(
    ("daemon", "words"), [(False, "thread 'left-reader'"), (True, "thread 'left-reader' (daemon)")]
)
def test_a_thread_is_named(before: leaks.Snapshot, daemon: bool, words: str) -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="left-reader", daemon=daemon)
    thread.start()
    try:
        assert new_since(before) == [words]
    finally:
        release.set()
        thread.join()
    assert new_since(before) == []


@linux_only
def test_descriptors_are_described_by_address_or_path(
    before: leaks.Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a whole path may be longer than a socket's can be
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
        server.accept()[0] as far,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket() as idle,
        Path("journal").open("w") as file,
    ):
        unix.bind("nsqd.sock")
        here, there, listening = (
            "{}:{}".format(*end) for end in (near.getsockname(), far.getsockname(), server.getsockname())
        )
        found = dict(words.removeprefix("descriptor ").split(": ", 1) for words in new_since(before))
        assert found.pop(str(idle.fileno())).startswith("socket ")  # it is in none of the kernel's tables
        assert found == {
            str(server.fileno()): f"tcp socket {listening} -> 0.0.0.0:0 listening",
            str(near.fileno()): f"tcp socket {here} -> {there} established",
            str(far.fileno()): f"tcp socket {there} -> {here} established",
            str(unix.fileno()): "unix socket nsqd.sock",
            str(file.fileno()): str(tmp_path / "journal"),
        }
    assert new_since(before) == []


@linux_only
def test_a_descriptor_that_now_belongs_to_another_file_is_new(tmp_path: Path) -> None:
    with (tmp_path / "one").open("w") as one:
        number = one.fileno()
        before = leaks.snapshot()
    with (tmp_path / "two").open("w") as two:
        assert two.fileno() == number
        assert new_since(before) == [f"descriptor {number}: {tmp_path / 'two'}"]


@linux_only
def test_a_running_child_is_described_by_its_command(before: leaks.Snapshot, child: Child) -> None:
    found = [words for words in new_since(before) if words.startswith("child")]
    # The fixture `child` is set up after `before`.
    assert len(found) == 1
    assert found[0].startswith(f"child process {child.pid}: {sys.executable} ")


@linux_only
def test_a_child_of_a_thread_that_ended_is_found(before: leaks.Snapshot) -> None:
    started: list[subprocess.Popen[bytes]] = []
    thread = threading.Thread(
        target=lambda: started.append(
            subprocess.Popen(WAITS_FOR_THE_END_OF_STDIN, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        )
    )
    thread.start()
    thread.join()
    with started[0] as process:
        assert leaks.difference(before, leaks.snapshot()).children == {process.pid}


@linux_only
def test_a_child_that_ended_unwaited_is_a_leak(before: leaks.Snapshot, child: Child) -> None:
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    (words,) = new_since(before)
    assert words.startswith(f"child process {child.pid}: python")
    assert words.endswith(", ended but not waited for")
    child.wait()
    assert new_since(before) == []


@linux_only
def test_a_child_that_ends_meanwhile_is_still_described(child: Child) -> None:
    left = leaks.Snapshot(children=frozenset({child.pid}))
    child.communicate()
    assert leaks.describe(left) == [f"child process {child.pid}, gone by now"]


def test_a_new_file_is_named_but_none_in_a_folder_below(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    before = leaks.snapshot([tmp_path])
    (tmp_path / "nsqd.dat").touch()
    (tmp_path / "below" / "unseen").touch()
    new = leaks.difference(before, leaks.snapshot([tmp_path]))
    assert leaks.describe(new) == [f"file {tmp_path / 'nsqd.dat'}"]


@pytest.mark.parametrize("name", [".pytest_cache", "__pycache__", "new_module.py", "notes~", "nsq.egg-info"])
def test_files_that_tools_leave_are_no_leaks(tmp_path: Path, name: str) -> None:
    before = leaks.snapshot([tmp_path])
    (tmp_path / name).touch()
    assert not leaks.difference(before, leaks.snapshot([tmp_path]))


def test_a_directory_that_is_gone_has_no_files(tmp_path: Path) -> None:
    assert leaks.snapshot([tmp_path / "gone"]).files == frozenset()


class NappingClock(Clock):
    """Time that passes only by napping."""

    def nap(self, seconds: float) -> None:
        self.now += seconds


def leftovers_of(sightings: list[leaks.Snapshot], clock: NappingClock) -> leaks.Snapshot:
    """The leftovers of something that is seen as in ``sightings``, the last of which stays."""
    seen = iter(sightings)
    return leaks.leftovers(
        leaks.Snapshot(), lambda: next(seen, sightings[-1]), grace=1.0, now=clock, nap=clock.nap
    )


def test_a_leak_is_reported_only_if_it_is_still_there_after_the_grace() -> None:
    leak = leaks.Snapshot(files=frozenset({"a"}))
    for sightings, left, at_least, at_most in [
        ([leaks.Snapshot()], leaks.Snapshot(), 0.0, 0.0),
        ([leak, leak, leaks.Snapshot()], leaks.Snapshot(), 0.0, 0.5),
        ([leak], leak, 1.0, 1.02),
    ]:
        clock = NappingClock()
        assert leftovers_of(sightings, clock) == left
        assert at_least - 0.02 <= clock.now - 1000.0 <= at_most


@pytest.mark.skipif(sys.byteorder != "little", reason="the examples are those of a little-endian machine")
@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("0100007F:1036", "127.0.0.1:4150"),
        ("00000000000000000000000001000000:1037", "[::1]:4151"),
    ],
)
def test_addresses_of_the_kernels_tables_are_decoded(field: str, words: str) -> None:
    assert leaks._address(field) == words


@linux_only
def test_the_fixture_of_all_tests_fails_one_that_leaks(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    conftest = request.config.pluginmanager.get_plugin(str(CONFTEST))
    monkeypatch.setattr(conftest, "GRACE", 0.05)
    fixture = inspect.unwrap(conftest.nothing_left_behind)
    clean = fixture([tmp_path])
    next(clean)
    with pytest.raises(StopIteration):
        next(clean)

    dirty, release = fixture([tmp_path]), threading.Event()
    next(dirty)
    thread = threading.Thread(target=release.wait, name="stray-thread")
    thread.start()
    (tmp_path / "stray-file").touch()
    with socket.create_server(("127.0.0.1", 0)), pytest.raises(pytest.fail.Exception) as caught:
        next(dirty)
    release.set()
    thread.join()
    said = str(caught.value).splitlines()
    assert said[:2] == ["this test left behind:", "  thread 'stray-thread'"]
    assert said[2].endswith(" -> 0.0.0.0:0 listening")
    assert said[3] == f"  file {tmp_path}/stray-file"
