"""The programs of a simulated board: what people and jetson-stats read of them, and what they do to the board."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orind.power.nvpmodel import read_board, switch_to
from orind.power.plant.board import PlantBoard
from orind.power.plant.fault_file import FaultFile
from orind.power.plant.model import PlantModel
from orind.power.plant.modules import JETPACKS, ORIN_NX_SUPER
from orind.power.plant.services import as_ranges
from orind.power.plant.tree import PROGRAMS
from orind.power.sysfs import Sysfs


def _run(plant: PlantBoard, name: str, *arguments: str, answer: str = "") -> tuple[int, str]:
    done = subprocess.run([str(plant.root / PROGRAMS[name]), *arguments], input=answer, capture_output=True, text=True,
                          check=False, timeout=20)
    return done.returncode, done.stdout + done.stderr


def _read(plant: PlantBoard, path: str) -> str:
    return (plant.root / path).read_text().strip()


def test_nvpmodel_tells_the_active_mode_and_all(plant: PlantBoard) -> None:
    assert _run(plant, "nvpmodel", "-q") == (0, "NV Power Mode: MAXN\n0\n")
    code, said = _run(plant, "nvpmodel", "-p", "--verbose")
    assert code == 0 and "NVPM VERB: PM_CONFIG: DEFAULT=MODE_30W(2)\n" in said
    assert "NVPM VERB: POWER_MODEL: ID=3 NAME=MODE_50W\n" in said
    assert "NVPM VERB: TPC_POWER_GATING TPC_PG_MASK 248\n" in said
    assert _run(plant, "nvpmodel", "-m", "9") == (255, "NVPM ERROR: no power mode 9\n")
    assert _run(plant, "nvpmodel", "--force")[0] == 255
    (plant.root / "var/lib/nvpmodel/status").unlink()
    assert _run(plant, "nvpmodel", "-q")[0] == 255


@pytest.mark.parametrize("jetpack", sorted(JETPACKS))
def test_a_live_mode_reaches_the_board(tmp_path: Path, jetpack: str) -> None:
    nx = PlantBoard(tmp_path / "board", PlantModel(ORIN_NX_SUPER.constants), ORIN_NX_SUPER, JETPACKS[jetpack])
    assert _run(nx, "nvpmodel", "-m", "3") == (0, "")
    nx.advance(0.1, 1.0)
    assert (nx.gpu_hz(), nx.cpu_khz()) == (408_000_000, 1_497_600)
    assert _run(nx, "jetson_clocks") == (0, "") and _read(nx, f"{nx.layout.devfreq}/min_freq") == "408000000"
    assert "NVPM WARN: fan mode is not set to cool\nNV Power Mode: 25W\n3\n" in _run(nx, "nvpmodel", "-q")


@pytest.mark.parametrize("answer", ["", "\n", "no\n"])
def test_the_question_without_a_yes_changes_nothing(plant: PlantBoard, answer: str) -> None:
    before = {p: p.read_bytes() for p in plant.root.rglob("*") if p.is_file()}
    code, said = _run(plant, "nvpmodel", "-m", "2", answer=answer)
    assert code == 234 and "Reboot required for changing to this power mode: 2" in said
    assert {p: p.read_bytes() for p in plant.root.rglob("*") if p.is_file()} == before
    assert "would reboot now" in _run(plant, "nvpmodel", "-m", "2", answer="YES\n")[1]


def test_a_boot_enters_the_mode_of_the_status_file(plant: PlantBoard) -> None:
    status = plant.root / "var/lib/nvpmodel/status"
    status.write_text("pmode:0001 fmode:cool\n")
    assert _run(plant, "systemctl", "start", "nvpmodel.service")[0] == 1, "the question again, and nobody to answer it"
    plant.reboot()
    watts = plant.advance(0.1, 1.0)
    assert _read(plant, "sys/devices/system/cpu/online") == "0-3"
    assert (plant.gpu_hz(), plant.cpu_khz(), plant.model.powered_tpcs) == (408_000_000, 1_113_600, 3)
    assert plant.model.emc_mhz == 2133 and _read(plant, "sys/kernel/debug/bpmp/debug/clk/emc/rate") == "2133000000"
    conf, active, live = read_board(Sysfs(plant.root))
    mode = conf.mode("MODE_15W")
    assert mode is not None and active == 1 and switch_to(mode, active, live).kind == "active"
    status.unlink()
    plant.reboot()
    assert _run(plant, "nvpmodel", "-q") == (0, "NV Power Mode: MODE_30W\n2\n"), "without a status file: DEFAULT"
    assert plant.advance(0.5, 1.0) > watts + 2


def test_faults_of_the_fault_file(plant: PlantBoard, tmp_path: Path) -> None:
    faults = FaultFile(tmp_path / "faults.json", plant)
    (tmp_path / "faults.json").write_text('{"nvpmodel": "reverts"}')
    assert faults.apply() is None
    assert _run(plant, "nvpmodel", "-m", "3") == (0, "") and plant.gpu_hz() == 1_300_500_000
    (tmp_path / "faults.json").write_text('{"nvpmodel": "explodes"}')
    assert "nvpmodel: must be one of container, reverts, refused, hangs" in (faults.apply() or "")
    (plant.root / "var/lib/nvpmodel/status").write_text("pmode:0002\n")
    (tmp_path / "faults.json").write_text('{"reboot": true}')
    assert faults.apply() is None and plant.gpu_hz() == 612_000_000


def test_jetson_clocks_pins_and_puts_back(plant: PlantBoard) -> None:
    assert _run(plant, "jetson_clocks", "--restore")[0] == 1
    assert _run(plant, "jetson_clocks", "--store") == (0, "")
    low = f"{plant.layout.devfreq}/min_freq"
    before = _read(plant, low)
    assert _run(plant, "jetson_clocks") == (0, "") and _read(plant, low) == "1300500000"
    plant.advance(0.1, 0.0)
    assert plant.kernel.cur_hz == 1_300_500_000, "pinned, in idle too"
    code, said = _run(plant, "jetson_clocks", "--show")
    assert code == 0 and said.startswith("SOC family:tegra234  Machine:NVIDIA Jetson AGX Orin Developer Kit (simulat")
    assert "\nOnline CPUs: 0-11\ncpu0:  Online=1 Governor=schedutil MinFreq=2201600 " in said
    assert "\nGPU MinFreq=1300500000 MaxFreq=1300500000 CurrentFreq=1300500000\n" in said
    assert _run(plant, "jetson_clocks", "--restore") == (0, "") and _read(plant, low) == before
    assert _run(plant, "jetson_clocks", "--fan")[0] == 1
    assert "\nEMC MinFreq=204000000 MaxFreq=3199000000 CurrentFreq=3199000000 FreqOverride=" in said


def test_jetson_clocks_keeps_its_values_where_it_is_told(plant: PlantBoard, tmp_path: Path) -> None:
    low = f"{plant.layout.devfreq}/min_freq"
    before, held = _read(plant, low), "sys/kernel/debug/bpmp/debug/clk/emc/mrq_rate_locked"
    assert _run(plant, "jetson_clocks", "--restore", str(tmp_path / "kept"))[0] == 1
    assert _run(plant, "jetson_clocks", "--store", str(tmp_path / "kept")) == (0, "")
    assert _run(plant, "jetson_clocks") == (0, "") and _read(plant, held) == "1"
    assert _run(plant, "jetson_clocks", "--restore", str(tmp_path / "kept")) == (0, "")
    assert (_read(plant, low), _read(plant, held)) == (before, "0")
    assert not (plant.root / "root/.jetsonclocks_conf.txt").exists()


def test_systemctl_tells_whether_nvfancontrol_runs(plant: PlantBoard) -> None:
    assert _run(plant, "systemctl", "status", "nvfancontrol.service")[1].endswith("Active: active (running)\n")
    assert _run(plant, "systemctl", "status", "nvpmodel.service")[0] == 3, "a oneshot"
    _run(plant, "systemctl", "stop", "nvfancontrol.service")
    code, said = _run(plant, "systemctl", "status", "nvfancontrol.service")
    assert code == 3 and said.endswith("Active: inactive (dead)\n")
    assert _run(plant, "systemctl", "is-active", "nvfancontrol.service") == (3, "inactive\n")
    _run(plant, "systemctl", "restart", "nvfancontrol.service")
    assert _run(plant, "systemctl", "status", "nvfancontrol.service")[0] == 0
    assert _run(plant, "systemctl", "is-active", "nvfancontrol.service") == (0, "active\n")


def test_systemctl_refuses_a_sixth_start_within_10_seconds(plant: PlantBoard) -> None:
    codes = [_run(plant, "systemctl", "restart", "nvfancontrol.service")[0] for _ in range(6)]
    assert codes == [0, 0, 0, 0, 0, 1] and _run(plant, "systemctl", "is-active", "nvfancontrol.service")[0] == 3
    assert _run(plant, "systemctl", "start", "nvfancontrol.service")[0] == 1
    assert _run(plant, "systemctl", "reset-failed", "nvfancontrol.service") == (0, "")
    assert _run(plant, "systemctl", "start", "nvfancontrol.service")[0] == 0


def test_the_fan_profile_goes_the_way_of_the_guide(plant: PlantBoard) -> None:
    assert _run(plant, "nvfancontrol", "-q")[1].startswith("FAN1:FAN_PROFILE:cool\n")
    assert _run(plant, "systemctl", "stop", "nvfancontrol.service") == (0, "")
    conf = plant.root / "etc/nvfancontrol.conf"
    conf.write_text(conf.read_text().replace("FAN_DEFAULT_PROFILE cool", "FAN_DEFAULT_PROFILE quiet"))
    assert _run(plant, "systemctl", "start", "nvfancontrol.service") == (0, "")
    assert "FAN_PROFILE:cool" in _run(plant, "nvfancontrol", "-q")[1], "the status file keeps the old one"
    (plant.root / "var/lib/nvfancontrol/status").unlink()
    assert _run(plant, "nvfancontrol", "-q")[0] == 1
    assert _run(plant, "systemctl", "restart", "nvfancontrol.service") == (0, "")
    assert "FAN_PROFILE:quiet" in _run(plant, "nvfancontrol", "-q")[1]
    quiet, cool = (plant.model.constants.fan[name] for name in ("quiet", "cool"))
    assert quiet != cool and plant.model.fan._curve == cool
    plant.advance(0.1, 0.0)
    assert plant.model.fan._curve == quiet
    conf.write_text(conf.read_text().replace("FAN_DEFAULT_PROFILE quiet", "FAN_DEFAULT_PROFILE loud"))
    assert _run(plant, "systemctl", "restart", "nvfancontrol.service")[0] == 1
    assert _run(plant, "systemctl", "start", "sshd.service")[0] == 5
    assert _run(plant, "nvfancontrol", "-x")[0] == 2


def test_cores_and_memory_as_the_board_shows_them(plant: PlantBoard) -> None:
    (plant.root / "sys/devices/system/cpu/cpu5/online").write_text("0\n")
    (plant.root / "sys/devices/system/cpu/cpu0/online").write_text("0\n")
    (plant.root / "sys/devices/system/cpu/cpu7/online").unlink()
    plant.advance(0.1, 1.0)
    plant.advance(0.1, 1.0)
    assert _read(plant, "sys/devices/system/cpu/online") == "0-4,6-11", "cpu0 cannot go"
    rate = int(_read(plant, "sys/kernel/debug/bpmp/debug/clk/emc/rate"))
    assert rate == 3_199_000_000 and 0 < int(_read(plant, "sys/kernel/debug/cactmon/mc_all")) // (rate // 1000) <= 100
    assert as_ranges([]) == "" and as_ranges([3, 4, 7]) == "3-4,7"
