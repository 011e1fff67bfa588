"""A pytest plugin: ``nsqd``, ``nsqlookupd``, ``nsqadmin`` and a factory for each, ``memory_nsqd`` and
``partitioned_cluster``, all stopped when the test ends.

    pytest_plugins = ["nsq.testing.plugin"]       # unless the installed package has registered it already

    def test_orders(nsqd_factory, nsqlookupd):
        nsqd = nsqd_factory(lookupd=[nsqlookupd], msg_timeout=1.0)

With NSQ_BIN_DIR in the environment the fixtures run the binaries of that directory instead. Must not import
the client.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pytest

from .daemons import Daemon, Nsqadmin, Nsqd, Nsqlookupd
from .partitioned import PartitionedCluster

if TYPE_CHECKING:
    from .memory_nsqd import MemoryNsqd

BIN_DIR = "NSQ_BIN_DIR"

D = TypeVar("D", bound=Daemon)


class Factory(Generic[D]):
    """Starts daemons: call it with a daemon's options."""

    def __init__(self, kind: type[D], stack: ExitStack) -> None:
        self._kind = kind
        self._stack = stack

    def __call__(self, **options: Any) -> D:
        daemon = self.make(**options)
        self._stack.enter_context(daemon)
        return daemon

    def make(self, **options: Any) -> D:
        """Make a daemon that the caller starts and stops."""
        binary = external_binary(self._kind.program)
        if binary is not None and "binary" not in options:
            options["binary"] = binary
        return self._kind(**options)


def external_binary(program: str) -> Path | None:
    """Return the program in NSQ_BIN_DIR, None without that variable. Skips the test if it is missing."""
    directory = os.environ.get(BIN_DIR)
    if not directory:
        return None
    binary = Path(directory) / program
    if not os.access(binary, os.X_OK):
        pytest.skip(f"not run: {BIN_DIR}={directory} holds no program {program}")
    return binary


@contextmanager
def factory(kind: type[D]) -> Iterator[Factory[D]]:
    """Make a fixture of another scope: ``with factory(Nsqd) as make: yield make(msg_timeout=1.0)``."""
    with ExitStack() as stack:
        yield Factory(kind, stack)


@pytest.fixture
def nsqlookupd_factory() -> Iterator[Factory[Nsqlookupd]]:
    with factory(Nsqlookupd) as make:
        yield make


@pytest.fixture
def nsqd_factory() -> Iterator[Factory[Nsqd]]:
    with factory(Nsqd) as make:
        yield make


@pytest.fixture
def nsqadmin_factory() -> Iterator[Factory[Nsqadmin]]:
    with factory(Nsqadmin) as make:
        yield make


@pytest.fixture
def nsqlookupd(nsqlookupd_factory: Factory[Nsqlookupd]) -> Nsqlookupd:
    return nsqlookupd_factory()


@pytest.fixture
def nsqd(nsqd_factory: Factory[Nsqd]) -> Nsqd:
    return nsqd_factory()


@pytest.fixture
def nsqadmin(nsqadmin_factory: Factory[Nsqadmin], nsqd: Nsqd) -> Nsqadmin:
    """An nsqadmin for the test's ``nsqd``."""
    return nsqadmin_factory(nsqd=[nsqd])


@pytest.fixture
def memory_nsqd() -> Iterator[MemoryNsqd]:
    """An nsqd in memory, which is also the transport to it."""
    from .memory_nsqd import MemoryNsqd

    with MemoryNsqd() as nsqd:
        yield nsqd


@pytest.fixture
def partitioned_cluster() -> Iterator[PartitionedCluster]:
    """A test double of a partitioned cluster: three nodes, two nsqlookupds, in a thread."""
    with PartitionedCluster() as cluster:
        yield cluster
