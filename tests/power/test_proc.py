"""What a simulated board shows in /proc and besides, for programs that look there: CPUs, memory, times."""

from __future__ import annotations

from pathlib import Path

import pytest

from orind.power.plant.board import PlantBoard
from orind.power.plant.proc import CpuTimes
from orind.power.sysfs import Sysfs


def test_times_are_those_of_the_cpus_that_are_online() -> None:
    times = CpuTimes(4)
    times.add(2.0, 1.0, range(4))
    times.add(1.0, 8.0, [0, 1])
    lines = times.text([0, 1]).splitlines()
    assert lines[:3] == ["cpu  400 0 0 600 0 0 0 0 0 0", "cpu0 150 0 0 150 0 0 0 0 0 0", "cpu1 150 0 0 150 0 0 0 0 0 0"]
    assert len(lines) == 4, "the offline ones count in the sum alone, as in a kernel"


def test_the_boards_proc_follows_load_and_cores(plant: PlantBoard) -> None:
    def stat() -> list[list[str]]:
        return [line.split() for line in (plant.root / "proc/stat").read_text().splitlines()]

    assert [line[0] for line in stat()] == ["cpu", *(f"cpu{n}" for n in range(12)), "ctxt"]
    plant.advance(10, 1.0)
    share = plant.model.busy_cores(1.0) / 12
    assert int(stat()[1][1]) == pytest.approx(1000 * share, abs=1) and int(stat()[1][4]) + int(stat()[1][1]) >= 999
    (plant.root / "sys/devices/system/cpu/cpu3/online").write_text("0\n")
    plant.advance(1, 0.0)
    assert [line[0] for line in stat()][3:6] == ["cpu2", "cpu4", "cpu5"]
    assert (plant.root / "proc/cpuinfo").read_text().count("CPU part\t: 0xd42\n") == 12
    assert f"MemTotal:       {64 << 20} kB\n" in (plant.root / "proc/meminfo").read_text()
    assert (plant.root / "proc/device-tree/model").read_bytes().startswith(b"NVIDIA Jetson AGX Orin")


def test_channels_that_are_not_connected_are_no_rails(plant: PlantBoard) -> None:
    hwmon = plant.root / plant.layout.hwmon_folder("1-0041")
    assert [(hwmon / f"in{n}_label").read_text().strip() for n in (1, 2, 3)] == ["NC", "VDDQ_VDD2_1V8AO", "NC"]
    assert "NC" not in Sysfs(plant.root).find_rails()
    assert not list(Path(hwmon).glob("curr[13]_*"))
