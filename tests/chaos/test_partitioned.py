"""Partitioned NSQ with leaders that move, nodes that die, stall and restart, and nsqlookupds that lag: what
was acknowledged is handled, and in order for each key.

make chaos ARGS=tests/chaos/test_partitioned.py
NSQ_CHAOS_SEED='7 8' NSQ_CHAOS_MESSAGES=1000000 NSQ_CHAOS_FAULTS=500    # of each seed, at least
"""

from __future__ import annotations

import os

import pytest

from tests.chaos.partitioned import play
from tests.chaos.telling import Tell

SEEDS = [int(seed) for seed in os.environ.get("NSQ_CHAOS_SEED", "1 2").split()]
MESSAGES = int(os.environ.get("NSQ_CHAOS_MESSAGES", "200000"))
FAULTS = int(os.environ.get("NSQ_CHAOS_FAULTS", "50"))


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_order_and_no_loss_while_the_cluster_is_attacked(seed: int, tell: Tell) -> None:
    tell(play(seed, MESSAGES, FAULTS))


@pytest.mark.timeout(300)
def test_order_and_no_loss_in_a_short_attack_of_every_kind(tell: Tell) -> None:
    tell(play(3, 5000, 14))
