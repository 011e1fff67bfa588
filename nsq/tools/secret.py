"""``nsq secret``: makes the secret of a login for the daemons' HTTP APIs."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from nsq.errors import UsageError
from nsq.http.secret import READ, ROLES, login_line
from nsq.tools.program import check_ranges, flag, run_command

_NAME = re.compile("[A-Za-z0-9._-]{1,64}")
_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class SecretOptions:
    role: str = flag(READ, "read: may look; all: may also change things and see messages", choices=ROLES)

    def __post_init__(self) -> None:
        check_ranges(self)


def main(argv: Sequence[str]) -> int:
    synopsis = (
        "NAME\nMakes a secret of 256 random bits for the login NAME, and shows it this once. Add the line\n"
        "to the file of --http-logins of nsqd, nsqlookupd or nsqadmin, and send them SIGHUP."
    )
    return run_command(SecretOptions, argv, "nsq secret", synopsis, _make)


def _make(options: SecretOptions, words: tuple[str, ...]) -> int:
    (name,) = words
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name for a login: use letters, digits, dots, - and _, 64 at most")
    secret = secrets.token_urlsafe(_BYTES)
    sys.stdout.write(f"secret: {secret}\nline:   {login_line(name, options.role, secret)}\n")
    return 0
