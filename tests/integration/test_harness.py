"""The daemons of ``nsq.testing``: lifetimes in a thread and as a process, options, failures."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsq.errors import UsageError
from nsq.testing import DaemonFailed, Nsqd, Nsqlookupd, V1Client
from nsq.testing.daemons import AddressTaken, addresses
from nsq.testing.v2 import PeerClosed

from .patience import eventually

MODES = pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A binary from outside: ours behind a shell script."""
    return _script(tmp_path, f'exec "{sys.executable}" -m nsq.daemons.nsqlookupd "$@"')


def _script(directory: Path, text: str) -> Path:
    path = directory / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


class TestLifetime:
    @MODES
    def test_a_daemon_is_ready_when_it_is_started_and_gone_when_it_is_stopped(self, process: bool) -> None:
        with Nsqlookupd(process=process) as lookupd:
            assert lookupd.get("/ping")[::2] == (200, b"OK")
            address = lookupd.tcp_address
            assert repr(lookupd) == f"<Nsqlookupd tcp {address}, http {lookupd.http_address}>"
            with V1Client(address) as client:
                client.send(b"PING\n")
                client.expect_ok()
        assert not lookupd.running
        assert repr(lookupd) == "<Nsqlookupd not running>"
        with pytest.raises(ConnectionRefusedError):
            V1Client(address)

    @MODES
    def test_a_restart_keeps_the_ports(self, process: bool) -> None:
        with Nsqlookupd(process=process) as lookupd:
            before = lookupd.tcp_address, lookupd.http_address
            lookupd.post("/topic/create?topic=orders")
            lookupd.restart()
            assert (lookupd.tcp_address, lookupd.http_address) == before
            assert lookupd.get("/topics").json() == {"topics": []}

    @MODES
    def test_the_log_outlives_the_daemon_and_covers_all_runs(self, process: bool) -> None:
        with Nsqlookupd(process=process) as lookupd:
            first = lookupd.log
            lookupd.restart()
        assert first
        assert lookupd.log.startswith(first)
        assert lookupd.log.count(f"listening on {lookupd.tcp_address}") == 2

    def test_the_thread_is_named_after_its_daemon_and_joined(self) -> None:
        with Nsqlookupd() as lookupd:
            name = f"nsqlookupd-{lookupd.tcp_address}"
            assert name in [thread.name for thread in threading.enumerate()]
        assert name not in [thread.name for thread in threading.enumerate()]

    def test_starting_twice_is_refused(self) -> None:
        with Nsqlookupd() as lookupd, pytest.raises(UsageError, match="running already"):
            lookupd.start()

    def test_an_address_of_a_daemon_never_started_is_refused(self) -> None:
        with pytest.raises(UsageError, match="never started"):
            _ = Nsqlookupd().http_address


class TestProcess:
    @pytest.mark.parametrize("verb", ["kill", "terminate"])
    def test_a_thread_has_no_process_to_signal(self, verb: str) -> None:
        with Nsqlookupd() as lookupd, pytest.raises(UsageError, match="process=True"):
            getattr(lookupd, verb)()

    def test_a_daemon_that_ignores_sigterm_is_killed_with_its_children(self, tmp_path: Path) -> None:
        stubborn = _script(tmp_path, f'trap "" TERM; "{sys.executable}" -m nsq.daemons.nsqlookupd "$@"')
        lookupd = Nsqlookupd(binary=stubborn, stop_timeout=0.2).start()
        with pytest.raises(DaemonFailed, match=r"0\.2 s after SIGTERM"):
            lookupd.stop()
        eventually(lambda: is_refused(lookupd.tcp_address))  # its grandchild is init's to bury, not ours

    def test_a_daemon_does_not_outlive_the_process_that_started_it(self) -> None:
        forgetful = "from nsq.testing import Nsqd; n = Nsqd(process=True).start(); print(n.pid, n.data_path)"
        done = subprocess.run([sys.executable, "-c", forgetful], capture_output=True, check=True, timeout=60)
        pid, data_path = done.stdout.split()
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
        assert not Path(data_path.decode()).parent.exists()

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills the children of a killed process")
    def test_a_daemon_does_not_outlive_the_process_that_started_it_and_was_killed(self) -> None:
        killed = (
            "import os; from nsq.testing import Nsqd; n = Nsqd(process=True).start(); "
            "print(n.tcp_address, n.data_path.parent, flush=True); os.kill(os.getpid(), 9)"
        )
        done = subprocess.run([sys.executable, "-c", killed], capture_output=True, text=True, timeout=60)
        address, directory = done.stdout.split()
        try:
            eventually(lambda: is_refused(address))
        finally:
            shutil.rmtree(directory)  # no process was left to do that

    def test_a_daemon_outlives_the_thread_that_started_it(self) -> None:
        started: list[Nsqlookupd] = []
        thread = threading.Thread(target=lambda: started.append(Nsqlookupd(process=True).start()))
        thread.start()
        thread.join()
        try:
            assert started[0].get("/ping").status == 200
        finally:
            started[0].stop()


class TestFailures:
    def test_a_program_that_exits_is_reported_with_its_status_and_log(self, tmp_path: Path) -> None:
        broken = _script(tmp_path, "echo the disk is full >&2; exit 3")
        with pytest.raises(DaemonFailed, match=r"status 3 before it was ready\n(.*\n)*the disk is full"):
            Nsqlookupd(binary=broken).start()

    def test_a_program_that_never_answers_is_killed(self, tmp_path: Path) -> None:
        silent = _script(tmp_path, "echo still thinking; sleep 60")
        with pytest.raises(DaemonFailed, match=r"not ready within 3 s\n(.*\n)*still thinking"):
            Nsqlookupd(binary=silent, start_timeout=3.0).start()

    def test_a_program_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(DaemonFailed, match=r"cannot run .*nowhere: it does not exist"):
            Nsqlookupd(binary=tmp_path / "nowhere").start()

    def test_a_program_that_is_not_executable(self, tmp_path: Path) -> None:
        program = _script(tmp_path, "exit")
        program.chmod(0o644)
        with pytest.raises(DaemonFailed, match=r"cannot run .*program: .* is not executable"):
            Nsqlookupd(binary=program).start()

    @pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
    def test_a_program_does_not_ignore_the_signals_that_python_ignores(self, tmp_path: Path) -> None:
        with pytest.raises(DaemonFailed) as failure:
            Nsqlookupd(binary=_script(tmp_path, "grep SigIgn /proc/self/status; exit 3")).start()
        ignored = int(str(failure.value).split("SigIgn:")[1].split()[0], 16)
        assert not ignored >> (signal.SIGPIPE - 1) & 1

    @MODES
    def test_a_port_of_the_callers_that_is_taken(self, process: bool, taken: str) -> None:
        with pytest.raises(AddressTaken, match="in use"):
            Nsqlookupd(process=process, tcp_address=taken).start()

    def test_a_port_that_is_taken_between_choice_and_start_is_chosen_anew(
        self, taken: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        choose = addresses.free_ports
        unlucky = iter([[taken, *choose(["127.0.0.1:0"])]])
        monkeypatch.setattr(addresses, "free_ports", lambda wanted: next(unlucky, None) or choose(wanted))
        with Nsqlookupd(process=True) as lookupd:
            assert lookupd.tcp_address != taken
            assert next(unlucky, None) is None

    def test_a_port_that_is_taken_for_a_moment_is_tried_again(self, tmp_path: Path) -> None:
        """The port is free again when it is checked, so only the program can know."""
        tried = tmp_path / "tried"
        unlucky = f'[ -e "{tried}" ] || {{ touch "{tried}"; echo "bind: address already in use"; exit 1; }}'
        program = f'exec "{sys.executable}" -m nsq.daemons.nsqlookupd "$@"'
        with Nsqlookupd(binary=_script(tmp_path, f"{unlucky}\n{program}")) as lookupd:
            assert lookupd.get("/ping").status == 200
            assert tried.exists()

    def test_a_misspelt_option_is_named_where_it_was_written(self) -> None:
        with pytest.raises(UsageError, match=r"'msg_timout' .*did you mean 'msg_timeout'"):
            Nsqd(msg_timout=1.0)


class TestNsqd:
    def test_the_private_data_is_removed_at_the_stop(self) -> None:
        with Nsqd() as nsqd:
            private = nsqd.data_path
            assert private.is_dir()
        assert not private.exists()

    def test_a_data_path_of_the_callers_is_kept(self, tmp_path: Path) -> None:
        (tmp_path / "mark").touch()
        with Nsqd(data_path=tmp_path) as nsqd:
            assert nsqd.data_path == tmp_path
        assert (tmp_path / "mark").exists()


def is_refused(address: str) -> bool:
    try:
        V1Client(address).close()
    except ConnectionRefusedError:
        return True
    except (OSError, PeerClosed):
        pass  # just going down
    return False


class TestPlugin:
    TESTS = """
        def test_fixtures(nsqlookupd, nsqd_factory):
            nsqd = nsqd_factory(lookupd=[nsqlookupd])
            assert nsqd.get("/ping").status == nsqlookupd.get("/ping").status == 200
        """

    def test_a_missing_binary_skips_the_test_and_says_why(
        self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NSQ_BIN_DIR", str(pytester.path))
        pytester.makeconftest('pytest_plugins = ["nsq.testing.plugin"]')
        pytester.makepyfile(self.TESTS)
        result = pytester.runpytest("-rs")
        result.assert_outcomes(skipped=1)
        result.stdout.fnmatch_lines(["*not run: NSQ_BIN_DIR=* holds no program nsqlookupd*"])

    def test_the_binaries_of_the_directory_are_used(
        self, program: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program.rename(program.with_name("nsqlookupd"))
        monkeypatch.setenv("NSQ_BIN_DIR", str(program.parent))
        pytester.makeconftest('pytest_plugins = ["nsq.testing.plugin"]')
        pytester.makepyfile("def test_process(nsqlookupd): assert nsqlookupd.pid > 0")
        pytester.runpytest().assert_outcomes(passed=1)
