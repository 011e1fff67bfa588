"""Where the secret for HTTP may go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nsq.errors import ConfigError
from nsq.http.message import HttpRequest, parse_url
from nsq.http.secret import ANY, HttpSecret, secret_of_program

HEADER = b"\r\nAuthorization: Bearer s3cret\r\n"


def carries(address: str, secret: HttpSecret | None, *, told: bool) -> bool:
    url = replace(parse_url(address), told=told)
    return HEADER in HttpRequest(url, secret=secret).encode()


@pytest.mark.parametrize(
    ("address", "given", "told", "told_with_own_authorities"),
    [
        ("http://nsqd-1.example:4151", True, False, False),
        ("http://10.0.0.7:4151", True, False, False),
        ("https://nsqd-1.example:4152", True, False, True),
        ("http://127.0.0.1:4151", True, True, True),
        ("http://[::1]:4151", True, True, True),
        ("http://[::ffff:127.0.0.1]:4151", True, True, True),
        ("http://[::ffff:10.0.0.7]:4151", True, False, False),
        ("http://localhost:4151", True, True, True),
        ("unix:/run/nsqd.sock", True, True, True),
        # Names and numbers that only look like this machine.
        ("http://127.0.0.1.example:4151", True, False, False),
        ("http://localhost.example:4151", True, False, False),
        ("http://127.1:4151", True, False, False),
        ("http://2130706433:4151", True, False, False),
        ("http://0.0.0.0:4151", True, False, False),
    ],
)
def test_a_secret_goes_to_given_addresses_to_this_machine_and_over_verified_tls(
    address: str, given: bool, told: bool, told_with_own_authorities: bool
) -> None:
    secret = HttpSecret("s3cret")
    assert carries(address, secret, told=False) is given
    assert carries(address, secret, told=True) is told
    assert carries(address, replace(secret, own_authorities=True), told=True) is told_with_own_authorities
    assert carries(address, replace(secret, to=ANY), told=True)
    assert not carries(address, None, told=False)


@pytest.mark.parametrize("text", ["", "a b", "a\r\nX: y", "ä", "a\0"])
def test_a_secret_that_no_header_can_carry_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="the HTTP secret is empty, or has spaces"):
        HttpSecret(text)


def test_no_repr_shows_a_secret() -> None:
    secret = HttpSecret("s3cret")
    assert "s3cret" not in repr(secret) + repr(HttpRequest(parse_url("a:1"), secret=secret))


def test_a_program_reads_it_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NSQ_HTTP_SECRET", raising=False)
    assert secret_of_program("") == ""
    monkeypatch.setenv("NSQ_HTTP_SECRET", "from-the-environment\n")
    assert secret_of_program("") == "from-the-environment"
    file = tmp_path / "secret"
    file.write_text("from-the-file\n")
    assert secret_of_program(str(file)) == "from-the-file"
    file.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        secret_of_program(str(file))
    with pytest.raises(ConfigError, match="No such file"):
        secret_of_program(str(tmp_path / "none"))
