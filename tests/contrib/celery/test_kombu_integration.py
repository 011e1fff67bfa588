"""Kombu's own integration tests, unchanged: all but those of priorities, which NSQ does not have, and one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import kombu.serialization  # loads the entry point, as importing celery does
import pytest

from nsq.testing import Nsqd

#: They are in kombu's sdist alone, which is downloaded once for the installed version.
PLACE = Path(sys.prefix) / f"kombu-{kombu.__version__}-tests"
COMMON = "common.py"


def common_tests() -> ModuleType | str:
    """Return kombu's ``t/integration/common.py``, or why it cannot be had."""
    if not (PLACE / COMMON).exists():
        reason = _download()
        if reason:
            return reason
    spec = importlib.util.spec_from_file_location("kombu_integration_common", PLACE / COMMON)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _download() -> str:
    wanted = f"kombu=={kombu.__version__}"
    with tempfile.TemporaryDirectory(dir=sys.prefix) as directory:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
             "--no-binary", ":all:", "--dest", directory, wanted],
            capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            return f"the sdist of {wanted} cannot be had: {done.stderr.strip().splitlines()[-1:]}"
        sdist = next(Path(directory).glob("*.tar.gz"))
        with tarfile.open(sdist) as archive:
            file = archive.extractfile(f"kombu-{kombu.__version__}/t/integration/{COMMON}")
            assert file is not None
            text = file.read()
        half = Path(directory) / COMMON
        half.write_bytes(text)
        PLACE.mkdir(exist_ok=True)
        half.replace(PLACE / COMMON)  # at once: several processes may do this
    return ""


common = common_tests()
if isinstance(common, str):
    pytest.skip(common, allow_module_level=True)


@pytest.fixture
def connection(nsqd: Nsqd) -> Iterator[kombu.Connection]:
    with kombu.Connection(f"nsq://{nsqd.tcp_address}") as connection:
        yield connection


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    return kombu.Connection("nsq://127.0.0.1:1", connect_timeout=0.3)


@pytest.fixture
def failover_connection(nsqd: Nsqd) -> Iterator[kombu.Connection]:
    with kombu.Connection(f"nsq://127.0.0.1:1;nsq://{nsqd.tcp_address}") as connection:
        yield connection


class TestBasicFunctionality(common.BasicFunctionality):  # type: ignore[misc, name-defined]
    pass


class TestExchangeTypes(common.BaseExchangeTypes):  # type: ignore[misc, name-defined]
    pass


class TestTimeToLive(common.BaseTimeToLive):  # type: ignore[misc, name-defined]
    pass


class TestMessage(common.BaseMessage):  # type: ignore[misc, name-defined]
    pass


# kombu 5.5 has no tests of its event loop.
class TestEventLoop(getattr(common, "BaseEventLoop", object)):  # type: ignore[misc]
    pass


class TestSeveralUrls(common.BaseFailover):  # type: ignore[misc, name-defined]
    # It watches Connection.port change from the first URL's to the next one's. kombu sets the port only for
    # transports that leave the parsing of URLs to it, which knows neither several hosts nor options in a URL.
    # This transport never switches: it uses all URLs at once, as the other tests of this class show.
    test_failover_switches_to_alternate_url = None
