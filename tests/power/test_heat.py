"""A clock that heat holds down: what its cap file shows is the kernel's, not what somebody had set, and is not put back
as that. The plant's files show it as the kernel's do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orind.power.actuators import Caps, restore_saved
from orind.power.board import BoardFacts
from orind.power.plant.board import PlantBoard
from orind.power.plant.kernel import PASSIVE_C
from orind.power.plant.model import PlantModel
from orind.power.plant.modules import AGX_ORIN

MHZ, TOP = 1_000_000, 1_300_500_000
CPU_TABLE, CPU_TOP = AGX_ORIN.cpu_table_khz, AGX_ORIN.cpu_table_khz[-1]
# five of the ten states of the GPU; fourteen of the CPUs' 28
HALF, CPU_HALF = 816 * MHZ, CPU_TABLE[14]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "power-state.json"


def gpu(plant: PlantBoard) -> int:
    return int((plant.root / plant.layout.max_freq).read_text())


def cpus(plant: PlantBoard) -> set[int]:
    return {int((plant.root / policy / "scaling_max_freq").read_text()) for policy in plant.layout.cpu_policies()}


def throttle(plant: PlantBoard, states: int = 5) -> None:
    plant.kernel.cooling_state = states
    plant.advance(0.05, 0.0)


def test_the_passive_trip_shows_in_the_caps_and_in_the_cooling_devices(tmp_path: Path) -> None:
    plant = PlantBoard(tmp_path / "board", PlantModel(ambient_c=65.0, fan_works=False, seed=1))
    table = AGX_ORIN.gpu_table_hz
    while plant.kernel.cooling_state < 2:
        assert gpu(plant) == table[-1 - plant.kernel.cooling_state]
        plant.advance(1.0, 1.0)
        assert plant.model.temperature_c("tj") < PASSIVE_C + 3
    cooling = (plant.root / "sys/class/thermal").glob("cooling_device*")
    states = {(at / "type").read_text().strip(): int((at / "cur_state").read_text()) for at in cooling}
    assert states["devfreq-17000000.gpu"] == 2 and states["cpufreq-cpu0"] == states["cpufreq-cpu8"] == 6
    assert states["pwm-fan"] == states["hot-surface-alert"] == 0
    assert gpu(plant) == table[-3] and cpus(plant) == {CPU_TABLE[-7]}
    (plant.root / plant.layout.max_freq).write_text(f"{table[-3]}\n")  # the very value that it shows
    throttle(plant, 0)
    assert gpu(plant) == table[-3] and cpus(plant) == {CPU_TOP}, "one was asked for, the others were not"


def test_a_cap_that_heat_hides_is_not_what_is_put_back(plant: PlantBoard, agx: BoardFacts, state: Path) -> None:
    throttle(plant)
    assert gpu(plant) == HALF and cpus(plant) == {CPU_HALF}
    caps = Caps(plant.root, agx, state)
    caps.set_gpu_max(408 * MHZ, "test")
    caps.set_cpu_max(729_600)
    notes = caps.notes()
    assert notes[0] == "heat holds the GPU's cap at 816 MHz, so what was set before cannot be seen; 1300.5 MHz will " \
                       "be put back"
    assert len(notes) == 4 and all("2201.6 MHz will be put back" in note for note in notes[1:])
    plant.advance(0.05, 0.0)
    assert gpu(plant) == 408 * MHZ and cpus(plant) == {729_600}
    caps.restore()
    plant.advance(0.05, 0.0)
    assert gpu(plant) == HALF, "heat still holds it"
    throttle(plant, 0)
    assert gpu(plant) == TOP and cpus(plant) == {CPU_TOP}


def test_what_a_crash_left_is_put_back_also_if_heat_hides_it_by_then(plant: PlantBoard, agx: BoardFacts,
                                                                     state: Path) -> None:
    (plant.root / plant.layout.max_freq).write_text(f"{HALF}\n")
    plant.advance(0.05, 0.0)
    Caps(plant.root, agx, state).set_gpu_max(612 * MHZ, "test")  # and dies
    throttle(plant, 9)
    caps = Caps(plant.root, agx, state)
    plant.advance(0.05, 0.0)
    caps.set_gpu_max(408 * MHZ, "test")
    throttle(plant, 0)
    caps.restore()
    plant.advance(0.05, 0.0)
    assert gpu(plant) == HALF


def test_a_board_without_a_list_of_cooling_devices_can_still_be_capped(plant: PlantBoard, agx: BoardFacts,
                                                                       state: Path) -> None:
    shutil.rmtree(plant.root / "sys/class/thermal")
    (plant.root / "sys/class/thermal").write_text("")
    caps = Caps(plant.root, agx, state)
    caps.set_gpu_max(408 * MHZ, "test")
    caps.set_cpu_max(729_600)
    assert gpu(plant) == 408 * MHZ and cpus(plant) == {729_600}
    caps.restore()
    assert gpu(plant) == TOP and cpus(plant) == {CPU_TOP}


@pytest.mark.parametrize(("mode", "found_mhz"), [(3, 816), (None, 510), (99, 510)])
def test_it_is_the_mode_s_and_of_one_that_is_not_known_what_can_be_seen(
    plant: PlantBoard, agx: BoardFacts, state: Path, mode: int | None, found_mhz: int
) -> None:
    status = plant.root / "var/lib/nvpmodel/status"
    if mode is None:
        status.unlink()
    else:
        status.write_text(f"pmode:{mode:04d}\n")
    throttle(plant, 8)
    caps = Caps(plant.root, agx, state)
    caps.gpu_clocks_hz()
    caps.set_gpu_max(306 * MHZ, "then it was killed")
    assert f"{found_mhz} MHz will be put back" in caps.notes()[-1]
    plant.advance(0.05, 0.0)
    restore_saved(state)
    throttle(plant, 0)
    assert gpu(plant) == found_mhz * MHZ


def test_a_cap_of_somebody_s_own_below_heat_is_seen_and_put_back(plant: PlantBoard, agx: BoardFacts,
                                                                 state: Path) -> None:
    (plant.root / plant.layout.max_freq).write_text(f"{510 * MHZ}\n")
    throttle(plant)
    caps = Caps(plant.root, agx, state)
    caps.set_gpu_max(306 * MHZ, "test")
    caps.restore()
    throttle(plant, 0)
    assert gpu(plant) == 510 * MHZ and caps.notes() == ()


def test_cooling_devices_that_are_numbered_or_cannot_be_read(plant: PlantBoard, agx: BoardFacts, state: Path) -> None:
    """Linux 5.10 of JetPack 5 names them thermal-devfreq-0; one without a state says nothing."""
    throttle(plant)
    for at in (plant.root / "sys/class/thermal").glob("cooling_device*"):
        kind = (at / "type").read_text()
        if kind.startswith(("devfreq", "cpufreq")):
            (at / "type").write_text(f"thermal-{kind[:7]}-{at.name[-1]}\n")
        if kind.startswith("cpufreq-cpu0"):
            (at / "cur_state").write_text("")
    caps = Caps(plant.root, agx, state)
    caps.set_gpu_max(306 * MHZ, "test")
    caps.set_cpu_max(729_600)
    caps.restore()
    throttle(plant, 0)
    assert gpu(plant) == TOP and cpus(plant) == {CPU_TOP}


def test_heat_that_ends_is_nobody_who_raised_the_cap(plant: PlantBoard, agx: BoardFacts, state: Path) -> None:
    caps = Caps(plant.root, agx, state)
    caps.set_gpu_max(1_020 * MHZ, "test")
    caps.set_cpu_max(CPU_TABLE[-2])
    throttle(plant)
    assert caps.gpu_cap_hz() == HALF
    caps.set_gpu_max(1_020 * MHZ, "the next tick")
    throttle(plant)
    assert caps.gpu_cap_hz() == HALF
    throttle(plant, 0)
    assert caps.set_gpu_max(1_020 * MHZ, "the next tick") == 1_020 * MHZ and caps.notes() == ()
    throttle(plant)
    caps.set_gpu_max(HALF, "heat shows this already")
    caps.set_cpu_max(CPU_HALF)
    throttle(plant, 0)
    assert gpu(plant) == HALF and cpus(plant) == {CPU_HALF}, "written all the same"
