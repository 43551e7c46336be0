"""Settings become rules without a change of meaning."""

from __future__ import annotations

from typing import Any

import pytest
from stand_ins import MS, S, config

from orind.daemon.batcher import Adaptive, Rule
from orind.daemon.degradation import Rules
from orind.daemon.serving_rules import batch_rule, relief_policy


@pytest.mark.parametrize(
    ("batching", "rule"),
    [
        ({"mode": "fixed", "max_size": 8}, Rule(8, None)),
        ({"mode": "window", "max_size": 8, "window_ms": 2.5}, Rule(8, 2_500_000)),
        ({"mode": "adaptive", "max_size": 32}, Rule(32, 5_000_000, Adaptive(4, 16, 1_000_000))),
    ],
)
def test_the_batching_rule_is_the_configurations(batching: dict[str, Any], rule: Rule) -> None:
    assert batch_rule(config(batching=batching, slots={"count": 64}).batching) == rule


def test_what_is_left_out_under_overload_is_the_configurations() -> None:
    cameras = {
        "sorter": {"model": "m", "deadline_ms": 500},
        "counter": {"model": "m", "deadline_ms": 500, "degraded": "held", "held_age_max_ms": 250},
        "archive": {"model": "m", "deadline_ms": 500, "optional": True},
    }
    degradation = {"enter_lost_percent": 10, "enter_age_percent": 50, "leave_age_percent": 25, "enter_after_ms": 200}
    policy = relief_policy(config(cameras=cameras, degradation=degradation))
    assert policy.rules == Rules(0.1, 0.5, 200 * MS, 0.01, 0.25, 0.8, 10 * S)
    assert (policy.optional, policy.held_max_ns) == ({"archive"}, {"counter": 250 * MS})
