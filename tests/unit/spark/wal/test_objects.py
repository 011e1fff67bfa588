"""What a log expects of a store, in this process and in a directory; tests/integration/spark has S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsq.spark.wal.folder import Folder
from nsq.spark.wal.objects import Memory, Objects
from tests.fakes.store_contract import StoreContract


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self) -> Objects:
        return Memory()


class TestFolder(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Objects:
        return Folder(tmp_path / "log")
