"""Board facts and policies from mappings: what ships is right, and everything wrong is named, all at once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from orind.power.board import BoardFacts
from orind.power.errors import SettingsError
from orind.power.policy import Policy
from orind.power.policy_check import check_policy

CONFIGS = Path(__file__).parents[2] / "configs"
BOARDS = sorted((CONFIGS / "boards").glob("*.yaml"))
POLICIES = sorted((CONFIGS / "power").glob("*.yaml"))


def _boards() -> dict[str, BoardFacts]:
    return {f.name: f for f in (BoardFacts.from_dict(yaml.safe_load(p.read_text())) for p in BOARDS)}


def test_shipped_boards_are_named_like_their_files() -> None:
    assert sorted(p.stem for p in BOARDS) == sorted(_boards())
    assert {"agx-orin", "orin-nx", "orin-nano"} <= set(_boards())


@pytest.mark.parametrize("path", POLICIES, ids=lambda p: p.stem)
def test_shipped_policies_fit_their_boards(path: Path) -> None:
    policy = Policy.from_dict(yaml.safe_load(path.read_text()))
    assert policy.name == path.stem and policy.boards
    for name in policy.boards:
        check_policy(policy, _boards()[name])


def test_board_totals_count_nothing_twice() -> None:
    boards = _boards()
    assert boards["agx-orin"].total == ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")
    assert all(boards[name].total == ("VDD_IN",) for name in ("orin-nx", "orin-nano", "orin-nano-super"))


def test_mode_ids_are_as_published() -> None:
    boards = _boards()
    mode = boards["agx-orin"].mode(2)
    assert mode is not None and (mode.name, mode.cpus, mode.gpu_max_hz) == ("MODE_30W", 8, 612_000_000)
    free = boards["orin-nx"].mode(0)
    assert free is not None and free.gpu_max_hz is None, "id 0 is the free mode, not the low one"
    assert boards["agx-orin"].mode(7) is None


def test_a_board_knows_its_device_tree() -> None:
    boards = _boards()
    assert boards["orin-nano"].matches(("nvidia,p3768-0000+p3767-0005", "nvidia,p3767-0005", "nvidia,tegra234"))
    assert not boards["orin-nano"].matches(("nvidia,p3737-0000+p3701-0005", "nvidia,p3701-0005", "nvidia,tegra234"))
    assert not boards["agx-orin"].matches(())


@pytest.mark.parametrize(("path", "value", "text"), [
    (("name",), "", "name: must be non-empty text, not ''"),
    (("rails",), "VDD_IN", "rails: must be a list of texts"),
    (("rails",), ["VDD_GPU_SOC", "VDD_GPU_SOC"], "rails: names something twice"),
    (("rails",), [1, 2], "rails: must hold texts only"),
    (("total",), ["VDD_GPU"], "total: names rail 'VDD_GPU', which is not in rails"),
    (("zones",), [], "zones: must be a non-empty list"),
    (("zones",), [{"name": "gpu", "types": ["gpu-thermal"]}], "zones: must have a zone named 'tj'"),
    (("zones", 0, "sleeps"), "often", "zones[0].sleeps: must be never, idle or any"),
    (("zones", 1, "name"), "tj", "zones: names a zone twice"),
    (("zones", 1), "gpu", "zones[1]: must be a mapping of keys, not str"),
    (("modes", 1, "id"), 0, "modes: has an id or a name twice"),
    (("modes", 1, "id"), "one", "modes[1].id: must be a whole number, not 'one'"),
    (("modes", 1, "gpu_max_hz"), 408, "modes[1].gpu_max_hz: must lie in 100000000 to 3000000000, not 408"),
    (("throttle_c",), 104, "throttle_c: must not lie above hardware_throttle_c"),
    (("shutdown_c",), "hot", "shutdown_c: must be a number, not 'hot'"),
    (("model", "idle_mw"), True, "model.idle_mw: must be a number, not True"),
    (("model", "idle_mw"), float("nan"), "model.idle_mw: must be a number, not nan"),
    (("model", "gpu_exponent"), 9, "model.gpu_exponent: must lie in 1 to 3, not 9"),
    (("model",), None, "model: must be a mapping of keys, not NoneType"),
    (("sensor_window_ms",), 4.5, "sensor_window_ms: must be a whole number, not 4.5"),
    (("raisl",), [], "raisl: unknown key; did you mean 'rails'?"),
    (("xyzzy",), [], "xyzzy: unknown key; known keys:"),
])
def test_wrong_facts_are_refused_by_key(agx_dict: dict[str, Any], path: tuple[Any, ...], value: object,
                                        text: str) -> None:
    wrong = copy.deepcopy(agx_dict)
    place: Any = wrong
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(SettingsError) as caught:
        BoardFacts.from_dict(wrong)
    assert text in str(caught.value)


def test_all_problems_come_at_once(agx_dict: dict[str, Any]) -> None:
    wrong = copy.deepcopy(agx_dict)
    del wrong["title"], wrong["model"]["leak_per_c"], wrong["modes"]
    wrong["zones"][3]["types"] = []
    wrong["modules"] = 1
    with pytest.raises(SettingsError) as caught:
        BoardFacts.from_dict(wrong)
    assert [str(p) for p in caught.value.problems] == [
        "zones[3].types: must be a list of texts, not []", "modes: is required", "title: is required",
        "model.leak_per_c: is required", "modules: unknown key; did you mean 'modes'?"]
    assert caught.value.problems[0].where == ("zones", 3, "types")


@pytest.mark.parametrize("source", [None, [], "budget_w: 30", 30])
def test_a_policy_must_be_a_mapping(source: object) -> None:
    with pytest.raises(SettingsError, match="must be a mapping of keys"):
        Policy.from_dict(source)


@pytest.mark.parametrize(("changes", "text"), [
    ({"budget_w": "30"}, "budget_w: must be a number, not '30'"),
    ({"budget_W": 30}, "budget_W: unknown key; did you mean 'budget_w'?"),
    ({"tj_warn_c": 84}, "tj_limit_c: must lie at least 2 C above tj_warn_c"),
    ({"dwell_ms": 50}, "dwell_ms: must not be shorter than tick_ms"),
    ({"limits_ttl_ms": 300}, "limits_ttl_ms: must be at least four ticks"),
    ({"batch_max": 0}, "batch_max: must lie in 1 to 64, not 0"),
    ({"batch_max": True}, "batch_max: must be a whole number, not True"),
    ({"boards": "agx-orin"}, "boards: must be a list of texts"),
    ({"name": 3}, "name: must be non-empty text"),
    ({"name": "a\x1b[31m"}, "name: must be non-empty text, not 'a\\x1b[31m'; printable, at most 200 characters"),
    ({"name": "x" * 201}, "name: must be non-empty text, not 'xxxxxxxxxxxx...xxxxxxxxxxxxx'; printable"),
    ({"boards": ["agx-orin", "a\nb"]}, "boards: must hold texts only, not ['agx-orin', 'a\\nb']"),
    ({"priorities": [f"c{n}" for n in range(101)]}, "priorities: has 101 entries, at most 100 are read"),
    ({"ambient": [{"ambient_c": n / 2, "budget_w": 20} for n in range(101)]},
     "ambient: has 101 entries, at most 100 are read"),
    ({"budget_w": 10**400}, "budget_w: must lie in 1 to 200, not 100000000000000000...0000000000000000000"),
    ({"batch_max": 10**400}, "batch_max: must lie in 1 to 64, not 100000000000000000...0000000000000000000"),
    ({"tolerance_w": float("inf")}, "tolerance_w: must be a number, not inf"),
    ({"tolerance_w": float("nan")}, "tolerance_w: must be a number, not nan"),
    ({"rail_limits_w": {"VDD_CPU_CV": 5, 1: 7}}, "rail_limits_w.1: unknown key"),
    ({"zone_limits_c": {"cpu": 70, None: 7}}, "zone_limits_c.None: unknown key"),
])
def test_wrong_policies_are_refused(changes: dict[str, object], text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Policy.from_dict({"budget_w": 30, **changes})
    assert text in str(caught.value)


def test_a_message_is_short_whatever_the_value_holds() -> None:
    nested: list[object] = ["x"] * 10
    for _ in range(12):  # as YAML's aliases make it: 10^13 texts if written out
        nested = [nested] * 10
    with pytest.raises(SettingsError) as caught:
        Policy.from_dict({"budget_w": nested, "priorities": nested, "name": nested, "steady": nested})
    assert len(caught.value.problems) == 4 and len(str(caught.value)) < 2_000


def test_policy_defaults() -> None:
    policy = Policy.from_dict({"budget_w": 30})
    assert (policy.tj_warn_mc, policy.tj_limit_mc, policy.tick_ns, policy.dwell_ns) == (80_000, 85_000, 10**8, 10**8)
    assert (policy.tolerance_mw, policy.limits_ttl_ns, policy.boards) == (1_500, 2 * 10**9, ())


@pytest.mark.parametrize(("changes", "text"), [
    ({"budget_w": 10.5}, "is not above the idle power of Jetson AGX Orin 64 GB (10.88 W)"),
    ({"budget_w": 61}, "is above what Jetson AGX Orin 64 GB may draw (60 W)"),
    ({"tj_limit_c": 99}, "is not below the module's own throttle at 99 C"),
    ({"boards": ["orin-nx"]}, "made for orin-nx, but the board is agx-orin"),
])
def test_policies_that_a_board_cannot_keep(agx: BoardFacts, changes: dict[str, object], text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_policy(Policy.from_dict({"budget_w": 30, **changes}), agx)
    assert text in str(caught.value)
