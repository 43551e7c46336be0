"""The hardware table: SMs, clocks and bandwidth of every shipped board and mode, and every mistake named at once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from orind.kernels.perf.device import Device, DeviceError, mode_names

FOLDER = Path(__file__).parents[2] / "configs" / "boards"
BOARDS: dict[str, dict[str, Any]] = {p.stem: yaml.safe_load(p.read_text()) for p in sorted(FOLDER.glob("*.yaml"))}


@pytest.mark.parametrize(("name", "mode", "sms", "gpu_mhz", "dram_gb_s"), [
    ("agx-orin", "MAXN", 16, 1300.5, 204.7), ("agx-orin", "MODE_50W", 16, 816, 204.7),
    ("agx-orin", "MODE_30W", 8, 612, 204.7), ("agx-orin", "MODE_15W", 6, 408, 136.5),
    ("orin-nx", "MAXN_SUPER", 8, 1173, 102.4), ("orin-nx", "10W", 4, 612, 68.3), ("orin-nx", "15W", 4, 612, 102.4),
    ("orin-nx", "25W", 8, 408, 102.4), ("orin-nx", "40W", 8, 1173, 102.4),
    ("orin-nano-super", "15W", 8, 612, 68.3), ("orin-nano-super", "25W", 8, 918, 102.4),
    ("orin-nano-super", "MAXN_SUPER", 8, 1020, 102.4), ("orin-nano-super", "7W", 4, 408, 102.4),
    ("orin-nano", "15W", 8, 624.75, 68.3), ("orin-nano", "7W", 4, 408, 68.3)])
def test_the_shipped_modes(name: str, mode: str, sms: int, gpu_mhz: float, dram_gb_s: float) -> None:
    device = Device.from_dict(BOARDS[name], mode)
    assert (device.board, device.mode, device.sms, device.gpu_hz) == (name, mode, sms, int(gpu_mhz * 1e6))
    assert device.dram_pin_bytes_per_s / 1e9 == pytest.approx(dram_gb_s, abs=0.06)
    assert device.l2_bytes == (4 << 20 if name == "agx-orin" else 2 << 20)


def test_every_mode_of_every_board_is_in_the_table() -> None:
    for board in BOARDS.values():
        for mode in mode_names(board):
            assert Device.from_dict(board, mode).sms > 0


@pytest.mark.parametrize(("name", "mode", "gpu_mhz", "tops"), [
    ("agx-orin", "MAXN", 1300.5, 85.2), ("agx-orin", "MODE_50W", 828.75, 54.3), ("agx-orin", "MODE_30W", 624.75, 20.5),
    ("orin-nx", "25W", 408, 13.4), ("orin-nx", "40W", 1173, 38.4), ("orin-nano-super", "MAXN_SUPER", 1020, 33.4),
    ("orin-nano", "15W", 624.75, 20.5)])
def test_sms_and_clocks_give_the_dense_tops_that_nvidia_advertises(name: str, mode: str, gpu_mhz: float,
                                                                   tops: float) -> None:
    device = Device.from_dict(BOARDS[name], mode).at(gpu_hz=int(gpu_mhz * 1e6))
    assert device.sms * device.gpu_hz * 4096 / 1e12 == pytest.approx(tops, abs=0.05)


def test_the_achievable_bandwidth_is_the_measured_one() -> None:
    agx = Device.from_dict(BOARDS["agx-orin"], "MAXN")
    assert agx.dram_bytes_per_ns == pytest.approx(152.8, rel=0.002)
    slow, fast = agx.band()
    assert (slow.l2_bytes_per_clock, slow.dram_share) == (20, 0.65)
    assert (fast.l2_bytes_per_clock, fast.dram_share) == (47, 0.80)
    assert agx.launch_ns == pytest.approx(3000 + 5000 / 1.3005)
    assert agx.at(emc_hz=2_133_000_000).dram_pin_bytes_per_s == pytest.approx(136.5e9, rel=1e-3)


@pytest.mark.parametrize(("path", "value", "text"), [
    (("compute",), None, "compute: a mapping of what the time model needs is required"),
    (("compute",), [1], "compute: a mapping of what the time model needs is required"),
    (("compute", "l2_bytes"), None, "compute.l2_bytes is required"),
    (("compute", "l2_bytes"), 4, "compute.l2_bytes must lie in 262144 to 268435456, not 4"),
    (("compute", "dram_bits"), "wide", "compute.dram_bits must be a whole number, not 'wide'"),
    (("compute", "tpc_mask"), True, "compute.tpc_mask must be a whole number, not True"),
    (("compute", "l2_byte"), 5, "compute.l2_byte: unknown key; did you mean 'l2_bytes'?"),
    (("compute", "zzz"), 5, "compute.zzz: unknown key; known keys: tpc_mask,"),
    (("modes",), [], "modes: a list of power modes with their names is required"),
    (("modes",), "MAXN", "modes: a list of power modes with their names is required"),
    (("modes", 2, "gpu_max_hz"), 612, "mode MODE_30W: gpu_max_hz must lie in 100000000 to 3000000000, not 612"),
    (("modes", 2, "tpc_pg_mask"), 255, "mode MODE_30W: tpc_pg_mask gates every TPC of compute.tpc_mask")])
def test_a_wrong_table_is_refused(path: tuple[Any, ...], value: Any, text: str) -> None:
    board = copy.deepcopy(BOARDS["agx-orin"])
    at: Any = board
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(DeviceError) as caught:
        Device.from_dict(board, "MODE_30W")
    assert text in str(caught.value)


def test_all_mistakes_come_at_once_and_modes_are_suggested() -> None:
    board = copy.deepcopy(BOARDS["agx-orin"])
    del board["compute"]["l2_bytes"]
    board["compute"]["dram_bits"] = 0
    with pytest.raises(DeviceError) as caught:
        Device.from_dict(board, "MODE30W")
    assert len(caught.value.problems) == 3
    assert "Jetson AGX Orin 64 GB has no mode 'MODE30W'; did you mean 'MODE_30W'?" in str(caught.value)
    with pytest.raises(DeviceError, match=r"no mode '' \(known: MAXN, MODE_15W, MODE_30W, MODE_50W\)"):
        Device.from_dict(BOARDS["agx-orin"], "")
    with pytest.raises(DeviceError, match="must be a mapping of keys, not list"):
        Device.from_dict([], "MAXN")
