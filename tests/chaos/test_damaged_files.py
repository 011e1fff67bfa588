"""nsqd starts and works although files in its data path are changed, cut, replaced or missing.

NSQ_CHAOS_DAMAGES=500 make chaos ARGS='-k damaged'
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from nsq.wire import commands
from tests.integration.clients import connected, consumer, publish, topic_stats
from tests.integration.judged import only_ours

pytestmark = only_ours("Go's nsqd ends at some of them")

BODIES = [b"%04d" % number * 10 for number in range(60)]


def options(durable: bool, data: Path) -> dict[str, object]:
    others: dict[str, object] = {"durable": True} if durable else {"mem_queue_size": 0}
    return {"data_path": str(data), "max_bytes_per_file": 1000, "log_level": "fatal", **others}


def damage(directory: Path, chance: random.Random) -> str:
    """Change some of the files; says what was done."""
    done = []
    for path in chance.sample(sorted(directory.glob("t*")), chance.randint(1, 3)):
        content = bytearray(path.read_bytes())
        kind = chance.choice(["flipped", "cut", "zeros behind", "garbage behind", "garbage", "empty", "gone"])
        if kind == "flipped":
            for _ in range(chance.randint(1, 8) if content else 0):
                content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        elif kind == "cut":
            content = content[: chance.randint(0, len(content))]
        elif kind.endswith("behind"):
            content += bytes(500) if kind.startswith("zeros") else chance.randbytes(500)
        elif kind in ("garbage", "empty"):
            content = bytearray(chance.randbytes(300) if kind == "garbage" else b"")
        path.unlink() if kind == "gone" else path.write_bytes(content)
        done.append(f"{path.name} {kind}")
    (directory / "garbage.diskqueue.000000.dat").write_bytes(chance.randbytes(300))
    return ", ".join(done)


@pytest.mark.parametrize("durable", [False, True], ids=["normal", "durable"])
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(6), id="a few"),
        pytest.param(
            range(100, 100 + int(os.environ.get("NSQ_CHAOS_DAMAGES", "100"))),
            id="many",
            marks=[pytest.mark.chaos, pytest.mark.timeout(900)],
        ),
    ],
)
def test_an_nsqd_survives_damaged_files(
    nsqd_factory: Factory[Nsqd], tmp_path: Path, durable: bool, seeds: range
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    with nsqd_factory.make(**options(durable, whole)) as nsqd:
        with consumer(nsqd, "t", rdy=0):
            pass
        for body in BODIES:
            publish(nsqd, "t", [body])
        with connected(nsqd) as client:
            for _ in range(3):
                client.send(commands.dpub("t", 3_600_000, b"deferred"))
                client.expect_ok()
    for seed in seeds:
        chance = random.Random(seed)
        data = Path(shutil.copytree(whole, tmp_path / str(seed)))
        done = damage(data, chance)
        with nsqd_factory.make(**options(durable, data)) as nsqd:
            assert nsqd.get("/ping").status == 200, (seed, done)
            publish(nsqd, "t", [b"new"])
            with consumer(nsqd, "t", rdy=200) as client:
                while client.expect_message().body != b"new":
                    pass
            assert nsqd.get("/ping").status == 200, (seed, done)
        with nsqd_factory.make(**options(durable, data)) as nsqd:
            assert topic_stats(nsqd, "t")["topic_name"] == "t", (seed, done)
        shutil.rmtree(data)
