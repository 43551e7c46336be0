"""Every shipped policy holds on the module that it is made for, and together they show every key that there is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from closed_loop import CONFIGS, Loop, facts_of

from orind.power.budget import highest_mw
from orind.power.plant.model import PlantModel
from orind.power.plant.modules import MODULES
from orind.power.policy import Policy

POLICIES = sorted((CONFIGS / "power").glob("*.yaml"))


@pytest.mark.parametrize("path", POLICIES, ids=lambda p: p.stem)
def test_a_shipped_policy_holds_at_full_load(path: Path) -> None:
    policy = Policy.from_dict(yaml.safe_load(path.read_text()))
    for name in policy.boards:
        module = MODULES[name]
        loop = Loop(facts_of(name), policy, PlantModel(module.constants, 30.0, 1, True, module.fan_profile), module)
        loop.run(90, lambda _: 1.0)
        last = loop.trace.reports[-1].decision
        seconds = loop.trace.seconds(30)
        assert max(seconds) <= last.setting.budget_mw / 1000 + policy.tolerance_mw / 1000
        assert max(loop.trace.tj_c) <= policy.tj_limit_mc / 1000 + 0.5
        assert last.setting.budget_mw <= highest_mw(policy) and last.limits.level in ("free", "warm"), last.reason
        for rail, limit_mw in policy.rail_limits_mw.items():
            told = [r.readings.rails_mw[rail] for r in loop.trace.reports[-300:]]
            assert sum(told) / len(told) <= limit_mw + 300


def test_there_is_an_example_of_every_key_and_for_every_module() -> None:
    shipped = [yaml.safe_load(path.read_text()) for path in POLICIES]
    assert {board for policy in shipped for board in policy["boards"]} == set(MODULES)
    keys = {key.removesuffix("_mw").removesuffix("_mc").removesuffix("_ns").removesuffix("_hz").removesuffix("_khz")
            for key in (f.name for f in dataclasses.fields(Policy))}
    shown = {key.removesuffix("_w").removesuffix("_c").removesuffix("_ms").removesuffix("_mhz").removesuffix("_hz")
             for policy in shipped for key in policy}
    assert shown == keys
