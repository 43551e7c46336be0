"""The simulated modules: each, under every JetPack's names, is read whole, obeys, throttles, and can be broken."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from orind.power.actuators import Caps
from orind.power.board import BoardFacts
from orind.power.plant import runner
from orind.power.plant.board import PlantBoard
from orind.power.plant.fault_file import FaultFile
from orind.power.plant.kernel import Kernel
from orind.power.plant.model import PlantModel
from orind.power.plant.modules import AGX_ORIN, JETPACKS, MODULES, ORIN_NANO_8, ORIN_NANO_8_SUPER, Module
from orind.power.plant.simulated import SimulatedBoard
from orind.power.plant.tree import CPU, THERMAL
from orind.power.sensors import Sensors
from orind.power.sysfs import Sysfs

CONFIGS = Path(__file__).parents[2] / "configs"
TICK_NS = 100_000_000


def _facts(name: str) -> BoardFacts:
    return BoardFacts.from_dict(yaml.safe_load((CONFIGS / "boards" / f"{name}.yaml").read_text()))


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., PlantBoard]:
    def build(module: Module = AGX_ORIN, jetpack: str = "6") -> PlantBoard:
        return PlantBoard(tmp_path / "board", PlantModel(module.constants, seed=1, fan_profile=module.fan_profile),
                          module, JETPACKS[jetpack])
    return build


@pytest.mark.parametrize("jetpack", sorted(JETPACKS))
@pytest.mark.parametrize("name", sorted(MODULES))
def test_every_module_is_read_by_name(make: Callable[..., PlantBoard], tmp_path: Path, name: str,
                                      jetpack: str) -> None:
    module, facts = MODULES[name], _facts(name)
    board = make(module, jetpack)
    sysfs = Sysfs(board.root)
    assert facts.matches(sysfs.read_compatible()) and sysfs.read_model() == module.model
    release = sysfs.read_release()
    assert release is not None and release.split(".")[0] == {"5": "35", "6": "36", "7": "39"}[jetpack]
    caps = Caps(board.root, facts, tmp_path / "state.json")
    assert caps.gpu_clocks_hz() == module.gpu_table_hz
    caps.set_gpu_max(408_000_000, "test")
    for _ in range(10):
        board.advance(0.1, 1.0)
    readings = Sensors(board.root, facts).read()
    assert readings.faults == () and set(readings.rails_mw) == set(facts.rails)
    assert {"tj", "gpu", "cpu", "soc0", "soc1", "soc2"} == set(readings.zones_mc)
    assert (readings.gpu_hz, readings.gpu_busy_permille) == (408_000_000, 1000)
    assert readings.board_mw == pytest.approx(board.model.board_w * 1000, abs=600)
    online = (board.root / CPU / "online").read_text()
    assert online == f"0-{facts.modes[0].cpus - 1 if name != 'orin-nano-super' else 5}\n"


def test_names_differ_between_jetpacks(make: Callable[..., PlantBoard]) -> None:
    old = make(AGX_ORIN, "5")
    assert (old.root / "sys/devices/gpu.0/load").is_file()
    assert (old.root / "sys/class/devfreq/17000000.ga10b/device/of_node/name").read_bytes() == b"ga10b\0"
    types = [(old.root / THERMAL / f"thermal_zone{n}/type").read_text().strip() for n in range(11)]
    assert types[:3] == ["CPU-therm", "GPU-therm", "CV0-therm"] and types[8:] == ["tj-thermal", "Tboard_tegra",
                                                                                  "Tdiode_tegra"]
    new = make(AGX_ORIN, "7")
    assert not (new.root / "sys/devices/gpu.0").exists(), "the old names are gone"
    assert (new.root / "sys/devices/platform/gpu.0/load").is_file()
    assert not (new.root / new.layout.gpu / "enable_3d_scaling").exists()
    assert (make(AGX_ORIN, "6").root / "sys/devices/platform/gpu.0/enable_3d_scaling").is_file()


def test_small_modules_show_40_mw_steps_and_a_total_that_holds_the_other_rails() -> None:
    model = PlantModel(ORIN_NANO_8_SUPER.constants)
    for _ in range(10):
        model.step(0.1, 1020, 1.0)
    power = {label: volts * amps / 1e6 for label in model.constants.rails for volts, amps in [model.read_rail(label)]}
    assert all(round(watts * 1000) % 40 == 0 for watts in power.values())
    assert power["VDD_IN"] == pytest.approx(model.board_w, abs=0.3)
    assert power["VDD_IN"] > power["VDD_CPU_GPU_CV"] + power["VDD_SOC"] + 1.0, "the rest has no rail of its own"


def test_memory_and_cpu_clocks_cost_power() -> None:
    board = {}
    for name, cpu, emc in (("all", 1728, 3199), ("cpu", 729.6, 3199), ("emc", 1728, 665.6)):
        model = PlantModel(dataclasses.replace(ORIN_NANO_8_SUPER.constants, rail_noise=(0.0,) * 4))
        model.emc_mhz = emc
        board[name] = model.step(0.1, 1020, 1.0, cpu)
    assert board["cpu"] < board["all"] - 0.8 and board["emc"] < board["all"] - 1.0


def test_cpu_caps_are_obeyed_and_rounded(make: Callable[..., PlantBoard]) -> None:
    board = make()
    for policy in board.layout.cpu_policies():
        (board.root / policy / "scaling_max_freq").write_text("1500000\n")
    assert board.cpu_khz() == 1_497_600
    (board.root / board.layout.cpu_policies()[0] / "scaling_max_freq").write_text("")
    assert board.cpu_khz() == 1_497_600, "a writer is between truncating and writing"


# -- what kernel and firmware do by themselves


def _kernel(module: Module = AGX_ORIN) -> Kernel:
    c = module.constants
    return Kernel(module.gpu_table_hz, c.oc_from_w, c.oc_limit_w, c.oc_at_limit_hz)


def test_the_kernel_follows_the_load_within_the_caps() -> None:
    kernel = _kernel()
    assert kernel.step(1_300_500_000, 306_000_000, 1.0) == 306_000_000, "the burst's first step"
    assert kernel.step(1_300_500_000, 306_000_000, 1.0) == 1_300_500_000
    kernel.step(714_000_000, 306_000_000, 0.35)
    assert kernel.cur_hz == 408_000_000, "the step that carries half of 714 MHz at a load of 70 %"
    kernel.step(714_000_000, 612_000_000, 0.0)
    assert kernel.cur_hz == 612_000_000, "min_freq"
    kernel.step(408_000_000, 612_000_000, 0.0)
    assert kernel.cur_hz == 408_000_000, "max wins over min"


def test_the_passive_trip_steps_down_once_a_second_and_back() -> None:
    kernel, clocks = _kernel(), []
    for i in range(80):
        clocks.append(kernel.step(1_300_500_000, 306_000_000, 1.0))
        kernel.after(0.05, 99.0 + i * 0.01, 40.0)
    assert kernel.cooling_state == 4 and kernel.throttled
    assert sorted(set(clocks[1:]), reverse=True) == [1_300_500_000, 1_224_000_000, 1_122_000_000, 1_020_000_000]
    assert kernel.cpu_khz(AGX_ORIN.cpu_table_khz, 2_201_600) < 2_201_600
    for _ in range(200):
        kernel.after(0.05, 97.0, 40.0)
    assert not kernel.throttled


def test_hardware_throttle_halves_what_no_file_shows_and_shutdown_is_final() -> None:
    kernel = _kernel()
    kernel.step(612_000_000, 306_000_000, 1.0)
    kernel.after(0.05, 103.0, 40.0)
    assert kernel.step(612_000_000, 306_000_000, 1.0) == 306_000_000 and kernel.cur_hz == 612_000_000
    kernel.after(0.05, 104.5, 40.0)
    assert kernel.shut_down and kernel.step(612_000_000, 306_000_000, 1.0) == 0.0
    kernel.after(0.05, 50.0, 0.1)
    assert kernel.shut_down


def test_a_board_without_fan_or_governor_throttles_and_goes_off() -> None:
    model = PlantModel(AGX_ORIN.constants, ambient_c=65.0, fan_works=False)
    board = SimulatedBoard(model, _facts("agx-orin"))
    seen = set()
    for _ in range(6000):
        watts = board.advance(TICK_NS, lambda _: 1.0)
        seen.add((board.kernel.cooling_state > 0, board.kernel.hardware_throttled, board.kernel.shut_down))
        if board.kernel.shut_down:
            break
    assert {(True, False, False), (True, True, True)} <= seen
    watts = board.advance(TICK_NS, lambda _: 1.0)
    assert watts < 1.0 and board.done_hz == 0.0


def test_over_current_events_are_counted_late_and_shown_in_no_clock(make: Callable[..., PlantBoard]) -> None:
    board = make(ORIN_NANO_8_SUPER)
    counter = board.root / board.layout.hwmon_folder("oc") / "oc3_event_cnt"
    shown = []
    for _ in range(100):
        board.advance(0.1, 1.0)
        shown.append(int(counter.read_text()))
    changes = [i for i in range(1, 100) if shown[i] != shown[i - 1]]
    assert len(changes) in (4, 5) and 100 <= shown[-1] <= 300, "10 to 30 a second, refreshed every 2 s"
    assert (board.root / board.layout.devfreq / "cur_freq").read_text() == "1020000000\n"
    assert board.kernel.step(1_020_000_000, 306_000_000, 1.0) < 0.995 * 1_020_000_000


# -- faults


def test_sensor_faults_in_files(make: Callable[..., PlantBoard], agx: BoardFacts) -> None:
    board = make()
    sensors = Sensors(board.root, agx)
    board.faults.missing.add("tj")
    board.advance(0.1, 1.0)
    assert sensors.read().tj_mc is None
    board.faults.missing.clear()
    board.faults.forced["tj"] = -256_000
    board.advance(0.1, 1.0)
    assert sensors.read().tj_mc is None and "cannot be true" in sensors.read().faults[0]
    board.faults.forced.clear()
    board.advance(0.1, 1.0)
    before = sensors.read()
    board.faults.stuck |= {"tj", "VDD_GPU_SOC"}
    board.advance(5.0, 1.0)
    after = sensors.read()
    assert after.tj_mc == before.tj_mc and after.rails_mw["VDD_GPU_SOC"] == before.rails_mw["VDD_GPU_SOC"]
    assert after.rails_mw["VDD_CPU_CV"] > before.rails_mw["VDD_CPU_CV"]
    board.faults.stuck.clear()
    board.advance(0.1, 1.0)
    assert sensors.read().rails_mw["VDD_GPU_SOC"] > after.rails_mw["VDD_GPU_SOC"] + 5_000


def test_a_slow_sensor_shows_the_past(agx: BoardFacts) -> None:
    board = SimulatedBoard(PlantModel(seed=2), agx)
    board.faults.slow_s["VDD_GPU_SOC"] = 2.0
    past = []
    for i in range(60):
        board.advance(TICK_NS, lambda _: 1.0, step_ns=TICK_NS)
        volts, amps = board.model.read_rail("VDD_GPU_SOC")
        past.append(volts * amps // 1000)
        shown = board.read().rails_mw["VDD_GPU_SOC"]
        if i >= 20:
            assert shown == past[i - 20]


def test_faults_come_and_go_with_a_file(make: Callable[..., PlantBoard], agx: BoardFacts, tmp_path: Path) -> None:
    board, path = make(), tmp_path / "faults.json"
    file, sensors = FaultFile(path, board), Sensors(board.root, agx)
    assert file.apply() is None, "absent: none"
    path.write_text(json.dumps({"missing": ["tj"], "forced": {"cpu": 41_000}, "slow_s": {"gpu": 2}, "fan_works": False,
                                "ambient_c": 40, "extra_w": 3, "stuck": ["soc0"], "renumber_hwmons": True,
                                "reset_mode": [3, 816_000_000], "refuse_writes": True}))
    assert file.apply() is None and file.apply() is None
    assert not board.model.fan_works and board.model.ambient_c == 40 and board.model.extra_w == 3
    assert Sysfs(board.root).read_int(board.layout.max_freq) == 816_000_000
    board.advance(0.1, 1.0)
    readings = sensors.read()
    assert readings.tj_mc is None and readings.zones_mc["cpu"] == 41_000 and readings.board_mw is not None
    path.unlink()
    assert file.apply() is None
    board.advance(0.1, 1.0)
    assert sensors.read().faults == () and board.model.fan_works and board.model.ambient_c == 25


@pytest.mark.parametrize(("text", "said"), [
    ("{", "Expecting property name"), ("[]", "must hold a JSON object"), ('{"mising": []}', "unknown fault 'mising'"),
    ('{"missing": "tj"}', "missing: 'tj' is not what it takes"), ('{"reset_mode": [1]}', "reset_mode: must be"),
    ('{"forced": {"tj": "hot"}}', "forced: values are whole"), ('{"slow_s": {"tj": "5"}}', "slow_s: values are sec"),
    ('{"extra_w": 1e308}', "extra_w: must lie in -50 to 200"), ('{"extra_w": NaN}', "extra_w: must lie in -50 to 200"),
    ('{"ambient_c": -300}', "ambient_c: must lie in -60 to 120"),
    ('{"slow_s": {"tj": 1e18}}', "slow_s: values are sec"),
    ('{"slow_s": {"tj": NaN}}', "slow_s: values are sec"), ('{"reset_mode": [-1, null]}', "reset_mode: must be"),
    ('{"reset_mode": [0, -5]}', "reset_mode: must be"), ("[" * 100_000, "is nested too deep"),
    (f'{{"forced": {{"tj": {10**400}}}}}', "forced: values are whole")])
def test_a_fault_file_that_cannot_be_understood_changes_nothing(make: Callable[..., PlantBoard], tmp_path: Path,
                                                                text: str, said: str) -> None:
    board, path = make(), tmp_path / "faults.json"
    board.faults.missing.add("gpu")
    path.write_text(text)
    file = FaultFile(path, board)
    wrong = file.apply()
    assert wrong is not None and str(path) in wrong and said in wrong
    assert board.faults.missing == {"gpu"} and file.apply() is None, "said once"


def test_a_fault_file_that_cannot_be_read_is_said(make: Callable[..., PlantBoard], tmp_path: Path) -> None:
    assert FaultFile(tmp_path, make()).apply() == f"{tmp_path}: Is a directory"


def test_renumbered_hwmons_are_found_again(make: Callable[..., PlantBoard], agx: BoardFacts) -> None:
    board = make()
    sensors = Sensors(board.root, agx)
    assert sensors.read().faults == ()
    board.renumber_hwmons()
    assert sensors.read().faults == () and not (board.root / "sys/class/hwmon/hwmon1").exists()
    board.advance(0.1, 1.0)
    assert sensors.read().board_mw is not None


def test_refused_writes_and_a_mode_that_comes_back(make: Callable[..., PlantBoard], agx: BoardFacts,
                                                   tmp_path: Path) -> None:
    board = make()
    caps = Caps(board.root, agx, tmp_path / "state.json")
    caps.set_gpu_max(612_000_000, "test")
    board.advance(0.1, 1.0)
    board.faults.refuse_writes = True
    caps.set_gpu_max(306_000_000, "test")
    board.advance(0.1, 1.0)
    assert caps.gpu_cap_hz() == 612_000_000, "read back, the refusal shows"
    board.faults.refuse_writes = False
    board.reset_mode(3, 816_000_000)
    board.advance(0.1, 1.0)
    assert caps.gpu_cap_hz() == 816_000_000 and caps.gpu_clocks_hz()[-1] == 816_000_000


def test_a_capped_table_is_the_board_s_word(make: Callable[..., PlantBoard], tmp_path: Path) -> None:
    # a Super mode is active, but the bootloader was not renewed (balena-jetson-orin 605)
    capped = dataclasses.replace(ORIN_NANO_8_SUPER, gpu_table_hz=ORIN_NANO_8.gpu_table_hz)
    board = make(capped)
    caps = Caps(board.root, _facts("orin-nano-super"), tmp_path / "state.json")
    assert caps.set_gpu_max(1_020_000_000, "test") == 624_750_000 == caps.gpu_clocks_hz()[-1]


def test_a_dead_fan_and_the_quiet_one() -> None:
    rises = {}
    for profile, works in (("cool", True), ("quiet", True), ("cool", False)):
        model = PlantModel(fan_profile=profile, fan_works=works)
        for _ in range(4000):
            model.step(0.2, 816, 1.0)
        rises[profile, works] = model.temperature_c("tj")
    assert rises["cool", True] < rises["quiet", True] - 0.5 < rises["cool", False] - 20


def test_runner_knows_the_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[PlantBoard] = []
    monkeypatch.setattr(runner, "run", lambda board, *_: made.append(board))
    assert runner.main(["--root", str(tmp_path / "a"), "--faults", str(tmp_path / "none")]) == 0 and made.pop()
    monkeypatch.setattr("orind.power.plant.runner.signal.signal", lambda *_: None)
    arguments = ["--root", str(tmp_path / "b"), "--module", "orin-nx", "--jetpack", "5", "--fan", "cool"]
    assert runner.main(arguments) == 0
    assert made[0].layout.module.name == "orin-nx" and (tmp_path / "b/sys/devices/gpu.0").exists()
    with pytest.raises(SystemExit):
        runner.main(["--root", str(tmp_path / "b"), "--module", "orin-nona"])
