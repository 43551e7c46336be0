"""Reading a board by name, over a tree: totals, renumbering, sleeping zones, and everything that can be missing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import yaml

from orind.power.board import BoardFacts
from orind.power.errors import SysfsError
from orind.power.plant.board import PlantBoard
from orind.power.sensors import Sensors
from orind.power.sysfs import Sysfs

CONFIGS = Path(__file__).parents[2] / "configs"


def _unreadable(path: Path) -> None:
    """Make reads fail for root too: a directory where a file was."""
    path.unlink()
    path.mkdir()


def test_everything_is_read_by_name(plant: PlantBoard, agx: BoardFacts) -> None:
    readings = Sensors(plant.root, agx).read()
    assert readings.faults == ()
    assert set(readings.rails_mw) == {"VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0", "VDDQ_VDD2_1V8AO"}
    assert readings.board_mw == sum(v for k, v in readings.rails_mw.items() if k != "VDDQ_VDD2_1V8AO")
    assert readings.board_mw == pytest.approx(plant.model.board_w * 1000, abs=500), "quantisation: 190 mW a rail"
    assert set(readings.zones_mc) == {"tj", "gpu", "cpu", "soc0", "soc1", "soc2"}, "cv zones sleep, without a fault"
    assert readings.tj_mc == pytest.approx(plant.model.temperature_c("tj") * 1000, abs=500)
    assert (readings.gpu_hz, readings.gpu_busy_permille) == (306_000_000, 0)
    plant.advance(0.1, 0.37)
    readings = Sensors(plant.root, agx).read()
    assert (readings.gpu_hz, readings.gpu_busy_permille) == (714_000_000, 370), "the kernel aims at a load of 70 %"
    plant.advance(0.1, 1.0)
    readings = Sensors(plant.root, agx).read()
    assert (readings.gpu_hz, readings.cpu_khz) == (1_300_500_000, 2_201_600)
    assert readings.oc_count == 0 and 60 <= (readings.fan_pwm or 0) <= 255


def test_fan_and_counters_are_no_fault_when_they_are_missing(plant: PlantBoard, agx: BoardFacts) -> None:
    (plant.root / plant.layout.hwmon_folder("oc") / "oc2_event_cnt").write_text("many\n")
    shutil.rmtree(plant.root / plant.layout.hwmon_folder("fan"))
    readings = Sensors(plant.root, agx).read()
    assert (readings.oc_count, readings.fan_pwm, readings.faults) == (None, None, ())


def test_identity(plant: PlantBoard) -> None:
    sysfs = Sysfs(plant.root)
    assert sysfs.read_release() == "36.4.3"
    assert sysfs.read_compatible()[0] == "nvidia,p3737-0000+p3701-0005"
    (plant.root / "etc/nv_tegra_release").write_text("something else\n")
    assert sysfs.read_release() is None
    shutil.rmtree(plant.root / "etc")
    assert sysfs.read_release() is None and Sysfs(plant.root / "etc").read_compatible() == ()


def test_hwmon_renumbered_while_running(plant: PlantBoard, agx: BoardFacts) -> None:
    sensors = Sensors(plant.root, agx)
    before = sensors.read().rails_mw
    hwmon = plant.root / plant.layout.hwmons()["1-0040"][0] / "hwmon"
    (hwmon / "hwmon1").rename(hwmon / "hwmon7")
    link = plant.root / "sys/class/hwmon"
    (link / "hwmon1").unlink()
    (link / "hwmon7").symlink_to(hwmon / "hwmon7")
    readings = sensors.read()
    assert readings.faults == () and readings.rails_mw == before


def test_a_missing_rail_has_no_total(plant: PlantBoard, agx: BoardFacts) -> None:
    sensors = Sensors(plant.root, agx)
    (plant.root / plant.layout.hwmon_folder("1-0040") / "in2_label").unlink()
    assert sensors.read().faults == (), "labels are looked up once"
    sensors = Sensors(plant.root, agx)
    readings = sensors.read()
    assert readings.board_mw is None and "VDD_CPU_CV" not in readings.rails_mw
    assert readings.faults == ("rail VDD_CPU_CV: no ina3221 channel has this label",)
    (plant.root / plant.layout.hwmon_folder("1-0040") / "in2_label").write_text("VDD_CPU_CV\n")
    readings = [sensors.read() for _ in range(10)][-1]
    assert readings.board_mw is not None, "found again at the tenth failing read"


def test_an_optional_rail_does_not_take_the_total(plant: PlantBoard, agx: BoardFacts) -> None:
    _unreadable(plant.root / plant.layout.hwmon_folder("1-0041") / "curr2_input")
    readings = Sensors(plant.root, agx).read()
    assert readings.board_mw is not None and len(readings.faults) == 1 and "EISDIR" in readings.faults[0]


@pytest.mark.parametrize(("text", "fault"), [
    ("", "is empty"), ("abc", "holds 'abc', not a whole number"), ("-256000", "-256 C cannot be true"),
    ("200000", "200 C cannot be true"), ("47\xb0", "not ASCII"),
])
def test_tj_that_cannot_be_true_is_none(plant: PlantBoard, agx: BoardFacts, text: str, fault: str) -> None:
    (plant.root / plant.layout.zone_file("tj")).write_text(text, encoding="latin-1")
    readings = Sensors(plant.root, agx).read()
    assert readings.tj_mc is None and len(readings.faults) == 1 and fault in readings.faults[0]


def test_tj_unreadable_or_absent(plant: PlantBoard, agx: BoardFacts) -> None:
    _unreadable(plant.root / plant.layout.zone_file("tj"))
    assert "EISDIR" in Sensors(plant.root, agx).read().faults[0]
    (plant.root / plant.layout.zone_file("tj")).parent.joinpath("type").write_text("other\n")
    readings = Sensors(plant.root, agx).read()
    assert readings.tj_mc is None and readings.faults == ("zone tj: no thermal zone has type tj-thermal",)


@pytest.mark.parametrize("text", ["", "-256000"])
def test_a_gated_gpu_zone_is_absent_without_fault(plant: PlantBoard, agx: BoardFacts, text: str) -> None:
    (plant.root / plant.layout.zone_file("gpu")).write_text(text)
    readings = Sensors(plant.root, agx).read()
    assert "gpu" not in readings.zones_mc and readings.faults == ()


def test_an_absurd_rail_is_a_fault(plant: PlantBoard, agx: BoardFacts) -> None:
    (plant.root / plant.layout.hwmon_folder("1-0040") / "curr1_input").write_text("32767000\n")
    readings = Sensors(plant.root, agx).read()
    assert readings.board_mw is None and "cannot be true" in readings.faults[0]


@pytest.mark.parametrize("text", ["9" * 400, "9" * 20, "1_000", "nan", "1e5", "\u0663"])
def test_what_no_kernel_prints_is_no_number(plant: PlantBoard, agx: BoardFacts, text: str) -> None:
    voltage, _ = plant.layout.rail_files()["VDD_GPU_SOC"]
    for path in (voltage, plant.layout.zone_file("cpu"), f"{plant.layout.devfreq}/cur_freq"):
        (plant.root / path).write_text(f"{text}\n")
    readings = Sensors(plant.root, agx).read()
    assert readings.board_mw is None and "cpu" not in readings.zones_mc and readings.gpu_hz is None
    assert len(readings.faults) == 3 and all("not a whole number" in f or "not ASCII" in f for f in readings.faults)
    with pytest.raises(SysfsError, match=r"not whole numbers|not ASCII"):
        Sysfs(plant.root).read_ints(voltage)


@pytest.mark.parametrize("folder", ["thermal", "hwmon", "devfreq"])
def test_a_class_that_cannot_be_listed_is_a_fault_until_it_can(plant: PlantBoard, agx: BoardFacts, folder: str) -> None:
    sensors = Sensors(plant.root, agx)
    place, aside = plant.root / "sys/class" / folder, plant.root / "aside"
    place.rename(aside)
    place.write_text("")
    faults = sensors.read().faults
    assert faults and faults[-1] == f"/sys/class/{folder}: cannot be listed: ENOTDIR (Not a directory)"
    place.unlink()
    aside.rename(place)
    assert sensors.read().faults == ()


def test_a_negative_clock_or_load_is_not_known(plant: PlantBoard, agx: BoardFacts) -> None:
    for name in ("cur_freq", "device/load"):
        (plant.root / plant.layout.devfreq / name).write_text("-256000\n")
    readings = Sensors(plant.root, agx).read()
    assert readings.gpu_hz is None and readings.gpu_busy_permille is None
    assert readings.faults == ("GPU clock: /sys/class/devfreq/17000000.gpu/cur_freq: -256000 cannot be true",)


def test_no_gpu(plant: PlantBoard, agx: BoardFacts) -> None:
    (plant.root / "sys/class/devfreq/17000000.gpu").unlink()
    readings = Sensors(plant.root, agx).read()
    assert readings.gpu_hz is None and "has no GPU (gpu or ga10b)" in readings.faults[0]


def test_jetpack_5_names_and_a_module_with_one_total(tmp_path: Path) -> None:
    nx = BoardFacts.from_dict(yaml.safe_load((CONFIGS / "boards" / "orin-nx.yaml").read_text()))
    hwmon = tmp_path / "sys/class/hwmon/hwmon5"
    files = {hwmon / "name": "ina3221"}
    for channel, (label, milliamps) in {1: ("VDD_IN", 1504), 2: ("VDD_CPU_GPU_CV", 400), 3: ("VDD_SOC", 480)}.items():
        files |= {hwmon / f"in{channel}_label": label, hwmon / f"in{channel}_input": "5016",
                  hwmon / f"curr{channel}_input": str(milliamps)}
    files |= {hwmon / "in7_label": "sum of shunt voltages", hwmon / "in7_input": "0"}
    for number, kind in enumerate(("tj-thermal", "SOC0-therm", "GPU-therm", "CPU-therm", "SOC1-therm", "SOC2-therm")):
        zone = tmp_path / f"sys/class/thermal/thermal_zone{number}"
        files |= {zone / "type": kind, zone / "temp": str(50_000 + number * 1000)}
    gpu = tmp_path / "sys/class/devfreq/17000000.ga10b"
    files |= {gpu / "cur_freq": "408000000", gpu / "device/of_node/name": "ga10b\0"}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    readings = Sensors(tmp_path, nx).read()
    assert readings.faults == ()
    assert readings.board_mw == 5016 * 1504 // 1000 and len(readings.rails_mw) == 3
    assert (readings.tj_mc, readings.zones_mc["gpu"], readings.gpu_hz) == (50_000, 52_000, 408_000_000)
    assert readings.gpu_busy_permille is None, "no load file: not known, not zero"


def test_sysfs_refusals(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    with pytest.raises(SysfsError, match="/sys/nothing: cannot be read: ENOENT"):
        sysfs.read_int("sys/nothing")
    with pytest.raises(SysfsError, match="cannot be written: ENOENT"):
        sysfs.write_int("sys/nothing", 1)
    assert list(tmp_path.iterdir()) == [], "a write creates nothing"
    (tmp_path / "file").write_text("1 two 3\n")
    with pytest.raises(SysfsError, match="not whole numbers"):
        sysfs.read_ints("file")
    with pytest.raises(SysfsError, match="cannot be listed: ENOTDIR"):
        sysfs.names("file")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SysfsError, match="cannot be written: ENXIO"):
        sysfs.write_int("pipe", 1)
    assert sysfs.names("absent") == [] and sysfs.exists("file")
    # a node that vanished between listing and reading is skipped
    (tmp_path / "sys/class/hwmon/hwmon0").mkdir(parents=True)
    (tmp_path / "sys/class/thermal/thermal_zone0").mkdir(parents=True)
    assert sysfs.find_rails() == {} and sysfs.find_zones() == {} and sysfs.find_devfreq(["gpu"]) is None
