"""The CPUs' cap and the GPU's lowest clock over a tree: touched only when asked for, put back also after a crash."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from orind.power.actuators import Caps, restore_saved
from orind.power.board import BoardFacts
from orind.power.cpu_clock import Permitted
from orind.power.errors import SysfsError
from orind.power.plant.board import PlantBoard

MHZ, TOP_KHZ = 1_000_000, 2_201_600


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "power-state.json"


def cpu_files(plant: PlantBoard) -> list[Path]:
    return [plant.root / policy / "scaling_max_freq" for policy in plant.layout.cpu_policies()]


def cpu_caps(plant: PlantBoard) -> set[int]:
    return {int(path.read_text()) for path in cpu_files(plant)}


def min_freq(plant: PlantBoard) -> int:
    return int((plant.root / plant.layout.devfreq / "min_freq").read_text())


def test_all_clusters_are_capped_and_put_back(plant: PlantBoard, agx: BoardFacts, state: Path) -> None:
    caps = Caps(plant.root, agx, state)
    caps.set_gpu_max(612 * MHZ, "test")
    permitted = caps.permitted()
    assert (len(permitted.cpu_clocks_khz), permitted.cpu_top_khz, permitted.cpu_cap_khz) == (29, TOP_KHZ, TOP_KHZ)
    caps.set_cpu_max(None)
    assert set(json.loads(state.read_text())["values"]) == {caps._max_path}, "nothing is touched before it is asked for"
    caps.set_cpu_max(1_113_600)
    assert cpu_caps(plant) == {1_113_600} and caps.permitted().cpu_cap_khz == 1_113_600
    caps.set_cpu_max(None)
    assert cpu_caps(plant) == {TOP_KHZ}
    caps.set_cpu_max(729_600)
    assert len(restore_saved(state)) == 4 and cpu_caps(plant) == {TOP_KHZ} and not state.exists()


def test_the_mode_bounds_the_cpus_and_its_caps_are_what_comes_back(plant: PlantBoard, agx: BoardFacts,
                                                                   state: Path) -> None:
    caps = Caps(plant.root, agx, state)
    caps.set_gpu_max(612 * MHZ, "test")
    caps.set_cpu_max(1_113_600)
    (plant.root / "var/lib/nvpmodel/status").write_text("pmode:0003 fmode:cool\n")
    caps.gpu_clocks_hz()
    assert caps.permitted().cpu_clocks_khz[-1] == 1_497_600
    caps.set_cpu_max(None)
    assert cpu_caps(plant) == {1_497_600}
    caps.set_cpu_max(729_600)
    caps.restore()
    assert cpu_caps(plant) == {1_497_600}


def test_a_cluster_that_went_offline_is_passed_over(plant: PlantBoard, agx: BoardFacts, state: Path) -> None:
    caps = Caps(plant.root, agx, state)
    caps.set_cpu_max(1_113_600)
    shutil.rmtree(cpu_files(plant)[-1].parent)
    caps.set_cpu_max(729_600)
    assert {int(path.read_text()) for path in cpu_files(plant)[:-1]} == {729_600}
    assert caps.restore()[-1].endswith("scaling_max_freq: not there, its cores are offline")


def test_cpus_that_cannot_be_read_are_left_alone(plant: PlantBoard, agx: BoardFacts, state: Path) -> None:
    caps = Caps(plant.root, agx, state)
    cpu_files(plant)[0].write_text("soon\n")
    assert dataclasses.replace(caps.permitted(), modes=()) == Permitted(mode_id=caps.envelope.mode_id)
    (cpu_files(plant)[0].parent / "scaling_available_frequencies").unlink()
    assert Caps(plant.root, agx, state).permitted().cpu_clocks_khz == ()


def test_a_refused_cpu_cap_is_told(plant: PlantBoard, agx: BoardFacts, state: Path,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    caps = Caps(plant.root, agx, state)

    def refuse(path: str, value: int) -> None:
        raise SysfsError(path, "cannot be written: EACCES")

    monkeypatch.setattr(caps._sysfs, "write_int", refuse)
    with pytest.raises(SysfsError, match="EACCES"):
        caps.set_cpu_max(1_113_600)


def test_a_pinned_clock_follows_the_cap_and_is_released(plant: PlantBoard, agx: BoardFacts, state: Path) -> None:
    caps, before = Caps(plant.root, agx, state), min_freq(plant)
    caps.set_gpu_min(None)
    assert min_freq(plant) == before
    for mhz in (918, 612):
        caps.set_gpu_max(mhz * MHZ, "test")
        assert min_freq(plant) <= mhz * MHZ, "never above the cap, not for a moment"
        caps.set_gpu_min(mhz * MHZ)
        assert min_freq(plant) == mhz * MHZ
    caps.set_gpu_min(None)
    assert min_freq(plant) == before
    caps.set_gpu_min(612 * MHZ)
    restore_saved(state)
    assert min_freq(plant) == before
