"""--http-logins: the file, and what it lets through."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from pathlib import Path

import pytest

from nsq.daemons.serve.listen import TcpAddress, UnixAddress
from nsq.daemons.serve.logins import Gate, is_reading, read_logins
from nsq.daemons.serve.logs import DaemonLog
from nsq.daemons.serve.routes import Reply, Request
from nsq.errors import ConfigError
from nsq.http.secret import login_line

LINES = ["# who may what", "", login_line("viewer", "read", "r3ad"), login_line("operator", "all", "a11")]


def file_of(directory: Path, lines: Iterable[str]) -> str:
    file = directory / "logins"
    file.write_text("".join(f"{line}\n" for line in lines))
    file.chmod(0o600)
    return str(file)


def basic(name: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()


class World:
    def __init__(self, directory: Path, **gate: object) -> None:
        self.path = file_of(directory, LINES)
        self.log = io.StringIO()
        self.gate = Gate(
            self.path,
            DaemonLog(stream=self.log),
            lambda request: is_reading(request) and request.path == "/stats",
            **gate,  # type: ignore[arg-type]
        )

    def ask(self, authorization: str = "", method: str = "GET", path: str = "/stats", **more: str) -> int:
        """Return the status of the refusal, or 200."""
        headers = {"Authorization": authorization} if authorization else {}
        reply = self.gate(Request(method, path, headers=headers | more))
        return 200 if reply is None else reply.status


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


READ_LOGINS = (basic("viewer", "r3ad"), "Bearer r3ad", "bearer  r3ad")
ALL_LOGINS = (basic("operator", "a11"), "basic " + basic("operator", "a11")[6:], "Bearer a11")
NO_LOGINS = (
    "",
    "Bearer",
    "Bearer ",
    "Bearer a11x",
    "Bearer äöü",
    "Digest a11",
    "a11",
    basic("viewer", "a11"),
    basic("", "a11"),
    basic("operator", ""),
    basic("operator", "a11:"),
    "Basic a11",
    "Basic ////",
    "Basic ä",
    basic("nobody", "a11"),
)


@pytest.mark.parametrize(
    ("logins", "read", "change"), [(READ_LOGINS, 200, 403), (ALL_LOGINS, 200, 200), (NO_LOGINS, 401, 401)]
)
def test_a_login_may_do_what_its_role_says(
    world: World, logins: tuple[str, ...], read: int, change: int
) -> None:
    for login in logins:
        assert world.ask(login) == world.ask(login, "HEAD") == read, login
        assert world.ask(login, "POST", "/topic/delete") == change, login
        assert world.ask(login, "GET", "/topic/peek") == change, login
        assert world.ask(login, "GET", "/ping") == 200


def test_a_refusal_asks_for_a_login_and_the_log_shows_no_secret(world: World) -> None:
    reply = world.gate(Request("GET", "/stats", headers={"Authorization": "Bearer wr0ng"}))
    assert isinstance(reply, Reply)
    assert reply.body == b'{"message":"UNAUTHORIZED"}'
    assert dict.fromkeys(name for name, _ in reply.headers) == {"WWW-Authenticate": None}
    assert [value.split()[0] for _, value in reply.headers] == ["Basic", "Bearer"]
    assert world.ask("Bearer r3ad", "POST", "/topic/delete") == 403
    log = world.log.getvalue()
    assert "WARNING: HTTP: GET /stats from @: wrong login" in log
    assert "WARNING: HTTP: POST /topic/delete from @: the login viewer has only the role read" in log
    assert not any(secret in log for secret in ("wr0ng", "r3ad"))


def test_no_page_of_another_site_changes_anything_with_the_login_that_a_browser_keeps(tmp_path: Path) -> None:
    world = World(tmp_path, origins=("https://shop.example",))
    login = basic("operator", "a11")
    assert world.ask(login, "POST", "/pub", Origin="https://evil.example") == 403
    assert world.ask(login, "POST", "/pub", Origin="https://shop.example") == 200
    assert world.ask(login, "POST", "/pub", **{"Sec-Fetch-Site": "same-origin"}) == 200


def test_paths_may_be_open(tmp_path: Path) -> None:
    world = World(tmp_path, open_paths=("/metrics",))
    assert world.ask(path="/metrics") == 200
    assert world.ask(path="/metrics", method="POST") == 401
    assert world.ask(path="/metrics/") == 401


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "has no login"),
        (["# nobody"], "has no login"),
        (["viewer:read"], "line 1 is not name:role:sha256"),
        ([LINES[3], "viewer:write:" + "0" * 64], "line 2 is not"),
        (["viewer:read:secret"], "line 1 is not"),
        (["viewer:read:" + "G" * 64], "line 1 is not"),
        (["view er:read:" + "0" * 64], "line 1 is not"),
        ([LINES[2], LINES[2]], "line 2 names viewer again"),
    ],
)
def test_a_malformed_file_is_refused_without_showing_it(
    tmp_path: Path, lines: list[str], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as error:
        read_logins(file_of(tmp_path, lines))
    assert "secret" not in str(error.value).replace("nsq secret", "")
    assert "0000" not in str(error.value)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = file_of(tmp_path, LINES)
    Path(path).chmod(mode)
    with pytest.raises(ConfigError, match="can be written by others than its owner: chmod go-w"):
        read_logins(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_logins(str(tmp_path / "none"))


def test_a_reload_takes_new_logins_and_keeps_the_old_ones_after_an_error(world: World) -> None:
    Path(world.path).write_text(login_line("operator", "read", "new") + "\n")
    assert world.ask("Bearer a11") == 200
    world.gate.reload()
    assert (world.ask("Bearer a11"), world.ask("Bearer new")) == (401, 200)
    Path(world.path).write_text("nonsense\n")
    world.gate.reload()
    assert world.ask("Bearer new") == 200
    assert "keeping the current logins" in world.log.getvalue()


def test_plain_http_beyond_this_machine_is_warned_of(world: World) -> None:
    world.gate.warn_of_plain_http(TcpAddress("127.0.0.1", 4151))
    world.gate.warn_of_plain_http(TcpAddress("::1", 4151))
    world.gate.warn_of_plain_http(UnixAddress("/run/nsqd.sock"))
    assert world.log.getvalue() == ""
    world.gate.warn_of_plain_http(TcpAddress("0.0.0.0", 4151))
    assert "WARNING: HTTP: 0.0.0.0:4151 takes logins over plain HTTP" in world.log.getvalue()
