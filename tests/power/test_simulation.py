"""power/simulation.py: the product's governor over a simulated board, second by second."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from random import Random

import pytest
from closed_loop import facts_of
from hypothesis import given
from hypothesis import strategies as st

from orind.power.errors import PowerError, SettingsError
from orind.power.plant.constants import PlantConstants
from orind.power.plant.fault_file import FaultState, fault_schedule
from orind.power.plant.model import PlantModel
from orind.power.plant.modules import AGX_ORIN, MODULES
from orind.power.plant.noise import Noise
from orind.power.plant.register import RegisterWindow
from orind.power.plant.simulated import SimulatedBoard, simulated_board
from orind.power.policy import Policy
from orind.power.simulation import ClosedLoop, IndifferentWork, Second, seconds
from orind.power.window import SlidingMean

START_NS = 1_000_000_000


def _run(length_s: float, load: Callable[[float], float] = lambda _: 1.0, policy: dict[str, float] | None = None,
         faults: str = "", seed: int = 1, ambient: float = 25.0) -> tuple[ClosedLoop, list[Second]]:
    facts = facts_of("agx-orin")
    board = simulated_board(facts, AGX_ORIN, None, ambient, seed, start_ns=START_NS)
    loop = ClosedLoop(facts, Policy.from_dict({"budget_w": 30, **(policy or {})}), board)
    work = IndifferentWork(lambda now_ns: load((now_ns - START_NS) / 1e9))
    schedule = fault_schedule(faults) if faults else ()
    return loop, list(seconds(loop, work, length_s, lambda _: ambient, schedule))


def test_the_seconds_add_up_to_the_energy_that_the_plant_drew(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    step = PlantModel.step

    def metered(model: PlantModel, dt_s: float, *rest: float) -> float:
        drawn.append(step(model, dt_s, *rest) * dt_s)
        return drawn[-1] / dt_s

    monkeypatch.setattr(PlantModel, "step", metered)
    _, told = _run(20.3, lambda t: float(t % 3 < 2))
    assert sum(s.board_w * s.lasted_s for s in told) == pytest.approx(sum(drawn), rel=1e-9)
    assert [s.at_s for s in told] == [float(n) for n in range(21)] and told[-1].lasted_s == pytest.approx(0.3)
    assert any(s.full for s in told) and not all(s.full for s in told)
    assert all(s.clock_mhz is None or s.busy > 0 for s in told)


def test_the_same_seed_is_the_same_run_and_another_is_not() -> None:
    assert _run(5)[1] == _run(5)[1] != _run(5, seed=2)[1]


def test_a_steady_state_is_the_closed_form() -> None:
    """At a fixed clock, without noise and leakage, power and temperature are what the constants say, by hand."""
    quiet = dataclasses.replace(PlantConstants(), rail_noise=(0.0, 0.0, 0.0, 0.0), leak_per_c=0.0,
                                sink_tau=20.0, fan={"cool": ((0.0, 255.0), (105.0, 255.0))})
    facts = facts_of("agx-orin")
    board = SimulatedBoard(PlantModel(quiet, 25.0, 1), facts, AGX_ORIN, (612_000_000,), START_NS)
    loop = ClosedLoop(facts, Policy.from_dict({"budget_w": 40}), board)
    last = list(seconds(loop, IndifferentWork(lambda _: 1.0), 800, lambda _: 25.0))[-1]
    ratio = 612 / 1300.5
    watts = 3.4 + 37 * math.pow(ratio, 1.94) + 0.8 + 1.2 * (0.9 + 2.7) + 5.6 + 2.5 * ratio
    assert last.board_w == pytest.approx(watts, rel=1e-6)
    # GPU zone: 0.25 + 0.40, heat sink 0.30 C/W at full fan
    assert last.tj_c == pytest.approx(25 + 0.95 * watts, abs=1e-2)
    assert (last.clock_mhz, last.busy, last.throttled_s) == (pytest.approx(612), 1.0, 0.0)


def test_faults_come_and_go_at_their_times() -> None:
    schedule = [{"t_s": 5, "missing": ["tj"], "fan_works": False}, {"t_s": 9}]
    _, told = _run(20, faults=json.dumps(schedule), policy={"budget_w": 50})
    assert {s.level for s in told[:5]} == {"free"} and told[6].level == "hot"
    assert any("junction temperature lost" in fault for fault in told[6].faults)
    assert told[8].fan_pwm == 0 < told[12].fan_pwm and told[-1].level == "free", "trust comes back"
    assert told[7].busy == told[7].full == 1.0, "a load that obeys nothing"


def test_a_mode_is_set_behind_the_back_and_a_write_refused() -> None:
    loop, told = _run(6, faults='[{"t_s": 2, "reset_mode": [0, null], "refuse_writes": true}]')
    assert loop.board.cap_hz == AGX_ORIN.gpu_table_hz[-1]
    assert any(fault.startswith("GPU cap: ") for fault in told[-1].faults) and told[-1].level == "over_budget"


def test_a_mode_that_is_set_holds_from_then_on_and_one_that_gates_tpcs_waits() -> None:
    loop, told = _run(6, faults='[{"t_s": 2, "reset_mode": [3, 816000000]}]', policy={"budget_w": 60})
    assert told[1].cap_mhz > 816 and {round(s.cap_mhz, 6) for s in told[3:]} == {816}
    board = loop.board
    assert board.mode_id == 3 and board.permitted().cpu_clocks_khz[-1] == board.cpu_cap_khz == 1_497_600
    board.reset_mode(2, 612_000_000)
    assert (board.mode_id, board.cap_hz, board.set_gpu_max(10**10, "test")) == (3, 612_000_000, 816_000_000), "waits"
    board.reset_mode(99, 510_000_000)
    assert (board.mode_id, board.cap_hz, board.gpu_clocks_hz()[-1]) == (3, 510_000_000, 816_000_000), "not known"
    board.reset_mode(0, None)
    top = AGX_ORIN.gpu_table_hz[-1]
    assert (board.mode_id, board.cap_hz, board.gpu_clocks_hz()[-1], board.model.emc_mhz) == (0, top, top, 3199)
    capped = board.set_gpu_max(1_020_000_000, "test")
    assert capped == 1_020_000_000 == board.kernel.clock_hz(capped, capped), "the kernel runs at it, too"


def test_a_mode_gates_and_caps() -> None:
    facts = facts_of("agx-orin")
    mode = facts.mode("MODE_30W")
    board = simulated_board(facts, AGX_ORIN, mode)
    assert board.gpu_clocks_hz()[-1] == 612_000_000 and board.model.powered_tpcs == 4
    assert board.cpu_cap_khz == 1_728_000 and board.model.emc_mhz == 3199
    low = simulated_board(facts_of("orin-nx"), MODULES["orin-nx"], facts_of("orin-nx").modes[1])
    assert low.model.emc_mhz == 2133


def test_a_policy_that_the_board_cannot_keep_is_refused() -> None:
    with pytest.raises(SettingsError, match="idle power"):
        _run(1, policy={"budget_w": 8})


@pytest.mark.parametrize(("text", "said"), [
    ("3", "must hold a JSON object, or a list"),
    ("[3]", 'entry 1: must be an object with "t_s"'),
    ('[{"t_s": true}]', 'entry 1: must be an object with "t_s"'),
    ('[{"t_s": -1}]', 'entry 1: must be an object with "t_s"'),
    ('[{"t_s": 5}, {"t_s": 5}]', "entry 2: t_s must ascend, 5 comes after 5"),
    ('[{"t_s": 5, "fan": false}]', "entry 1: unknown fault 'fan'; there are missing"),
    ('{"nvpmodel": "sulks"}', "nvpmodel: must be one of container"),
    ('{"missing": [3]}', "missing: must be a list of names"),
    ('{"extra_w": true}', "extra_w: True is not what it takes"),
    (json.dumps([{"t_s": n} for n in range(1001)]), "at most 1000 objects")])
def test_a_schedule_of_faults_that_is_refused(text: str, said: str) -> None:
    with pytest.raises(PowerError) as caught:
        fault_schedule(text)
    assert said in str(caught.value)


def test_a_plain_object_holds_from_the_start() -> None:
    assert fault_schedule('{"stuck": ["tj"]}') == ((0.0, FaultState(stuck=("tj",))),)
    assert FaultState(missing=("a",), forced={"b": 1}, slow_s={"c": 1.0}).sensors == {"a", "b", "c"}
    assert FaultState(reboot=True, nvpmodel="hangs").of_files == ["reboot", "nvpmodel"]


# -- the plant's physics are what they were


@given(st.integers(0, 2**32), st.lists(st.integers(1, 7), max_size=12))
def test_noise_is_what_the_library_gives_however_it_is_asked_for(seed: int, counts: list[int]) -> None:
    library, noise = Random(seed), Noise(seed)
    for count in counts:
        found = noise.many(count) if count > 1 else [noise.one()]
        assert found == [library.gauss(0.0, 1.0) for _ in range(count)]


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(0, 50), st.floats(0, 50)), min_size=1, max_size=40))
def test_a_register_is_a_sliding_mean_for_each_part(steps: list[tuple[int, float, float]]) -> None:
    means = {"gpu": SlidingMean(430), "cpu": SlidingMean(430)}
    window = RegisterWindow(430)
    for lasted, gpu, cpu in [(430, 1.0, 2.0), *steps]:
        window.add(lasted, {"gpu": gpu, "cpu": cpu})
        means["gpu"].add(lasted, gpu)
        means["cpu"].add(lasted, cpu)
        assert window.means() == {part: mean.mean() for part, mean in means.items()}


@pytest.mark.parametrize(("name", "expected"), [
    ("agx-orin", (21868.729733131695, 68802.37307662368, 21958980, 394489218, 42899500000, 0)),
    ("orin-nx", (14824.898819244207, 59523.814806871254, 14672400, 345379842, 46517147388, 90))])
def test_golden(name: str, expected: tuple[float, ...]) -> None:
    """Figures of the plant alone, so that a faster way to compute them is seen to be the same."""
    board = simulated_board(facts_of(name), MODULES[name], None, 45.0, seed=3, start_ns=START_NS)
    table, read_mw, zones_mc, watts, degrees = board.gpu_clocks_hz(), 0, 0, 0.0, 0.0
    for i in range(900):
        board.cap_hz = table[i // 40 * 7 % len(table)]
        board.model.fan_works, board.model.extra_w = i < 300, 20.0 * (i > 600)
        seen = board.read()
        read_mw += seen.board_mw or 0
        zones_mc += sum(seen.zones_mc.values())
        watts += board.advance(100_000_000, lambda now_ns: (1.0, 0.3, 0.0)[now_ns // 700_000_000 % 3])
        degrees += board.model.temperature_c("tj")
    found = (watts, degrees, read_mw, zones_mc, board.busy_ns, board.kernel.oc3_count)
    assert found == pytest.approx(expected, rel=1e-9)
